//! What a gang and those who serve requests beside it get, and how long they wait.

use gpool_policy::slice::{Class, Parameters, Share, SliceScheduler};

use crate::world::{Demand, MS, SECOND, World, percentile};

/// What one batch gang and one latency tenant on each of its GPUs ask for.
struct Plan {
    gpus: usize,
    gang_permille: u16,
    own_permille: u16,
    demand: Demand,
}

const fn requests(permille: u64) -> Demand {
    Demand::Requests { work_ns: 3 * MS, permille }
}

fn latency(permille: u16) -> Share {
    Share { class: Class::Latency, ..Share::of(permille) }
}

/// Ten seconds of it. The gang is tenant 0.
fn run(plan: &Plan, coupled: bool, seed: u64) -> World {
    let mut world = World::new(plan.gpus, seed);
    let all: Vec<usize> = (0..plan.gpus).collect();
    world.add(&all, Share::of(plan.gang_permille), Demand::Always, coupled);
    all.iter().for_each(|&gpu| _ = world.add(&[gpu], latency(plan.own_permille), plan.demand, false));
    world.run_until(10 * SECOND);
    world
}

/// The gang has so many hundredths of its share, and each of the others what it asks for, up to its share.
fn has_its_share(plan: &Plan, coupled: bool, seed: u64, percent: u64) {
    let world = run(plan, coupled, seed);
    let (had, share) = (world.permille(0), u64::from(plan.gang_permille));
    let Plan { gpus, own_permille, .. } = *plan;
    let case = format!("{gpus} GPUs, {share} beside {own_permille} that wants {:?}, seed {seed}", plan.demand);
    assert!(had * 100 >= share * percent, "{case}: the gang has {had}");
    for (index, tenant) in world.tenants.iter().enumerate().skip(1) {
        let (had, wanted) = (world.permille(index), tenant.wanted_ns().min(world.now) * 1_000 / world.now);
        assert!(had * 100 >= wanted.min(u64::from(own_permille)) * 94, "{case}: tenant {index} has {had} of {wanted}");
    }
}

/// The mean load is a part of the share, all of it, or three times as much.
const DEMANDS: [Demand; 7] =
    [requests(100), requests(200), requests(300), requests(400), requests(500), requests(1500), Demand::Always];

#[test]
fn a_gang_of_two_has_its_share_beside_requests() {
    for (demand, seed) in DEMANDS.iter().flat_map(|&demand| (1..=5).map(move |seed| (demand, seed))) {
        has_its_share(&Plan { gpus: 2, gang_permille: 500, own_permille: 500, demand }, false, seed, 90);
    }
    for seed in 1..=5 {
        has_its_share(&Plan { gpus: 2, gang_permille: 700, own_permille: 300, demand: requests(200) }, false, seed, 90);
    }
}

#[test]
fn a_gang_that_waits_for_itself_has_its_share_beside_requests() {
    for seed in 1..=5 {
        has_its_share(&Plan { gpus: 2, gang_permille: 500, own_permille: 500, demand: requests(300) }, true, seed, 90);
    }
}

/// One of eight is nearly always busy. What is missing is the time in which the gang waits for the last of them.
#[test]
fn a_gang_of_eight_has_most_of_its_share_beside_requests() {
    for (demand, seed) in DEMANDS.iter().flat_map(|&demand| (1..=2).map(move |seed| (demand, seed))) {
        has_its_share(&Plan { gpus: 8, gang_permille: 500, own_permille: 500, demand }, false, seed, 80);
    }
    for (own_permille, demand) in [(300, requests(100)), (300, requests(200))] {
        has_its_share(&Plan { gpus: 8, gang_permille: 700, own_permille, demand }, false, 1, 80);
    }
}

