//! Who says that it wants no more once its work has ended.

use crate::table::{A, B, MS, Table};
use gpool_policy::TenantId;
use gpool_policy::slice::{Class, Command, Input, Parameters, Share};

fn who_opens(commands: &[Command]) -> Option<TenantId> {
    commands.iter().find_map(|command| match command {
        Command::Open { tenant, .. } => Some(*tenant),
        _ => None,
    })
}

/// A runs, and leaves in 3 ms.
fn leaving(share: Share) -> (Table, u64) {
    let mut table = Table::of(&[(A, share), (B, Share::of(300))]);
    assert_eq!(who_opens(&table.tell(Input::Wants { tenant: A })), Some(A));
    let end_ns = table.now + 3 * MS;
    assert_eq!(table.tell(Input::Leaves { tenant: A, estimated_end_ns: end_ns }), []);
    (table, end_ns)
}

#[test]
fn the_device_of_who_leaves_is_handed_over_when_its_work_ends() {
    let (mut table, end_ns) = leaving(Share::of(300));
    table.tell(Input::Wants { tenant: B });
    let at_ns = table.scheduler.next_timer().expect("somebody waits");
    assert!((end_ns - MS..end_ns).contains(&at_ns), "one hand-off before its end");
    table.now = at_ns - 1;
    assert_eq!(table.tell(Input::Pass), []);
    table.now = at_ns;
    let commands = table.tell(Input::Pass);
    assert_eq!((commands[0], who_opens(&commands)), (Command::Close { tenant: A }, Some(B)));
    table.now = end_ns;
    table.burst(A, 3 * MS);
    assert_eq!(table.tell(Input::Idle { tenant: A }), [], "that was known");
    assert_eq!(table.scheduler.charged_ns(A), Some(3 * MS));
}

#[test]
fn who_leaves_while_nobody_waits_keeps_its_gate_and_who_comes_later_has_it_at_the_end() {
    let (mut table, end_ns) = leaving(Share::of(300));
    assert!(table.scheduler.next_timer().is_none_or(|at_ns| at_ns > end_ns));
    assert_eq!(table.after(4 * MS, Input::Pass), []);
    assert_eq!(table.scheduler.running(), Some(A));
    assert_eq!(who_opens(&table.tell(Input::Wants { tenant: B })), Some(B), "its end is over");
}

#[test]
fn who_wants_on_does_not_leave() {
    let (mut table, end_ns) = leaving(Share::of(300));
    let until_ns = table.now + table.scheduler.slice_ns();
    table.tell(Input::Announced { tenant: A, estimated_end_ns: until_ns });
    table.tell(Input::Wants { tenant: B });
    assert!(table.scheduler.next_timer().is_some_and(|at_ns| at_ns > end_ns), "its slice goes on");
}

#[test]
fn who_has_issued_more_keeps_its_slice() {
    let (mut table, end_ns) = leaving(Share::of(300));
    assert_eq!(table.tell(Input::Stays { tenant: A }), []);
    table.tell(Input::Wants { tenant: B });
    table.now = end_ns;
    assert_eq!(table.tell(Input::Pass), []);
    assert_eq!(table.scheduler.running(), Some(A));
}

#[test]
fn the_gate_of_who_leaves_stays_open_where_all_others_are_above_their_ceilings() {
    let limited = Share { limit_permille: Some(100), ..Share::of(100) };
    let mut table = Table::of(&[(A, Share::of(300)), (B, limited)]);
    table.tell(Input::Wants { tenant: B });
    table.now += 50 * MS;
    table.burst(B, 50 * MS);
    table.tell(Input::Idle { tenant: B });
    table.tell(Input::Wants { tenant: A });
    let end_ns = table.now + 3 * MS;
    table.tell(Input::Leaves { tenant: A, estimated_end_ns: end_ns });
    assert_eq!(table.tell(Input::Wants { tenant: B }), []);
    assert_eq!(table.after(4 * MS, Input::Pass), []);
    assert_eq!(table.scheduler.running(), Some(A));
    assert!(table.scheduler.next_timer().is_some_and(|at_ns| at_ns > table.now), "nothing is due");
}

/// Its answer would come later where its end is expected too early.
#[test]
fn one_of_the_latency_class_is_not_taken_at_its_word() {
    let (mut table, end_ns) = leaving(Share { class: Class::Latency, ..Share::of(300) });
    table.tell(Input::Wants { tenant: B });
    table.now = end_ns;
    assert_eq!(table.tell(Input::Pass), []);
    assert_eq!(who_opens(&table.tell(Input::Idle { tenant: A })), Some(B));
    let (mut table, end_ns) = leaving(Share::of(300));
    table.tell(Input::Change { tenant: A, share: Share { class: Class::Latency, ..Share::of(300) } });
    table.tell(Input::Wants { tenant: B });
    table.now = end_ns;
    assert_eq!(table.tell(Input::Pass), [], "nor one that has become that meanwhile");
}

/// Whoever waits for one that lies waits no longer than for one that says nothing.
#[test]
fn an_end_that_never_comes_is_not_waited_for() {
    let (mut table, _) = leaving(Share::of(300));
    let until_ns = table.now + table.scheduler.slice_ns();
    table.tell(Input::Leaves { tenant: A, estimated_end_ns: u64::MAX });
    table.tell(Input::Wants { tenant: B });
    table.now = until_ns + Parameters::DEFAULT.drain_limit_ns;
    assert_eq!(who_opens(&table.tell(Input::Pass)), Some(B));
}

/// Beside its like alone: a batch tenant at work would gain what it loses where its end is expected too early.
#[test]
fn a_latency_tenant_is_heeded_among_its_like() {
    let latency = Share { class: Class::Latency, ..Share::of(300) };
    let mut table = Table::of(&[(A, latency), (B, latency), (TenantId(3), Share::of(300))]);
    table.tell(Input::Wants { tenant: A });
    assert!(table.scheduler.heeds_leaving(A));
    table.tell(Input::Wants { tenant: TenantId(3) });
    assert!(!table.scheduler.heeds_leaving(A));
}

#[test]
fn who_trains_or_works_in_a_notebook_is_heeded_as_batch() {
    for class in [Class::Train, Class::Notebook] {
        let (mut table, end_ns) = leaving(Share { class, ..Share::of(300) });
        table.tell(Input::Wants { tenant: B });
        assert!(table.scheduler.next_timer().is_some_and(|at_ns| at_ns < end_ns), "{class:?}");
    }
}
