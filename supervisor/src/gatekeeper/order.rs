//! What the other threads tell the gatekeeper, and what it tells them.

use super::handoffs::HandoffFigures;
use crate::region::RegionHost;
use gpool_policy::TenantId;
use gpool_policy::latency;
use gpool_policy::slice::{Explanation, Share};
use std::sync::Arc;
use std::sync::mpsc::Sender;

/// How a tenant stood on one GPU when it left.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Left {
    /// Index of the GPU.
    pub gpu: usize,
    /// All GPU time used in this life of the supervisor, as far as it is known, in nanoseconds.
    pub used_ns: u64,
    /// What it owed, in GPU nanoseconds.
    pub debt_ns: u64,
}

/// An order to the gatekeeper.
pub enum Order {
    /// A lease begins, or is taken over after a restart.
    Join {
        /// Its tenant id, never used before.
        tenant: TenantId,
        /// Indices of its GPUs, in the order in which its bursts number them; at least one.
        gpus: Vec<usize>,
        /// Its region.
        region: Arc<RegionHost>,
        /// What it is entitled to.
        share: Share,
        /// GPU time that it owes from an earlier life.
        debt_ns: u64,
    },
    /// A lease has ended.
    Leave {
        /// Which.
        tenant: TenantId,
        /// Where it is told how it stood on each of its GPUs.
        left: Sender<Vec<Left>>,
    },
    /// An entitlement has changed.
    Change {
        /// Whose.
        tenant: TenantId,
        /// To what.
        share: Share,
    },
    /// How long the requests of a tenant take is measured from now on, or no longer.
    Measure {
        /// Whose.
        tenant: TenantId,
        /// Whether.
        is_measured: bool,
        /// What 99 of 100 are to take at most, if that is promised.
        promise_ns: Option<u64>,
    },
    /// What was measured of a tenant's requests is no measure of what comes.
    MeasureAnew {
        /// Whose.
        tenant: TenantId,
        /// From when on it is measured again, CLOCK_MONOTONIC.
        from_ns: u64,
    },
    /// The tenant's gate stays closed until it is resumed.
    Pause {
        /// Whose.
        tenant: TenantId,
    },
    /// The tenant may be served again.
    Resume {
        /// Who.
        tenant: TenantId,
    },
    /// The tenant has used GPU time that it did not report.
    Owe {
        /// Who.
        tenant: TenantId,
        /// Index of the GPU.
        gpu: usize,
        /// How much.
        ns: u64,
        /// It was used before this, CLOCK_MONOTONIC; 0 where it has been reported, and was not charged because of what others report.
        until_ns: u64,
    },
    /// The tenant is frozen or stopped and cannot say that its work has ended: its silence begins anew.
    Excuse {
        /// Who.
        tenant: TenantId,
    },
    /// What follows when the tenant hangs has changed: if that has been told and it still does, it is told again.
    TellAgain {
        /// Who.
        tenant: TenantId,
    },
    /// A period of the audit begins.
    BeginPeriod {
        /// When, CLOCK_MONOTONIC.
        at_ns: u64,
    },
    /// Say where a tenant stands on each of its GPUs.
    Explain {
        /// Who.
        tenant: TenantId,
        /// Where that goes.
        answer: Sender<Explained>,
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
    /// Nobody decided for so long that tenants took the supervisor to be away.
    WasAway {
        /// How long, nanoseconds.
        for_ns: u64,
    },
    /// Nothing of the tenant's work ends.
    Hung {
        /// Which.
        tenant: TenantId,
        /// Since when, CLOCK_MONOTONIC.
        since_ns: u64,
    },
    /// The tenant has cut its report short.
    ReportCut {
        /// Which.
        tenant: TenantId,
    },
    /// The tenant keeps a thread waiting within the kernel that has to do with its bell or its report.
    KeepsWaiting {
        /// Which.
        tenant: TenantId,
    },
}

/// Where a tenant stands at one moment.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Explained {
    /// CLOCK_MONOTONIC.
    pub at_ns: u64,
    /// In the order of its GPUs; empty if it is gone.
    pub gpus: Vec<Explanation>,
}

/// One tenant's figures on one GPU.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Standing {
    /// Which tenant.
    pub tenant: TenantId,
    /// Index of the GPU.
    pub gpu: usize,
    /// GPU time charged since it joined.
    pub charged_ns: u64,
    /// How long it has kept the GPU busy by its own reports, whoever shared it.
    pub reported_ns: u64,
    /// The part of it that had been booked as a debt before the tenant reported it.
    pub redeemed_ns: u64,
    /// What it was found to have used beyond that.
    pub found_ns: u64,
    /// What it has reported beyond that which was used before the period of the audit in which the tenant reported it.
    pub late_ns: u64,
    /// GPU time that it is owed (positive) or owes.
    pub lag_ns: i64,
}

impl Standing {
    /// GPU time used since it joined, as far as it is known.
    pub fn used_ns(&self) -> u64 {
        self.charged_ns.saturating_add(self.found_ns)
    }
}

/// All figures of one moment.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Statistics {
    /// CLOCK_MONOTONIC.
    pub at_ns: u64,
    /// By tenant and GPU.
    pub standings: Vec<Standing>,
    /// How long requests take of those of whom it is measured.
    pub requests: Vec<(TenantId, latency::Figures)>,
    /// Longest of the GPUs' measured hand-offs.
    pub handoff_ns: u64,
    /// Longest of the GPUs' slices.
    pub slice_ns: u64,
    /// Hand-offs of the last seconds on all GPUs together; none when there was none.
    pub handoffs: Option<HandoffFigures>,
    /// Gates opened or renewed so far.
    pub gate_opens: u64,
    /// Gates closed so far.
    pub gate_closes: u64,
}