/// Whoever wants what its share and its slack allow.
#[test]
fn a_latency_tenant_waits_for_one_slice_of_a_gang() {
    let slice_ns = SliceScheduler::new(Parameters::default(), 0).slice_ns();
    let plans = [
        (2, 500, 500, 300),
        (4, 500, 500, 300),
        (8, 500, 500, 300),
        (2, 500, 300, 200),
        (2, 700, 300, 200),
        (4, 900, 100, 50),
    ];
    for (gpus, gang_permille, own_permille, load) in plans {
        for seed in 1..=3 {
            let world = run(&Plan { gpus, gang_permille, own_permille, demand: requests(load) }, false, seed);
            let stood_ns = world.tenants[1..].iter().flat_map(|tenant| &tenant.stood_ns).max().copied();
            assert!(stood_ns <= Some(slice_ns), "{gpus} GPUs, seed {seed}: {stood_ns:?}");
        }
    }
}

#[test]
fn beside_a_gang_that_has_its_share_requests_are_served_at_once() {
    for (load, seed) in [50, 100].into_iter().flat_map(|load| (1..=5).map(move |seed| (load, seed))) {
        let plan = Plan { gpus: 2, gang_permille: 500, own_permille: 500, demand: requests(load) };
        let world = run(&plan, false, seed);
        let served_ns: Vec<u64> = world.tenants[1..].iter().flat_map(|tenant| tenant.served_ns.clone()).collect();
        assert!(percentile(&served_ns, 99) < 8 * MS, "{}", percentile(&served_ns, 99));
        assert!(world.tenants[1..].iter().all(|tenant| tenant.stood_ns.iter().all(|ns| *ns == 0)), "seed {seed}");
    }
}

#[test]
fn a_latency_gang_is_served_at_once_beside_batch() {
    for seed in 1..=5 {
        let run = |is_shared: bool| {
            let mut world = World::new(2, seed);
            world.add(&[0, 1], latency(300), requests(200), false);
            for gpu in if is_shared { 0..2 } else { 0..0 } {
                world.add(&[gpu], Share::of(700), Demand::Always, false);
            }
            world.run_until(10 * SECOND);
            world
        };
        let (shared, alone) = (run(true), run(false));
        let [beside_ns, alone_ns] = [&shared, &alone].map(|world| percentile(&world.tenants[0].served_ns, 99));
        assert!(beside_ns * 2 <= alone_ns * 3, "{beside_ns} beside others, {alone_ns} alone");
        assert!((1..=2).all(|index| shared.permille(index) + alone.permille(0) >= 960), "seed {seed}");
    }
}

#[test]
fn a_latency_gang_that_always_wants_has_its_share() {
    let mut world = World::new(2, 1);
    world.add(&[0, 1], latency(300), Demand::Always, false);
    (0..2).for_each(|gpu| _ = world.add(&[gpu], Share::of(700), Demand::Always, false));
    world.run_until(10 * SECOND);
    assert!((290..=305).contains(&world.permille(0)), "{}", world.permille(0));
    assert!((1..=2).all(|index| world.permille(index) >= 690));
}

#[test]
fn who_has_several_gpus_to_itself_is_asked_seldom_and_gives_way_to_who_comes() {
    let mut world = World::new(4, 1);
    world.add(&[0, 1, 2, 3], Share::of(500), Demand::Always, true);
    world.run_until(10 * SECOND);
    println!("{} commands, busy {}", world.commands, world.permille(0));
    assert!((20..=40).contains(&world.commands), "{}", world.commands);
    assert!(world.permille(0) >= 999, "{}", world.permille(0));
    let (first, came) = (world.permille(0) * world.now, world.now);
    let other = world.add(&[2], Share::of(500), Demand::Always, false);
    world.run_until(12 * SECOND);
    let [stood, ..] = world.tenants[other].stood_ns[..] else { panic!("it never had a turn") };
    let bound = SliceScheduler::new(Parameters::default(), 0).slice_ns() + 2 * Parameters::default().sole_burst_ns;
    assert!(stood <= bound, "it stood for {stood}");
    let had = (world.permille(0) * world.now - first) / (world.now - came);
    assert!((450..=550).contains(&had), "{had}");
}
