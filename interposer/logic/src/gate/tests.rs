//! Of the gate as a whole, before a fake device on a clock that the test turns.

use super::*;
use crate::estimates::{LEAST_ANY_BYTES, LEAST_DEVICE_BYTES};
use crate::fake_driver::{
    CAPTURING, CONTEXTS, DEVICE, IS_BLOCKING_CAPTURE, one_at_a_time, process, set_current, uuid, watchers_rest,
};
use crate::futex;
use crate::handles::{Held, Kind};
use gpool_driver_abi::cuda::CUevent;
use gpool_shared_region::{BurstTag, Control, GateWord, Slot};
use std::sync::atomic::{AtomicBool, AtomicU32};
use std::time::Duration;

mod ahead;
mod alone;
mod beside;
mod elsewhere;
mod first;
mod siblings;
mod stuck;
mod waits;

const STREAM: CUstream = 0x100 as CUstream;
const DEFAULT: CUstream = core::ptr::null_mut();
const MS: u64 = 1_000_000;
const US: u64 = 1000;
/// What the fake supervisor grants; see `fake_driver::process`.
const BURST_NS: u64 = MS;
const DEPTH_NS: u64 = 3 * MS;

const KERNEL: Work = Work::numbered(1);

fn open(control: &Control, until_ns: u64) {
    control.until_ns.store(until_ns, Ordering::Relaxed);
    control.opened_ns.store(clock::now_ns(), Ordering::Relaxed);
    let word = GateWord(control.gate.load(Ordering::Relaxed)).next(true);
    control.gate.store(word.0, Ordering::Release);
    futex::wake(&control.gate, i32::MAX);
}

/// A process behind a gate that is open for a minute.
fn open_process() -> (&'static Process, &'static Slot, &'static Control) {
    let process = process();
    let place = process.place().unwrap();
    open(place.region.control(), clock::now_ns() + 60_000 * MS);
    (process, place.slot(), place.region.control())
}

/// Turns the clock until `condition`; ends the whole test program when it never comes, because scoped threads would wait too.
fn until(condition: impl Fn() -> bool) {
    turning(50 * US, condition);
}

/// As [`until`], turning the clock by `step_ns` between two looks; not at all when other threads turn it.
fn turning(step_ns: u64, condition: impl Fn() -> bool) {
    let start = std::time::Instant::now();
    while !condition() {
        if start.elapsed() > Duration::from_secs(300) {
            eprintln!("the condition never came");
            std::process::abort();
        }
        if watchers_rest() {
            clock::turn_ns(step_ns);
        }
        // For the other threads to look at it.
        std::thread::sleep(Duration::from_micros(100));
    }
}

/// Launches; how much work is then outstanding on the device.
fn launch_on(process: &Process, stream: CUstream, work: Work, length_ns: u64) -> u64 {
    let admission = process.admit(stream, work);
    assert_ne!(admission, Admission::NotInitialized);
    let outstanding_ns = DEVICE.lock().launch_on(stream, length_ns);
    if let Admission::PassAlone(burst) = admission {
        process.launched_alone(burst);
    }
    outstanding_ns
}

fn launch(process: &Process, work: Work, length_ns: u64) -> u64 {
    launch_on(process, STREAM, work, length_ns)
}

fn until_idle(slot: &Slot) {
    until(|| slot.demand.load(Ordering::Acquire) == Demand::Idle as u32);
}

/// The tags of all bursts so far, oldest first.
fn tags(slot: &Slot) -> Vec<BurstTag> {
    let count = slot.burst_count.load(Ordering::Acquire) as usize;
    let tags = slot.burst_tags[..count].iter().map(|tag| BurstTag(tag.load(Ordering::Relaxed)));
    // However long they stood before the device.
    tags.map(|tag| BurstTag::new(tag.gpu() as u8, tag.context())).collect()
}

