//! Changes of a scenario with a known effect on its shares.

use gpool_device_model::DeviceParameters;
use gpool_policy::TenantId;
use gpool_policy::slice::{Parameters, SliceScheduler};
use gpool_policy_simulator::World;
use gpool_policy_simulator::delays::{Delay, Delays};
use gpool_policy_simulator::measure::share_error::ppm;
use gpool_policy_simulator::random::{Lengths, Random};
use gpool_policy_simulator::scenario::Scenario;
use gpool_policy_simulator::work::Work;

use crate::generate::{Mix, scenario};
use crate::observe::{Run, permille};

const SCENARIOS: u64 = 40;

#[test]
fn twice_the_weights_give_the_same_shares_to_a_millionth() {
    let mut worst_ppm = 0;
    for seed in 0..SCENARIOS {
        let run = |times: u16| {
            let mut scenario = scenario(seed, Mix::Any);
            for plan in &mut scenario.tenants {
                let share = &mut plan.share;
                share.weight_permille = share.weight_permille.div_ceil(2) * times;
            }
            Run::finished(scenario, seed)
        };
        let (single, double) = (run(1), run(2));
        for tenant in 0..single.count() {
            let received = [&single, &double].map(|run| run.execution(tenant).received_ns());
            worst_ppm = worst_ppm.max(ppm(received[0].abs_diff(received[1]), single.scenario.duration_ns));
        }
        assert!(worst_ppm <= 1, "{worst_ppm} ppm, {}", single.story());
    }
}

/// The scenario's tenants with ids that are theirs in another order.
fn with_ids(scenario: &Scenario, seed: u64, id_of: impl Fn(u64) -> u64) -> Vec<u64> {
    let device = DeviceParameters {
        time_slice_ns: scenario.time_slice_ns,
        switch_cost_ns: scenario.switch_cost_ns,
        context_bytes: 1,
        ..DeviceParameters::standard(0)
    };
    let scheduler = SliceScheduler::new(Parameters::default(), 0);
    let mut world = World::new(device, scenario.delays, seed, scheduler);
    for (index, plan) in scenario.tenants.iter().enumerate() {
        let work = Work::new(plan.lengths, Random::stream(seed, 2 * index as u64));
        let client = world.add_tenant(TenantId(id_of(index as u64)), plan.share, 0, work);
        world.demand(0, client, true);
    }
    world.run_until(scenario.duration_ns);
    world.all_received()
}

#[test]
fn other_names_give_the_same_shares() {
    let mut worst = 0;
    for seed in 0..SCENARIOS {
        let run = Run::finished(scenario(seed, Mix::Backlogged), seed);
        let reversed = with_ids(&run.scenario, seed, |index| 1000 - index);
        let mixed = with_ids(&run.scenario, seed, |index| index.wrapping_mul(0x9e37_79b9_7f4a_7c15));
        for received in [reversed, mixed] {
            for (tenant, received_ns) in received.into_iter().enumerate() {
                let apart_ns = received_ns.abs_diff(run.execution(tenant).received_ns());
                // Each of the two runs may be so far from the share.
                let bound_ns = 2 * (run.turn_ns(tenant) + run.longest_turn_ns());
                worst = worst.max(permille(apart_ns, bound_ns));
            }
        }
        assert!(worst <= 1000, "{worst} permille of the bound, {}", run.story());
    }
    println!("with other names: {worst} permille of the bound");
}

fn twice(scenario: &Scenario) -> Scenario {
    let lengths = |lengths: Lengths| match lengths {
        Lengths::Fixed { ns } => Lengths::Fixed { ns: 2 * ns },
        Lengths::Uniform { least_ns, most_ns } => Lengths::Uniform { least_ns: 2 * least_ns, most_ns: 2 * most_ns },
        Lengths::Lognormal { median_ns, sigma, least_ns, most_ns } => {
            Lengths::Lognormal { median_ns: 2 * median_ns, sigma, least_ns: 2 * least_ns, most_ns: 2 * most_ns }
        }
    };
    let delay = |delay: Delay| Delay { least_ns: 2 * delay.least_ns, most_ns: 2 * delay.most_ns, ..delay };
    let Delays { gate, ring, timer, wake } = scenario.delays;
    let mut double = scenario.clone();
    double.duration_ns *= 2;
    double.time_slice_ns *= 2;
    double.delays = Delays { gate: delay(gate), ring: delay(ring), timer: delay(timer), wake: delay(wake) };
    double.tenants.iter_mut().for_each(|plan| plan.lengths = lengths(plan.lengths));
    double
}

#[test]
fn twice_the_times_give_the_same_shares() {
    let mut worst = 0;
    for seed in 0..SCENARIOS {
        let single = Run::finished(scenario(seed, Mix::Backlogged), seed);
        let parameters = Parameters::default().scaled(2);
        let mut double = Run::with_parameters(twice(&single.scenario), seed, parameters);
        double.world.run_until(double.scenario.duration_ns);
        for tenant in 0..single.count() {
            let apart_ns =
                (2 * single.execution(tenant).received_ns()).abs_diff(double.execution(tenant).received_ns());
            let bound = |run: &Run| run.turn_ns(tenant) + run.longest_turn_ns();
            worst = worst.max(permille(apart_ns, 2 * bound(&single) + bound(&double)));
        }
        assert!(worst <= 1000, "{worst} permille of the bound, {}", single.story());
    }
    println!("with twice the times: {worst} permille of the bound");
}
