//! Of programs that wait for events, and of those for which the device waits.

use super::*;
use crate::waits::WaitFor;

/// Waits until so long from now for an event of whose record nothing is known.
fn wait_for_event(process: &Process, length_ns: u64) {
    wait_for_this(process, EVENT, length_ns);
}

/// Waits for `event` until so long from now.
pub(super) fn wait_for_this(process: &Process, event: CUevent, length_ns: u64) {
    let wait = || {
        clock::turn_ns(length_ns);
        0
    };
    assert_eq!(process.wait(WaitFor::Event(event), wait), 0);
}

/// An event that the program has made. The fake driver is not asked about it.
pub(super) const EVENT: CUevent = 0x9000 as CUevent;

/// The burst of a program that works ahead is as long as one without waits; what has drained is measured without the silence
/// after it.
#[test]
fn an_event_that_is_waited_for_ends_a_burst_once_its_stream_has_drained() {
    let _order = one_at_a_time();
    let (process, slot, _) = open_process();
    // Its cost is learnt, with a launch alone.
    launch(process, KERNEL, 100 * US);
    until_idle(slot);
    launch(process, KERNEL, 100 * US);
    let records = DEVICE.lock().records;
    for _ in 0..5 {
        launch(process, KERNEL, 100 * US);
        wait_for_event(process, 0);
    }
    assert_eq!(DEVICE.lock().records, records, "its burst goes on: there is more");
    clock::turn_ns(600 * US);
    wait_for_event(process, 0);
    assert_eq!(DEVICE.lock().records, records + 1, "its end");
    // Long after: the silence is not in it.
    clock::turn_ns(50 * MS);
    until_idle(slot);
    let measured_ns = slot.burst_total_ns.load(Ordering::Relaxed);
    assert!((700 * US - US..=700 * US + US).contains(&measured_ns), "7 launches of 0.1 ms, measured {measured_ns} ns");
}

/// The processor launches more slowly than the device computes: that is no silence, and a burst goes on while launches are
/// added. Once they are not, it ends.
#[test]
fn a_program_that_launches_slowly_has_few_bursts() {
    let _order = one_at_a_time();
    let (process, slot, _) = open_process();
    launch(process, KERNEL, 4 * US);
    until_idle(slot);
    let (bursts, records) = (slot.burst_count.load(Ordering::Relaxed), DEVICE.lock().records);
    for _ in 0..100 {
        launch(process, KERNEL, 4 * US);
        for _ in 0..4 {
            clock::turn_ns(10 * US);
            // For the watcher to look.
            std::thread::sleep(Duration::from_micros(200));
        }
    }
    until_idle(slot);
    let count = slot.burst_count.load(Ordering::Relaxed) - bursts;
    assert!((1..=4).contains(&count), "{count} bursts of 100 launches in 4 ms");
    assert!(DEVICE.lock().records - records <= 12);
    let launches = slot.launches.load(Ordering::Relaxed);
    assert_eq!(launches, 101);
}

/// A device on which work ends when it is waited for, and a wait that returns `late_ns` after that.
pub(super) fn wait_for_all(process: &Process, what: WaitFor, late_ns: u64) {
    let wait = || {
        let outstanding_ns = DEVICE.lock().launch(0);
        clock::turn_ns(outstanding_ns + late_ns);
        0
    };
    assert_eq!(process.wait(what, wait), 0);
}

/// Rounds of four launches of 5 us each, a wait that returns 10 us late, and a pause of 15 us: what was measured, and the events
/// recorded, of so many rounds after some others.
pub(super) fn rounds(process: &Process, slot: &Slot, what: WaitFor, count: u32) -> (u64, u64) {
    let round = || {
        (0..4).for_each(|_| {
            launch(process, KERNEL, 5 * US);
        });
        wait_for_all(process, what, 10 * US);
        clock::turn_ns(15 * US);
    };
    process.estimates.put(KERNEL, 5 * US);
    (0..20).for_each(|_| round());
    until_idle(slot);
    let total = || slot.burst_total_ns.load(Ordering::Relaxed);
    let (from_ns, records) = (total(), DEVICE.lock().records);
    (0..count).for_each(|_| round());
    until_idle(slot);
    assert_eq!(told(slot), u64::from(20 + count) * 4, "each launch is counted once");
    (total() - from_ns, DEVICE.lock().records - records)
}