#[test]
fn a_closed_gate_holds_a_launch_until_it_opens_and_counts_the_wait() {
    let _order = one_at_a_time();
    let process = process();
    let slot = process.place().unwrap().slot();
    let control = process.place().unwrap().region.control();
    let was_held = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let launcher = scope.spawn(|| launch(process, KERNEL, 100 * US));
        // Said after it counts as a waiter.
        until(|| slot.demand.load(Ordering::Acquire) == Demand::Waiting as u32);
        let is_waiting = slot.waiters.load(Ordering::Relaxed) == 1;
        was_held.store(is_waiting && !launcher.is_finished(), Ordering::Relaxed);
        clock::turn_ns(US);
        open(control, clock::now_ns() + 10_000 * MS);
        until(|| launcher.is_finished());
        // Joined: a checker of threads does not see how a scope waits.
        launcher.join().unwrap();
    });
    assert!(was_held.into_inner());
    assert_eq!(slot.waiters.load(Ordering::Relaxed), 0);
    assert!(slot.gate_wait_ns.load(Ordering::Relaxed) > 0);
    assert_eq!(slot.first_launch_word.load(Ordering::Relaxed), control.gate.load(Ordering::Relaxed));
}

#[test]
fn bursts_are_measured_and_the_quiet_process_says_that_it_is_idle() {
    let _order = one_at_a_time();
    let (process, slot, _) = open_process();
    for _ in 0..40 {
        launch(process, KERNEL, 300 * US);
    }
    until_idle(slot);
    let measured_ns = slot.burst_total_ns.load(Ordering::Relaxed);
    assert!((12 * MS - US..=12 * MS + US).contains(&measured_ns), "40 launches of 0.3 ms, measured {measured_ns} ns");
    assert_eq!(slot.launches.load(Ordering::Relaxed), 40);
    assert!(slot.burst_count.load(Ordering::Relaxed) < 25, "several launches share a burst");
}

#[test]
fn work_stops_being_issued_when_it_would_end_after_the_grant() {
    let _order = one_at_a_time();
    let process = process();
    let place = process.place().unwrap();
    let (slot, control) = (place.slot(), place.region.control());
    // Known beforehand, so that only the grant limits it.
    process.estimates.put(KERNEL, MS);
    let from_ns = clock::now_ns();
    open(control, from_ns + 30 * MS);
    let issued = AtomicU32::new(0);
    let (mut count, mut end_ns) = (0, 0);
    std::thread::scope(|scope| {
        let launcher = scope.spawn(|| {
            // It turns the clock when it sleeps, so that none of its grant passes while it does not run.
            clock::turn_ns(0);
            while issued.fetch_add(1, Ordering::Relaxed) < 200 {
                launch(process, KERNEL, MS);
            }
        });
        turning(0, || slot.waiters.load(Ordering::Relaxed) > 0);
        (count, end_ns) = (issued.load(Ordering::Relaxed), slot.estimated_end_ns.load(Ordering::Relaxed));
        issued.store(1000, Ordering::Relaxed);
        open(control, clock::now_ns() + 10_000 * MS);
        turning(0, || launcher.is_finished());
        launcher.join().unwrap();
    });
    assert!((25..=34).contains(&count), "about thirty launches of 1 ms fit in 30 ms, issued {count}");
    assert!(end_ns >= from_ns + 30 * MS, "the announced end is the end of the grant or a little later");
}

#[test]
fn a_supervisor_that_is_away_opens_the_gate_of_a_class_that_fails_open() {
    let _order = one_at_a_time();
    let process = process();
    let control = process.place().unwrap().region.control();
    control.heartbeat_ns.store(1, Ordering::Relaxed);
    launch(process, KERNEL, US);
    assert!(!GateWord(control.gate.load(Ordering::Relaxed)).is_open());
}

