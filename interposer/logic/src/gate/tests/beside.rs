//! Of programs whose streams run beside each other, as collectives beside the kernels of a model do.

use super::*;
use std::collections::BTreeMap;

const SIDE: CUstream = 0x300 as CUstream;
const COLLECTIVE: Work = Work::numbered(2);

const INSTANCES: [CUstream; 4] = [STREAM, SIDE, 0x400 as CUstream, 0x500 as CUstream];

/// Has streams run beside each other, or not.
fn device(is_parallel: bool) {
    DEVICE.lock().beside_ns = is_parallel.then(BTreeMap::new);
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

/// Whether it is known that its streams run beside each other.
fn is_known(process: &Process) -> bool {
    process.bursts.take().unwrap().outlook(0, None, &|_| 0, clock::now_ns()).is_some()
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

/// As on a device, where events take their time, and however long the kernel is: what runs beside it ends before it does.
#[test]
fn that_they_run_beside_each_other_is_learnt_and_kept() {
    for (side_ns, short_ns) in [(20 * MS, MS), (20 * MS, 100 * US), (80 * MS, MS), (500 * MS, MS)] {
        let _order = one_at_a_time();
        device(true);
        DEVICE.lock().gap_ns = 5 * US;
        let (process, slot, _) = open_process();
        process.estimates.put(KERNEL, short_ns);
        let step = |side: Work, side_ns: u64| {
            launch_on(process, SIDE, side, side_ns);
            let mut known = 0;
            for _ in 0..side_ns / short_ns {
                launch_on(process, STREAM, KERNEL, short_ns);
                known += u64::from(is_known(process));
            }
            known
        };
        // Where one is so long that little of the depth is beside it, only shorter ones show it.
        let (first, first_ns) = (Work::numbered(4), side_ns.min(80 * MS));
        process.estimates.put(first, first_ns);
        process.estimates.put(COLLECTIVE, side_ns);
        (0..5).for_each(|_| _ = step(first, first_ns));
        for _ in 0..5 {
            let begun_ns = clock::now_ns();
            let known = step(COLLECTIVE, side_ns);
            let took_ns = clock::now_ns() - begun_ns;
            assert_eq!(known, side_ns / short_ns, "of {side_ns} ns beside {short_ns} ns");
            assert!(took_ns < side_ns / 20 * 21 + 2 * MS, "{took_ns} ns for {side_ns} ns beside {short_ns} ns");
        }
        until_idle(slot);
    }
}

/// While a kernel holds the device beyond its slice, others beside it hold up nobody, and what would end after it waits.
#[test]
fn at_the_end_of_a_slice_work_goes_on_beside_a_kernel_that_ends_after_it() {
    let _order = one_at_a_time();
    device(true);
    let (process, slot) = learnt(20 * MS);
    until_idle(slot);
    let control = process.place().unwrap().region.control();
    let begun_ns = clock::now_ns();
    open(control, begun_ns + 12 * MS);
    launch_on(process, SIDE, COLLECTIVE, 20 * MS);
    let launched = AtomicU32::new(0);
    std::thread::scope(|scope| {
        let launcher = scope.spawn(|| {
            clock::turn_ns(0);
            while launched.fetch_add(1, Ordering::Relaxed) < 200 {
                launch_on(process, STREAM, KERNEL, MS);
            }
        });
        turning(0, || slot.waiters.load(Ordering::Relaxed) > 0);
        let (count, end_ns) = (launched.load(Ordering::Relaxed), slot.estimated_end_ns.load(Ordering::Relaxed));
        assert!((18..=21).contains(&count), "{count} of 20 launches of 1 ms beside one of 20 ms in a slice of 12 ms");
        let stood_ns = clock::now_ns() - begun_ns;
        assert!(stood_ns < 20 * MS, "it says so before the device has nothing: {stood_ns}");
        assert!((end_ns - begun_ns).abs_diff(20 * MS) < MS, "{}", end_ns - begun_ns);
        launched.store(1000, Ordering::Relaxed);
        open(control, clock::now_ns() + 10_000 * MS);
        turning(0, || launcher.is_finished());
        launcher.join().unwrap();
    });
    until_idle(slot);
}

/// What a kernel is expected to take may be much more than it takes; what has been let go beside it stands before others then.
#[test]
fn no_stream_has_more_outstanding_than_the_depth_beside_whatever_runs() {
    let _order = one_at_a_time();
    device(true);
    let (process, slot) = learnt(20 * MS);
    launch_on(process, SIDE, COLLECTIVE, 20 * MS);
    let most_ns = (0..15).map(|_| launch_on(process, STREAM, KERNEL, MS)).max().unwrap_or(0);
    assert!(most_ns <= DEPTH_NS + MS + US, "{most_ns} ns were outstanding");
    until_idle(slot);
}

#[test]
fn more_streams_than_are_remembered_run_beside_each_other_as_well() {
    let _order = one_at_a_time();
    device(true);
    let (process, slot, _) = open_process();
    process.estimates.put(COLLECTIVE, 10 * MS);
    for streams in [8, 9, 12] {
        let rounds = |rounds: usize| {
            let begun_ns = clock::now_ns();
            for stream in (0..rounds * streams).map(|number| (0x1000 + number % streams * 16) as CUstream) {
                launch_on(process, stream, COLLECTIVE, 10 * MS);
            }
            (clock::now_ns() - begun_ns) / rounds as u64
        };
        rounds(20);
        let took_ns = rounds(50);
        assert!(took_ns < 15 * MS, "{took_ns} ns for a round of {streams} streams of 10 ms");
    }
    until_idle(slot);
}

/// Each thread has a default stream of its own, by the same handle.
#[test]
fn streams_of_threads_run_beside_each_other() {
    const THREADS: usize = 4;
    const PER_THREAD: CUstream = 2 as CUstream;
    let _order = one_at_a_time();
    device(true);
    let (process, slot, _) = open_process();
    process.estimates.put(COLLECTIVE, 10 * MS);
    let (begun_ns, done) = (clock::now_ns(), AtomicU32::new(0));
    std::thread::scope(|scope| {
        for _ in 0..THREADS {
            scope.spawn(|| {
                (0..60).for_each(|_| _ = launch_on(process, PER_THREAD, COLLECTIVE, 10 * MS));
                done.fetch_add(1, Ordering::Relaxed);
            });
        }
        turning(50 * US, || done.load(Ordering::Relaxed) as usize == THREADS);
    });
    until_idle(slot);
    let took_ns = clock::now_ns() - begun_ns;
    println!("{took_ns} ns");
    assert!(took_ns < 60 * 10 * MS * 2, "{took_ns} ns for 60 rounds of 10 ms in each thread");
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
    assert!(is_known(process));
    (0..3000).for_each(|_| _ = launch_on(process, STREAM, KERNEL, MS));
    assert!(!is_known(process));
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
