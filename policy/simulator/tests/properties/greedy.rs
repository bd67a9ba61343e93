//! A tenant that is served first and wants more than its share.

use gpool_policy::slice::Class;
use gpool_policy_simulator::random::Lengths;
use gpool_policy_simulator::scenario::Demand;

use crate::generate::{MS, Mix, SECOND, scenario};
use crate::observe::{Run, permille};

#[test]
fn being_served_first_and_wanting_thrice_the_share_gives_the_share() {
    let mut worst = 0;
    for seed in 0..40 {
        let mut scenario = scenario(seed, Mix::Backlogged);
        let weights: u64 = scenario.tenants.iter().map(|plan| u64::from(plan.share.weight_permille)).sum();
        let greedy = &mut scenario.tenants[1];
        let work_ns = 3 * MS;
        let part = f64::from(greedy.share.weight_permille) / weights as f64;
        greedy.share.class = Class::Latency;
        greedy.lengths = Lengths::Fixed { ns: MS / 2 };
        greedy.demand = Demand::Poisson { rate_per_second: 3.0 * part * SECOND as f64 / work_ns as f64, work_ns };
        let run = Run::finished(scenario, seed);
        let share_ns = |at_ns: u64| {
            let all_ns: u64 = (0..run.count()).map(|tenant| run.execution(tenant).received_before(at_ns)).sum();
            all_ns * run.weight(1) / weights
        };
        // At any time, not more than its share of what was delivered so far and a turn.
        let stretches = run.execution(1).stretches().iter();
        let above =
            stretches.map(|ran| run.execution(1).received_before(ran.end_ns).saturating_sub(share_ns(ran.end_ns)));
        let permille = permille(above.max().expect("it ran"), run.turn_ns(1));
        worst = worst.max(permille);
        assert!(permille <= 1000, "{permille} permille of what it may run ahead, {}", run.story());
        // And it is not put off either. Its demand begins at random, and stays away for a while now and then.
        let end_ns = run.scenario.duration_ns;
        let least_ns = (share_ns(end_ns) * 9 / 10).saturating_sub(run.turn_ns(1) + run.longest_turn_ns());
        assert!(run.execution(1).received_ns() >= least_ns, "{}", run.story());
    }
    println!("a greedy latency tenant is ahead of its share by {worst} permille of its turn at most");
}