#[test]
fn an_unknown_function_runs_alone_and_is_known_afterwards() {
    let _order = one_at_a_time();
    let (process, slot, _) = open_process();
    let unknown = process.admit(STREAM, KERNEL);
    assert!(matches!(unknown, Admission::PassAlone(_)));
    DEVICE.lock().launch(40 * US);
    if let Admission::PassAlone(burst) = unknown {
        process.launched_alone(burst);
    }
    until_idle(slot);
    assert_eq!(slot.burst_count.load(Ordering::Relaxed), 1);
    let cost_ns = process.estimates.cost_ns(KERNEL);
    assert!((39_000..=41_000).contains(&cost_ns), "40 us, measured {cost_ns} ns");
    assert_eq!(process.admit(STREAM, KERNEL), Admission::Pass);
    let other = process.admit(STREAM, Work::numbered(2));
    assert!(matches!(other, Admission::PassAlone(_)), "another function's cost says nothing");
    if let Admission::PassAlone(burst) = other {
        process.launched_alone(burst);
    }
}

#[test]
fn a_launch_that_returns_late_ends_no_burst_but_its_own() {
    let _order = one_at_a_time();
    let (process, slot, _) = open_process();
    let Admission::PassAlone(late) = process.admit(STREAM, KERNEL) else { panic!("an unknown function goes alone") };
    // The watcher gives up on it after a second: its time was the host's.
    clock::turn_ns(1000 * MS);
    until_idle(slot);
    assert_eq!(slot.burst_count.load(Ordering::Relaxed), 0);
    let Admission::PassAlone(next) = process.admit(STREAM, Work::numbered(2)) else { panic!("so does another") };
    DEVICE.lock().launch(30 * US);
    process.launched_alone(next);
    until_idle(slot);
    let cost_ns = process.estimates.cost_ns(Work::numbered(2));
    assert!((29_000..=31_000).contains(&cost_ns), "30 us, measured {cost_ns} ns");
    DEVICE.lock().launch(2 * MS);
    process.launched_alone(late);
    until(|| slot.burst_count.load(Ordering::Relaxed) == 2);
    let measured_ns = slot.burst_total_ns.load(Ordering::Relaxed);
    assert!((2 * MS..=2 * MS + 60 * US).contains(&measured_ns), "2.03 ms, measured {measured_ns} ns");
    assert_eq!(process.estimates.cost_ns(KERNEL), u32::MAX, "that says nothing of what it costs");
}

#[test]
fn unlike_functions_keep_within_the_depth() {
    let _order = one_at_a_time();
    let (process, _, _) = open_process();
    let (short, long) = (Work::numbered(1), Work::numbered(2));
    let mut deepest_ns = 0;
    // In turn, then in runs: the mean of what came before says nothing of what comes next.
    for _ in 0..12 {
        deepest_ns = deepest_ns.max(launch(process, short, 10 * US)).max(launch(process, long, 5 * MS));
    }
    for _ in 0..3 {
        deepest_ns = (0..400).map(|_| launch(process, short, 10 * US)).fold(deepest_ns, u64::max);
        deepest_ns = (0..4).map(|_| launch(process, long, 5 * MS)).fold(deepest_ns, u64::max);
    }
    // A microsecond for the events' resolution.
    let bound_ns = DEPTH_NS + 5 * MS + US;
    assert!(deepest_ns <= bound_ns, "{deepest_ns} ns outstanding, {bound_ns} are the bound");
}

#[test]
fn long_unknown_functions_do_not_pile_up() {
    let _order = one_at_a_time();
    let (process, _, _) = open_process();
    let deepest_ns = (0..12).map(|number| launch(process, Work::numbered(10 + number), 4 * MS)).max();
    assert!(deepest_ns <= Some(DEPTH_NS + 4 * MS + US), "{deepest_ns:?} ns outstanding");
}

#[test]
fn two_thousand_functions_are_met_without_waiting_for_each() {
    let _order = one_at_a_time();
    let (process, slot, _) = open_process();
    let from_ns = clock::now_ns();
    for number in 0..2000 {
        launch(process, Work::numbered(10 + number), 10 * US);
    }
    let took_ns = clock::now_ns() - from_ns;
    until_idle(slot);
    let known = (0..2000).filter(|number| process.estimates.get(Work::numbered(10 + number)).is_some()).count();
    assert!(known >= 1800, "{known} of 2000 are known");
    assert_eq!(slot.launches.load(Ordering::Relaxed), 2000);
    assert!(took_ns < 2000 * 15 * US, "{took_ns} ns for 20 ms of work: the device hardly waited");
}

