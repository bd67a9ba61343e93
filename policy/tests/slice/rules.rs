//! The rules of the slice scheduler, one by one, and arbitrary inputs.

use crate::table::{A, B, MS, SLICE, Table};
use gpool_policy::TenantId;
use gpool_policy::slice::{Class, Command, Input, Parameters, Priority, Share, SliceScheduler};
use proptest::prelude::*;

fn open(tenant: TenantId, until_ns: u64) -> Command {
    let Parameters { depth_ns, burst_ns, .. } = Parameters::default();
    Command::Open { tenant, until_ns, depth_ns, burst_ns }
}

#[test]
fn a_want_opens_an_idle_device_at_once() {
    let mut table = Table::new();
    let until = table.now + table.scheduler.slice_ns();
    assert_eq!(table.tell(Input::Wants { tenant: A }), [open(A, until)]);
    assert_eq!(table.tell(Input::Wants { tenant: A }), []);
    assert_eq!(table.tell(Input::Wants { tenant: B }), []);
    assert_eq!((table.scheduler.running(), table.scheduler.wants(B)), (Some(A), true));
}

#[test]
fn the_decision_is_one_hand_off_before_the_announced_end() {
    let mut table = Table::new();
    table.tell(Input::Wants { tenant: A });
    table.tell(Input::Wants { tenant: B });
    let end = table.now + 12 * MS;
    assert_eq!(table.after(9 * MS, Input::Announced { tenant: A, estimated_end_ns: end }), []);
    table.burst(A, 8 * MS);
    assert_eq!(table.scheduler.next_timer(), Some(end - table.scheduler.handoff_ns()));
    table.now = end - table.scheduler.handoff_ns();
    let until = end + table.scheduler.slice_ns();
    assert_eq!(table.tell(Input::Pass), [Command::Close { tenant: A }, open(B, until)]);
}

#[test]
fn an_earlier_end_may_be_announced() {
    let mut table = Table::new();
    table.tell(Input::Wants { tenant: A });
    table.tell(Input::Wants { tenant: B });
    let end = table.now + 15 * MS;
    table.after(9 * MS, Input::Announced { tenant: A, estimated_end_ns: end });
    table.burst(A, 8 * MS);
    let drained = table.now + MS;
    let commands = table.after(MS, Input::Announced { tenant: A, estimated_end_ns: drained });
    assert_eq!(commands[0], Command::Close { tenant: A });
}

#[test]
fn alone_it_is_renewed_without_a_close() {
    let mut table = Table::new();
    table.tell(Input::Wants { tenant: A });
    let end = table.now + 12 * MS;
    table.burst(A, 8 * MS);
    let until = end + table.scheduler.slice_ns();
    assert_eq!(table.after(12 * MS, Input::Announced { tenant: A, estimated_end_ns: end }), [open(A, until)]);
    let asked = table.now;
    table.now = table.scheduler.next_timer().expect("a look");
    assert_eq!((table.tell(Input::Pass), table.now < until), (vec![], true), "whether it has worked");
    // Nothing is left to decide; only a tenant that hangs would be noticed.
    assert_eq!(table.scheduler.next_timer(), Some(asked - 12 * MS + Share::of(500).hang.usual_ns));
}

/// Its work goes on for 5 ms when it says that it wants more: it need not wait for them to end.
#[test]
fn alone_it_is_renewed_when_it_asks() {
    let mut table = Table::new();
    table.tell(Input::Wants { tenant: A });
    let end = table.now + 14 * MS;
    let commands = table.after(9 * MS, Input::Announced { tenant: A, estimated_end_ns: end });
    assert_eq!(commands, [open(A, end + table.scheduler.slice_ns())]);
}

/// A has the device alone, and its slice has just been renewed, before the first one ends: the table, and that end.
fn renewed_alone() -> (Table, u64) {
    let mut table = Table::new();
    table.tell(Input::Wants { tenant: A });
    let until = table.now + table.scheduler.slice_ns();
    assert_eq!(table.after(MS, Input::Pass), []);
    table.burst(A, MS);
    let early = table.scheduler.next_timer().expect("a renewal");
    assert!(early < until - MS && early > table.now, "{early} of {until}");
    table.now = early;
    assert_eq!(table.tell(Input::Pass), [open(A, until + table.scheduler.slice_ns())]);
    (table, until)
}

