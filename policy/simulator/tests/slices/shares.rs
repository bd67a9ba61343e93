//! Shares, busy time, idle tenants and changed weights, measured by the device's own meter.

use gpool_policy::slice::{Command, Input, Share};
use gpool_policy_simulator::delays::{Delay, Delays};

use crate::plans::{MS, Plan, SECOND, World, permyriad, plan, without_demand, world};

fn thirty_sixty_ten() -> [Plan; 3] {
    [plan(300, 300_000), plan(600, 2 * MS), plan(100, 5 * MS)]
}

/// What each client received between two moments, in 1/10000 of the time.
fn shares_between(world: &mut World, from: u64, to: u64) -> Vec<i64> {
    world.run_until(from);
    let before = world.all_received();
    world.run_until(to);
    world.all_received().iter().zip(before).map(|(after, before)| permyriad(after - before, to - from)).collect()
}

#[test]
fn thirty_sixty_ten_within_half_a_point() {
    for seed in 1..=5 {
        let mut world = world(seed, &thirty_sixty_ten());
        let shares = shares_between(&mut world, 0, 10 * SECOND);
        let meter = world.device.meter();
        let busy = permyriad(meter.busy_ns, 10 * SECOND);
        println!(
            "seed {seed}: shares {shares:?} busy {busy} switching {} slice {} us commands {}",
            permyriad(meter.switch_ns, 10 * SECOND),
            world.scheduler.slice_ns() / 1000,
            world.trace.len()
        );
        for (share, entitled) in shares.iter().zip([3000, 6000, 1000]) {
            assert!((share - entitled).abs() <= 50, "seed {seed}: {shares:?}");
        }
        assert!(busy >= 9700, "seed {seed}: busy {busy}");
    }
}

#[test]
fn late_wake_ups_cost_time_but_not_fairness() {
    let mut world = world(12, &thirty_sixty_ten());
    let Delays { gate, ring, timer, .. } = &mut world.delays;
    for delay in [gate, ring, timer] {
        *delay = Delay { late_permille: 20, late_ns: 3 * MS, ..*delay };
    }
    let received = shares_between(&mut world, 0, 10 * SECOND);
    let busy = world.device.meter().busy_ns;
    let parts: Vec<i64> = world.all_received().iter().map(|&ns| permyriad(ns, busy)).collect();
    println!("2 % of wake-ups 3 ms late: received {received:?} parts {parts:?} busy {}", permyriad(busy, 10 * SECOND));
    for (part, entitled) in parts.iter().zip([3000, 6000, 1000]) {
        assert!((part - entitled).abs() <= 50, "{parts:?}");
    }
    assert!(permyriad(busy, 10 * SECOND) >= 9600, "{received:?}");
}

#[test]
fn kernels_longer_than_a_slice_overlap_and_are_paid_for() {
    // The charges are equal. What is left is that a burst's markers complete only while its context is on the device,
    // so that whoever joins an overlap is charged about half a hardware slice too little.
    for (longest, tolerance) in [(30 * MS, 100), (80 * MS, 400), (250 * MS, 700)] {
        let mut world = world(13, &[plan(500, longest), plan(500, MS)]);
        let shares = shares_between(&mut world, 500 * MS, 20 * SECOND);
        let busy = permyriad(world.device.meter().busy_ns, 20 * SECOND);
        let mut gap = (0, 0);
        let opened = world.trace.iter().filter(|(_, command)| match command {
            Command::Open { tenant, .. } => *tenant == world.tenant(1),
            Command::Close { .. } | Command::Hung { .. } => false,
        });
        for (at, _) in opened {
            gap = (gap.0.max(at - gap.1), *at);
        }
        println!("kernels of {} ms beside 1 ms: {shares:?} busy {busy} longest wait {} ms", longest / MS, gap.0 / MS);
        assert!((shares[0] - shares[1]).abs() <= tolerance, "{shares:?}");
        assert!(busy >= 9500, "{busy}");
    }
}

#[test]
fn every_second_is_within_two_points() {
    let mut world = world(11, &thirty_sixty_ten());
    for second in 0..10 {
        let shares = shares_between(&mut world, second * SECOND, (second + 1) * SECOND);
        for (share, entitled) in shares.iter().zip([3000, 6000, 1000]) {
            assert!((share - entitled).abs() <= 200, "second {second}: {shares:?}");
        }
    }
}

#[test]
fn idle_time_is_lent_and_comes_back() {
    let mut world = world(3, &thirty_sixty_ten());
    world.demand(2 * SECOND, 1, false);
    world.demand(4 * SECOND, 1, true);
    let lent = shares_between(&mut world, 2 * SECOND + 20 * MS, 4 * SECOND);
    assert_eq!(lent[1], 0);
    assert!(lent[0] + lent[2] >= 9700, "{lent:?}");
    assert!((lent[0] - 7500).abs() <= 150, "{lent:?}");
    let first = world.received(1);
    world.run_until(4 * SECOND + 50 * MS);
    assert!(world.received(1) - first >= 15 * MS, "{}", world.received(1) - first);
    let back = shares_between(&mut world, 4 * SECOND + 50 * MS, 5 * SECOND + 50 * MS);
    println!("lent {lent:?} back {back:?}");
    assert!((back[1] - 6000).abs() <= 200, "{back:?}");
}

