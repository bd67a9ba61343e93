//! A change of entitlements while everybody works.

use gpool_policy::slice::{Input, Share};

use crate::generate::{Mix, scenario};
use crate::lag;
use crate::observe::{Run, WARM_NS};

/// Each tenant takes its neighbour's weight.
fn rotate(run: &mut Run) {
    let weights: Vec<u16> = run.scenario.tenants.iter().map(|plan| plan.share.weight_permille).collect();
    for (tenant, plan) in run.scenario.tenants.iter_mut().enumerate() {
        plan.share.weight_permille = weights[(tenant + 1) % weights.len()];
        let share: Share = plan.share;
        run.world.tell(Input::Change { tenant: run.world.tenant(tenant), share });
    }
}

#[test]
fn new_weights_keep_what_was_owed_and_hold_after_two_slices() {
    let mut worst = 0;
    for seed in 0..40 {
        let mut run = Run::new(scenario(seed, Mix::Backlogged), seed);
        run.world.run_until(WARM_NS);
        let lags = |run: &Run| -> Vec<i64> {
            let lag_of =
                |tenant| run.world.scheduler.scheduler.lag_ns(run.world.tenant(tenant)).expect("it has joined");
            (0..run.count()).map(lag_of).collect()
        };
        let before = lags(&run);
        rotate(&mut run);
        for (kept, owed) in lags(&run).iter().zip(&before) {
            // Each of the changes rounds once.
            assert!(kept.abs_diff(*owed) <= 2 * run.count() as u64, "{owed} became {kept}, {}", run.story());
        }
        run.world.run_until(run.scenario.duration_ns);
        let two_slices_ns = 2 * run.world.scheduler.slice_ns;
        let permille = lag::worst_permille_from(&run, WARM_NS + two_slices_ns).expect("several tenants");
        worst = worst.max(permille);
        assert!(permille <= 1000, "{permille} permille of the bound on the lag by the new weights, {}", run.story());
    }
    println!("lag by the new weights: {worst} permille of the bound");
}