#[test]
fn a_changed_cost_is_learnt_anew() {
    let _order = one_at_a_time();
    let (process, slot, _) = open_process();
    (0..50).for_each(|_| {
        launch(process, KERNEL, 50 * US);
    });
    until_idle(slot);
    assert!(process.estimates.cost_ns(KERNEL) < 60_000);
    (0..100).for_each(|_| {
        launch(process, KERNEL, 600 * US);
    });
    until_idle(slot);
    let cost_ns = process.estimates.cost_ns(KERNEL);
    assert!((500_000..700_000).contains(&cost_ns), "600 us, taken for {cost_ns} ns");
    let deepest_ns = (0..40).map(|_| launch(process, KERNEL, 600 * US)).max();
    assert!(deepest_ns <= Some(DEPTH_NS + BURST_NS + US), "{deepest_ns:?} ns outstanding");
}

#[test]
fn a_graph_has_a_cost_of_its_own_until_it_is_destroyed() {
    let _order = one_at_a_time();
    let (process, slot, _) = open_process();
    let graph = Work::handle(0x7000 as *mut core::ffi::c_void);
    (0..20).for_each(|_| {
        launch(process, graph, 400 * US);
    });
    until_idle(slot);
    let cost_ns = process.estimates.cost_ns(graph);
    assert!((390_000..410_000).contains(&cost_ns), "400 us, measured {cost_ns} ns");
    process.forget(graph);
    let again = process.admit(STREAM, graph);
    assert!(matches!(again, Admission::PassAlone(_)), "the handle may be another graph's now");
    if let Admission::PassAlone(burst) = again {
        process.launched_alone(burst);
    }
}

#[test]
fn what_is_captured_passes_a_closed_gate_and_costs_nothing() {
    let _order = one_at_a_time();
    let process = process();
    let slot = process.place().unwrap().slot();
    let records = DEVICE.lock().records;
    for number in 0..20 {
        assert_eq!(process.admit(CAPTURING, Work::numbered(number)), Admission::Pass);
        assert_eq!(process.admit_bytes(CAPTURING, Bytes::Set, 1 << 30), Admission::Pass);
        let rows = Moved { kind: Bytes::Rows, bytes: 1 << 30 };
        assert_eq!(process.admit_moved(CAPTURING, rows), Admission::Pass);
    }
    assert_eq!(DEVICE.lock().records, records);
    assert_eq!((slot.burst_count.load(Ordering::Relaxed), slot.waiters.load(Ordering::Relaxed)), (0, 0));
}

#[test]
fn a_captured_blocking_stream_is_not_disturbed_by_what_ran_on_the_default_stream() {
    let _order = one_at_a_time();
    let (process, slot, _) = open_process();
    process.estimates.put(KERNEL, 20 * US);
    launch_on(process, DEFAULT, KERNEL, 20 * US);
    launch_on(process, DEFAULT, KERNEL, 20 * US);
    process.leave_for_capture(STREAM);
    IS_BLOCKING_CAPTURE.store(true, Ordering::Relaxed);
    until_idle(slot);
    assert_eq!(slot.launches.load(Ordering::Relaxed), 2);
    // The driver refuses it; the shim records nothing and waits for nothing.
    assert_eq!(process.admit(DEFAULT, KERNEL), Admission::Pass);
    IS_BLOCKING_CAPTURE.store(false, Ordering::Relaxed);
    assert_eq!((slot.burst_count.load(Ordering::Relaxed), slot.waiters.load(Ordering::Relaxed)), (1, 0));
}

#[test]
fn the_watcher_asks_about_a_burst_in_its_own_context() {
    let _order = one_at_a_time();
    let (process, slot, _) = open_process();
    process.enter_context(CONTEXTS[1], 0);
    set_current(CONTEXTS[1]);
    process.estimates.put(KERNEL, 20 * US);
    (0..3).for_each(|_| {
        launch(process, KERNEL, 20 * US);
    });
    // The watcher's thread has the other context.
    until_idle(slot);
    assert_eq!(slot.launches.load(Ordering::Relaxed), 3);
    let measured_ns = slot.burst_total_ns.load(Ordering::Relaxed);
    assert!(measured_ns >= 60 * US, "measured {measured_ns} ns of 60 us");
}