#[test]
fn alone_and_measured_it_is_renewed_before_it_asks() {
    let (mut table, until) = renewed_alone();
    // Nothing of the new slice has been measured yet, so nothing renews that.
    table.now = table.scheduler.next_timer().expect("a look");
    assert_eq!((table.tell(Input::Pass), table.now > until), (vec![], true));
    assert!(table.scheduler.next_timer().is_none_or(|at| at > until + 1000 * MS));
}

/// It has had its slice; the rest was given because nobody wanted it, and who does now need not wait for its end.
#[test]
fn who_comes_to_one_that_has_been_alone_for_a_slice_is_next() {
    let (mut table, until) = renewed_alone();
    table.now = until + MS;
    table.burst(A, 8 * MS);
    let came = table.now;
    assert_eq!(table.tell(Input::Wants { tenant: B }), [open(A, came)]);
    // It ends what it has launched, and nobody idles.
    let end = came + 5 * MS;
    assert_eq!(table.tell(Input::Announced { tenant: A, estimated_end_ns: end }), []);
    table.now = end;
    assert_eq!(table.tell(Input::Pass)[0], Command::Close { tenant: A });
    assert_eq!(table.scheduler.running(), Some(B));
    // From now on there are two, and each has whole slices.
    table.burst(A, 5 * MS);
    assert_eq!(table.tell(Input::Wants { tenant: A }), []);
}

#[test]
fn alone_it_is_seldom_bothered_and_gives_way_all_the_same() {
    for (held_ms, left_ms) in [(50, 0), (10, 0), (3, 7)] {
        let mut table = Table::with_alone(100 * MS, &[(A, Share::of(500)), (B, Share::of(500))]);
        assert_eq!(table.tell(Input::Wants { tenant: A }), [open(A, table.now + 100 * MS)]);
        for _ in 0..held_ms {
            table.now += MS;
            table.burst(A, MS);
        }
        let until = table.now + left_ms * MS;
        assert_eq!(table.tell(Input::Wants { tenant: B }), [open(A, until)], "after {held_ms} ms");
        // There are two now, whose slices are the usual ones.
        table.now = until;
        let end = until + 2 * MS;
        assert_eq!(table.tell(Input::Announced { tenant: A, estimated_end_ns: end }), []);
        table.now = table.scheduler.next_timer().expect("a decision");
        assert_eq!(table.tell(Input::Pass), [Command::Close { tenant: A }, open(B, end + SLICE)]);
    }
}

/// Of the time that the other one has had since, everybody who waits has the better claim sooner or later.
#[test]
fn who_waits_and_rings_again_shortens_nothing() {
    let mut table = Table::new();
    let until = table.now + SLICE;
    assert_eq!(table.tell(Input::Wants { tenant: A }), [open(A, until)]);
    assert_eq!(table.after(MS / 2, Input::Wants { tenant: B }), []);
    table.now += 3 * MS;
    table.burst(A, 3 * MS);
    assert_eq!(table.tell(Input::Wants { tenant: B }), [], "another thread of it stands at the gate");
    assert_eq!(table.tell(Input::Idle { tenant: B }), []);
    assert_eq!(table.after(MS, Input::Wants { tenant: B }), [], "it went and came again");
    // The first one has had a slice when it is asked; in the next one the other is heard again.
    table.now = until;
    table.burst(A, 6 * MS);
    table.tell(Input::Announced { tenant: A, estimated_end_ns: until });
    assert_eq!(table.scheduler.running(), Some(B));
    table.burst(A, MS);
    table.now += 5 * MS;
    table.burst(B, 5 * MS);
    assert_eq!(table.tell(Input::Idle { tenant: B })[0], Command::Close { tenant: B });
    assert_eq!(table.scheduler.running(), Some(A));
    table.now += 3 * MS / 2;
    table.burst(A, 3 * MS / 2);
    assert_eq!(table.tell(Input::Wants { tenant: B }), [open(A, table.now)], "it comes, and is owed time");
}

/// One of a lower priority is not served while the other one wants, so that it waits says nothing of who comes next.
#[test]
fn one_of_a_lower_priority_keeps_nobody_from_being_next() {
    let (c, low) = (TenantId(3), Share { priority: Priority::Scavenger, ..Share::of(500) });
    let mut table = Table::of(&[(A, Share::of(500)), (B, Share::of(500)), (c, low)]);
    table.tell(Input::Wants { tenant: A });
    assert_eq!(table.after(3 * MS, Input::Wants { tenant: c }), []);
    for _ in 0..6 {
        table.now += MS;
        table.burst(A, MS);
    }
    let end = table.now + MS;
    table.tell(Input::Announced { tenant: A, estimated_end_ns: end });
    table.now = table.scheduler.next_timer().expect("a decision");
    assert_eq!(table.tell(Input::Pass), [open(A, end + SLICE)]);
    table.now = end + 4 * MS;
    assert_eq!(table.tell(Input::Wants { tenant: B }), [open(A, table.now)]);
}

