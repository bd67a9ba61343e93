//! A program that has its GPU to itself: long bursts, and a gate that stays open while it is idle.

use super::*;
use crate::fake_driver::{driver, region_with_bell};
use crate::place::Place;
use crate::registration::Registration;
use std::io::{Read, pipe};
use std::os::fd::AsRawFd;

/// As the supervisor does with a tenant that has its GPU to itself and has worked for a while.
fn leave_alone(control: &Control) {
    control.burst_ns.store(50 * MS, Ordering::Relaxed);
    control.depth_ns.store(50 * MS, Ordering::Relaxed);
}

#[test]
fn long_bursts_are_few_events() {
    let _order = one_at_a_time();
    let (process, slot, control) = open_process();
    let records_of = |burst_ns| {
        control.burst_ns.store(burst_ns, Ordering::Relaxed);
        (0..20).for_each(|_| {
            launch(process, KERNEL, 50 * US);
        });
        until_idle(slot);
        let before = DEVICE.lock().records;
        for _ in 0..1000 {
            launch(process, KERNEL, 50 * US);
            clock::turn_ns(50 * US);
        }
        until_idle(slot);
        DEVICE.lock().records - before
    };
    let (short, long) = (records_of(MS), records_of(50 * MS));
    assert!(short >= 80, "fifty milliseconds in bursts of one, two events each: {short}");
    assert!(long <= 10, "{long}");
}

/// What an open burst may hold counts as outstanding: with equal parts for all the grant would be used up by the first few.
#[test]
fn streams_that_work_at_the_same_time_part_a_long_burst() {
    let _order = one_at_a_time();
    let (process, _, control) = open_process();
    leave_alone(control);
    open(control, clock::now_ns() + 400 * MS);
    (0..20).for_each(|_| {
        launch(process, KERNEL, 50 * US);
    });
    let from_ns = clock::now_ns();
    for stream in 0..40usize {
        launch_on(process, (0x1000 + 0x10 * stream) as CUstream, KERNEL, 50 * US);
    }
    let reserved_ns = process.bursts.take().unwrap().estimated_end_ns(clock::now_ns()) - clock::now_ns();
    assert!(reserved_ns <= (2 * 50 + 40) * MS, "{reserved_ns}");
    assert!(clock::now_ns() - from_ns < MS, "nobody waits for the others' parts");
    // What has been launched counts.
    let deepest_ns = (0..4000).map(|_| launch(process, KERNEL, 50 * US)).max();
    assert!(deepest_ns > Some(50 * MS) && deepest_ns <= Some(105 * MS), "{deepest_ns:?} ns outstanding");
}

/// A program launches further ahead than it may, and its launches take a tenth of what they are taken for.
#[test]
fn estimates_that_are_far_too_long_leave_the_device_nothing_to_wait_for() {
    let _order = one_at_a_time();
    let (process, slot, control) = open_process();
    // Alone, as a first launch is, each takes ten times as long as among others.
    let works: Vec<Work> = (10..40).map(Work::numbered).collect();
    for work in works.iter().cycle().take(90) {
        launch(process, *work, 1000 * US);
        until_idle(slot);
    }
    leave_alone(control);
    open(control, clock::now_ns() + 400 * MS);
    let from_ns = clock::now_ns();
    let left_ns = works.iter().cycle().take(600).map(|work| launch(process, *work, 100 * US)).last().unwrap();
    let took_ns = clock::now_ns() + left_ns - from_ns;
    assert!(took_ns < 62 * MS, "60 ms of work took {took_ns} ns");
}

/// A training step goes to and fro between streams, and was measured first while others had their turns on the device.
#[test]
fn estimates_of_what_begins_bursts_come_down_to_twice_the_bursts() {
    let _order = one_at_a_time();
    let (process, slot, control) = open_process();
    leave_alone(control);
    open(control, clock::now_ns() + 400 * MS);
    let works: Vec<Work> = (10..18).map(Work::numbered).collect();
    works.iter().for_each(|work| process.estimates.put(*work, 4 * MS));
    // As long as is expected: not all that is known is in doubt.
    let usual = [KERNEL, Work::numbered(2)];
    usual.iter().for_each(|work| process.estimates.put(*work, 100 * US));
    for (index, work) in works.iter().cycle().take(160).enumerate() {
        for (stream, pair) in [[*work, works[(index + 1) % works.len()]], usual].iter().enumerate() {
            pair.iter().for_each(|work| _ = launch_on(process, (0x1000 + 0x10 * stream) as CUstream, *work, 100 * US));
        }
    }
    until_idle(slot);
    let costs_ns: Vec<u32> = works.iter().map(|work| process.estimates.cost_ns(*work)).collect();
    // Twice as long as a burst of two launches, and the little that passes until it is seen that nothing follows.
    assert!(costs_ns.iter().all(|ns| u64::from(*ns) < 800 * US), "{costs_ns:?}");
}

#[test]
fn who_works_behind_a_gate_that_was_left_open_says_so() {
    let (mut heard, bell) = pipe().unwrap();
    let region = region_with_bell(bell.as_raw_fd());
    let place = Place::new(region, Registration { slot: 3, process_id: 1, number: 1 }, driver());
    let control = place.region.control();
    assert!(!place.note_issue(5, 10, 20), "it has its slice");
    place.say(Demand::Idle, 5, 30);
    control.is_left_open.store(1, Ordering::Relaxed);
    assert!(place.note_issue(7, 40, 50));
    assert!(!place.note_issue(7, 60, 70), "it has been told");
    assert!(place.note_issue(9, 80, 90), "it has been left open again, by who took it for idle meanwhile");
    place.say(Demand::Waiting, 9, 0);
    control.is_left_open.store(0, Ordering::Relaxed);
    assert!(!place.note_issue(11, 100, 110), "the supervisor has heard of it");
    drop(bell);
    let mut rings = Vec::new();
    heard.read_to_end(&mut rings).unwrap();
    assert_eq!(rings, [], "that is the gate's to do, when the bursts are not locked");
}

const SIDE: CUstream = 0x1000 as CUstream;

/// What one thread opens later may end earlier on the device than what another one has open on the same stream.
#[test]
fn a_short_burst_behind_an_open_one_is_seen_when_it_ends() {
    let _order = one_at_a_time();
    let (process, slot, control) = open_process();
    leave_alone(control);
    let short = Work::numbered(5);
    for work in [KERNEL, KERNEL, short] {
        launch(process, work, MS);
        until_idle(slot);
    }
    process.forget(short);
    let from_ns = clock::now_ns();
    (0..10).for_each(|_| {
        launch(process, KERNEL, MS);
    });
    std::thread::scope(|scope| scope.spawn(|| launch(process, short, MS)).join().unwrap());
    (0..38).for_each(|_| {
        launch(process, KERNEL, MS);
    });
    launch_on(process, SIDE, KERNEL, MS);
    let is_measured = || process.bursts.take().unwrap().learning().expect(&process.estimates, short).is_measured;
    until(is_measured);
    let took_ns = clock::now_ns() - from_ns;
    assert!((11 * MS..20 * MS).contains(&took_ns), "{took_ns}");
}
