//! Of work on several GPUs and in several contexts, of contexts that go, and of streams that join a capture.

use super::*;
use crate::credit::STREAM_PER_THREAD;
use crate::fake_driver::{ELSEWHERE, IS_BROKEN, PART};
use crate::waits::WaitFor;
use gpool_driver_abi::cuda::CUcontext;

const OTHER: CUstream = 0x200 as CUstream;
const UNKNOWN: Work = Work::numbered(11);

/// A process with a context on each of two GPUs, behind an open gate.
pub(super) fn two_gpus() -> (&'static Process, &'static Slot) {
    let (process, slot, _) = open_process();
    (0..2).for_each(|gpu| {
        process.enter_context(CONTEXTS[gpu], gpu);
    });
    (process, slot)
}

/// What has been told of the process's work.
fn charged_ns(slot: &Slot) -> u64 {
    slot.burst_total_ns.load(Ordering::Relaxed)
}

#[track_caller]
fn assert_charged(slot: &Slot, expected_ns: std::ops::RangeInclusive<u64>) {
    let charged_ns = charged_ns(slot);
    assert!(expected_ns.contains(&charged_ns), "{charged_ns} ns are charged, not {expected_ns:?}");
}

/// As [`until_idle`], after work of seconds.
fn until_idle_long(slot: &Slot) {
    turning(10 * MS, || slot.demand.load(Ordering::Acquire) == Demand::Idle as u32);
}

/// How long the launch of something unknown on `stream` of context `context` is held.
fn held_ns(process: &Process, context: usize, stream: CUstream) -> u64 {
    let from_ns = clock::now_ns();
    set_current(CONTEXTS[context]);
    launch_on(process, stream, UNKNOWN, 5 * US);
    clock::now_ns() - from_ns
}

/// A collective on one GPU ends when its peer on another one runs, which this thread has yet to launch. So may a kernel on
/// the same GPU that waits for what the program launches, or does, next.
#[test]
fn what_is_not_known_waits_for_nothing_on_another_gpu_and_nowhere_for_ever() {
    let _order = one_at_a_time();
    for (gpu, expected_ns) in [(1, 0..MS), (0, 100 * MS..110 * MS)] {
        let (process, slot) = two_gpus();
        set_current(CONTEXTS[0]);
        launch(process, KERNEL, 2000 * MS);
        let held = held_ns(process, gpu, OTHER);
        assert!(expected_ns.contains(&held), "behind work on GPU 0, on GPU {gpu}: held for {held} ns");
        until_idle_long(slot);
    }
}

/// One thread has issued on its GPU what the slice allows, another one goes on with another GPU. What the first one wants must
/// not be hidden from a supervisor that has not read it yet.
#[test]
fn who_waits_for_one_gpu_is_not_hidden_by_what_is_issued_to_another() {
    let _order = one_at_a_time();
    let (process, slot) = two_gpus();
    let control = process.place().unwrap().region.control();
    process.estimates.put(KERNEL, MS);
    process.estimates.put(UNKNOWN, 5 * US);
    let until_ns = clock::now_ns() + 3 * MS;
    open(control, until_ns);
    let said = || Demand::from_word(slot.demand.load(Ordering::Acquire));
    let (mut held, mut said_then, mut end_ns) = (0, Demand::Idle, 0);
    std::thread::scope(|scope| {
        let waiting = scope.spawn(|| (0..4).map(|_| launch(process, KERNEL, MS)).max());
        turning(0, || slot.waiters.load(Ordering::Relaxed) > 0);
        turning(0, || said() == Demand::Waiting);
        held = held_ns(process, 1, OTHER);
        (said_then, end_ns) = (said(), slot.estimated_end_ns.load(Ordering::Relaxed));
        open(control, clock::now_ns() + 60_000 * MS);
        turning(0, || waiting.is_finished());
        waiting.join().unwrap();
    });
    assert_eq!((held, said_then), (0, Demand::Waiting));
    assert!(end_ns >= until_ns, "an earlier end is of the slice before");
    until_idle(slot);
}

/// Nor does what is known: what should have ended long ago may wait for it. Each one that goes all the same makes the next one
/// wait longer, because it may also be that all of it takes its time.
#[test]
fn what_is_late_holds_up_nothing_for_ever() {
    let _order = one_at_a_time();
    let (process, slot) = two_gpus();
    let control = process.place().unwrap().region.control();
    process.estimates.put(KERNEL, 2 * MS);
    process.estimates.put(UNKNOWN, 5 * US);
    // Of which so many are allowed at once.
    (0..3).for_each(|_| {
        launch(process, KERNEL, 10_000 * MS);
    });
    let held = held_ns(process, 0, OTHER);
    assert!((100 * MS..115 * MS).contains(&held), "held for {held} ns");
    let from_ns = clock::now_ns();
    let count =
        std::iter::from_fn(|| (clock::now_ns() < from_ns + 9000 * MS).then(|| launch(process, KERNEL, MS))).count();
    assert!((5..=16).contains(&count), "{count} in 9 s");
    // Nor for the end of a slice that is shorter than what is expected of them.
    clock::turn_ns(8000 * MS);
    open(control, clock::now_ns() + 3 * MS);
    assert_eq!(held_ns(process, 0, OTHER), 0);
    open(control, clock::now_ns() + 60_000 * MS);
    until_idle_long(slot);
}

