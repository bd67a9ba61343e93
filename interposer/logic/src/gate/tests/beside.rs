//! Of programs whose streams run beside each other, as collectives beside the kernels of a model do.

use super::*;

const SIDE: CUstream = 0x300 as CUstream;
const COLLECTIVE: Work = Work::numbered(2);

const INSTANCES: [CUstream; 4] = [STREAM, SIDE, 0x400 as CUstream, 0x500 as CUstream];

/// Has these streams run beside each other, or not.
fn device(is_parallel: bool) {
    let now_ns = clock::now_ns();
    DEVICE.lock().beside_ns = is_parallel.then(|| INSTANCES.map(|stream| (stream as usize, now_ns)));
}

/// So many steps of a program of one thread: a collective of `side_ns` on one stream, and as many kernels of 1 ms on the other. How long
/// they take, and how much was outstanding on a stream at most.
fn steps(process: &Process, steps: u64, side_ns: u64) -> (u64, u64) {
    let (begun_ns, mut most_ns) = (clock::now_ns(), 0);
    for _ in 0..steps {
        most_ns = most_ns.max(launch_on(process, SIDE, COLLECTIVE, side_ns));
        for _ in 0..side_ns / MS {
            most_ns = most_ns.max(launch_on(process, STREAM, KERNEL, MS));
        }
    }
    (clock::now_ns() - begun_ns, most_ns)
}

/// A process whose costs are known, after so many steps of learning how its streams run.
fn learnt(side_ns: u64) -> (&'static Process, &'static Slot) {
    let (process, slot, _) = open_process();
    process.estimates.put(KERNEL, MS);
    process.estimates.put(COLLECTIVE, side_ns);
    steps(process, 20, side_ns);
    (process, slot)
}

#[test]
fn work_that_runs_beside_a_long_kernel_is_launched_while_that_runs() {
    for side_ns in [10 * MS, 20 * MS] {
        let _order = one_at_a_time();
        device(true);
        let (process, slot) = learnt(side_ns);
        let (took_ns, most_ns) = steps(process, 50, side_ns);
        assert!(took_ns < 51 * side_ns, "{took_ns} ns for 50 steps in which {side_ns} ns run beside as many");
        // Neither stream goes ahead further than by the kernel that runs.
        assert!(most_ns <= side_ns + DEPTH_NS, "{most_ns} ns were outstanding on one stream");
        until_idle(slot);
    }
}

#[test]
fn instances_of_a_model_run_beside_each_other() {
    let _order = one_at_a_time();
    device(true);
    let (process, slot, _) = open_process();
    process.estimates.put(COLLECTIVE, 10 * MS);
    let rounds = |rounds: u64| {
        let begun_ns = clock::now_ns();
        (0..rounds)
            .for_each(|_| INSTANCES.iter().for_each(|stream| _ = launch_on(process, *stream, COLLECTIVE, 10 * MS)));
        clock::now_ns() - begun_ns
    };
    rounds(20);
    let took_ns = rounds(50);
    assert!(took_ns < 51 * 10 * MS, "{took_ns} ns for 50 rounds of 10 ms");
    until_idle(slot);
}

/// What stands behind a kernel that takes longer than any before has yet to run.
#[test]
fn a_kernel_that_is_late_lets_nobody_go_ahead_further() {
    const LATE: Work = Work::numbered(3);
    let _order = one_at_a_time();
    device(true);
    let (process, slot) = learnt(10 * MS);
    process.estimates.put(LATE, MS);
    clock::turn_ns(30 * MS);
    let late_ns = 15 * MS;
    launch_on(process, STREAM, LATE, late_ns);
    let most_ns = (0..40).map(|_| launch_on(process, STREAM, KERNEL, MS)).max().unwrap_or(0);
    assert!(most_ns <= late_ns + DEPTH_NS + MS, "{most_ns} ns were outstanding");
    until_idle(slot);
}

/// What it said of itself is when its streams have ended, and not when they would have one after the other.
#[test]
fn what_is_told_ends_with_the_streams() {
    let _order = one_at_a_time();
    device(true);
    let (process, slot) = learnt(20 * MS);
    until_idle(slot);
    launch_on(process, SIDE, COLLECTIVE, 20 * MS);
    let begun_ns = clock::now_ns();
    (0..4).for_each(|_| _ = launch_on(process, STREAM, KERNEL, MS));
    let told_ns = slot.estimated_end_ns.load(Ordering::Relaxed) - begun_ns;
    assert!(told_ns.abs_diff(20 * MS) < 2 * MS, "{told_ns}");
    until_idle(slot);
}

/// Who has nothing beside anything any more is reckoned as before.
#[test]
fn an_overlap_of_once_is_forgotten() {
    let _order = one_at_a_time();
    device(true);
    let (process, slot) = learnt(10 * MS);
    assert!(
        process.bursts.take().unwrap().outlook(0, (core::ptr::null_mut(), STREAM), &|_| 0, clock::now_ns()).is_some()
    );
    (0..3000).for_each(|_| _ = launch_on(process, STREAM, KERNEL, MS));
    assert!(
        process.bursts.take().unwrap().outlook(0, (core::ptr::null_mut(), STREAM), &|_| 0, clock::now_ns()).is_none()
    );
    until_idle(slot);
}

#[test]
fn streams_that_take_turns_on_the_device_are_one_after_the_other() {
    let _order = one_at_a_time();
    device(false);
    let (process, slot) = learnt(10 * MS);
    let (took_ns, most_ns) = steps(process, 50, 10 * MS);
    assert!(took_ns.abs_diff(50 * 20 * MS) < 20 * MS, "{took_ns}");
    assert!(most_ns <= 10 * MS + DEPTH_NS + MS, "{most_ns} ns were outstanding");
    until_idle(slot);
    // As they do again when the device has no room for both.
    device(true);
    steps(process, 50, 10 * MS);
    device(false);
    steps(process, 20, 10 * MS);
    let (took_ns, most_ns) = steps(process, 50, 10 * MS);
    assert!(took_ns.abs_diff(50 * 20 * MS) < 20 * MS, "{took_ns}");
    assert!(most_ns <= 10 * MS + DEPTH_NS + MS, "{most_ns} ns were outstanding");
    until_idle(slot);
}