/// It has been served, so it is decided when the other one's work ends that this one goes on; but not after a long slice.
#[test]
fn a_long_slice_ends_also_for_one_that_is_ahead_of_its_share() {
    let mut table = Table::with_alone(100 * MS, &[(A, Share::of(500)), (B, Share::of(500))]);
    table.tell(Input::Wants { tenant: B });
    table.tell(Input::Wants { tenant: A });
    table.now += 30 * MS;
    table.burst(B, 30 * MS);
    table.tell(Input::Announced { tenant: B, estimated_end_ns: table.now });
    assert_eq!((table.scheduler.running(), table.scheduler.lag_ns(B)), (Some(A), Some(-15_000_000)));
    table.tell(Input::Idle { tenant: B });
    // B is active no longer, and A is alone from its next slice on.
    table.now += 9 * MS;
    table.burst(A, 9 * MS);
    let end = table.now + 2 * MS;
    table.tell(Input::Announced { tenant: A, estimated_end_ns: end });
    table.now = table.scheduler.next_timer().expect("a decision");
    assert_eq!(table.tell(Input::Pass), [open(A, end + 100 * MS)]);
    table.now += 5 * MS;
    let came = table.now;
    assert_eq!(table.tell(Input::Wants { tenant: B }), [open(A, came)]);
    assert!(table.scheduler.debt_ns(B) > 0);
}

#[test]
fn slices_are_long_for_nobody_with_a_limit_or_company_or_requests() {
    let limited = Share { limit_permille: Some(500), ..Share::of(500) };
    let latency = Share { class: Class::Latency, ..Share::of(500) };
    for share in [limited, latency] {
        let mut table = Table::with_alone(100 * MS, &[(A, share), (B, Share::of(500))]);
        let commands = table.tell(Input::Wants { tenant: A });
        let [Command::Open { until_ns, .. }] = commands[..] else { panic!("{commands:?}") };
        assert!(until_ns < table.now + 50 * MS, "{share:?}: {until_ns}");
    }
    let mut table = Table::with_alone(100 * MS, &[(A, Share::of(500)), (B, Share::of(500))]);
    table.tell(Input::Wants { tenant: B });
    table.tell(Input::Idle { tenant: B });
    // It lingers, and may be back at once.
    assert_eq!(table.after(MS, Input::Wants { tenant: A }), [open(A, table.now + SLICE)]);
}

/// What it may keep, though it has been given more: who falls idle again and again would cost everybody an exchange each
/// time.
#[test]
fn who_comes_leaves_a_whole_slice_to_one_that_has_just_begun() {
    let (mut table, until) = renewed_alone();
    assert_eq!(table.tell(Input::Wants { tenant: B }), [open(A, until)]);
    // That was for who came first.
    assert_eq!(table.after(MS, Input::Wants { tenant: B }), []);
}

#[test]
fn idle_passes_the_device_on_at_once() {
    let mut table = Table::new();
    table.tell(Input::Wants { tenant: A });
    table.tell(Input::Wants { tenant: B });
    let until = table.now + MS + table.scheduler.slice_ns();
    assert_eq!(table.after(MS, Input::Idle { tenant: A }), [Command::Close { tenant: A }, open(B, until)]);
    assert_eq!(table.scheduler.active_count(), 2);
    table.after(3 * MS, Input::Pass);
    assert_eq!(table.scheduler.active_count(), 1);
}

#[test]
fn silence_is_overlapped_at_the_drain_limit_and_booked() {
    let mut table = Table::new();
    table.tell(Input::Wants { tenant: A });
    table.tell(Input::Wants { tenant: B });
    let limit = table.now + table.scheduler.slice_ns() + 20 * MS;
    assert_eq!(table.scheduler.next_timer(), Some(limit));
    table.now = limit;
    assert_eq!(table.tell(Input::Pass)[0], Command::Close { tenant: A });
    assert_eq!((table.scheduler.running(), table.scheduler.charged_ns(A)), (Some(B), Some(0)));
    let silent = i64::try_from(table.scheduler.slice_ns() + 20 * MS).expect("small");
    assert_eq!(table.scheduler.lag_ns(A), Some(-silent / 2));
    // What it turns out to have run in that time is not booked twice.
    table.burst(A, 25 * MS);
    assert_eq!(table.scheduler.lag_ns(A), Some(-silent / 2));
    assert_eq!(table.scheduler.charged_ns(A), Some(25 * MS));
}