#[test]
fn a_full_table_is_not_waited_for_for_ever() {
    let _order = one_at_a_time();
    let (process, slot) = two_gpus();
    process.estimates.put(KERNEL, 5 * US);
    let per_thread = STREAM_PER_THREAD as CUstream;
    launch_on(process, per_thread, KERNEL, 2000 * MS);
    // Each is a burst of its own there.
    (0..63).for_each(|_| {
        launch_on(process, per_thread, KERNEL, 5 * US);
    });
    let before_ns = charged_ns(slot);
    let held = held_ns(process, 1, OTHER);
    assert!((100 * MS..110 * MS).contains(&held), "held for {held} ns");
    assert!(charged_ns(slot) > before_ns, "it is not free");
    until_idle_long(slot);
}

/// As is one in which no place is left because uses of a context are given back.
#[test]
fn places_of_a_context_that_goes_are_waited_for() {
    let _order = one_at_a_time();
    let (process, slot) = two_gpus();
    process.estimates.put(KERNEL, 5 * US);
    (0..64).for_each(|_| {
        launch_on(process, STREAM_PER_THREAD as CUstream, KERNEL, 5 * US);
    });
    until_idle(slot);
    process.leave_context(CONTEXTS[0]);
    let held = held_ns(process, 1, OTHER);
    assert!((100 * MS..110 * MS).contains(&held), "held for {held} ns");
    process.context_stays(CONTEXTS[0]);
    assert!(held_ns(process, 1, OTHER) < MS);
    until_idle(slot);
}

/// A kernel of a library runs where its stream is, whichever context is current.
#[test]
fn work_is_measured_in_the_context_of_its_stream() {
    let _order = one_at_a_time();
    let (process, slot) = two_gpus();
    process.estimates.put(KERNEL, MS);
    launch_on(process, ELSEWHERE, KERNEL, 2 * MS);
    until_idle(slot);
    assert_eq!(tags(slot).iter().map(|tag| tag.gpu()).collect::<Vec<_>>(), [1]);
    assert_charged(slot, 2 * MS - US..=2 * MS + US);
}

/// Nobody would say when that context ends.
#[test]
fn work_in_an_unknown_context_is_measured_in_the_current_one() {
    let _order = one_at_a_time();
    let (process, slot, _) = open_process();
    process.enter_context(CONTEXTS[0], 0);
    process.enter_context(0x70 as CUcontext, 0);
    set_current(CONTEXTS[0]);
    launch_on(process, ELSEWHERE, KERNEL, 2 * MS);
    until_idle(slot);
    assert_eq!(tags(slot), [process.enter_context(CONTEXTS[0], 0)]);
}

/// A green context can be current to one thread only, which is the program's.
#[test]
fn work_in_a_part_of_a_context_is_measured_in_the_whole() {
    let _order = one_at_a_time();
    let (process, slot, _) = open_process();
    let tag = process.enter_context(CONTEXTS[0], 0);
    process.enter_part(CONTEXTS[1], CONTEXTS[0]);
    set_current(CONTEXTS[1]);
    launch_on(process, ELSEWHERE, KERNEL, 2 * MS);
    process.leave_context(CONTEXTS[1]);
    process.part_gone(CONTEXTS[1]);
    set_current(CONTEXTS[0]);
    until_idle(slot);
    assert_eq!((tags(slot), process.whole_of(CONTEXTS[1])), (vec![tag], None));
    assert_charged(slot, 2 * MS - US..=2 * MS + US);
}

/// So is work on its default streams, which have no name but in the thread to which it is current; each launch by itself.
#[test]
fn work_on_the_default_stream_of_a_part_is_measured_in_the_whole() {
    let _order = one_at_a_time();
    for stream in [core::ptr::null_mut(), 1 as CUstream, STREAM_PER_THREAD as CUstream] {
        let (process, slot, _) = open_process();
        let tag = process.enter_context(CONTEXTS[0], 0);
        process.enter_part(PART, CONTEXTS[0]);
        process.estimates.put(KERNEL, 20 * US);
        // Work of the whole one's stream of the same handle is not the part's.
        launch_on(process, stream, KERNEL, 20 * US);
        set_current(PART);
        for _ in 0..2 {
            launch_on(process, stream, KERNEL, 20 * US);
        }
        assert_eq!(process.wait(WaitFor::Context(core::ptr::null_mut()), || 0), 0);
        launch_on(process, stream, KERNEL, 2 * MS);
        // The watcher, to which the part cannot be current, settles what this thread has ended.
        until_idle(slot);
        set_current(CONTEXTS[0]);
        let charged_in = tags(slot);
        assert!(charged_in.len() >= 3 && charged_in.iter().all(|its| *its == tag), "{charged_in:?}");
        assert_charged(slot, 2 * MS + 60 * US - US..=2 * MS + 60 * US + 4 * US);
    }
}

