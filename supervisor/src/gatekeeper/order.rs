//! What the other threads tell the gatekeeper, and what it tells them.

use crate::region::RegionHost;
use gpool_policy::TenantId;
use std::sync::Arc;
use std::sync::mpsc::Sender;

/// An order to the gatekeeper.
pub enum Order {
    /// A lease begins, or is taken over after a restart.
    Join {
        /// Its tenant id, never used before.
        tenant: TenantId,
        /// Index of its GPU.
        gpu: usize,
        /// Its region.
        region: Arc<RegionHost>,
        /// Its share.
        weight_permille: u16,
        /// GPU time that it owes from an earlier life.
        debt_ns: u64,
    },
    /// A lease has ended; the answer is what it owes.
    Leave {
        /// Which.
        tenant: TenantId,
        /// Where the debt goes, in GPU nanoseconds.
        debt_ns: Sender<u64>,
    },
    /// A share has changed.
    Weight {
        /// Whose.
        tenant: TenantId,
        /// To what.
        weight_permille: u16,
    },
    /// A process of the lease has died: take what it still has to tell, then answer. Its slot is freed after that.
    Collect {
        /// Which lease.
        tenant: TenantId,
        /// Rung when done.
        done: Sender<()>,
    },
    /// A process of the lease has died and its slot is free: look again.
    Look {
        /// Which lease.
        tenant: TenantId,
    },
    /// Report the figures of all tenants.
    Statistics(Sender<Statistics>),
}

/// Something that another thread should act on.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Notice {
    /// A process has taken a slot and waits to be accepted.
    Registered {
        /// Its lease.
        tenant: TenantId,
        /// Its slot.
        slot: usize,
        /// The number that it made up.
        registration: u64,
    },
    /// The tenant has cut its report short.
    ReportCut {
        /// Which.
        tenant: TenantId,
    },
}

/// One tenant's figures.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Standing {
    /// Which tenant.
    pub tenant: TenantId,
    /// GPU time charged since it joined.
    pub charged_ns: u64,
    /// GPU time that it is owed (positive) or owes.
    pub lag_ns: i64,
}

/// All figures of one moment.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Statistics {
    /// CLOCK_MONOTONIC.
    pub at_ns: u64,
    /// By tenant.
    pub standings: Vec<Standing>,
    /// Longest of the GPUs' measured hand-offs.
    pub handoff_ns: u64,
    /// Longest of the GPUs' slices.
    pub slice_ns: u64,
}
