//! The rules for latency tenants, limits, priorities, pauses and penalties, one by one.

use crate::table::{A, B, MS, SLICE, Table};
use gpool_policy::TenantId;
use gpool_policy::slice::{Class, Command, Input, Parameters, Priority, Share, State, WaitCause};

const C: TenantId = TenantId(3);

fn latency(weight: u16) -> Share {
    Share { class: Class::Latency, ..Share::of(weight) }
}

fn opened(commands: &[Command]) -> Option<TenantId> {
    commands.iter().rev().find_map(|command| match command {
        Command::Open { tenant, .. } => Some(*tenant),
        Command::Close { .. } | Command::Hung { .. } => None,
    })
}

fn depth_of(commands: &[Command]) -> u64 {
    let depth = commands.iter().rev().find_map(|command| match command {
        Command::Open { depth_ns, .. } => Some(*depth_ns),
        Command::Close { .. } | Command::Hung { .. } => None,
    });
    depth.expect("an opened gate")
}

#[test]
fn a_latency_tenant_takes_the_device_over_at_once_and_gives_it_back() {
    let mut table = Table::of(&[(A, Share::of(500)), (B, latency(300))]);
    table.tell(Input::Wants { tenant: A });
    let commands = table.after(2 * MS, Input::Wants { tenant: B });
    assert_eq!(commands[0], Command::Close { tenant: A });
    assert_eq!(opened(&commands), Some(B));
    table.after(MS / 10, Input::Wants { tenant: A });
    let commands = table.after(3 * MS, Input::Idle { tenant: B });
    assert_eq!((commands[0], opened(&commands)), (Command::Close { tenant: B }, Some(A)));
}

#[test]
fn who_has_announced_before_it_is_interrupted_is_not_forgotten() {
    let mut table = Table::of(&[(A, Share::of(500)), (B, latency(300))]);
    table.tell(Input::Wants { tenant: A });
    table.now += 20 * MS;
    table.tell(Input::Announced { tenant: A, estimated_end_ns: table.now + 50 * MS });
    assert_eq!(opened(&table.after(MS, Input::Wants { tenant: B })), Some(B));
    // It stands at its gate and need not say so again.
    assert_eq!(opened(&table.after(30 * MS, Input::Idle { tenant: B })), Some(A));
}

#[test]
fn a_kernel_of_which_nothing_is_heard_counts_until_the_tenant_has_drained() {
    let mut table = Table::of(&[(A, Share::of(500)), (B, Share::of(500))]);
    table.tell(Input::Wants { tenant: A });
    table.tell(Input::Wants { tenant: B });
    table.now += 60 * MS;
    assert_eq!(opened(&table.tell(Input::Pass)), Some(B));
    // It stands at its gate again, but what it has launched may still run: the other one goes on.
    table.tell(Input::Wants { tenant: A });
    for _ in 0..4 {
        table.now += 10 * MS;
        table.burst(B, 10 * MS);
        table.tell(Input::Announced { tenant: B, estimated_end_ns: table.now });
        assert_eq!(table.scheduler.running(), Some(B));
    }
    assert_eq!(table.scheduler.lag_ns(A), Some(5_000_000), "by what is charged it is owed time");
    table.tell(Input::Drained { tenant: A });
    table.after(10 * MS, Input::Announced { tenant: B, estimated_end_ns: table.now });
    assert_eq!((table.scheduler.running(), table.scheduler.charged_ns(A)), (Some(A), Some(0)));
}

#[test]
fn a_latency_tenant_without_slack_waits_like_anybody() {
    let mut table = Table::of(&[(A, Share::of(500)), (B, latency(500))]);
    table.tell(Input::Wants { tenant: A });
    table.tell(Input::Wants { tenant: B });
    // It uses twice its slack while the other one stands at its gate.
    table.tell(Input::Wants { tenant: A });
    table.now += 100 * MS;
    table.burst(B, 100 * MS);
    assert_eq!(table.scheduler.lag_ns(B), Some(-50_000_000));
    table.tell(Input::Announced { tenant: B, estimated_end_ns: table.now });
    assert_eq!(table.scheduler.running(), Some(A));
    // It has no slack left: its wish preempts nobody.
    assert_eq!(table.after(MS, Input::Wants { tenant: B }), []);
    let why = table.scheduler.explain(B).expect("joined").state;
    assert!(matches!(why, State::Waiting { behind: Some(A), cause: WaitCause::Debt, .. }), "{why:?}");
}

