//! Changes of the input with a known effect on the output.

use crate::plans::{MS, Plan, SECOND, World, named, permyriad, plan, without_demand};

fn plans() -> Vec<Plan> {
    vec![plan(150, 300_000), plan(300, 2 * MS), plan(50, 5 * MS), Plan { kernel_ns: (100_000, 4 * MS), ..plan(77, 0) }]
}

fn run(seed: u64, plans: &[Plan], ids: &[u64]) -> World {
    let mut world = named(seed, plans, ids);
    world.run_until(5 * SECOND);
    world
}

#[test]
fn the_same_seed_gives_the_same_commands() {
    let ids = [1, 2, 3, 4];
    let hashes = [run(1, &plans(), &ids), run(1, &plans(), &ids)].map(|world| world.trace_hash());
    assert_eq!(hashes[0], hashes[1]);
    assert_ne!(hashes[0], run(2, &plans(), &ids).trace_hash());
}

#[test]
fn twice_the_weights_give_the_same_schedule() {
    for seed in 0..5 {
        let single = run(seed, &plans(), &[1, 2, 3, 4]);
        let doubled: Vec<Plan> = plans().into_iter().map(|plan| Plan { weight: plan.weight * 2, ..plan }).collect();
        assert_eq!(single.trace, run(seed, &doubled, &[1, 2, 3, 4]).trace, "seed {seed}");
    }
}

#[test]
fn names_do_not_matter() {
    let shares = |ids: &[u64]| -> Vec<i64> {
        run(3, &plans(), ids).all_received().iter().map(|&ns| permyriad(ns, 5 * SECOND)).collect()
    };
    let ordered = shares(&[1, 2, 3, 4]);
    let shuffled = shares(&[90, 3, u64::MAX, 0]);
    for (one, other) in ordered.iter().zip(&shuffled) {
        assert!((one - other).abs() <= 60, "{ordered:?} {shuffled:?}");
    }
}

#[test]
fn an_idle_tenant_changes_nothing() {
    let alone = run(4, &plans(), &[1, 2, 3, 4]);
    let mut with_idle = plans();
    with_idle.push(plan(400, MS));
    let mut world = without_demand(4, &with_idle, &[1, 2, 3, 4, 5]);
    (0..4).for_each(|client| world.demand(0, client, true));
    world.run_until(5 * SECOND);
    assert_eq!(alone.trace, world.trace);
    assert_eq!(world.scheduler.active_count(), 4);
}