/// Twenty microseconds of work in each forty-five: a pair of events for each round would cost more than the work does.
#[test]
fn a_burst_rests_while_the_program_waits_and_what_it_rests_is_not_charged() {
    for what in [WaitFor::Context(core::ptr::null_mut()), WaitFor::Stream(STREAM), WaitFor::Event(EVENT)] {
        let _order = one_at_a_time();
        let (process, slot, _) = open_process();
        let (measured_ns, records) = rounds(process, slot, what, 500);
        let work_ns = 500 * 20 * US;
        assert!(measured_ns.abs_diff(work_ns) < work_ns / 20, "{what:?}: {measured_ns} ns of {work_ns}");
        // 22.5 ms, in each eighth of which one wait is measured and a burst is opened.
        assert!(records <= 16, "{what:?}: {records} events for 500 waits");
    }
}

/// A program that asks until its work has ended has waited for it as well: what it does then is no work, however soon it launches
/// again.
#[test]
fn what_follows_an_answer_that_all_has_ended_is_not_charged() {
    let _order = one_at_a_time();
    for what in [WaitFor::Stream(STREAM), WaitFor::Event(EVENT)] {
        let (process, slot, _) = open_process();
        process.estimates.put(KERNEL, 30 * US);
        for _ in 0..100 {
            launch(process, KERNEL, 30 * US);
            process.note_record(EVENT);
            clock::turn_ns(30 * US);
            process.found_ended(what);
            clock::turn_ns(80 * US);
        }
        until_idle(slot);
        let measured_ns = slot.burst_total_ns.load(Ordering::Relaxed);
        assert!((3 * MS - 100 * US..=3 * MS + 100 * US).contains(&measured_ns), "{what:?}: {measured_ns} ns of 3 ms");
    }
}

/// Programs that keep memory for others ask about events of long ago while they go on: that says nothing of the burst.
#[test]
fn nothing_is_asked_where_more_was_launched_behind_the_event() {
    let _order = one_at_a_time();
    let (process, slot, _) = open_process();
    process.estimates.put(KERNEL, 30 * US);
    launch(process, KERNEL, 30 * US);
    process.note_record(EVENT);
    launch(process, KERNEL, 30 * US);
    let counted = || {
        let device = DEVICE.lock();
        (device.questions, device.records)
    };
    let before = counted();
    process.found_ended(WaitFor::Event(EVENT));
    process.found_ended(WaitFor::Stream(0x700 as CUstream));
    assert_eq!(counted(), before, "neither says anything of it");
    process.found_ended(WaitFor::Stream(STREAM));
    assert_eq!(counted(), (before.0, before.1 + 1), "that has been answered");
    until_idle(slot);
    let records = DEVICE.lock().records;
    process.found_ended(WaitFor::Stream(STREAM));
    assert_eq!(DEVICE.lock().records, records, "without a burst there is nothing to end");
}

/// One that polls an event of which nothing is known, again and again.
#[test]
fn polls_of_what_is_not_known_ask_now_and_then() {
    let _order = one_at_a_time();
    let (process, slot, _) = open_process();
    process.estimates.put(KERNEL, 900 * US);
    launch(process, KERNEL, 900 * US);
    clock::turn_ns(MS / 2);
    let questions = DEVICE.lock().questions;
    (0..100).for_each(|_| process.found_ended(WaitFor::Event(EVENT)));
    assert_eq!(DEVICE.lock().questions, questions + 1);
    until_idle(slot);
}

/// However long it takes: it is no work of the device's.
#[test]
fn a_copy_to_the_host_is_not_charged_and_what_stood_before_it_is() {
    let _order = one_at_a_time();
    let (process, slot, _) = open_process();
    process.estimates.put(KERNEL, 30 * US);
    for copy_ns in [10 * US, 5 * MS, 200 * US, 200 * US] {
        launch(process, KERNEL, 30 * US);
        let mut copy = || {
            let outstanding_ns = DEVICE.lock().launch(0);
            clock::turn_ns(outstanding_ns + copy_ns);
            0
        };
        assert_eq!(process.copy_to_host(&mut copy), 0);
        clock::turn_ns(20 * US);
        // A wait for the stream, whose lateness a copy must not teach.
        launch(process, KERNEL, 30 * US);
        wait_for_all(process, WaitFor::Stream(STREAM), 5 * US);
    }
    until_idle(slot);
    let measured_ns = slot.burst_total_ns.load(Ordering::Relaxed);
    assert!((240 * US - 60 * US..=240 * US + 60 * US).contains(&measured_ns), "{measured_ns} ns of 240 us");
}