#[test]
fn leaving_no_context_costs_nobody_a_place() {
    let _order = one_at_a_time();
    let (process, slot, _) = open_process();
    process.leave_context(core::ptr::null_mut());
    launch(process, KERNEL, 50 * MS);
    until_idle(slot);
    assert_charged(slot, 50 * MS - US..=50 * MS + US);
}

/// Uses of a context come and go while its work runs, which is expected to be short.
#[test]
fn work_in_a_context_that_stays_is_measured_to_its_end() {
    let _order = one_at_a_time();
    let (process, slot) = two_gpus();
    process.estimates.put(KERNEL, 5 * US);
    for _ in 0..3 {
        launch(process, KERNEL, 50 * MS);
        process.leave_context(CONTEXTS[0]);
        process.context_stays(CONTEXTS[0]);
        until_idle(slot);
    }
    assert_charged(slot, 150 * MS - US..=151 * MS);
}

/// The anchor takes three, and the burst's second event is refused.
#[test]
fn what_can_only_be_measured_in_half_leaves_nothing_behind() {
    let _order = one_at_a_time();
    let (process, slot) = two_gpus();
    process.estimates.put(KERNEL, 5 * US);
    let handles = || DEVICE.lock().handles;
    let before = handles();
    DEVICE.lock().creations_left = 4;
    launch(process, KERNEL, 5 * US);
    assert_eq!(handles(), before + 3);
    assert_charged(slot, 5 * US..=5 * US);
}

/// The device's clock cannot be compared with the host's: it is taken to have begun at once.
#[test]
fn work_whose_place_in_time_is_not_known_is_measured_all_the_same() {
    let _order = one_at_a_time();
    let (process, slot) = two_gpus();
    DEVICE.lock().neighbour_until_ns = u64::MAX;
    process.estimates.put(KERNEL, 2 * MS);
    clock::turn_ns(0);
    assert!(held_ns(process, 0, STREAM) <= 11 * MS);
    until_idle(slot);
    assert_charged(slot, 5 * US - US..=6 * US);
    for _ in 0..5 {
        launch(process, KERNEL, 2 * MS);
        until_idle(slot);
    }
    // Two that stand behind one another.
    launch(process, KERNEL, 2 * MS);
    launch_on(process, OTHER, KERNEL, 2 * MS);
    until_idle(slot);
    assert_charged(slot, 14 * MS..=14 * MS + 100 * US);
}

#[test]
fn work_in_a_context_that_goes_is_charged_until_it_has_gone() {
    let _order = one_at_a_time();
    let (process, slot) = two_gpus();
    process.estimates.put(KERNEL, 5 * US);
    // Its place is the next but one's: neither the first nor the last is the oldest.
    launch_on(process, OTHER, KERNEL, 5 * US);
    launch(process, KERNEL, 50 * MS);
    clock::turn_ns(20 * MS);
    launch_on(process, OTHER, KERNEL, 5 * US);
    launch_on(process, 0x300 as CUstream, KERNEL, 5 * US);
    process.leave_context(CONTEXTS[0]);
    clock::turn_ns(4 * MS);
    process.context_gone(CONTEXTS[0]);
    let charged_ns = charged_ns(slot);
    assert_charged(slot, 24 * MS..=25 * MS);
    until_idle(slot);
    assert_charged(slot, charged_ns..=charged_ns);
}

/// A kernel that ends in a fault takes its context with it, and every answer about what it did.
#[test]
fn work_that_breaks_its_context_is_charged_until_that_is_seen() {
    let _order = one_at_a_time();
    let (process, slot) = two_gpus();
    launch(process, KERNEL, 500 * MS);
    clock::turn_ns(20 * MS);
    IS_BROKEN.store(true, Ordering::Relaxed);
    let before_ns = clock::now_ns();
    until_idle(slot);
    IS_BROKEN.store(false, Ordering::Relaxed);
    assert_charged(slot, 20 * MS..=26 * MS);
    assert_eq!(slot.fault.load(Ordering::Acquire), 719, "the supervisor hears of it");
    assert_eq!(slot.fault_gpu.load(Ordering::Relaxed), 0);
    assert!((before_ns..=clock::now_ns()).contains(&slot.fault_ns.load(Ordering::Relaxed)));
}