#[test]
fn two_latency_tenants_do_not_interrupt_each_other() {
    let mut table = Table::of(&[(A, latency(300)), (B, latency(300))]);
    table.tell(Input::Wants { tenant: A });
    assert_eq!(table.after(MS, Input::Wants { tenant: B }), []);
    assert_eq!(opened(&table.after(MS, Input::Idle { tenant: A })), Some(B));
}

#[test]
fn batch_works_less_far_ahead_while_a_latency_tenant_is_about() {
    let parameters = Parameters::default();
    let mut table = Table::of(&[(A, Share::of(500)), (TenantId(3), Share::of(100))]);
    assert_eq!(depth_of(&table.tell(Input::Wants { tenant: A })), parameters.depth_ns);
    table.tell(Input::Idle { tenant: A });
    table.tell(Input::Join { tenant: B, share: latency(300), debt_ns: 0 });
    assert_eq!(depth_of(&table.tell(Input::Wants { tenant: A })), parameters.latency_depth_ns);
    table.tell(Input::Idle { tenant: A });
    table.now += parameters.latency_about_ns + MS;
    assert_eq!(depth_of(&table.tell(Input::Wants { tenant: A })), parameters.depth_ns);
}

#[test]
fn lent_time_is_cut_short_when_its_owner_comes_back() {
    let mut table = Table::of(&[(A, Share::of(500)), (B, Share::of(500))]);
    table.tell(Input::Wants { tenant: B });
    table.tell(Input::Wants { tenant: A });
    table.tell(Input::Idle { tenant: B });
    // B lingers and is owed time, while A runs alone.
    table.now += MS;
    table.burst(A, MS);
    let commands = table.after(MS / 2, Input::Wants { tenant: B });
    assert!(matches!(commands[..], [Command::Open { tenant: A, until_ns, .. }] if until_ns == table.now));
    let commands = table.tell(Input::Announced { tenant: A, estimated_end_ns: table.now + MS });
    assert_eq!(commands, []);
    table.now += MS;
    assert_eq!(opened(&table.tell(Input::Pass)), Some(B));
}

#[test]
fn a_limit_holds_also_on_an_idle_device() {
    let mut table = Table::of(&[(A, Share { limit_permille: Some(250), ..Share::of(250) })]);
    assert_eq!(opened(&table.tell(Input::Wants { tenant: A })), Some(A));
    table.now += 10 * MS;
    table.burst(A, 10 * MS);
    let commands = table.tell(Input::Announced { tenant: A, estimated_end_ns: table.now });
    assert_eq!(commands, [Command::Close { tenant: A }]);
    // Early by a slice, which a wait for its turn would cost it.
    let opens = 1000 * MS + 40 * MS - table.scheduler.slice_ns();
    assert_eq!(table.scheduler.next_timer(), Some(opens));
    let why = table.scheduler.explain(A).expect("joined").state;
    assert!(matches!(why, State::Waiting { cause: WaitCause::Ceiling { .. }, .. }), "{why:?}");
    table.now = opens;
    assert_eq!(opened(&table.tell(Input::Pass)), Some(A));
}

#[test]
fn who_uses_what_a_limit_leaves_owes_nothing_for_it() {
    let mut table = Table::of(&[(A, Share { limit_permille: Some(100), ..Share::of(300) }), (B, Share::of(300))]);
    table.tell(Input::Wants { tenant: A });
    table.tell(Input::Wants { tenant: B });
    for _ in 0..600 {
        let Some(tenant) = table.scheduler.running() else { panic!("B always wants") };
        table.now += 10 * MS;
        table.burst(tenant, 10 * MS);
        table.tell(Input::Announced { tenant, estimated_end_ns: table.now });
    }
    let (a, b) = (table.scheduler.charged_ns(A).expect("joined"), table.scheduler.charged_ns(B).expect("joined"));
    assert!(a <= (a + b) / 10 + 20 * MS && a >= (a + b) / 12, "{a} of {}", a + b);
    assert!(table.scheduler.debt_ns(B) <= 70 * MS, "{}", table.scheduler.debt_ns(B));
}

