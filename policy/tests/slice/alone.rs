//! Who is the only one, and whose gate stays open.

use crate::table::{A, B, MS, Table};
use gpool_policy::TenantId;
use gpool_policy::slice::{Class, Command, Input, Parameters, Share};

/// How far ahead an opened gate lets its tenant work, and in what bursts.
fn ahead(commands: &[Command]) -> Option<(u64, u64)> {
    commands.iter().find_map(|command| match command {
        Command::Open { depth_ns, burst_ns, .. } => Some((*depth_ns, *burst_ns)),
        _ => None,
    })
}

fn until(commands: &[Command]) -> Option<u64> {
    commands.iter().find_map(|command| match command {
        Command::Open { until_ns, .. } => Some(*until_ns),
        _ => None,
    })
}

const USUAL: Parameters = Parameters::DEFAULT;
const SHARED: (u64, u64) = (USUAL.depth_ns, USUAL.burst_ns);
const SOLE: (u64, u64) = (USUAL.sole_burst_ns, USUAL.sole_burst_ns);

/// The only one has had a second of GPU time.
fn sole(share: Share) -> Table {
    let mut table = Table::of(&[(A, share)]);
    table.tell(Input::Wants { tenant: A });
    table.now += 1000 * MS;
    table.burst(A, 1000 * MS);
    table.tell(Input::Idle { tenant: A });
    table.now += 100 * MS;
    table
}

#[test]
fn the_only_one_measures_long_bursts_until_somebody_joins() {
    let mut table = sole(Share::of(300));
    let opened = table.tell(Input::Wants { tenant: A });
    assert_eq!((ahead(&opened), until(&opened)), (Some(SOLE), Some(table.now + USUAL.sole_ns)));
    let joined = table.after(MS, Input::Join { tenant: B, share: Share::of(300), debt_ns: 0 });
    let latest = table.now + table.scheduler.slice_ns();
    assert_eq!((joined.len(), ahead(&joined), until(&joined)), (1, Some(SHARED), Some(latest)), "at once");
    let left = table.after(MS, Input::Leave { tenant: B });
    assert_eq!(left, [], "with its next slice");
    table.burst(A, MS);
    assert_eq!(ahead(&table.after(latest, Input::Announced { tenant: A, estimated_end_ns: latest })), Some(SOLE));
}

/// A works, and B has been idle for this long.
fn quiet(idle_ms: u64, shares: [Share; 2]) -> Table {
    let mut table = Table::of(&[(A, shares[0]), (B, shares[1])]);
    table.tell(Input::Wants { tenant: A });
    for _ in 0..100 {
        table.now += MS;
        table.burst(A, MS);
    }
    table.tell(Input::Wants { tenant: B });
    table.after(MS, Input::Idle { tenant: B });
    // It counts as at work for as long as it lingers.
    table.after(USUAL.linger_ns, Input::Pass);
    table.after(MS, Input::Idle { tenant: A });
    table.after(idle_ms * MS, Input::Pass);
    table
}

#[test]
fn beside_one_that_has_been_idle_for_a_second_bursts_are_longer_and_no_further_ahead() {
    const QUIET: (u64, u64) = (USUAL.depth_ns, USUAL.quiet_burst_ns);
    let mut table = quiet(990, [Share::of(300); 2]);
    assert_eq!(ahead(&table.tell(Input::Wants { tenant: A })), Some(SHARED));
    assert!(table.scheduler.heeds_leaving(A));
    let mut table = quiet(1000, [Share::of(300); 2]);
    let opened = table.tell(Input::Wants { tenant: A });
    assert_eq!(ahead(&opened), Some(QUIET));
    assert!(!table.scheduler.heeds_leaving(A), "nobody would have the device");
    let comes = table.after(10 * MS, Input::Wants { tenant: B });
    let latest = table.now + table.scheduler.slice_ns();
    assert_eq!((comes.len(), ahead(&comes)), (1, Some(SHARED)), "at once");
    assert!(until(&comes).is_some_and(|until| until <= latest));
    assert!(table.scheduler.heeds_leaving(A));
}

#[test]
fn who_has_a_ceiling_or_somebody_of_the_latency_class_beside_it_has_usual_bursts_whoever_is_idle() {
    let limited = Share { limit_permille: Some(900), ..Share::of(300) };
    let latency = Share { class: Class::Latency, ..Share::of(300) };
    for shares in [[limited, Share::of(300)], [latency, Share::of(300)], [Share::of(300), latency]] {
        let mut table = quiet(20_000, shares);
        assert_eq!(ahead(&table.tell(Input::Wants { tenant: A })).map(|(_, burst_ns)| burst_ns), Some(USUAL.burst_ns));
    }
}

