//! A naive fluid reference: what everybody would have had of the same work if the GPU could be divided without end
//! (generalized processor sharing, Parekh & Gallager 1993).

use gpool_policy_simulator::measure::fair::{Claim, split};
use gpool_policy_simulator::record::Wanted;
use gpool_policy_simulator::scenario::{Demand, TenantPlan};

use crate::generate::MS;
use crate::observe::{Run, WARM_NS, permille};

/// The reference goes on in steps; what arrives within one counts from its beginning.
const STEP_NS: u64 = 2 * MS;

/// One tenant in the reference.
struct Fluid {
    endless: bool,
    requested_ns: u64,
    served_ns: u64,
    /// The extremes of what the reference has served more than the device.
    least: i64,
    most: i64,
}

/// The worst tenant: by how much its lag behind the reference changed, in thousandths of `u + U` and a step; of twice
/// that where somebody serves requests, who leaves a debt behind when there are none, and comes back without a credit.
/// The reference serves exactly as much as the device did, so what the device lost is nobody's lag. Whenever somebody's
/// endless work begins or ends, it starts again from what was really served: who goes idle takes nothing along.
///
/// None for scenarios with limits, which a fluid without memory does not have in the same way, and for those with
/// several priorities: who is served after others has what gaps between their requests leave.
pub fn worst_permille(run: &Run) -> Option<u64> {
    let tenants = &run.scenario.tenants;
    let priority = tenants[0].share.priority;
    let alike = |plan: &TenantPlan| plan.share.limit_permille.is_none() && plan.share.priority == priority;
    if !tenants.iter().all(alike) {
        return None;
    }
    let new = || Fluid { endless: false, requested_ns: 0, served_ns: 0, least: 0, most: 0 };
    let mut fluids: Vec<Fluid> = tenants.iter().map(|_| new()).collect();
    let mut wanted: Vec<_> = run.world.record.wanted.iter().map(|wanted| wanted.iter().peekable()).collect();
    let greatest_ns = run.longest_turn_ns();
    let has_requests = tenants.iter().any(|plan| matches!(plan.demand, Demand::Poisson { .. }));
    let times = if has_requests { 2 } else { 1 };
    let mut worst = 0;
    for at_ns in (0..run.scenario.duration_ns).step_by(STEP_NS as usize) {
        let mut changed = false;
        for (fluid, wanted) in fluids.iter_mut().zip(&mut wanted) {
            while let Some((_, change)) = wanted.next_if(|(when_ns, _)| *when_ns < at_ns + STEP_NS) {
                match change {
                    Wanted::Request(work_ns) => fluid.requested_ns += work_ns,
                    Wanted::Gone => (fluid.endless, fluid.requested_ns, changed) = (false, 0, true),
                    change => (fluid.endless, changed) = (*change == Wanted::On, true),
                }
            }
        }
        serve(run, &mut fluids, at_ns, changed || at_ns < WARM_NS);
        for (tenant, fluid) in fluids.iter_mut().enumerate() {
            let received_ns = run.execution(tenant).received_before(at_ns + STEP_NS);
            let lag_ns = fluid.served_ns.cast_signed() - received_ns.cast_signed();
            (fluid.least, fluid.most) = (fluid.least.min(lag_ns), fluid.most.max(lag_ns));
            let bound_ns = times * (run.turn_ns(tenant) + greatest_ns) + STEP_NS;
            worst = worst.max(permille(fluid.most.abs_diff(fluid.least), bound_ns));
        }
    }
    Some(worst)
}

/// One step. When endless work has begun or ended within it, the reference takes over what really was served.
fn serve(run: &Run, fluids: &mut [Fluid], at_ns: u64, changed: bool) {
    let received_ns = |tenant: usize, at_ns: u64| run.execution(tenant).received_before(at_ns);
    if changed {
        for (tenant, fluid) in fluids.iter_mut().enumerate() {
            fluid.served_ns = received_ns(tenant, at_ns + STEP_NS);
            (fluid.least, fluid.most) = (0, 0);
        }
        return;
    }
    let in_step_ns = |tenant: usize| received_ns(tenant, at_ns + STEP_NS) - received_ns(tenant, at_ns);
    let delivered_ns: u64 = (0..fluids.len()).map(in_step_ns).sum();
    let claims: Vec<Claim> = fluids
        .iter()
        .zip(&run.scenario.tenants)
        .map(|(fluid, plan)| {
            let asked_ns = fluid.requested_ns.saturating_sub(fluid.served_ns);
            Claim { share: plan.share, demand_ns: if fluid.endless { STEP_NS } else { asked_ns } }
        })
        .collect();
    for (fluid, served_ns) in fluids.iter_mut().zip(split(delivered_ns, &claims)) {
        fluid.served_ns += served_ns;
    }
}
