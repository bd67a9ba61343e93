//! Tenants that fall silent, overrun, or leave.

use gpool_policy::slice::{Command, Input, Parameters, Share};

use crate::plans::{MS, SECOND, World, permyriad, plan, world};

/// The openings of a client's gate: when, and until when.
fn openings(world: &World, client: usize) -> Vec<(u64, u64)> {
    let mine = world.tenant(client);
    let opened = |&(at, command): &(u64, Command)| match command {
        Command::Open { tenant, until_ns, .. } if tenant == mine => Some((at, until_ns)),
        _ => None,
    };
    world.trace.iter().filter_map(opened).collect()
}

fn run_until_running(world: &mut World, client: usize, from: u64) {
    world.run_until(from);
    while world.scheduler.running() != Some(world.tenant(client)) {
        world.run_until(world.now + 100_000);
    }
}

#[test]
fn a_tenant_that_never_answers_costs_its_slice_and_the_drain_limit() {
    for seed in 0..20 {
        let mut world = world(seed, &[plan(500, MS), plan(300, MS), plan(200, MS)]);
        run_until_running(&mut world, 0, SECOND);
        world.clients[0].mute = true;
        let before = world.device.meter().busy_ns;
        let since = world.now;
        world.run_until(since + SECOND);
        // What it rang before it fell silent may have renewed its slice.
        let (_, until) = *openings(&world, 0).last().expect("it ran");
        let limit = until + Parameters::default().drain_limit_ns + 100_000;
        let next = world.trace.iter().find(|(at, command)| {
            *at >= since && matches!(command, Command::Open { tenant, .. } if *tenant != world.tenant(0))
        });
        assert!(next.expect("somebody else").0 <= limit, "seed {seed}");
        let lost = SECOND - (world.device.meter().busy_ns - before);
        let slice = world.scheduler.slice_ns();
        assert!(lost <= slice + Parameters::default().drain_limit_ns + 15 * MS, "seed {seed}: {lost}");
    }
}

#[test]
fn a_tenant_that_leaves_makes_room_at_once() {
    let mut world = world(2, &[plan(500, MS), plan(500, MS)]);
    run_until_running(&mut world, 0, SECOND);
    world.clients[0].mute = true;
    let tenant = world.tenant(0);
    world.tell(Input::Leave { tenant });
    assert_eq!(world.scheduler.running(), Some(world.tenant(1)));
    assert_eq!(world.scheduler.charged_ns(tenant), None);
    let before = world.received(1);
    world.run_until(world.now + SECOND);
    assert!(permyriad(world.received(1) - before, SECOND) >= 9800);
}

#[test]
fn a_tenant_that_only_holds_its_gate_gains_nothing() {
    let mut world = world(6, &[plan(500, MS), plan(500, MS)]);
    world.clients[0].mute = true;
    // It asks again as soon as its gate has closed, and never launches.
    let hostile = world.tenant(0);
    world.run_with(2 * SECOND, |world| {
        if world.scheduler.running() != Some(hostile) && !world.scheduler.wants(hostile) {
            world.tell(Input::Wants { tenant: hostile });
        }
    });
    let honest = permyriad(world.received(1), 2 * SECOND);
    println!("beside a hostile tenant of the same weight: {honest}");
    assert!(honest >= 4700, "{honest}");
}

#[test]
fn an_overrun_is_followed_by_a_later_slice() {
    let mut world = world(8, &[plan(500, 500_000), plan(500, 500_000)]);
    run_until_running(&mut world, 0, SECOND);
    let mut usual: Vec<u64> = openings(&world, 0).windows(2).map(|pair| pair[1].0 - pair[0].0).collect();
    usual.sort_unstable();
    let typical = usual[usual.len() / 2];
    world.clients[0].work.surprise_ns = Some(50 * MS);
    let started = openings(&world, 0).len();
    world.run_until(world.now + 400 * MS);
    let after: Vec<u64> = openings(&world, 0)[started - 1..].windows(2).map(|pair| pair[1].0 - pair[0].0).collect();
    let longest = *after.iter().max().expect("some");
    println!("gap between slices: usually {typical}, after the overrun {longest}");
    assert!(longest >= typical + 25 * MS, "{longest} {typical}");
    world.run_until(6 * SECOND);
    let shares = [0, 1].map(|client| permyriad(world.received(client), 6 * SECOND));
    assert!((shares[0] - shares[1]).abs() <= 60, "{shares:?}");
}

#[test]
fn a_restart_does_not_wash_debt_away() {
    let mut world = world(9, &[plan(500, 500_000), plan(500, 500_000)]);
    run_until_running(&mut world, 0, SECOND);
    world.clients[0].work.surprise_ns = Some(100 * MS);
    let tenant = world.tenant(0);
    while world.scheduler.debt_ns(tenant) < 20 * MS {
        world.run_until(world.now + MS);
        assert!(world.now < 2 * SECOND, "it never owed");
    }
    let debt_ns = world.scheduler.debt_ns(tenant);
    world.tell(Input::Leave { tenant });
    world.tell(Input::Join { tenant, share: Share::of(500), debt_ns });
    world.tell(Input::Wants { tenant });
    assert!(world.scheduler.debt_ns(tenant).abs_diff(debt_ns) <= 2);
    assert_eq!(world.scheduler.running(), Some(world.tenant(1)));
}
