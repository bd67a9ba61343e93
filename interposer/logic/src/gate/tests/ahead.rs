//! Of programs that launch ahead of events for which they wait.

use super::waits::{EVENT, wait_for_this};
use super::*;

/// A process that nobody else shares its GPU with.
fn sole_process() -> (&'static Process, &'static Slot) {
    let (process, slot, control) = open_process();
    control.burst_ns.store(50 * MS, Ordering::Relaxed);
    control.depth_ns.store(50 * MS, Ordering::Relaxed);
    (process, slot)
}

/// Three launches, and so many more, before each of which the event of the last but two is waited for, for 10 us or as long as a
/// kernel takes; how often the driver was asked about the stream.
fn pipeline(process: &Process, launches: usize, length_ns: u64) -> u64 {
    let events: [CUevent; 4] = core::array::from_fn(|index| (0x7000 + index * 0x40) as CUevent);
    let asked = DEVICE.lock().questions;
    for event in &events[1..] {
        launch(process, KERNEL, length_ns);
        process.note_record(*event);
    }
    for turn in 0..launches {
        launch(process, KERNEL, length_ns);
        process.note_record(events[turn % 4]);
        wait_for_this(process, events[(turn + 1) % 4], length_ns.max(10 * US));
    }
    DEVICE.lock().questions - asked
}

/// Of a device that is always busy, what was measured is what was launched. How often the driver was asked.
fn asked_while_busy(launches: usize, length_ns: u64) -> u64 {
    let _order = one_at_a_time();
    let (process, slot) = sole_process();
    process.estimates.put(KERNEL, length_ns);
    let asked = pipeline(process, launches, length_ns);
    until_idle(slot);
    let (measured_ns, work_ns) = (slot.burst_total_ns.load(Ordering::Relaxed), (launches as u64 + 3) * length_ns);
    // The silence at its end is in it, and as long as the watcher takes to see that.
    assert!(measured_ns.abs_diff(work_ns) < 400 * US, "{measured_ns} ns of {work_ns}");
    asked
}

/// The driver's answer takes as long as a launch.
#[test]
fn a_program_that_works_ahead_and_waits_for_events_is_seldom_looked_after() {
    let asked = asked_while_busy(400, 10 * US);
    assert!((1..=4).contains(&asked), "asked {asked} times in 4 ms");
}

/// What it is charged somebody else does not have, or its limit.
#[test]
fn who_shares_its_gpu_is_looked_after_at_each_wait() {
    let _order = one_at_a_time();
    let (process, slot, _) = open_process();
    process.estimates.put(KERNEL, US);
    let asked = pipeline(process, 400, US);
    // But for those that show how late they return.
    assert!(asked > 350, "asked {asked} times after 400 waits");
    until_idle(slot);
    let measured_ns = slot.burst_total_ns.load(Ordering::Relaxed);
    assert!(
        measured_ns < 400 * 6 * US,
        "{measured_ns} ns of 403 us, and at most half of what passes until a wait returns"
    );
}

/// The device waits for the host, which launches as fast as it can.
#[test]
fn who_works_ahead_of_a_device_that_waits_for_it_is_seldom_looked_after() {
    let _order = one_at_a_time();
    let (process, slot) = sole_process();
    process.estimates.put(KERNEL, US);
    let (asked, records) = (pipeline(process, 400, US), DEVICE.lock().records);
    assert!((1..=4).contains(&asked), "asked {asked} times in 4 ms");
    pipeline(process, 400, US);
    let records = DEVICE.lock().records - records;
    assert!(records < 20, "{records} events");
    until_idle(slot);
}

/// A wait for what had been launched by the last look, and had not ended when it began.
#[test]
fn waits_that_take_their_time_show_that_the_device_has_had_work() {
    let asked = asked_while_busy(4000, 100 * US);
    assert!((7..=12).contains(&asked), "asked {asked} times after 4000 waits in 400 ms");
}

/// It waits for one half of what it has launched, and for the other one, behind which there is next to nothing; then it pauses.
#[test]
fn a_wait_that_shows_work_is_followed_by_a_look_where_nothing_was_launched_since_the_last_one() {
    let _order = one_at_a_time();
    let (process, slot) = sole_process();
    process.estimates.put(KERNEL, 10 * US);
    let [half, whole] = [0x9000 as CUevent, 0x9040 as CUevent];
    let round = || {
        for (event, launches) in [(half, 2), (whole, 6)] {
            (0..launches).for_each(|_| _ = launch(process, KERNEL, 10 * US));
            process.note_record(event);
        }
        (0..2).for_each(|_| _ = launch(process, KERNEL, US));
        wait_for_this(process, half, 20 * US);
        wait_for_this(process, whole, 65 * US);
        clock::turn_ns(60 * US);
    };
    (0..20).for_each(|_| round());
    until_idle(slot);
    let before_ns = slot.burst_total_ns.load(Ordering::Relaxed);
    (0..400).for_each(|_| round());
    until_idle(slot);
    let measured_ns = slot.burst_total_ns.load(Ordering::Relaxed) - before_ns;
    assert!(measured_ns < 400 * 95 * US, "{measured_ns} ns for 32.8 ms");
}

/// The copy that it waits for is not counted, and all that is had been launched by the last look.
#[test]
fn what_is_not_counted_shows_work_for_a_while_only() {
    let _order = one_at_a_time();
    let (process, slot) = sole_process();
    process.estimates.put(KERNEL, 10 * US);
    let round = || {
        DEVICE.lock().launch(30 * US);
        process.note_record(EVENT);
        (0..3).for_each(|_| _ = launch(process, KERNEL, US));
        wait_for_this(process, EVENT, 40 * US);
        clock::turn_ns(50 * US);
    };
    (0..2000).for_each(|_| round());
    until_idle(slot);
    let measured_ns = slot.burst_total_ns.load(Ordering::Relaxed);
    assert!(measured_ns < 60 * MS + 2000 * 45 * US, "{measured_ns} ns for 66 ms of work in 180");
}