#[test]
fn a_lone_silent_tenant_makes_room_for_whoever_comes() {
    let mut table = Table::new();
    table.tell(Input::Wants { tenant: A });
    assert_eq!(table.after(500 * MS, Input::Pass), []);
    assert_eq!(table.tell(Input::Wants { tenant: B })[0], Command::Close { tenant: A });
    assert_eq!(table.scheduler.running(), Some(B));
    assert_eq!(table.scheduler.debt_ns(A), 0);
}

#[test]
fn a_short_pause_keeps_what_is_owed_and_a_long_one_does_not() {
    for (pause, kept) in [(MS, true), (5 * MS, false)] {
        let mut table = Table::new();
        table.tell(Input::Wants { tenant: A });
        table.tell(Input::Wants { tenant: B });
        table.now += 10 * MS;
        table.burst(A, 10 * MS);
        assert_eq!(table.scheduler.lag_ns(B), Some(5_000_000));
        table.tell(Input::Idle { tenant: B });
        table.after(pause, Input::Wants { tenant: B });
        assert_eq!(table.scheduler.lag_ns(B), Some(if kept { 5_000_000 } else { 0 }));
    }
}

#[test]
fn debt_shortens_the_slice() {
    let mut table = Table::new();
    table.tell(Input::Wants { tenant: A });
    table.tell(Input::Wants { tenant: B });
    table.now += 50 * MS;
    table.burst(A, 50 * MS);
    assert_eq!((table.scheduler.running(), table.scheduler.debt_ns(A)), (Some(B), 25 * MS));
    // The one that is owed time pauses, so the debtor is next, for the least slice.
    table.tell(Input::Wants { tenant: A });
    assert_eq!(table.tell(Input::Idle { tenant: B }).last(), Some(&open(A, table.now + MS)));
}

#[test]
fn an_end_that_is_too_far_away_is_not_waited_for() {
    let mut table = Table::new();
    table.tell(Input::Wants { tenant: A });
    table.tell(Input::Wants { tenant: B });
    let limit = table.now + table.scheduler.slice_ns() + 20 * MS;
    table.after(MS, Input::Announced { tenant: A, estimated_end_ns: table.now + 100 * MS });
    assert_eq!(table.scheduler.next_timer(), Some(limit));
    table.now = limit;
    let until = limit + table.scheduler.slice_ns();
    assert_eq!(table.tell(Input::Pass), [Command::Close { tenant: A }, open(B, until)]);
    assert!(table.scheduler.wants(A));
}

#[test]
fn holding_and_then_working_is_paid_twice() {
    let mut table = Table::new();
    table.tell(Input::Wants { tenant: A });
    table.tell(Input::Wants { tenant: B });
    table.now += table.scheduler.slice_ns() + 20 * MS;
    table.tell(Input::Pass);
    let before = table.scheduler.lag_ns(A).expect("joined");
    table.tell(Input::Wants { tenant: A });
    table.now += 10 * MS;
    table.burst(A, 5 * MS);
    assert_eq!(table.scheduler.lag_ns(A), Some(before - 2_500_000));
}

#[test]
fn an_announcement_that_crossed_a_renewal_is_ignored() {
    let mut table = Table::new();
    table.tell(Input::Wants { tenant: A });
    let end = table.now + 12 * MS;
    let until = end + table.scheduler.slice_ns();
    assert_eq!(table.after(12 * MS, Input::Announced { tenant: A, estimated_end_ns: end }), [open(A, until)]);
    table.burst(A, 12 * MS);
    assert_eq!(table.tell(Input::Announced { tenant: A, estimated_end_ns: end }), []);
    assert_eq!((table.scheduler.running(), table.scheduler.wants(A)), (Some(A), false));
}

#[test]
fn debt_is_forgotten_after_its_time() {
    let mut table = Table::new();
    table.tell(Input::Leave { tenant: A });
    table.tell(Input::Wants { tenant: B });
    table.tell(Input::Join { tenant: A, share: Share::of(500), debt_ns: 7 * MS });
    assert_eq!(table.scheduler.debt_ns(A), 7 * MS);
    table.after(10_001 * MS, Input::Wants { tenant: A });
    assert_eq!(table.scheduler.debt_ns(A), 0);
}

