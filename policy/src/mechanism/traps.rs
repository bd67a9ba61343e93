//! Combinations that do not do what they seem to.

mod capacity;
mod geometry;
mod neighbours;
mod surroundings;

use super::ask::words;
use super::{Ask, Choice, Host};

words!(
    /// The traps, by what springs them.
    Trap {
        /// MIG on a GPU that has none.
        NoMig = "no-mig",
        /// A layout that cannot be made.
        IllegalLayout = "illegal-layout",
        /// A layout that would be changed under leases.
        LayoutInUse = "layout-in-use",
        /// Kubernetes' strategy `single` with unlike instances.
        UnevenSingle = "uneven-single",
        /// Two who divide one GPU.
        TwoOwners = "two-owners",
        /// One MPS server for several teams.
        MpsAcrossTeams = "mps-across-teams",
        /// MPS with what it does not bear.
        MpsUnfit = "mps-unfit",
        /// A promise of time beside long kernels.
        CoarseNeighbour = "coarse-neighbour",
        /// Limits in software for who escapes them.
        EscapesShims = "escapes-shims",
        /// Ranks that are paced apart.
        SeparateRanks = "separate-ranks",
        /// Memory promised twice.
        MemoryTwice = "memory-twice",
        /// A ceiling below one kernel.
        CeilingBelowKernel = "ceiling-below-kernel",
        /// Replicas taken for shares.
        ReplicasAreNoShares = "replicas-are-no-shares",
        /// Two replicas taken for twice the share.
        TwoReplicas = "two-replicas",
        /// A graph is one launch.
        LongGraph = "long-graph",
        /// Suspending what cannot be saved.
        CannotSuspend = "cannot-suspend",
        /// Ending what serves and cannot be suspended.
        ReapingServices = "reaping-services",
        /// No figures of processes inside an instance.
        BlindInInstance = "blind-in-instance",
        /// A share of memory alone.
        MemoryShareOnly = "memory-share-only",
        /// Slurm's suspension frees no GPU.
        SlurmSuspend = "slurm-suspend",
    }
);

impl Trap {
    /// Its number in the documentation, from 1.
    #[must_use]
    pub fn number(self) -> usize {
        self as usize + 1
    }
}

/// What follows from a trap.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Severity {
    /// It is told.
    Warn,
    /// The request is refused.
    Refuse,
}

/// A trap that a request runs into.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Finding {
    /// Which.
    pub trap: Trap,
    /// What follows.
    pub severity: Severity,
    /// What is wrong.
    pub cause: String,
    /// What to do instead.
    pub remedy: String,
}

fn refuse(trap: Trap, cause: impl Into<String>, remedy: impl Into<String>) -> Option<Finding> {
    Some(Finding { trap, severity: Severity::Refuse, cause: cause.into(), remedy: remedy.into() })
}

fn warn(trap: Trap, cause: impl Into<String>, remedy: impl Into<String>) -> Option<Finding> {
    Some(Finding { trap, severity: Severity::Warn, cause: cause.into(), remedy: remedy.into() })
}

/// All traps that `ask` runs into on `host`, by number. `choice` is what it would get.
pub(super) fn look(ask: &Ask, host: &Host, choice: Option<&Choice>) -> Vec<Finding> {
    let found = [
        geometry::no_mig(ask, host),
        geometry::illegal_layout(ask, host),
        geometry::layout_in_use(ask, host),
        geometry::uneven_single(ask, host),
        geometry::two_owners(ask, host, choice),
        neighbours::mps_across_teams(ask, host),
        neighbours::mps_unfit(ask),
        neighbours::coarse_neighbour(ask, host, choice),
        neighbours::escapes_shims(ask),
        neighbours::separate_ranks(ask),
        capacity::memory_twice(ask, host),
        capacity::ceiling_below_kernel(ask),
        surroundings::replicas_are_no_shares(ask),
        surroundings::two_replicas(ask),
        capacity::long_graph(ask),
        surroundings::cannot_suspend(ask),
        surroundings::reaping_services(ask),
        surroundings::blind_in_instance(choice),
        capacity::memory_share_only(ask),
        surroundings::slurm_suspend(ask),
    ];
    found.into_iter().flatten().collect()
}