#[test]
fn without_its_limit_a_waiting_tenant_runs_at_once() {
    let mut table = Table::of(&[(A, Share { limit_permille: Some(100), ..Share::of(100) })]);
    table.tell(Input::Wants { tenant: A });
    table.now += 10 * MS;
    table.burst(A, 10 * MS);
    table.tell(Input::Announced { tenant: A, estimated_end_ns: table.now });
    assert_eq!(table.scheduler.running(), None);
    assert_eq!(opened(&table.after(MS, Input::Change { tenant: A, share: Share::of(100) })), Some(A));
}

#[test]
fn a_higher_limit_acts_on_what_it_waits_for() {
    let limited = |permille| Share { limit_permille: Some(permille), ..Share::of(100) };
    let mut table = Table::of(&[(A, limited(10))]);
    let begin = table.now;
    table.tell(Input::Wants { tenant: A });
    table.now += 1000 * MS;
    table.burst(A, 1000 * MS);
    table.tell(Input::Announced { tenant: A, estimated_end_ns: table.now });
    // A second at 1 %: of the 100 s 99 are left. As much work at 50 % takes 1.98.
    assert_eq!(table.tell(Input::Change { tenant: A, share: limited(500) }), []);
    let opens = begin + 2980 * MS - SLICE;
    assert_eq!((table.scheduler.running(), table.scheduler.next_timer()), (None, Some(opens)));
    table.now = opens;
    assert_eq!(opened(&table.tell(Input::Pass)), Some(A));
}

/// What a kernel costs is known when it ends, which may be long after its tenant was seen last.
#[test]
fn a_debt_is_as_old_as_the_work_that_made_it() {
    for after_ms in [0, 9_000, 11_000] {
        let mut table = Table::of(&[(A, Share::of(100)), (B, Share::of(900))]);
        let begin = table.now;
        table.tell(Input::Wants { tenant: A });
        table.tell(Input::Wants { tenant: B });
        table.after(5 * MS, Input::Announced { tenant: A, estimated_end_ns: begin + SLICE });
        // It goes on for 9 s beside the other one, who has work all the time.
        for _ in 0..90 {
            table.now += 100 * MS;
            table.burst(B, 100 * MS);
            table.tell(Input::Wants { tenant: B });
        }
        table.tell(Input::Burst { tenant: A, context: 0, start_ns: begin, end_ns: table.now });
        table.now += after_ms * MS;
        table.tell(Input::Wants { tenant: A });
        // Each had half of the device.
        let debt = table.scheduler.debt_ns(A);
        assert_eq!(debt > 1000 * MS, after_ms < 10_000, "{after_ms} ms after its end it owes {debt} ns");
    }
}

#[test]
fn guaranteed_before_burst_before_scavenger() {
    let with = |priority| Share { priority, ..Share::of(300) };
    let mut table =
        Table::of(&[(A, with(Priority::Scavenger)), (B, with(Priority::Burst)), (C, with(Priority::Guaranteed))]);
    assert_eq!(opened(&table.tell(Input::Wants { tenant: A })), Some(A));
    // The slice of a lower priority is cut, and what it has launched drains.
    let commands = table.after(2 * MS, Input::Wants { tenant: B });
    assert!(matches!(commands[..], [Command::Open { tenant: A, until_ns, .. }] if until_ns == table.now));
    table.tell(Input::Announced { tenant: A, estimated_end_ns: table.now });
    assert_eq!(table.scheduler.running(), Some(B));
    table.after(2 * MS, Input::Wants { tenant: C });
    table.tell(Input::Announced { tenant: B, estimated_end_ns: table.now });
    assert_eq!(table.scheduler.running(), Some(C));
    for _ in 0..10 {
        table.now += 6 * MS;
        table.burst(C, 6 * MS);
        let end = table.scheduler.next_timer().map_or(table.now, |at| at.min(table.now + 6 * MS));
        table.now = end.max(table.now);
        table.tell(Input::Announced { tenant: C, estimated_end_ns: table.now });
        assert_eq!(table.scheduler.running(), Some(C), "the others wait for as long as it wants");
    }
    assert_eq!(opened(&table.tell(Input::Idle { tenant: C })), Some(B));
    assert_eq!(opened(&table.tell(Input::Idle { tenant: B })), Some(A));
}