/// They may not have been there when this one waited last.
#[test]
fn what_another_thread_launches_shows_nothing() {
    const OTHER: CUstream = 0x200 as CUstream;
    let _order = one_at_a_time();
    let (process, slot) = sole_process();
    process.estimates.put(KERNEL, 20 * US);
    // Whose turn it is: of the thread that launches where it is odd. A checker of threads does not see into channels.
    let turn = AtomicU32::new(0);
    let until_turn = |its: u32| {
        while turn.load(Ordering::Acquire) != its {
            std::thread::yield_now();
        }
    };
    let looks: u64 = std::thread::scope(|scope| {
        let launcher = scope.spawn(|| {
            // Where it sleeps, as it may before a launch, the other one does not turn the clock, but waits for this one.
            clock::turn_ns(0);
            for its in (1..200).step_by(2) {
                until_turn(its);
                (0..3).for_each(|_| _ = launch(process, KERNEL, 20 * US));
                process.note_record(EVENT);
                (0..3).for_each(|_| _ = launch(process, KERNEL, 20 * US));
                turn.store(its + 1, Ordering::Release);
            }
        });
        let round = |its: u32| {
            turn.store(its, Ordering::Release);
            until_turn(its + 1);
            launch_on(process, OTHER, KERNEL, US);
            let asked = DEVICE.lock().questions;
            wait_for_this(process, EVENT, 60 * US);
            u64::from(DEVICE.lock().questions > asked)
        };
        let looks = (1..200).step_by(2).map(round).sum();
        launcher.join().unwrap();
        looks
    });
    assert!(looks > 95, "{looks} of 100 waits were followed by a look");
    until_idle(slot);
}

/// The wait for an early event returns soon, the next one when the device has nearly nothing left, and then the program pauses.
#[test]
fn a_long_wait_for_an_event_is_followed_by_a_look_whatever_came_before_it() {
    let _order = one_at_a_time();
    let (process, slot) = sole_process();
    // Of which only a tenth is true: nobody would look for long.
    process.estimates.put(KERNEL, 100 * US);
    let [early, late] = [0x9000 as CUevent, 0x9040 as CUevent];
    for behind in (0..20).map(|turn| 1 + turn % 2) {
        launch(process, KERNEL, 10 * US);
        process.note_record(early);
        (0..6).for_each(|_| _ = launch(process, KERNEL, 10 * US));
        process.note_record(late);
        (0..behind).for_each(|_| _ = launch(process, KERNEL, US));
        wait_for_this(process, early, 10 * US);
        wait_for_this(process, late, 110 * US);
        let busy_ns = |slot: &Slot| slot.burst_total_ns.load(Ordering::Relaxed);
        let before_ns = busy_ns(slot);
        until_idle(slot);
        assert!(busy_ns(slot) - before_ns < 200 * US, "{} ns for 71 us", busy_ns(slot) - before_ns);
    }
}

/// Twenty microseconds of work and one or three more behind the event that is waited for, in each fifty.
#[test]
fn who_has_nothing_left_although_it_launches_more_is_looked_after_at_each_wait() {
    for behind in [1, 3] {
        let _order = one_at_a_time();
        let (process, slot) = sole_process();
        process.estimates.put(KERNEL, 5 * US);
        let round = || {
            (0..4).for_each(|_| _ = launch(process, KERNEL, 5 * US));
            process.note_record(EVENT);
            (0..behind).for_each(|_| _ = launch(process, KERNEL, US));
            wait_for_this(process, EVENT, 30 * US);
            clock::turn_ns(20 * US);
        };
        (0..20).for_each(|_| round());
        until_idle(slot);
        let before = (slot.burst_total_ns.load(Ordering::Relaxed), DEVICE.lock().records);
        (0..500).for_each(|_| round());
        until_idle(slot);
        let measured_ns = slot.burst_total_ns.load(Ordering::Relaxed) - before.0;
        let work_ns = 500 * (20 + behind) * US;
        assert!(measured_ns.abs_diff(work_ns) < work_ns / 10, "{measured_ns} ns of {work_ns}");
        let records = DEVICE.lock().records - before.1;
        assert!(records < 50, "{records} events for 500 waits");
    }
}

/// As of a program that waits for the last of what it has launched: the device has nothing of it then.
#[test]
fn a_wait_for_an_event_behind_which_there_is_nothing_is_followed_by_a_look() {
    let _order = one_at_a_time();
    let (process, slot) = sole_process();
    process.estimates.put(KERNEL, 10 * US);
    let round = || {
        pipeline(process, 4, 10 * US);
        let asked = DEVICE.lock().questions;
        process.note_record(EVENT);
        // It returns 20 us late.
        wait_for_this(process, EVENT, 50 * US);
        clock::turn_ns(60 * US);
        u64::from(DEVICE.lock().questions > asked)
    };
    (0..20).for_each(|_| _ = round());
    until_idle(slot);
    let before_ns = slot.burst_total_ns.load(Ordering::Relaxed);
    let looks: u64 = (0..200).map(|_| round()).sum();
    until_idle(slot);
    let measured_ns = slot.burst_total_ns.load(Ordering::Relaxed) - before_ns;
    assert!(looks > 180, "{looks} of 200 waits were followed by a look");
    assert!(measured_ns.abs_diff(200 * 70 * US) < 200 * 4 * US, "{measured_ns} ns of 14 ms");
}
