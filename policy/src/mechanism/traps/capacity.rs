//! Traps of sizes.

use super::{Finding, Trap, refuse, warn};
use crate::mechanism::serve::COARSE_BURST_US;
use crate::mechanism::{Ask, Fact, Host, Isolation};

/// A pause between two kernels that people notice, in microseconds.
const LONG_PAUSE_US: u64 = 1_000_000;

pub(super) fn memory_twice(ask: &Ask, host: &Host) -> Option<Finding> {
    let is_hard = ask.isolation >= Isolation::Software || !host.has_spill || !ask.is(Fact::Spill);
    if !ask.is(Fact::OvercommitMemory) || !is_hard {
        return None;
    }
    refuse(
        Trap::MemoryTwice,
        "more memory would be promised than there is, and what is not there cannot be taken back from who holds it",
        "ask for less memory; only isolation=shared on a host that spills, with facts=spill, may be over-committed",
    )
}

pub(super) fn ceiling_below_kernel(ask: &Ask) -> Option<Finding> {
    let (limit, burst_us) = (ask.limit_permille?, ask.burst_us?);
    let apart_us = burst_us.saturating_mul(1000) / u64::from(limit.max(1));
    if apart_us < LONG_PAUSE_US {
        return None;
    }
    warn(
        Trap::CeilingBelowKernel,
        format!(
            "a limit of {limit} thousandths with kernels of {} ms leaves {}.{} s from one kernel to the next",
            burst_us / 1000,
            apart_us / 1_000_000,
            apart_us % 1_000_000 / 100_000
        ),
        "raise the limit, or make the kernels shorter",
    )
}

pub(super) fn long_graph(ask: &Ask) -> Option<Finding> {
    let burst_us = ask.burst_us.filter(|burst_us| ask.is(Fact::Graphs) && *burst_us > COARSE_BURST_US)?;
    warn(
        Trap::LongGraph,
        format!(
            "a graph is one launch: nobody else runs for {} ms, and a closed gate takes that long to hold",
            burst_us / 1000
        ),
        "split the graph, or keep latency tenants off its GPU",
    )
}

pub(super) fn memory_share_only(ask: &Ask) -> Option<Finding> {
    let share = ask.memory_share_permille?;
    warn(
        Trap::MemoryShareOnly,
        format!(
            "a share of memory ({share} thousandths) is taken for one of compute too: elsewhere it bounds memory alone"
        ),
        "give fraction and memory, each as it is needed",
    )
}