/// A program whose launch is answered so may end at once, before anybody has looked.
#[test]
fn who_ends_with_a_broken_context_says_so_at_the_end() {
    let _order = one_at_a_time();
    let (process, slot) = two_gpus();
    let fault_at_end = || {
        process.bursts.take().unwrap().ask_at_end(process.place().unwrap());
        slot.fault.load(Ordering::Acquire)
    };
    launch(process, KERNEL, 500 * MS);
    assert_eq!(fault_at_end(), 0, "its context is in order");
    IS_BROKEN.store(true, Ordering::Relaxed);
    let fault = fault_at_end();
    IS_BROKEN.store(false, Ordering::Relaxed);
    assert_eq!(fault, 719);
    until_idle(slot);
}

/// A program that waits has the answer first, and may end before anybody else asks. Most errors end no context. With several GPUs
/// the answer to a wait says nothing of which.
#[test]
fn the_first_answer_that_ends_a_context_is_told() {
    let _order = one_at_a_time();
    let (process, slot) = two_gpus();
    let fault = || (slot.fault.load(Ordering::Acquire), slot.fault_gpu.load(Ordering::Relaxed));
    for harmless in [0, 1, 2, 201, 400, 600, 701, 999] {
        process.wait(WaitFor::Stream(STREAM), || harmless);
        assert_eq!(fault(), (0, 0), "{harmless}");
    }
    let gpus = &process.control().unwrap().gpus;
    gpus.store(2, Ordering::Relaxed);
    process.wait(WaitFor::Context(std::ptr::null_mut()), || 700);
    assert_eq!(fault(), (0, 0));
    set_current(CONTEXTS[1]);
    launch(process, KERNEL, 500 * MS);
    IS_BROKEN.store(true, Ordering::Relaxed);
    until_idle(slot);
    IS_BROKEN.store(false, Ordering::Relaxed);
    set_current(CONTEXTS[0]);
    assert_eq!(fault(), (719, 1), "its burst knows");
    gpus.store(1, Ordering::Relaxed);
    process.wait(WaitFor::Context(std::ptr::null_mut()), || 700);
    assert_eq!(fault(), (719, 1), "it is told of one");
    let (process, slot) = two_gpus();
    process.wait(WaitFor::Context(std::ptr::null_mut()), || 700);
    assert_eq!(slot.fault.load(Ordering::Acquire), 700);
}

/// With CUDA_LAUNCH_BLOCKING a launch returns when its work has ended, however long that takes.
#[test]
fn a_launch_that_returns_with_its_work_done_is_charged() {
    let _order = one_at_a_time();
    let (process, slot) = two_gpus();
    process.bursts.take().unwrap().set_blocking(true);
    let Admission::PassAlone(burst) = process.admit(STREAM, KERNEL) else { panic!("an unknown function goes alone") };
    let records = DEVICE.lock().records;
    DEVICE.lock().launch(5000 * MS);
    (0..50).for_each(|_| {
        clock::turn_ns(100 * MS);
        turning(0, watchers_rest);
    });
    assert_eq!(DEVICE.lock().records, records, "nothing is recorded beside a launch that may hold the driver");
    process.launched_alone(burst);
    until_idle(slot);
    assert_eq!(process.estimates.cost_ns(KERNEL), u32::MAX, "it may have compiled");
    assert_charged(slot, 5000 * MS - US..=5000 * MS + US);
}

/// Once a stream is in capture nothing can be recorded on it, so what ran there would be charged to nobody.
#[test]
fn a_burst_ends_before_its_stream_may_join_a_capture() {
    let _order = one_at_a_time();
    let (process, slot) = two_gpus();
    process.estimates.put(KERNEL, 5 * US);
    launch(process, KERNEL, 50 * MS);
    let records = || DEVICE.lock().records;
    let before = records();
    process.leave_for_join(STREAM);
    assert_eq!(records(), before, "nobody captures");
    process.leave_for_capture(OTHER);
    process.capture_begun();
    process.leave_for_join(STREAM);
    assert_eq!(records(), before + 1);
    // A stream that is in none ends none; one that fails to end it may have.
    process.end_capture(OTHER, || CUDA_SUCCESS);
    assert_eq!(process.captures.load(Ordering::Relaxed), 1);
    process.end_capture(CAPTURING, || 1);
    assert_eq!(process.captures.load(Ordering::Relaxed), 1);
    process.end_capture(CAPTURING, || CUDA_SUCCESS);
    until_idle(slot);
    launch(process, KERNEL, 5 * US);
    let before = records();
    process.leave_for_join(STREAM);
    assert_eq!(records(), before, "it has ended");
    until_idle(slot);
    assert!(charged_ns(slot) >= 50 * MS);
}