/// Launches that the process has told of.
fn told(slot: &Slot) -> u64 {
    slot.launches.load(Ordering::Relaxed)
}

/// Four launches of 5 us each on `stream`, and a wait for them that returns 10 us late.
fn round_on(process: &Process, stream: CUstream) {
    (0..4).for_each(|_| {
        launch_on(process, stream, KERNEL, 5 * US);
    });
    wait_for_all(process, WaitFor::Stream(stream), 10 * US);
}

/// A process with 84 launches that it has told of, the last four in a burst that rests.
fn resting_process() -> (&'static Process, &'static Slot) {
    let (process, slot, _) = open_process();
    rounds(process, slot, WaitFor::Stream(STREAM), 0);
    round_on(process, STREAM);
    assert_eq!(told(slot), 84, "at once: whoever decides who is next must know what this one has used");
    (process, slot)
}

type Leave = fn(&Process);

fn leave_for_good(process: &Process) {
    process.leave_context(CONTEXTS[0]);
    process.context_gone(CONTEXTS[0]);
}

#[test]
fn a_burst_does_not_outlive_its_stream_or_its_context() {
    // And how many events another burst takes to begin.
    let ways: [(Leave, u64); 5] = [
        (|_| (), 0),
        (|process| assert!(process.leave_stream(STREAM)), 1),
        (|process| process.leave_for_capture(STREAM), 1),
        // And another anchor.
        (leave_for_good, 2),
        // It is too old.
        (|_| clock::turn_ns(200 * MS), 1),
    ];
    for (index, (leave, expected)) in ways.into_iter().enumerate() {
        let _order = one_at_a_time();
        let (process, slot) = resting_process();
        leave(process);
        let records = DEVICE.lock().records;
        launch(process, KERNEL, 5 * US);
        assert_eq!(DEVICE.lock().records - records, expected, "way {index}");
        until_idle(slot);
        assert_eq!(told(slot), 85, "way {index}");
    }
}

/// Reports of the same time count once: none may lie where another one's work was.
#[test]
fn bursts_of_several_streams_are_told_where_they_were() {
    const OTHER: CUstream = 0x200 as CUstream;
    let _order = one_at_a_time();
    let (process, slot) = resting_process();
    let first = slot.burst_count.load(Ordering::Relaxed) as usize;
    let records = DEVICE.lock().records;
    (0..15).for_each(|_| {
        round_on(process, STREAM);
        round_on(process, OTHER);
    });
    until_idle(slot);
    let last = slot.burst_count.load(Ordering::Relaxed) as usize;
    assert!(DEVICE.lock().records - records <= 6 && last - first == 30, "{} bursts", last - first);
    let (mut end_ns, mut sum_ns) = (0, 0);
    for burst in (first..last).map(|number| &slot.bursts[number % gpool_shared_region::BURST_RING]) {
        let told = (burst.start_ns.load(Ordering::Relaxed), burst.end_ns.load(Ordering::Relaxed));
        assert!(told.0 >= end_ns, "{told:?} lies on what ended at {end_ns}");
        (end_ns, sum_ns) = (told.1, sum_ns + told.1 - told.0);
    }
    assert!(sum_ns.abs_diff(600 * US) < 30 * US, "{sum_ns} ns of 600 us");
}

/// What another stream does meanwhile is not this burst's, and says nothing of how late waits return.
#[test]
fn a_wait_for_another_stream_ends_a_burst_as_ever() {
    let _order = one_at_a_time();
    let (process, slot) = resting_process();
    let before_ns = slot.burst_total_ns.load(Ordering::Relaxed);
    for _ in 0..50 {
        launch(process, KERNEL, 5 * US);
        wait_for_all(process, WaitFor::Stream(0x200 as CUstream), 200 * US);
        round_on(process, STREAM);
    }
    until_idle(slot);
    let (measured_ns, work_ns) = (slot.burst_total_ns.load(Ordering::Relaxed) - before_ns, 50 * 25 * US);
    assert!(measured_ns.abs_diff(work_ns) < work_ns / 10, "{measured_ns} ns of {work_ns}");
}

