//! Tenants with limits, in every window.

use gpool_policy::slice::{Class, Parameters};
use gpool_policy_simulator::measure::ceiling::worst_excess_ns;

use crate::observe::{Run, WARM_NS, permille};

/// The worst limited tenant: its greatest GPU time above its limit's part of a window, in thousandths of what may be
/// above it: one turn `u`, with what was really ahead at its end. A turn of the latency class goes on for as long as what
/// it may run ahead and what it is owed besides, together at most the longest slice of that class. Windows are 5, 20, 50, 100, 500 and
/// 1000 ms long, at any nanosecond where they can be fullest. None if nobody has a limit.
pub fn worst_permille(run: &Run) -> Option<u64> {
    let of = |tenant: usize| {
        let limit = run.scenario.tenants[tenant].share.limit_permille?;
        let excess_ns = worst_excess_ns(run.execution(tenant), limit, WARM_NS).max(0).cast_unsigned();
        let parameters = Parameters::default();
        let is_latency = run.scenario.tenants[tenant].share.class == Class::Latency;
        let longer_ns = if is_latency { parameters.slack_usual_ns.saturating_sub(run.slice_ns(tenant)) } else { 0 };
        Some(permille(excess_ns, run.real_turn_ns(tenant) + longer_ns))
    };
    (0..run.count()).filter_map(of).max()
}