#[test]
fn a_paused_tenant_waits_until_it_is_resumed() {
    let mut table = Table::of(&[(A, Share::of(500)), (B, Share::of(500))]);
    table.tell(Input::Wants { tenant: A });
    assert_eq!(table.tell(Input::Pause { tenant: A }), [Command::Close { tenant: A }]);
    assert_eq!(table.after(MS, Input::Wants { tenant: A }), []);
    assert_eq!(table.scheduler.explain(A).map(|why| why.state), Some(State::Paused));
    assert_eq!(opened(&table.tell(Input::Wants { tenant: B })), Some(B));
    table.tell(Input::Idle { tenant: B });
    assert_eq!(opened(&table.after(5 * MS, Input::Resume { tenant: A })), Some(A));
}

#[test]
fn unreported_time_is_a_debt_and_no_charge() {
    let mut table = Table::of(&[(A, Share::of(500)), (B, Share::of(500))]);
    table.tell(Input::Wants { tenant: A });
    table.tell(Input::Wants { tenant: B });
    table.tell(Input::Owe { tenant: A, ns: 100 * MS, until_ns: table.now });
    assert_eq!((table.scheduler.debt_ns(A), table.scheduler.charged_ns(A)), (50 * MS, Some(0)));
}

#[test]
fn what_was_found_counts_against_a_limit_once() {
    let limited = Share { limit_permille: Some(100), ..Share::of(100) };
    let opens_after_ms = |debts: &[(u64, bool)], report_ms: u64| {
        let mut table = Table::of(&[(A, limited), (B, Share::of(100))]);
        table.tell(Input::Wants { tenant: A });
        let begin_ns = table.now;
        table.now += 1_000 * MS;
        table.tell(Input::Idle { tenant: A });
        for (ms, is_reported) in debts {
            let until_ns = if *is_reported { 0 } else { table.now };
            table.tell(Input::Owe { tenant: A, ns: ms * MS, until_ns });
        }
        if report_ms > 0 {
            table.tell(Input::Burst { tenant: A, context: 0, start_ns: begin_ns, end_ns: begin_ns + report_ms * MS });
        }
        let asked_ns = table.now;
        let mut commands = table.tell(Input::Wants { tenant: A });
        while opened(&commands) != Some(A) {
            table.now += 10 * MS;
            commands = table.tell(Input::Pass);
        }
        (table.now - asked_ns) / (100 * MS)
    };
    assert_eq!(opens_after_ms(&[], 0), 0);
    assert_eq!(opens_after_ms(&[], 1_000), 89, "of 10 s that a second at a tenth takes one is over");
    for debts in [&[(1_000, false)][..], &[(1_000, true)]] {
        assert_eq!(opens_after_ms(debts, 0), 89, "{debts:?}");
    }
    assert_eq!(opens_after_ms(&[(1_000, false)], 1_000), 89, "reported after all it counts once");
}

/// Two tenants that always want, the first of which owes so much (until then) and reports bursts of these lengths, one
/// after the other from its first turn on. What it owes at the end, and how much of its debts it has redeemed.
fn after_debts(debts: &[(u64, u64)], bursts_ns: &[u64]) -> (u64, u64) {
    let mut table = Table::of(&[(A, Share::of(500)), (B, Share::of(500))]);
    table.tell(Input::Wants { tenant: A });
    table.tell(Input::Wants { tenant: B });
    let begin_ns = table.now;
    table.now += bursts_ns.iter().sum::<u64>();
    table.tell(Input::Pass);
    for (ns, until_ns) in debts {
        table.tell(Input::Owe { tenant: A, ns: *ns, until_ns: begin_ns + until_ns });
    }
    let mut start_ns = begin_ns;
    for ns in bursts_ns {
        table.tell(Input::Burst { tenant: A, context: 0, start_ns, end_ns: start_ns + ns });
        start_ns += ns;
    }
    assert_eq!(table.scheduler.charged_ns(A), Some(start_ns - begin_ns), "reported is charged, whatever is owed");
    (table.scheduler.debt_ns(A), table.scheduler.redeemed_ns(A).expect("joined"))
}

#[test]
fn what_is_reported_after_it_was_owed_is_booked_once() {
    let kernel = [8_500 * MS];
    let (honest_ns, _) = after_debts(&[], &kernel);
    assert_eq!(honest_ns, 4_250 * MS);
    // The audit has seen two parts of it before it ended.
    assert_eq!(after_debts(&[(3_000 * MS, 3_000 * MS), (4_000 * MS, 7_000 * MS)], &kernel), (honest_ns, 7_000 * MS));
    let (debt_ns, redeemed_ns) = after_debts(&[(9_000 * MS, 9_000 * MS)], &kernel);
    assert_eq!((debt_ns, redeemed_ns), ((9_000 * MS + silent_ns()) / 2, 8_500 * MS - silent_ns()), "and no more");
}