#[test]
fn who_is_alone_is_renewed_ten_times_a_second() {
    let mut world = without_demand(6, &[plan(300, 300_000), plan(600, MS)], &[1, 2]);
    world.demand(0, 0, true);
    world.run_until(SECOND);
    let (opened, busy) = (world.trace.len(), world.device.meter().busy_ns);
    world.run_until(11 * SECOND);
    let (opened, busy) = (world.trace.len() - opened, world.device.meter().busy_ns - busy);
    println!("{opened} commands, busy {}", permyriad(busy, 10 * SECOND));
    assert!((90..=120).contains(&opened), "{opened}");
    assert!(permyriad(busy, 10 * SECOND) >= 9999, "{busy}");
    // Nor does the one who comes find it in the middle of a long slice.
    let first = world.received(1);
    world.demand(11 * SECOND, 1, true);
    world.run_until(11 * SECOND + 12 * MS);
    assert!(world.received(1) > first);
}

#[test]
fn a_short_pause_costs_nothing() {
    let mut world = world(4, &[plan(500, MS), plan(500, MS)]);
    for pause in 0..100 {
        let at = 100 * MS + pause * 50 * MS;
        world.demand(at, 0, false);
        world.demand(at + 1_500_000, 0, true);
    }
    let shares = shares_between(&mut world, 0, 5 * SECOND);
    println!("with pauses {shares:?}");
    assert!((shares[0] - shares[1]).abs() <= 100, "{shares:?}");
}

#[test]
fn a_new_weight_acts_within_two_slices() {
    let mut world = world(5, &[plan(300, MS), plan(600, MS), plan(100, 3 * MS)]);
    world.run_until(3 * SECOND);
    let lags: Vec<i64> = (0..3).filter_map(|client| world.scheduler.lag_ns(world.tenant(client))).collect();
    world.tell(Input::Change { tenant: world.tenant(0), share: Share::of(600) });
    world.tell(Input::Change { tenant: world.tenant(1), share: Share::of(300) });
    for (client, lag) in lags.iter().enumerate() {
        let kept = world.scheduler.lag_ns(world.tenant(client)).expect("joined");
        assert!((kept - lag).abs() <= 4, "client {client}: {lag} became {kept}");
    }
    let two_slices = 2 * world.scheduler.slice_ns();
    let soon = shares_between(&mut world, 3 * SECOND + two_slices, 3 * SECOND + two_slices + 200 * MS);
    let later = shares_between(&mut world, 4 * SECOND, 14 * SECOND);
    println!("soon {soon:?} later {later:?}");
    assert!(soon[0] >= 5000 && soon[1] <= 4000, "{soon:?}");
    for (share, entitled) in later.iter().zip([6000, 3000, 1000]) {
        assert!((share - entitled).abs() <= 60, "{later:?}");
    }
}

#[test]
fn a_limit_is_no_loan() {
    // By its weight the second one should have 80 %, by its limit it may have 45 %. What it was not allowed to have is
    // not owed to it: the first one has not borrowed the rest, and has its share when a third one comes.
    let mut world = without_demand(14, &[plan(100, MS), plan(400, MS), plan(400, MS)], &[1, 2, 3]);
    let limited = Share { limit_permille: Some(450), ..Share::of(400) };
    world.tell(Input::Change { tenant: world.tenant(1), share: limited });
    (0..2).for_each(|client| world.demand(0, client, true));
    world.demand(10 * SECOND, 2, true);
    let before = shares_between(&mut world, SECOND, 10 * SECOND);
    assert!((before[1] - 4500).abs() <= 150 && before[0] >= 5200, "{before:?}");
    let at_once = shares_between(&mut world, 10 * SECOND, 11 * SECOND);
    let later = shares_between(&mut world, 11 * SECOND, 21 * SECOND);
    println!("beside a limited one {before:?}, a third one comes {at_once:?}, later {later:?}");
    assert!(at_once[0] >= 800, "{at_once:?}");
    for (share, entitled) in later.iter().zip([1111, 4444, 4444]) {
        assert!((share - entitled).abs() <= 80, "{later:?}");
    }
}

/// A tenant whose limit is its share, beside others that take all the rest: what it waits for its turns is not lost.
#[test]
fn a_limit_that_equals_the_share_is_reached() {
    let ten = |weight| (0..10).map(|index| plan(weight, 200_000 + 300_000 * index)).collect::<Vec<_>>();
    for (limit, own_ns, others) in [
        (300, 500_000, vec![plan(700, 500_000)]),
        (300, 500_000, vec![plan(700, 5 * MS)]),
        (300, 2 * MS, vec![plan(350, MS), plan(350, MS)]),
        (300, MS, vec![plan(400, MS), plan(200, 500_000), plan(100, 2 * MS)]),
        (300, 500_000, ten(70)),
        (100, 500_000, ten(90)),
        (50, 300_000, vec![plan(950, MS)]),
        (700, MS, vec![plan(300, 500_000)]),
        (500, MS, vec![plan(250, MS), plan(250, 2 * MS)]),
        (900, MS, vec![plan(50, MS), plan(50, 2 * MS)]),
    ] {
        let mut plans = vec![plan(limit, own_ns)];
        plans.extend(others);
        for seed in 1..=3 {
            let mut world = world(seed, &plans);
            let limited = Share { limit_permille: Some(limit), ..Share::of(limit) };
            world.tell(Input::Change { tenant: world.tenant(0), share: limited });
            // In 10 s one turn more or less is 2.5 % of a limit of 5 %.
            let shares = shares_between(&mut world, SECOND, 31 * SECOND);
            println!("a limit of {limit} beside {}: {shares:?}", plans.len() - 1);
            let wanted = i64::from(limit) * 10;
            assert!((shares[0] - wanted).abs() <= wanted / 50, "{shares:?}");
        }
    }
}
