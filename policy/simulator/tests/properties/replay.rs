//! The same again, and the same with somebody beside it who does nothing.

use gpool_policy::TenantId;
use gpool_policy::slice::{Priority, Share};
use gpool_policy_simulator::random::{Lengths, Random};
use gpool_policy_simulator::work::Work;

use crate::generate::{MS, Mix, scenario};
use crate::observe::Run;

const SCENARIOS: u64 = 40;

#[test]
fn the_same_seed_gives_the_same_trace_and_another_one_another() {
    for seed in 0..SCENARIOS {
        let run = |delays_seed| Run::finished(scenario(seed, Mix::Any), delays_seed).world.trace_hash();
        let first = run(seed);
        assert_eq!(first, run(seed), "seed {seed}");
        assert_ne!(first, run(seed + 1), "seed {seed}");
    }
}

#[test]
fn a_tenant_without_work_changes_nothing_for_the_others() {
    for seed in 0..SCENARIOS {
        let alone = Run::finished(scenario(seed, Mix::Any), seed);
        let mut beside = Run::new(scenario(seed, Mix::Any), seed);
        let mut random = Random::stream(seed, 0x1d1e);
        let priority = [Priority::Guaranteed, Priority::Burst, Priority::Scavenger][random.within(0, 2) as usize];
        let share = Share { priority, ..Share::of(random.within(1, 1000) as u16) };
        let work = Work::new(Lengths::Fixed { ns: MS }, Random::new(seed));
        beside.world.add_tenant(TenantId(alone.count() as u64), share, 0, work);
        beside.world.run_until(beside.scenario.duration_ns);
        assert!(!alone.world.trace.is_empty());
        assert_eq!(alone.world.trace_hash(), beside.world.trace_hash(), "{share:?}, {}", alone.story());
    }
}
