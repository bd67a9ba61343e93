//! Bursts that have stood before the device.

use crate::table::{A, B, MS, Table};
use gpool_policy::slice::{Input, QUEUED_LEAST_NS};

const US: u64 = 1000;

/// B has run, and its work has ended 3 ms after its turn, of which it has reported what is said; then A has the device, for which B waits
/// again. When A's turn began.
fn after_b(reported_ms: u64) -> (Table, u64) {
    let mut table = Table::new();
    table.tell(Input::Wants { tenant: B });
    table.tell(Input::Wants { tenant: A });
    let end_ns = table.now + 10 * MS;
    table.after(MS, Input::Announced { tenant: B, estimated_end_ns: end_ns + 3 * MS });
    table.now = end_ns;
    table.burst(B, 10 * MS);
    table.tell(Input::Announced { tenant: B, estimated_end_ns: end_ns });
    table.tell(Input::Wants { tenant: B });
    assert_eq!(table.scheduler.running(), Some(A));
    let begin_ns = table.now;
    if reported_ms > 0 {
        table.now = begin_ns + reported_ms * MS;
        table.burst(B, reported_ms * MS);
    }
    table.now = begin_ns + 9 * MS;
    (table, begin_ns)
}

/// A reports these bursts, each from when on it stood before the device, when it came onto it and when it ended, in microseconds of the turn.
fn tell(table: &mut Table, begin_ns: u64, bursts: &[(u64, u64, u64)]) {
    for &(queued_us, start_us, end_us) in bursts {
        let [queued_ns, start_ns, end_ns] = [queued_us, start_us, end_us].map(|us| begin_ns + us * US);
        table.tell(Input::Arrival { tenant: A, context: 0, queued_ns, start_ns, end_ns });
    }
}

/// The same 9 ms after its turn began, and then it is idle: what it was charged, and what it has to pay, in tenths of a millisecond.
fn pays(reported_ms: u64, bursts: &[(u64, u64, u64)]) -> (u64, i64) {
    let (mut table, begin_ns) = after_b(reported_ms);
    let before_ns = table.scheduler.lag_ns(A).expect("joined");
    tell(&mut table, begin_ns, bursts);
    table.tell(Input::Idle { tenant: A });
    let lag_ns = table.scheduler.lag_ns(A).expect("joined") - before_ns;
    // Half of what it has used is its own.
    (table.scheduler.charged_ns(A).expect("joined") / (MS / 10), -2 * lag_ns / (MS / 10).cast_signed())
}

#[test]
fn what_others_had_while_it_stood_before_the_device_is_neither_work_nor_a_pause() {
    let (charged, paid) = pays(3, &[(0, 3000, 9000)]);
    assert!(charged == 60 && (60..=61).contains(&paid), "{charged} {paid}");
    // Half of that time is enough to be believed, and the rest of it was a pause, but for 0.3 ms on the way.
    let (charged, paid) = pays(2, &[(0, 3000, 9000)]);
    assert!(charged == 60 && (67..=72).contains(&paid), "{charged} {paid}");
}

#[test]
fn one_process_of_a_lease_behind_another_of_its_own_pays_no_more_for_what_others_had() {
    // B's work goes on for 1 ms; then A's three processes have the device one after the other, 2 ms each.
    let charged = |contexts: [u64; 3]| {
        let (mut table, begin_ns) = after_b(1);
        for (place, context) in (0u64..).zip(contexts) {
            let (start_ns, end_ns) = (begin_ns + (1 + 2 * place) * MS, begin_ns + (3 + 2 * place) * MS);
            let queued_ns = if place == 0 || context > 0 { begin_ns } else { start_ns };
            table.tell(Input::Arrival { tenant: A, context, queued_ns, start_ns, end_ns });
        }
        table.scheduler.charged_ns(A).expect("joined") / (MS / 10)
    };
    assert_eq!((charged([0, 0, 0]), charged([0, 1, 2])), (60, 60));
}

#[test]
fn who_stands_before_a_device_that_nobody_is_known_to_have_had_works() {
    for bursts in [&[(0, 3000, 9000)][..], &[(0, 8900, 9000)], &[(0, 8900, 8900), (0, 8900, 9000)]] {
        let (charged, paid) = pays(0, bursts);
        assert!(charged == 90 && (90..=91).contains(&paid), "{bursts:?}: {charged} {paid}");
    }
    let (charged, paid) = pays(1, &[(0, 8900, 9000)]);
    assert!(charged == 85 && (85..=91).contains(&paid), "a millisecond was shared: {charged} {paid}");
    let (charged, paid) = pays(3, &[(0, 60_000_000, 60_000_001), (8900, 8900, 9000)]);
    assert!(charged == 1 && (84..=88).contains(&paid), "what is yet to come excuses nothing: {charged} {paid}");
}

#[test]
fn who_is_not_believed_works_from_when_it_was_issued_however_long_ago() {
    let (mut table, begin_ns) = after_b(0);
    table.now = begin_ns + 50 * MS;
    tell(&mut table, begin_ns, &[(0, 49_000, 50_000)]);
    assert_eq!(table.scheduler.charged_ns(A), Some(50 * MS));
}

#[test]
fn in_however_small_pieces_others_report_they_were_there() {
    let (mut table, begin_ns) = after_b(0);
    for piece in 0..150 {
        let start_ns = begin_ns + 20 * piece * US;
        table.tell(Input::Burst { tenant: B, context: 0, start_ns, end_ns: start_ns + 19 * US });
    }
    tell(&mut table, begin_ns, &[(0, 3000, 9000)]);
    assert_eq!(table.scheduler.charged_ns(A), Some(6 * MS));
}

#[test]
fn no_time_counts_twice_for_who_says_it_again() {
    let again: Vec<(u64, u64, u64)> = (0..9).map(|number| (0, 3000 + number, 3001 + number)).collect();
    let (charged, paid) = pays(3, &again);
    assert!(charged == 0 && (57..=61).contains(&paid), "six milliseconds were paused: {charged} {paid}");
}

#[test]
fn what_follows_at_once_is_one_piece_of_work() {
    let charged = |apart_us: u64| {
        let (mut table, begin_ns) = after_b(0);
        tell(&mut table, begin_ns, &[(1000, 1000, 3000), (3000, 3000 + apart_us, 4000)]);
        table.scheduler.charged_ns(A).expect("joined") / US
    };
    let least_us = QUEUED_LEAST_NS / US;
    assert_eq!([2, least_us - 1, least_us, 500].map(charged), [3000, 3000, 3000 - least_us, 3000]);
}

#[test]
fn nothing_counts_from_before_it_joined() {
    let mut table = Table::new();
    table.tell(Input::Wants { tenant: A });
    table.now += 5 * MS;
    let (now, joined_ns) = (table.now, table.now - 5 * MS);
    table.tell(Input::Arrival { tenant: A, context: 0, queued_ns: 0, start_ns: joined_ns + 100 * US, end_ns: now });
    assert_eq!(table.scheduler.charged_ns(A), Some(5 * MS - 100 * US));
    table.tell(Input::Arrival { tenant: B, context: 0, queued_ns: 0, start_ns: 1, end_ns: now });
    assert_eq!(
        table.scheduler.charged_ns(B),
        Some(5 * MS / 2 + 50 * US),
        "half of what the other one had, and what nobody had"
    );
}
