//! Of launches that the driver refuses.

use super::*;
use gpool_driver_abi::cuda::CUDA_ERROR_INVALID_VALUE;

/// As of a function whose configuration does not fit: its start and its end lie some microseconds apart.
#[test]
fn a_first_launch_that_the_driver_refuses_says_nothing_of_what_others_cost() {
    let _order = one_at_a_time();
    let (process, slot, _) = open_process();
    for _ in 0..2 {
        let Admission::PassAlone(burst) = process.admit(STREAM, KERNEL) else { panic!("it is not known yet") };
        process.launched_alone(burst, CUDA_ERROR_INVALID_VALUE);
        until_idle(slot);
        assert_eq!(process.estimates.cost_ns(KERNEL), u32::MAX);
    }
    assert_eq!(slot.launches.load(Ordering::Relaxed), 0);
    launch(process, KERNEL, 40 * US);
    until_idle(slot);
    let cost_ns = process.estimates.cost_ns(KERNEL);
    assert!((39_000..=41_000).contains(&cost_ns), "40 us, measured {cost_ns} ns");
}