#[test]
fn short_copies_pass_and_long_ones_are_measured() {
    let _order = one_at_a_time();
    let (process, slot, control) = open_process();
    control.gate.store(GateWord(control.gate.load(Ordering::Relaxed)).next(false).0, Ordering::Release);
    assert_eq!(process.admit_bytes(STREAM, Bytes::Copy, LEAST_DEVICE_BYTES - 1), Admission::Pass);
    assert_eq!(process.admit_bytes(STREAM, Bytes::CopyAny, LEAST_ANY_BYTES - 1), Admission::Pass);
    open(control, clock::now_ns() + 60_000 * MS);
    let long = process.admit_bytes(STREAM, Bytes::Copy, LEAST_DEVICE_BYTES);
    DEVICE.lock().launch(20 * US);
    assert!(matches!(long, Admission::PassAlone(_)));
    if let Admission::PassAlone(burst) = long {
        process.launched_alone(burst);
    }
    until_idle(slot);
    assert_eq!(slot.launches.load(Ordering::Relaxed), 1);
    assert_eq!(Process::new().admit_bytes(STREAM, Bytes::Copy, 1), Admission::NotInitialized);
}

#[test]
fn rows_and_copies_between_gpus_are_gated_by_their_bytes_and_copies_with_the_host_are_not() {
    let _order = one_at_a_time();
    let (process, slot, control) = open_process();
    control.gate.store(GateWord(control.gate.load(Ordering::Relaxed)).next(false).0, Ordering::Release);
    let moved = |kind, bytes| process.admit_moved(STREAM, Moved { kind, bytes });
    assert_eq!(moved(Bytes::Host, 1 << 40), Admission::Pass);
    assert_eq!(moved(Bytes::RowsAny, LEAST_ANY_BYTES - 1), Admission::Pass);
    let gated = [Bytes::Rows, Bytes::Peer, Bytes::RowsAny];
    std::thread::scope(|scope| {
        let copiers = gated.map(|kind| {
            scope.spawn(move || {
                if let Admission::PassAlone(burst) = process.admit_moved(STREAM, Moved { kind, bytes: LEAST_ANY_BYTES })
                {
                    DEVICE.lock().launch(20 * US);
                    process.launched_alone(burst);
                }
            })
        });
        until(|| slot.waiters.load(Ordering::Relaxed) == 3);
        assert!(copiers.iter().all(|copier| !copier.is_finished()), "a closed gate holds them all");
        open(control, clock::now_ns() + 60_000 * MS);
        until(|| copiers.iter().all(|copier| copier.is_finished()));
        copiers.into_iter().for_each(|copier| copier.join().unwrap());
    });
    until_idle(slot);
    assert_eq!(slot.launches.load(Ordering::Relaxed), 3);
    let known = gated.map(|kind| process.estimates.get(Work::bytes(kind, LEAST_ANY_BYTES)));
    assert!(known.iter().all(Option::is_some), "each kind has its own estimate: {known:?}");
}