#[test]
fn who_has_a_ceiling_is_never_taken_for_the_only_one() {
    let limited = Share { limit_permille: Some(500), ..Share::of(300) };
    let mut table = Table::of(&[(A, limited)]);
    assert_eq!(ahead(&table.tell(Input::Wants { tenant: A })), Some(SHARED));
    let mut table = sole(Share::of(300));
    assert_eq!(ahead(&table.after(100 * MS, Input::Wants { tenant: A })), Some(SOLE));
    let changed = table.after(MS, Input::Change { tenant: A, share: limited });
    let latest = table.now + table.scheduler.slice_ns();
    assert_eq!((ahead(&changed), until(&changed)), (Some(SHARED), Some(latest)), "its ceiling holds soon");
}

#[test]
fn one_of_the_latency_class_works_as_beside_others() {
    let latency = Share { class: Class::Latency, ..Share::of(300) };
    let mut table = sole(latency);
    assert_eq!(ahead(&table.tell(Input::Wants { tenant: A })), Some(SHARED));
}

/// What is under way when it is killed nobody reports.
#[test]
fn no_burst_holds_more_than_a_sixteenth_of_what_the_only_one_has_had() {
    let mut table = Table::of(&[(A, Share::of(300))]);
    for (more_ms, burst_ms) in [(0, 1), (16, 1), (64, 5), (240, 20), (960, 50)] {
        table.now += more_ms * MS;
        table.burst(A, more_ms * MS);
        let opened = ahead(&table.tell(Input::Wants { tenant: A }));
        assert_eq!(opened, Some((burst_ms.max(6) * MS, burst_ms * MS)), "{more_ms}");
        table.tell(Input::Idle { tenant: A });
        table.now += 10 * MS;
    }
}

#[test]
fn what_the_only_one_measured_at_once_says_nothing_of_it_later() {
    let mut table = Table::of(&[(A, Share::of(300))]);
    table.tell(Input::Wants { tenant: A });
    table.now += 60 * MS;
    table.burst(A, 50 * MS);
    table.after(MS, Input::Join { tenant: B, share: Share::of(300), debt_ns: 0 });
    table.now += 10 * MS;
    // The last one ends after somebody has joined.
    table.burst(A, 50 * MS);
    let bound_ns = table.scheduler.explain(A).expect("joined").turn_bound_ns;
    assert_eq!(bound_ns, table.scheduler.slice_ns() + USUAL.depth_ns);
}

#[test]
fn the_gate_of_who_fell_idle_may_stay_open_while_nobody_else_is_at_work() {
    let latency = Share { class: Class::Latency, ..Share::of(300) };
    let mut table = Table::of(&[(A, latency), (B, Share::of(300))]);
    let left_open = |table: &Table, tenant| table.scheduler.left_open(tenant);
    table.tell(Input::Wants { tenant: A });
    assert_eq!(left_open(&table, A), None, "it has a slice");
    assert_eq!(table.tell(Input::Idle { tenant: A }), [Command::Close { tenant: A }]);
    let opening = left_open(&table, A).as_slice().to_vec();
    assert_eq!((ahead(&opening), until(&opening)), (Some(SHARED), Some(table.now + USUAL.left_open_ns)));
    table.tell(Input::Wants { tenant: B });
    assert_eq!((left_open(&table, A), left_open(&table, B)), (None, None), "B runs");
    table.tell(Input::Idle { tenant: B });
    assert!(left_open(&table, B).is_some());
    table.tell(Input::Pause { tenant: B });
    assert_eq!(left_open(&table, B), None);
    table.tell(Input::Change { tenant: A, share: Share { limit_permille: Some(500), ..latency } });
    assert_eq!((left_open(&table, A), left_open(&table, TenantId(9))), (None, None), "a ceiling; unknown");
}

#[test]
fn who_has_had_nobody_beside_it_for_a_second_stands_before_the_device_alone_whatever_bounds_it() {
    let limited = Share { limit_permille: Some(900), ..Share::of(300) };
    let latency = Share { class: Class::Latency, ..Share::of(300) };
    for share in [Share::of(300), limited, latency] {
        let mut table = quiet(990, [share, Share::of(300)]);
        assert!(!table.scheduler.stands_alone(A));
        table.after(20 * MS, Input::Pass);
        assert!(table.scheduler.stands_alone(A), "{share:?}");
        table.tell(Input::Wants { tenant: B });
        assert!(!table.scheduler.stands_alone(A) && table.scheduler.stands_alone(B), "A has been idle for as long");
        assert!(Table::of(&[(A, share)]).scheduler.stands_alone(A), "nobody else has joined");
    }
}