/// Work that was issued ahead, in several bursts, and then waited for, is not counted twice.
#[test]
fn what_stood_before_a_burst_on_the_device_is_not_its_own() {
    let _order = one_at_a_time();
    let (process, slot, _) = open_process();
    process.estimates.put(KERNEL, 100 * US);
    for _ in 0..20 {
        (0..23).for_each(|_| {
            launch(process, KERNEL, 100 * US);
        });
        wait_for_all(process, WaitFor::Context(core::ptr::null_mut()), 10 * US);
        clock::turn_ns(20 * US);
    }
    until_idle(slot);
    let (measured_ns, work_ns) = (slot.burst_total_ns.load(Ordering::Relaxed), 20 * 23 * 100 * US);
    assert!(measured_ns.abs_diff(work_ns) < work_ns / 50, "{measured_ns} ns of {work_ns}");
}

/// A host that stops the program for milliseconds does not make the next waits free.
#[test]
fn one_wait_that_returns_very_late_says_little_of_the_others() {
    let _order = one_at_a_time();
    let (process, slot, _) = open_process();
    process.estimates.put(KERNEL, MS / 2);
    let measured = |late_ns| {
        let before_ns = slot.burst_total_ns.load(Ordering::Relaxed);
        launch(process, KERNEL, MS / 2);
        wait_for_all(process, WaitFor::Stream(STREAM), late_ns);
        process.leave_stream(STREAM);
        until_idle(slot);
        slot.burst_total_ns.load(Ordering::Relaxed) - before_ns
    };
    let told = |late_ns| {
        let told_ns = measured(late_ns);
        assert!(told_ns <= MS / 2 + late_ns, "{told_ns} ns of half a millisecond");
        told_ns
    };
    // What is measured by events is exact; of the rest only so much is taken off as waits are usually late.
    (0..40).for_each(|_| {
        told(10 * US);
    });
    clock::turn_ns(20 * MS);
    told(5 * MS);
    let least_ns = (0..5).map(|_| told(0)).min();
    assert!(least_ns >= Some(MS / 2 - 15 * US), "{least_ns:?}");
}

/// Two threads on one stream: a wait of the one ends no launch of the other.
#[test]
fn another_threads_burst_on_the_stream_is_measured_as_ever() {
    let _order = one_at_a_time();
    let (process, slot) = resting_process();
    std::thread::scope(|scope| {
        let launcher = scope.spawn(|| {
            (0..10).for_each(|_| {
                launch(process, KERNEL, 50 * US);
            });
        });
        launcher.join().unwrap();
    });
    wait_for_all(process, WaitFor::Stream(STREAM), 0);
    until_idle(slot);
    assert_eq!(told(slot), 94);
}

/// While one thread waits for 5 us of work, another one of its line of credit launches 400 us into the same burst: that has not
/// ended. And it may have waited before, so that the burst has rested and looks as it did.
#[test]
fn what_is_launched_during_a_wait_is_not_taken_for_ended() {
    let meanwhile: [fn(&Process); 2] =
        [|_| clock::turn_ns(15 * US), |process| wait_for_all(process, WaitFor::Stream(STREAM), 10 * US)];
    for (index, meanwhile) in meanwhile.into_iter().enumerate() {
        let _order = one_at_a_time();
        let (process, slot) = resting_process();
        let before_ns = slot.burst_total_ns.load(Ordering::Relaxed);
        launch(process, KERNEL, 5 * US);
        let wait = || {
            meanwhile(process);
            launch(process, KERNEL, 400 * US);
            0
        };
        assert_eq!(process.wait(WaitFor::Stream(STREAM), wait), 0);
        until_idle(slot);
        let measured_ns = slot.burst_total_ns.load(Ordering::Relaxed) - before_ns;
        // A microsecond for the events' resolution.
        assert!(measured_ns >= 404 * US, "way {index}: {measured_ns} ns of 405 us");
    }
}