#[test]
fn absurd_announcements_are_bounded() {
    let mut table = Table::new();
    table.tell(Input::Wants { tenant: A });
    let latest = table.now + table.scheduler.slice_ns() + 200 * MS;
    table.tell(Input::Announced { tenant: A, estimated_end_ns: u64::MAX });
    assert_eq!(table.scheduler.next_timer(), Some(latest - table.scheduler.handoff_ns()));
    let until = table.now + table.scheduler.slice_ns();
    assert_eq!(table.tell(Input::Announced { tenant: A, estimated_end_ns: 0 }), [open(A, until)]);
}

#[test]
fn unknown_tenants_are_ignored() {
    let mut table = Table::new();
    let tenant = TenantId(9);
    for input in [
        Input::Wants { tenant },
        Input::Idle { tenant },
        Input::Leave { tenant },
        Input::Change { tenant, share: Share::of(3) },
        Input::Announced { tenant, estimated_end_ns: 5 },
        Input::Burst { tenant, context: 0, start_ns: 0, end_ns: 5 },
        Input::FirstLaunch { tenant, after_open_ns: u64::MAX },
    ] {
        assert_eq!(table.tell(input), []);
    }
    assert_eq!((table.scheduler.running(), table.scheduler.total_charged_ns()), (None, 0));
    assert_eq!((table.scheduler.handoff_ns(), table.scheduler.debt_ns(tenant)), (100_000, 0));
}

fn any_time() -> impl Strategy<Value = u64> {
    prop_oneof![8 => 0..200 * MS, 1 => Just(u64::MAX), 1 => any::<u64>()]
}

fn any_input() -> impl Strategy<Value = Input> {
    let tenant = (0..5u64).prop_map(TenantId);
    prop_oneof![
        (tenant.clone(), any::<u16>(), 0..100 * MS).prop_map(|(tenant, weight_permille, debt_ns)| Input::Join {
            tenant,
            share: Share::of(weight_permille),
            debt_ns
        }),
        tenant.clone().prop_map(|tenant| Input::Leave { tenant }),
        (tenant.clone(), any::<u16>()).prop_map(|(tenant, weight)| Input::Change { tenant, share: Share::of(weight) }),
        tenant.clone().prop_map(|tenant| Input::Wants { tenant }),
        (tenant.clone(), any_time())
            .prop_map(|(tenant, estimated_end_ns)| Input::Announced { tenant, estimated_end_ns }),
        tenant.clone().prop_map(|tenant| Input::Idle { tenant }),
        (tenant.clone(), 0..3u64, any_time(), any_time())
            .prop_map(|(tenant, context, start_ns, end_ns)| Input::Burst { tenant, context, start_ns, end_ns }),
        (tenant, any_time()).prop_map(|(tenant, after_open_ns)| Input::FirstLaunch { tenant, after_open_ns }),
        Just(Input::Pass),
    ]
}

/// No gate is opened for longer: a tenant that fails closed works no longer than that without a supervisor.
const LATEST: u64 = 1000 * MS;

proptest! {
    #![proptest_config(ProptestConfig { cases: 300, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn any_inputs_keep_the_gates_in_order(steps in prop::collection::vec((0..3 * MS, any_input()), 1..200)) {
        let mut scheduler = SliceScheduler::new(Parameters::default(), 0);
        let (mut now, mut opened) = (0, None);
        for (index, (passed, input)) in steps.into_iter().enumerate() {
            now += passed;
            // Every seventh input carries a time that lies back.
            let told = if index % 7 == 0 { now / 2 } else { now };
            let mut commands = Vec::new();
            scheduler.handle(told, input, &mut commands);
            for command in commands {
                match command {
                    Command::Open { tenant, until_ns, .. } => {
                        prop_assert!(opened.is_none_or(|other| other == tenant));
                        prop_assert!(until_ns >= told && until_ns <= now + LATEST);
                        opened = Some(tenant);
                    }
                    Command::Close { tenant } => {
                        prop_assert_eq!(opened, Some(tenant));
                        opened = None;
                    }
                    Command::Hung { .. } => {}
                }
            }
            prop_assert_eq!(scheduler.running(), opened);
            if opened.is_none() {
                prop_assert!((0..5).all(|tenant| !scheduler.wants(TenantId(tenant))));
            }
            prop_assert!(scheduler.next_timer().is_none_or(|at| at > told));
            prop_assert!(scheduler.total_charged_ns() <= 20_000 * MS);
        }
    }
}