#[test]
fn work_of_another_time_redeems_nothing() {
    let (honest_ns, _) = after_debts(&[], &[1_000 * MS, 500 * MS]);
    // The first burst redeems what it can, and the second one began after the time of the debt.
    let (debt_ns, redeemed_ns) = after_debts(&[(2_000 * MS, 1_000 * MS)], &[1_000 * MS, 500 * MS]);
    assert_eq!(redeemed_ns, 1_000 * MS - silent_ns());
    assert_eq!(debt_ns, honest_ns + (2_000 * MS - redeemed_ns) / 2);
    // A fifth of a second of the second one lies before its end.
    let (debt_ns, redeemed_ns) = after_debts(&[(2_000 * MS, 1_200 * MS)], &[1_000 * MS, 500 * MS]);
    assert_eq!(redeemed_ns, 1_200 * MS - silent_ns());
    assert_eq!(debt_ns, honest_ns + (2_000 * MS - redeemed_ns) / 2);
}

/// What is booked of a tenant that goes on beyond its slice while another one waits, before it reports anything.
fn silent_ns() -> u64 {
    let table = Table::new();
    table.scheduler.slice_ns() + Parameters::default().drain_limit_ns
}

#[test]
fn what_happened_while_nobody_decided_is_charged_and_owed_to_nobody() {
    let mut table = Table::of(&[(A, Share::of(500)), (B, Share::of(500))]);
    table.tell(Input::Wants { tenant: A });
    table.tell(Input::Wants { tenant: B });
    table.now += 5000 * MS;
    table.burst(A, 3000 * MS);
    assert_eq!(table.scheduler.debt_ns(A), 1500 * MS);
    table.tell(Input::Away);
    assert_eq!((table.scheduler.lag_ns(A), table.scheduler.lag_ns(B)), (Some(0), Some(0)));
    // A burst of that time that is reported late.
    table.tell(Input::Burst { tenant: A, context: 1, start_ns: table.now - 500 * MS, end_ns: table.now - 400 * MS });
    table.now += 4 * MS;
    table.burst(A, 4 * MS);
    assert_eq!(table.scheduler.lag_ns(A), Some(-2_000_000));
    assert!(table.scheduler.charged_ns(A) >= Some(3004 * MS));
}

/// It would wait for ten times what it had while nobody was there to keep it from that.
#[test]
fn nor_does_it_count_against_a_ceiling() {
    let mut table = Table::of(&[(A, Share { limit_permille: Some(100), ..Share::of(500) }), (B, Share::of(500))]);
    table.tell(Input::Wants { tenant: A });
    table.now += 5000 * MS;
    table.burst(A, 4000 * MS);
    table.tell(Input::Away);
    table.tell(Input::Burst { tenant: A, context: 1, start_ns: table.now - 800 * MS, end_ns: table.now - 100 * MS });
    table.tell(Input::Idle { tenant: A });
    assert_eq!(opened(&table.after(MS, Input::Wants { tenant: A })), Some(A));
    table.now += 4 * MS;
    table.burst(A, 4 * MS);
    table.tell(Input::Idle { tenant: A });
    assert_eq!(opened(&table.after(MS, Input::Wants { tenant: A })), None, "what comes after it does");
}

/// Nor one that stood at its ceiling when it began, and ran on.
#[test]
fn who_stood_at_a_ceiling_is_served_after_it() {
    let mut table = Table::of(&[(A, Share { limit_permille: Some(100), ..Share::of(500) }), (B, Share::of(500))]);
    table.tell(Input::Wants { tenant: A });
    table.now += 50 * MS;
    table.burst(A, 50 * MS);
    table.tell(Input::Idle { tenant: A });
    assert_eq!(opened(&table.after(MS, Input::Wants { tenant: A })), None, "it has had ten times its part");
    table.now += 5000 * MS;
    table.burst(A, 4000 * MS);
    table.tell(Input::Wants { tenant: A });
    assert_eq!(opened(&table.tell(Input::Away)), Some(A));
}

