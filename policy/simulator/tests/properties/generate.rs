//! Random scenarios.

use gpool_policy::slice::{Class, Priority, Share};
use gpool_policy_simulator::delays::{Delay, Delays};
use gpool_policy_simulator::random::{Lengths, Random};
use gpool_policy_simulator::scenario::{Demand, Scenario, TenantPlan};

pub const US: u64 = 1_000;
pub const MS: u64 = 1_000 * US;
pub const SECOND: u64 = 1_000 * MS;
const SHORTEST_NS: u64 = 50 * US;
const LONGEST_NS: u64 = 8 * MS;

/// What may occur in a scenario.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mix {
    /// Everything: tenants that always have work, that have it now and then, that serve requests; limits; priorities.
    Any,
    /// Guaranteed tenants without limits that always have work.
    Backlogged,
}

/// Two to sixteen tenants whose weights sum to at most 1000, kernels of 50 us to 8 ms, 5 to 9 s. The hardware shares
/// equally between contexts with work, and a hand-off takes about 50 us.
pub fn scenario(seed: u64, mix: Mix) -> Scenario {
    let mut random = Random::stream(seed, 0x9e0);
    let count = random.within(2, 16);
    // With small scenarios as likely as large ones, most pairs would be in large ones.
    let count = if random.within(0, 1) == 0 { count.min(random.within(2, 6)) } else { count };
    let weights = weights(&mut random, count);
    let has_limits = random.within(0, 2) == 0;
    let has_priorities = random.within(0, 2) == 0;
    let tenants = weights.into_iter().enumerate().map(|(index, weight)| {
        let plan = tenant(&mut random, index, weight);
        match mix {
            Mix::Backlogged => TenantPlan { share: Share::of(weight), demand: Demand::Backlog, ..plan },
            Mix::Any => TenantPlan {
                share: Share {
                    limit_permille: plan.share.limit_permille.filter(|_| has_limits),
                    priority: if has_priorities { plan.share.priority } else { Priority::Guaranteed },
                    ..plan.share
                },
                ..plan
            },
        }
    });
    Scenario {
        name: format!("seed {seed}"),
        tenants: tenants.collect(),
        duration_ns: random.within(5, 9) * SECOND,
        seeds: (seed, seed),
        time_slice_ns: 100 * US,
        switch_cost_ns: 0,
        delays: Delays {
            gate: Delay::between(30 * US, 40 * US),
            ring: Delay::between(5 * US, 10 * US),
            timer: Delay::between(0, 5 * US),
            wake: Delay::between(5 * US, 10 * US),
        },
    }
}

/// At least 10 each.
fn weights(random: &mut Random, count: u64) -> Vec<u16> {
    let raw: Vec<u64> = (0..count).map(|_| random.within(1, 100)).collect();
    let sum: u64 = raw.iter().sum();
    let spread = random.within(10 * count, 1000 - 10 * count);
    raw.iter().map(|part| (10 + part * spread / sum) as u16).collect()
}

/// The first tenant is guaranteed and has no limit, so that every scenario has one of these.
fn tenant(random: &mut Random, index: usize, weight_permille: u16) -> TenantPlan {
    let first = index == 0;
    let priority = match random.within(0, 7) {
        0 if !first => Priority::Burst,
        1 if !first => Priority::Scavenger,
        _ => Priority::Guaranteed,
    };
    let limit = random.within(u64::from(weight_permille), (3 * u64::from(weight_permille)).min(1000)) as u16;
    let limit_permille = (random.within(0, 2) == 0 && !first).then_some(limit);
    let demand = demand(random, weight_permille);
    let class = if matches!(demand, Demand::Poisson { .. }) { Class::Latency } else { Class::Batch };
    TenantPlan {
        name: format!("tenant {index}"),
        share: Share { limit_permille, class, priority, ..Share::of(weight_permille) },
        lengths: lengths(random),
        demand,
        start_ns: 0,
        stop_ns: None,
    }
}

fn lengths(random: &mut Random) -> Lengths {
    let one = log_uniform(random, SHORTEST_NS, LONGEST_NS);
    let other = log_uniform(random, SHORTEST_NS, LONGEST_NS);
    match random.within(0, 2) {
        0 => Lengths::Fixed { ns: one },
        1 => Lengths::Uniform { least_ns: one.min(other), most_ns: one.max(other) },
        _ => Lengths::Lognormal {
            median_ns: one,
            sigma: random.within(2, 12) as f64 / 10.0,
            least_ns: SHORTEST_NS,
            most_ns: LONGEST_NS,
        },
    }
}

/// Half of the tenants always have work; a quarter has it now and then; a quarter serves requests that ask for a tenth
/// to one and a half times its share.
fn demand(random: &mut Random, weight_permille: u16) -> Demand {
    match random.within(0, 3) {
        0 => Demand::OnOff { on_ns: random.within(10, 500) * MS, off_ns: random.within(5, 500) * MS },
        1 => {
            let work_ns = log_uniform(random, MS / 2, 20 * MS);
            let part = f64::from(weight_permille) / 1000.0 * random.within(10, 150) as f64 / 100.0;
            Demand::Poisson { rate_per_second: part * SECOND as f64 / work_ns as f64, work_ns }
        }
        _ => Demand::Backlog,
    }
}

/// Every factor of two is as likely as every other one.
fn log_uniform(random: &mut Random, least: u64, most: u64) -> u64 {
    let octaves = (most / least).ilog2();
    let low = least << random.within(0, u64::from(octaves));
    random.within(low, (2 * low).min(most))
}