/// Waits for a context last as long as what else is in it, a copy with the host for example.
#[test]
fn how_late_waits_of_one_kind_are_says_nothing_of_the_others() {
    let _order = one_at_a_time();
    let (process, slot) = resting_process();
    (0..40).for_each(|_| {
        launch(process, KERNEL, 5 * US);
        wait_for_all(process, WaitFor::Context(core::ptr::null_mut()), 200 * US);
    });
    let before_ns = slot.burst_total_ns.load(Ordering::Relaxed);
    (0..100).for_each(|_| round_on(process, STREAM));
    until_idle(slot);
    let (measured_ns, work_ns) = (slot.burst_total_ns.load(Ordering::Relaxed) - before_ns, 100 * 20 * US);
    assert!(measured_ns.abs_diff(work_ns) < work_ns / 10, "{measured_ns} ns of {work_ns}");
}

/// Launches so many of 100 us and waits for them, then pauses: whether it said before the wait that it leaves, and how far away
/// the end was that it stated.
fn request(process: &Process, slot: &Slot, launches: u32, pause_ns: u64) -> (bool, u64) {
    let mut said = (false, 0);
    (0..launches).for_each(|_| _ = launch(process, KERNEL, 100 * US));
    let wait = || {
        let end_ns = slot.estimated_end_ns.load(Ordering::Relaxed);
        said = (slot.leaving_word.load(Ordering::Relaxed) != 0, end_ns.saturating_sub(clock::now_ns()));
        clock::turn_ns(DEVICE.lock().launch(0));
        0
    };
    assert_eq!(process.wait(WaitFor::Stream(STREAM), wait), 0);
    clock::turn_ns(pause_ns);
    until_idle(slot);
    said
}

/// One whose last pauses were long, and which may say that it leaves.
fn thinker() -> (&'static Process, &'static Slot, &'static Control) {
    let (process, slot, control) = open_process();
    process.estimates.put(KERNEL, 100 * US);
    (0..6).for_each(|_| assert!(!request(process, slot, 10, 5 * MS).0, "nobody would gain by it"));
    control.heeds_leaving.store(1, Ordering::Relaxed);
    (process, slot, control)
}

#[test]
fn a_program_that_thinks_for_long_says_before_its_work_ends_that_it_leaves() {
    let _order = one_at_a_time();
    let (process, slot, _) = thinker();
    let (is_said, end_ns) = request(process, slot, 10, 5 * MS);
    assert!(is_said && end_ns.abs_diff(MS) < MS / 10, "in {end_ns} ns");
    assert_eq!(slot.leaving_word.load(Ordering::Relaxed), 0, "it has left");
    assert!(!request(process, slot, 0, 5 * MS).0, "it has nothing there");
    process.sleepers.store(1, Ordering::Relaxed);
    assert!(!request(process, slot, 10, 5 * MS).0, "another thread launches more");
}

#[test]
fn a_program_that_comes_back_soon_does_not_leave() {
    let _order = one_at_a_time();
    let (process, slot, _) = thinker();
    for round in 0..12 {
        // Requests of three steps.
        let is_said = request(process, slot, 10, if round % 3 == 2 { 5 * MS } else { 20 * US }).0;
        assert_eq!(is_said, round == 0, "in round {round}");
    }
}

/// As one that launches ahead and waits for events: it has said once that it leaves, and had not.
#[test]
fn who_launches_more_before_its_work_has_ended_says_no_longer_that_it_leaves() {
    let _order = one_at_a_time();
    let (process, slot, _) = thinker();
    for round in 0..10 {
        (0..20).for_each(|_| _ = launch(process, KERNEL, 100 * US));
        let has_said = || slot.leaving_word.load(Ordering::Relaxed) != 0;
        assert!(!has_said(), "it has begun a burst");
        wait_for_event(process, 300 * US);
        assert_eq!(has_said(), round == 0, "in round {round}");
    }
}

/// Its pauses are long as often as it works ahead: what it does next nobody knows.
#[test]
fn who_works_ahead_between_its_pauses_is_not_expected_to_pause() {
    let _order = one_at_a_time();
    let (process, slot, _) = thinker();
    for round in 0..12 {
        (0..20).for_each(|_| _ = launch(process, KERNEL, 100 * US));
        wait_for_event(process, 300 * US);
        (0..20).for_each(|_| _ = launch(process, KERNEL, 100 * US));
        let is_said = request(process, slot, 10, 5 * MS).0;
        assert!(!is_said, "in round {round}");
    }
}
