//! What the scheduler is told and what it answers.

use super::{Share, TenantId};

/// Something that happened. An input about a tenant that has not joined is ignored.
///
/// Whoever delivers a ring delivers its measured bursts first and what it says afterwards, so that a decision sees
/// the charge that was known when the tenant rang.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Input {
    /// A lease begins. Of a tenant that has joined already, only the share is taken.
    Join {
        /// Who.
        tenant: TenantId,
        /// What it is entitled to.
        share: Share,
        /// GPU time it owes from an earlier life.
        debt_ns: u64,
    },
    /// A lease has ended. Ask [`debt_ns`](super::SliceScheduler::debt_ns) before.
    Leave {
        /// Who.
        tenant: TenantId,
    },
    /// An entitlement has changed. What the tenant is owed or owes stays.
    Change {
        /// Who.
        tenant: TenantId,
        /// What it is entitled to from now on.
        share: Share,
    },
    /// The tenant's gate stays closed until [`Resume`](Self::Resume). What it has launched goes on.
    Pause {
        /// Who.
        tenant: TenantId,
    },
    /// The tenant may be served again.
    Resume {
        /// Who.
        tenant: TenantId,
    },
    /// Nobody has decided anything for a while, so tenants have run unpaced or stood at closed gates: what was used until
    /// now is charged, and owed to nobody.
    Away,
    /// The tenant has used GPU time that it did not report: a debt, but no charge. If it reports work of that time after
    /// all, because a kernel has ended at last, that is charged without being booked a second time.
    Owe {
        /// Who.
        tenant: TenantId,
        /// How much, in GPU time.
        ns: u64,
        /// It was used before this, `CLOCK_MONOTONIC`; 0 where it has been reported, and was not charged because of what others report.
        until_ns: u64,
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
    /// The tenant waits for what it has issued, and is not expected to issue more soon after: whoever else wants the device
    /// need not wait for it to say that it is [idle](Self::Idle).
    Leaves {
        /// Who.
        tenant: TenantId,
        /// When its queued work is expected to end, `CLOCK_MONOTONIC`.
        estimated_end_ns: u64,
    },
    /// The tenant has issued more since it said that it [leaves](Self::Leaves).
    Stays {
        /// Who.
        tenant: TenantId,
    },
    /// The tenant has nothing outstanding, and stands at its closed gate.
    Drained {
        /// Who.
        tenant: TenantId,
    },
    /// The tenant has nothing outstanding and wants nothing.
    Idle {
        /// Who.
        tenant: TenantId,
    },
    /// The tenant could not have said that its work has ended, because it is frozen or stopped: its silence begins anew,
    /// told or not.
    Excuse {
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
    /// The same of one that stood before the device first, because others were on it.
    Arrival {
        /// Who.
        tenant: TenantId,
        /// Which context, unique within the tenant.
        context: u64,
        /// From when on it stood there.
        queued_ns: u64,
        /// When its first work came onto the device.
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
        /// Estimated unfinished work that it may have on the device, in GPU time.
        depth_ns: u64,
        /// How much of its work it should measure at a time, in GPU time.
        burst_ns: u64,
    },
    /// Let nothing more through.
    Close {
        /// Who.
        tenant: TenantId,
    },
    /// Nothing of the tenant's work has come to an end for as long as its share's [`HangAfter`](super::HangAfter) says.
    /// Told once, unless it is [excused](Input::Excuse) or [asked for](super::HostScheduler::tell_again); nothing but the end of its processes can free the device of it.
    Hung {
        /// Who.
        tenant: TenantId,
        /// Since when nothing of it has ended, `CLOCK_MONOTONIC`.
        since_ns: u64,
    },
}
