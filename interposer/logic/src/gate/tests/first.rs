//! Of what is launched first behind a gate.

use super::waits::{rounds, wait_for_all};
use super::*;
use crate::waits::WaitFor;

/// Behind an open gate the device is its own, and waits show how long its work takes; when the gate opens others may be there still.
#[test]
fn the_first_burst_behind_a_gate_says_how_long_it_stood_before_the_device() {
    let _order = one_at_a_time();
    let (process, slot, control) = open_process();
    rounds(process, slot, WaitFor::Stream(STREAM), 20);
    let behind_another = || {
        let count = || slot.burst_count.load(Ordering::Acquire) as usize;
        let known = count();
        DEVICE.lock().launch(300 * US);
        (0..4).for_each(|_| {
            launch(process, KERNEL, 5 * US);
        });
        wait_for_all(process, WaitFor::Stream(STREAM), 10 * US);
        until(|| count() > known);
        let place = known % gpool_shared_region::BURST_RING;
        let record = &slot.bursts[place];
        let length_ns = record.end_ns.load(Ordering::Relaxed) - record.start_ns.load(Ordering::Relaxed);
        (BurstTag(slot.burst_tags[place].load(Ordering::Relaxed)).queued_ns() / US, length_ns / US)
    };
    assert_eq!(behind_another().0, 0, "it has rested, and the host's clock does not know");
    open(control, clock::now_ns() + 60_000 * MS);
    let (queued_us, length_us) = behind_another();
    assert!((297..=300).contains(&queued_us) && (319..=321).contains(&length_us), "{queued_us} of {length_us} us");
    // A gate that has been opened for months counts round.
    for word in [0x7fff_fffe, 0x8000_0002, 0xffff_fffe_u32] {
        control.gate.store(word, Ordering::Release);
        open(control, clock::now_ns() + 60_000 * MS);
        assert!(behind_another().0 >= 297, "{word:#x}");
        assert_eq!(behind_another().0, 0, "{word:#x}: the second one behind it");
    }
    control.stands_alone.store(1, Ordering::Relaxed);
    open(control, clock::now_ns() + 60_000 * MS);
    assert_eq!(behind_another().0, 0, "where nobody else is at work nobody is before him");
    let records = DEVICE.lock().records;
    assert_eq!(behind_another().0, 0, "and goes on without events");
    assert!(DEVICE.lock().records <= records + 2);
    control.stands_alone.store(0, Ordering::Relaxed);
    open(control, clock::now_ns() + 60_000 * MS);
    assert!(behind_another().0 >= 297, "others are back");
    assert_eq!(behind_another().0, 0);
}
