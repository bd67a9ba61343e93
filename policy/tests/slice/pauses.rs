//! Time in which a tenant has the device and nothing on it.

use crate::table::{A, B, MS, SLICE, Table};
use gpool_policy::slice::Input;

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
