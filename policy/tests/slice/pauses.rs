//! Time in which a tenant has the device and nothing on it.

use crate::table::{A, B, MS, SLICE, Table};
use gpool_policy::slice::{Input, Share};

/// A has a slice, for which B waits; at its end A has said that it has work until then, and B is served.
fn announced() -> Table {
    let mut table = Table::new();
    table.tell(Input::Wants { tenant: A });
    table.tell(Input::Wants { tenant: B });
    let end = table.now + SLICE;
    table.after(MS, Input::Announced { tenant: A, estimated_end_ns: end });
    table.now = end;
    table.tell(Input::Pass);
    assert_eq!(table.scheduler.running(), Some(B));
    table
}

/// What A owes, in tenths of a millisecond: half of what it has used is its own.
fn owed(table: &Table) -> u64 {
    table.scheduler.debt_ns(A) / (MS / 10)
}

#[test]
fn what_is_announced_and_not_reported_counts_as_much_as_what_is() {
    for ended in [Input::Drained { tenant: A }, Input::Idle { tenant: A }] {
        let mut table = announced();
        assert_eq!(owed(&table), 0, "it may be reported yet");
        table.tell(ended);
        // A slice, less the 0.3 ms that it takes to come to the device.
        assert!((47..=49).contains(&owed(&table)), "{ended:?}: {}", owed(&table));
    }

    let mut table = announced();
    table.burst(A, SLICE);
    table.tell(Input::Drained { tenant: A });
    assert_eq!(owed(&table), 50);

    // Half of it was work, and is reported late.
    let mut table = announced();
    table.tell(Input::Drained { tenant: A });
    table.burst(A, SLICE / 2);
    assert!((47..=50).contains(&owed(&table)), "nothing is booked twice: {}", owed(&table));
}

#[test]
fn pauses_count_while_somebody_waits() {
    for (waited_ms, owes) in [(0, 0..=0), (4, 17..=20), (9, 42..=45)] {
        let mut table = Table::new();
        table.tell(Input::Wants { tenant: A });
        if waited_ms > 0 {
            table.tell(Input::Wants { tenant: B });
            table.after(waited_ms * MS, Input::Idle { tenant: B });
        }
        // It comes again at the end, or there would be nobody to owe anything.
        table.after((9 - waited_ms) * MS, Input::Wants { tenant: B });
        table.tell(Input::Idle { tenant: A });
        assert!(owes.contains(&owed(&table)), "{waited_ms} ms waited for: {}", owed(&table));
    }
}

/// The scheduler itself may be late, and that is nobody's pause.
#[test]
fn what_a_decision_is_late_is_not_held_against_a_tenant() {
    let mut table = Table::new();
    table.tell(Input::Wants { tenant: A });
    table.tell(Input::Wants { tenant: B });
    let end = table.now + SLICE;
    table.after(MS, Input::Announced { tenant: A, estimated_end_ns: end });
    table.now = end + 1500 * MS;
    table.tell(Input::Burst { tenant: A, context: 0, start_ns: end - SLICE, end_ns: end });
    table.tell(Input::Drained { tenant: A });
    assert_eq!(owed(&table), 50);
}

/// Before anybody wanted the device its pauses were nobody's loss, however they lie in the slice.
#[test]
fn pauses_from_before_somebody_waited_are_not_counted() {
    let mut table = Table::new();
    table.tell(Input::Wants { tenant: A });
    // It pauses for half of the slice, and works without a gap in the other half.
    let half = table.now + SLICE / 2;
    table.after(SLICE / 2, Input::Wants { tenant: B });
    table.now = half + SLICE / 2;
    table.tell(Input::Burst { tenant: A, context: 0, start_ns: half, end_ns: table.now });
    table.tell(Input::Idle { tenant: A });
    assert_eq!(owed(&table), 25, "half of what it has worked");
}

/// Work that is reported late, in the next slice, fills no pauses of that one.
#[test]
fn in_slices_that_are_renewed_pauses_count_each_time() {
    let mut table = Table::of(&[(A, Share::of(800)), (B, Share::of(200))]);
    table.tell(Input::Wants { tenant: A });
    table.tell(Input::Wants { tenant: B });
    let mut slices = [0; 2];
    for _ in 0..100 {
        let (running, end) = (table.scheduler.running().unwrap(), table.now + SLICE);
        table.now += MS;
        table.burst(running, MS);
        table.after(3 * MS, Input::Announced { tenant: running, estimated_end_ns: end });
        // Of A's first half only that was work; the rest is reported when it is over and the next slice has begun.
        let work_ns = if running == A { SLICE / 2 } else { SLICE - MS };
        table.now = end - MS / 10;
        table.tell(Input::Pass);
        table.now = end;
        table.tell(Input::Burst { tenant: running, context: 0, start_ns: end - work_ns, end_ns: end });
        slices[usize::from(running == B)] += 1;
    }
    assert!((79..=82).contains(&slices[0]), "{slices:?} of 100, where 80 are its share");
}

/// That little of it was work makes the rest of a slice no less a pause.
#[test]
fn one_late_report_excuses_nothing_else() {
    let mut table = announced();
    let end = table.now;
    table.tell(Input::Burst { tenant: A, context: 0, start_ns: end - MS / 100, end_ns: end });
    table.tell(Input::Drained { tenant: A });
    assert!((47..=50).contains(&owed(&table)), "{}", owed(&table));
}

#[test]
fn a_pause_that_was_paid_for_makes_no_later_work_free() {
    let mut table = announced();
    table.tell(Input::Drained { tenant: A });
    let paused = owed(&table);
    // What it says of that time now is late: it has said before that nothing was left.
    table.tell(Input::Drained { tenant: A });
    table.tell(Input::Burst { tenant: A, context: 0, start_ns: table.now - SLICE / 2, end_ns: table.now });
    assert!(owed(&table) >= paused + 24, "{} after {paused}", owed(&table));
}

/// Who shared the device with somebody's overrun has not used less of it than was held against it.
#[test]
fn what_was_held_and_was_shared_work_costs_what_it_cost() {
    let mut table = announced();
    let end = table.now;
    table.tell(Input::Drained { tenant: A });
    table.tell(Input::Burst { tenant: B, context: 0, start_ns: end - SLICE, end_ns: end });
    table.tell(Input::Burst { tenant: A, context: 0, start_ns: end - SLICE, end_ns: end });
    // Both have had half.
    assert!(owed(&table) <= 1, "{}", owed(&table));
}

/// It keeps the device as long by work as by pauses, and its work outlasts the slice: both are its own.
#[test]
fn work_beyond_the_slice_fills_no_pauses_in_it() {
    let mut table = Table::new();
    table.tell(Input::Wants { tenant: A });
    table.tell(Input::Wants { tenant: B });
    let last = table.now + 9 * SLICE / 10;
    table.now = last + SLICE;
    table.tell(Input::Burst { tenant: A, context: 0, start_ns: last, end_ns: table.now });
    table.tell(Input::Idle { tenant: A });
    // 19 ms, less the 0.3 that it takes to come to the device; half of it.
    assert!((92..=94).contains(&owed(&table)), "{}", owed(&table));
}

/// A host that stood still for a while.
#[test]
fn what_was_before_the_supervisor_was_away_is_held_against_nobody() {
    let mut table = Table::new();
    table.tell(Input::Wants { tenant: A });
    table.tell(Input::Wants { tenant: B });
    table.after(1000 * MS, Input::Away);
    table.tell(Input::Pass);
    assert_eq!(owed(&table), 0);
}
