//! What the scheduler is told and what it answers.

use super::TenantId;

/// Something that happened. An input about a tenant that has not joined is ignored.
///
/// Whoever delivers a ring delivers its measured bursts first and what it says afterwards, so that a decision sees
/// the charge that was known when the tenant rang.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Input {
    /// A lease begins. Of a tenant that has joined already, only the weight is taken.
    Join {
        /// Who.
        tenant: TenantId,
        /// Its entitlement; 0 is taken as 1.
        weight_permille: u16,
        /// GPU time it owes from an earlier life.
        debt_ns: u64,
    },
    /// A lease has ended. Ask [`debt_ns`](super::SliceScheduler::debt_ns) before.
    Leave {
        /// Who.
        tenant: TenantId,
    },
    /// An entitlement has changed. What the tenant is owed or owes stays.
    Weight {
        /// Who.
        tenant: TenantId,
        /// Its new entitlement; 0 is taken as 1.
        weight_permille: u16,
    },
    /// Threads of the tenant stand at its gate. May be repeated.
    Wants {
        /// Who.
        tenant: TenantId,
    },
    /// The tenant has issued work up to the end of its slice, and wants to issue more.
    ///
    /// Sent again when the work ends before the announced end: with kernels whose length varies, the device would
    /// otherwise idle for as long as the estimate was wrong. The first one of a slice never names an end before the
    /// end of the slice; one that does crossed a renewal on its way and is ignored, as the gate is open.
    Announced {
        /// Who.
        tenant: TenantId,
        /// When its queued work is expected to end, `CLOCK_MONOTONIC`.
        estimated_end_ns: u64,
    },
    /// The tenant has nothing outstanding and wants nothing.
    Idle {
        /// Who.
        tenant: TenantId,
    },
    /// A context of the tenant had work on the device in `[start_ns, end_ns)`, `CLOCK_MONOTONIC`.
    Burst {
        /// Who.
        tenant: TenantId,
        /// Which context, unique within the tenant.
        context: u64,
        /// Start of the burst.
        start_ns: u64,
        /// End of the burst.
        end_ns: u64,
    },
    /// A closed gate was opened, and so much later the first launch behind it happened. Not sent for a renewal.
    FirstLaunch {
        /// Who.
        tenant: TenantId,
        /// From the opening to the launch.
        after_open_ns: u64,
    },
    /// Time has passed.
    Pass,
}

/// What to do with a gate, in the order given.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Command {
    /// Let the tenant issue work while what it has issued is expected to end before `until_ns`. Of an open gate, only
    /// the time changes.
    Open {
        /// Who.
        tenant: TenantId,
        /// Host time, `CLOCK_MONOTONIC`.
        until_ns: u64,
    },
    /// Let nothing more through.
    Close {
        /// Who.
        tenant: TenantId,
    },
}
