//! Nobody starves.

use gpool_policy::slice::{Class, Priority};

use crate::observe::{Run, WARM_NS, permille};

/// The longest time in which a guaranteed tenant without a limit had endless work and did not run, in thousandths of
/// `U sum w / w_i`, a turn of everybody else, and what latency tenants may run ahead. None if there is no such tenant.
pub fn worst_permille(run: &Run) -> Option<u64> {
    let share = |tenant: usize| run.scenario.tenants[tenant].share;
    let judged = |tenant: &usize| share(*tenant).priority == Priority::Guaranteed && !run.is_limited(*tenant);
    (0..run.count())
        .filter(judged)
        .filter_map(|tenant| {
            let waited_ns = run.endless(tenant).into_iter().map(|span| longest_wait_ns(run, tenant, span)).max()?;
            Some(permille(waited_ns, bound_ns(run, tenant)))
        })
        .max()
}

fn bound_ns(run: &Run, tenant: usize) -> u64 {
    let share = |other: usize| run.scenario.tenants[other].share;
    let guaranteed = (0..run.count()).filter(|&other| share(other).priority == Priority::Guaranteed);
    let weights: u64 = guaranteed.map(|other| run.weight(other)).sum();
    let others = || (0..run.count()).filter(|&other| other != tenant);
    let turns_ns: u64 = others().map(|other| run.turn_ns(other)).sum();
    let latency = others().filter(|&other| share(other).class == Class::Latency);
    let slacks_ns: u64 = latency.map(|other| run.turn_ns(other)).sum();
    run.longest_turn_ns() * weights / run.weight(tenant) + turns_ns + slacks_ns
}

fn longest_wait_ns(run: &Run, tenant: usize, (from_ns, to_ns): (u64, u64)) -> u64 {
    let from_ns = from_ns.max(WARM_NS);
    let (mut since_ns, mut longest_ns) = (from_ns, 0);
    for ran in run.execution(tenant).stretches().iter().filter(|ran| ran.end_ns > from_ns && ran.start_ns < to_ns) {
        longest_ns = longest_ns.max(ran.start_ns.saturating_sub(since_ns));
        since_ns = ran.end_ns;
    }
    longest_ns.max(to_ns.saturating_sub(since_ns))
}
