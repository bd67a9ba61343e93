//! One kernel that is much longer than anything a tenant has launched before.

use gpool_policy::slice::{Command, Share};
use gpool_policy_simulator::random::Lengths;
use gpool_policy_simulator::scenario::{Demand, Scenario, TenantPlan};

use crate::generate::{MS, Mix, SECOND, scenario};
use crate::observe::Run;

const OVERRUN_NS: u64 = 50 * MS;

/// Three tenants of 50, 30 and 20 % that always have work, in kernels of half a millisecond.
fn fifty_thirty_twenty(seed: u64) -> Scenario {
    let mut fixed = scenario(seed, Mix::Backlogged);
    let plan = fixed.tenants[0].clone();
    fixed.tenants = [500, 300, 200]
        .map(|weight| TenantPlan {
            share: Share::of(weight),
            lengths: Lengths::Fixed { ns: MS / 2 },
            demand: Demand::Backlog,
            name: format!("{weight} permille"),
            ..plan.clone()
        })
        .to_vec();
    fixed.duration_ns = 5 * SECOND;
    fixed
}

/// A run up to the moment at which its first tenant has just got its turn, and that tenant's next kernel is the long
/// one.
fn about_to_overrun(scenario: Scenario, seed: u64) -> Run {
    let mut run = Run::new(scenario, seed);
    run.world.run_until(SECOND);
    while run.world.scheduler.scheduler.running() != Some(run.world.tenant(0)) {
        run.world.run_until(run.world.now + MS / 10);
    }
    run.world.clients[0].work.surprise_ns = Some(OVERRUN_NS);
    run
}

/// What the first tenant's gate said since `from_ns`: when, and for how long it may launch.
fn openings(run: &Run, from_ns: u64) -> Vec<(u64, u64)> {
    let whose = run.world.tenant(0);
    let opening = |&(at_ns, command): &(u64, Command)| match command {
        Command::Open { tenant, until_ns, .. } if tenant == whose && at_ns >= from_ns => {
            Some((at_ns, until_ns - at_ns))
        }
        _ => None,
    };
    run.world.trace.iter().filter_map(opening).collect()
}

#[test]
fn a_job_that_overruns_gets_its_next_slice_later_and_its_neighbours_get_the_time_back() {
    for seed in 0..20 {
        let mut run = about_to_overrun(fifty_thirty_twenty(seed), seed);
        let at_ns = run.world.now;
        let gaps = |run: &Run, from_ns| -> Vec<u64> {
            openings(run, from_ns).windows(2).map(|pair| pair[1].0 - pair[0].0).collect()
        };
        let usual_ns = gaps(&run, SECOND / 2).into_iter().max().expect("it has had many slices");
        let before = run.world.all_received();
        run.world.run_until(at_ns + SECOND);
        let waited_ns = gaps(&run, at_ns - MS).into_iter().max().expect("it goes on");
        println!("seed {seed}: at most {usual_ns} ns between slices before, {waited_ns} ns after the overrun");
        // Half of the 50 ms is its own anyway.
        assert!(waited_ns >= usual_ns + OVERRUN_NS / 2, "seed {seed}: {waited_ns} {usual_ns}");
        // A second from the overrun on, overrun included, everybody has had its share.
        for (tenant, (after, before)) in run.world.all_received().iter().zip(before).enumerate() {
            let apart_ns = (after - before).abs_diff(run.weight(tenant) * SECOND / 1000);
            // Two turns of an ordinary tenant, and what hand-offs lose.
            let bound_ns = 2 * run.turn_ns(1) + SECOND / 50;
            assert!(apart_ns <= bound_ns, "seed {seed}, tenant {tenant}: {apart_ns} ns from its share");
        }
    }
}

#[test]
fn what_a_job_gets_while_it_owes_is_shorter() {
    for seed in 0..20 {
        let mut scenario = fifty_thirty_twenty(seed);
        // Neighbours at their limits cannot take the time back at once: the debtor goes on, in short slices.
        for neighbour in &mut scenario.tenants[1..] {
            neighbour.share.limit_permille = Some(neighbour.share.weight_permille);
        }
        let mut run = about_to_overrun(scenario, seed);
        while run.world.scheduler.scheduler.debt_ns(run.world.tenant(0)) < OVERRUN_NS / 4 {
            run.world.run_until(run.world.now + MS / 10);
            assert!(run.world.now < 2 * SECOND, "seed {seed}: it never owed");
        }
        let owes_ns = run.world.now;
        run.world.run_until(owes_ns + 200 * MS);
        let (next_ns, length_ns) = openings(&run, owes_ns)[0];
        let slice_ns = run.world.scheduler.slice_ns;
        println!("seed {seed}: {} ns later a slice of {length_ns} ns instead of {slice_ns}", next_ns - owes_ns);
        assert!(length_ns <= slice_ns / 4, "seed {seed}: {length_ns} ns of {slice_ns}");
    }
}

#[test]
fn if_it_idles_more_time_goes_to_its_neighbours() {
    for seed in 0..20 {
        let mut run = Run::new(fifty_thirty_twenty(seed), seed);
        run.world.demand(SECOND, 0, false);
        run.world.demand(3 * SECOND, 0, true);
        let mut received = |at_ns: u64| {
            run.world.run_until(at_ns);
            run.world.all_received()
        };
        let [idle, still_idle, back, later] =
            [SECOND + 20 * MS, 3 * SECOND, 3 * SECOND + 20 * MS, 5 * SECOND].map(&mut received);
        let lent: Vec<u64> = still_idle.iter().zip(&idle).map(|(to, from)| to - from).collect();
        let then: Vec<u64> = later.iter().zip(&back).map(|(to, from)| to - from).collect();
        let bound_ns = 2 * run.longest_turn_ns() + 1980 * MS / 50;
        for (had, permille) in lent.iter().zip([0, 600, 400]).chain(then.iter().zip([500, 300, 200])) {
            let entitled_ns = 1980 * MS * permille / 1000;
            assert!(had.abs_diff(entitled_ns) <= bound_ns, "seed {seed}: {lent:?}, then {then:?}");
        }
        assert_eq!(lent[0], 0, "seed {seed}: it idled");
        assert!(back[0] > still_idle[0], "seed {seed}: it is served soon when it wants again");
    }
}