#[test]
fn the_default_streams_of_two_contexts_share_no_credit() {
    let _order = one_at_a_time();
    let (process, slot, control) = open_process();
    control.gpus.store(2, Ordering::Relaxed);
    for gpu in 0..2 {
        let places = control.gpu_uuids[gpu as usize].iter().zip(uuid(gpu));
        places.for_each(|(place, byte)| place.store(byte, Ordering::Relaxed));
    }
    process.estimates.put(KERNEL, 20 * US);
    // Credit that was given while there was one context only.
    process.enter_context(CONTEXTS[0], 0);
    launch_on(process, DEFAULT, KERNEL, 20 * US);
    launch_on(process, DEFAULT, KERNEL, 20 * US);
    process.enter_context(CONTEXTS[1], 1);
    set_current(CONTEXTS[1]);
    launch_on(process, DEFAULT, KERNEL, 20 * US);
    until_idle(slot);
    assert_eq!(tags(slot), [BurstTag::new(0, 1), BurstTag::new(1, 2)]);
    // And while there are two: each change is a burst of its own, the launches in between are not.
    for context in [CONTEXTS[0], CONTEXTS[1]] {
        set_current(context);
        (0..3).for_each(|_| {
            launch_on(process, DEFAULT, KERNEL, 20 * US);
        });
    }
    until_idle(slot);
    assert_eq!(tags(slot)[2..], [BurstTag::new(0, 1), BurstTag::new(1, 2)]);
    assert_eq!(slot.launches.load(Ordering::Relaxed), 9);
}

#[test]
fn each_gpu_has_its_own_depth() {
    let _order = one_at_a_time();
    let (process, slot, control) = open_process();
    control.gpus.store(2, Ordering::Relaxed);
    process.estimates.put(KERNEL, MS);
    let issued_without_waiting = |context| {
        set_current(context);
        let from_ns = clock::now_ns();
        let mut issued = 0;
        while clock::now_ns() == from_ns {
            launch_on(process, context, KERNEL, MS);
            issued += 1;
        }
        issued
    };
    CONTEXTS.into_iter().enumerate().for_each(|(gpu, context)| {
        process.enter_context(context, gpu);
    });
    let counts = CONTEXTS.map(issued_without_waiting);
    assert!(counts.iter().all(|count| (3..=6).contains(count)), "{counts:?} ms issued, 3 ms are the depth on each");
    let end_ns = slot.estimated_end_ns.load(Ordering::Relaxed);
    assert!(end_ns <= clock::now_ns() + 5 * MS, "what is announced is the later end, not the sum");
    until_idle(slot);
}

#[test]
fn memory_is_given_back_to_the_gpu_and_context_that_held_it() {
    let _order = one_at_a_time();
    let (process, slot, control) = open_process();
    let place = process.place().unwrap();
    control.gpus.store(2, Ordering::Relaxed);
    control.memory_cap_bytes.store(1000, Ordering::Relaxed);
    for gpu in 0..2 {
        let places = control.gpu_uuids[gpu as usize].iter().zip(uuid(gpu));
        places.for_each(|(place, byte)| place.store(byte, Ordering::Relaxed));
    }
    let allocate = |bytes| {
        let gpu = process.current_gpu(place);
        let is_reserved = crate::memory::try_reserve(&place.region, slot, gpu, crate::memory::Charge::Bytes(bytes));
        is_reserved.then(|| process.allocated(place, bytes))
    };
    let freed = |owner: BurstTag, bytes| {
        process.give_back(place, &Held { owner: owner.0, ..Held::new(Kind::Memory, 0x1000, bytes) });
    };
    let mut owners = Vec::new();
    let held = || [0, 1].map(|gpu| slot.gpu_bytes[gpu].load(Ordering::Relaxed));
    for (gpu, context) in CONTEXTS.into_iter().enumerate() {
        set_current(context);
        assert!(crate::memory::try_reserve(&place.region, slot, gpu, crate::memory::Charge::Context));
        process.enter_context(context, gpu);
        owners.extend(allocate(700));
        assert!(owners.len() == gpu + 1 && allocate(700).is_none(), "each GPU has its own cap");
    }
    assert_eq!(held(), [700, 700]);
    // Freed in the other context.
    freed(owners[0], 300);
    assert_eq!(held(), [400, 700]);
    process.leave_context(CONTEXTS[1]);
    process.context_gone(CONTEXTS[1]);
    assert_eq!(held(), [400, 0]);
    freed(owners[1], 700);
    assert_eq!(held(), [400, 0], "it went with its context, whose handle may mean another one");
    assert_eq!(slot.allocated_bytes.load(Ordering::Relaxed), 400);
    assert_eq!(slot.contexts.load(Ordering::Relaxed), 1);
}
