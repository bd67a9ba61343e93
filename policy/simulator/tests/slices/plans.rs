//! Worlds with the slice scheduler and tenants that always have work.

use gpool_device_model::DeviceParameters;
use gpool_policy::TenantId;
use gpool_policy::slice::{Parameters, Share, SliceScheduler};
use gpool_policy_simulator::delays::Delays;
use gpool_policy_simulator::random::{Lengths, Random};
use gpool_policy_simulator::work::Work;

pub const MS: u64 = 1_000_000;
pub const SECOND: u64 = 1000 * MS;

pub type World = gpool_policy_simulator::World<SliceScheduler>;

/// One tenant of a scenario; its kernels are equally long between both lengths.
#[derive(Clone, Debug)]
pub struct Plan {
    pub weight: u16,
    pub kernel_ns: (u64, u64),
    pub debt_ns: u64,
}

pub fn plan(weight: u16, kernel_ns: u64) -> Plan {
    Plan { weight, kernel_ns: (kernel_ns, kernel_ns), debt_ns: 0 }
}

/// Tenants with ids 1, 2, 3 ... that all have work from the start.
pub fn world(seed: u64, plans: &[Plan]) -> World {
    let ids: Vec<u64> = (1..=plans.len() as u64).collect();
    named(seed, plans, &ids)
}

pub fn named(seed: u64, plans: &[Plan], ids: &[u64]) -> World {
    let mut world = without_demand(seed, plans, ids);
    (0..plans.len()).for_each(|client| world.demand(0, client, true));
    world
}

pub fn without_demand(seed: u64, plans: &[Plan], ids: &[u64]) -> World {
    on_device(DeviceParameters::standard(0), seed, plans, ids)
}

/// The same on a device of one's own; nobody has work yet.
pub fn on_device(device: DeviceParameters, seed: u64, plans: &[Plan], ids: &[u64]) -> World {
    let scheduler = SliceScheduler::new(Parameters::default(), 0);
    let mut world = World::new(device, Delays::quiet(), seed, scheduler);
    for (index, (plan, &id)) in plans.iter().zip(ids).enumerate() {
        let (least_ns, most_ns) = plan.kernel_ns;
        let work = Work::new(Lengths::Uniform { least_ns, most_ns }, Random::stream(seed, index as u64));
        world.add_tenant(TenantId(id), Share::of(plan.weight), plan.debt_ns, work);
    }
    world
}

/// A part in 1/10000 of the whole.
pub fn permyriad(part: u64, whole: u64) -> i64 {
    (u128::from(part) * 10_000 / u128::from(whole)) as i64
}