#[test]
fn a_change_of_priority_keeps_the_debt() {
    let mut table = Table::of(&[(A, Share::of(500)), (B, Share::of(500)), (C, Share::of(500))]);
    for tenant in [A, B, C] {
        table.tell(Input::Wants { tenant });
    }
    let burst = Share { priority: Priority::Burst, ..Share::of(500) };
    table.tell(Input::Change { tenant: C, share: burst });
    table.now += 10 * MS;
    table.burst(A, 10 * MS);
    let lag = table.scheduler.lag_ns(A);
    assert_eq!(lag, Some(-5_000_000));
    table.tell(Input::Change { tenant: A, share: burst });
    assert_eq!(table.scheduler.lag_ns(A), lag);
}

#[test]
fn those_of_another_priority_owe_nothing() {
    let burst = Share { priority: Priority::Burst, ..Share::of(500) };
    let mut table = Table::of(&[(A, burst), (B, burst), (C, Share::of(500))]);
    [A, B].into_iter().for_each(|tenant| drop(table.tell(Input::Wants { tenant })));
    table.now += 3000 * MS;
    table.burst(A, 3000 * MS);
    assert_eq!(table.scheduler.lag_ns(B), Some(1_500_000_000), "one long kernel");
    table.tell(Input::Wants { tenant: C });
    table.tell(Input::Change { tenant: B, share: Share::of(500) });
    assert_eq!([B, C].map(|tenant| table.scheduler.lag_ns(tenant)), [Some(0); 2], "it was not C's");
    // Within its priority nothing is lost by a change.
    let mut table = Table::of(&[(A, burst), (B, burst)]);
    [A, B].into_iter().for_each(|tenant| drop(table.tell(Input::Wants { tenant })));
    table.now += 10 * MS;
    table.burst(A, 10 * MS);
    table.tell(Input::Change { tenant: B, share: Share { weight_permille: 200, ..burst } });
    assert_eq!(table.scheduler.lag_ns(B), Some(5_000_000));
}

#[test]
fn who_outruns_its_slices_again_and_again_may_not_work_ahead_for_a_second() {
    // With a limit its slices are not renewed before they end, though nobody competes.
    let mut table = Table::of(&[(A, Share { limit_permille: Some(1000), ..Share::of(500) })]);
    table.tell(Input::Wants { tenant: A });
    let mut commands = Vec::new();
    for _ in 0..6 {
        (0..25).for_each(|_| {
            table.now += MS;
            table.burst(A, MS);
        });
        commands = table.tell(Input::Announced { tenant: A, estimated_end_ns: table.now });
    }
    assert_eq!(depth_of(&commands), 0);
    table.now += 1100 * MS;
    table.tell(Input::Idle { tenant: A });
    assert_eq!(depth_of(&table.tell(Input::Wants { tenant: A })), Parameters::default().depth_ns);
}

#[test]
fn a_slice_is_a_whole_number_of_what_is_launched_at_once() {
    // With a limit its slices are not renewed before they end, though nobody competes.
    let mut table = Table::of(&[(A, Share { limit_permille: Some(1000), ..Share::of(500) })]);
    table.tell(Input::Wants { tenant: A });
    table.now += 15 * MS;
    table.burst(A, 15 * MS);
    let start = table.now;
    let commands = table.tell(Input::Announced { tenant: A, estimated_end_ns: start });
    assert!(
        matches!(commands[..], [Command::Open { until_ns, .. }] if until_ns == start + 15 * MS / 2),
        "{commands:?}"
    );
}

#[test]
fn the_bound_is_that_of_the_tenants_present() {
    let mut table = Table::of(&[(A, Share::of(500)), (B, Share::of(500))]);
    table.tell(Input::Wants { tenant: A });
    table.tell(Input::Wants { tenant: B });
    table.now += 4 * MS;
    table.burst(A, 4 * MS);
    let slice_ns = table.scheduler.slice_ns();
    let depth_ns = Parameters::default().depth_ns;
    let (a, b) = (table.scheduler.explain(A).expect("joined"), table.scheduler.explain(B).expect("joined"));
    assert_eq!((a.turn_bound_ns, b.turn_bound_ns), (slice_ns + depth_ns + 4 * MS, slice_ns + depth_ns));
    assert_eq!((a.longest_turn_ns, b.longest_turn_ns), (a.turn_bound_ns, a.turn_bound_ns));
    assert_eq!((b.weight_sum, b.lag_ns), (1000, 2_000_000));
    assert!(matches!(b.state, State::Waiting { behind: Some(A), cause: WaitCause::Turn, .. }));
}
