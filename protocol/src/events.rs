//! What happened on a host: events, and all their kinds for who counts or shows them.

use crate::identity::{ContainerId, GpuUuid, LeaseId};
use serde::{Deserialize, Serialize};

/// What happened, for `gpool events` and for audits.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Event {
    /// Counts up by one within one life of the supervisor.
    pub sequence: u64,
    /// Unix time, milliseconds.
    pub unix_ms: u64,
    /// When the supervisor that tells of it started, as in `GET /v1/info`: within that life `sequence` counts. Not in the audit, whose
    /// numbers go on, nor of a supervisor that is older than this field.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub started_unix_ms: Option<u64>,
    /// What kind of thing happened.
    pub kind: EventKind,
    /// How grave it is; absent of a supervisor that is older than this field, see [`Event::gravity`].
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub priority: Option<EventPriority>,
    /// The lease it is about.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub lease_id: Option<LeaseId>,
    /// The container it is about.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub container_id: Option<ContainerId>,
    /// The user who asked for it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub uid: Option<u32>,
    /// Of a lease that has ended: all GPU time that was charged to it, by GPU. Not with mode=mig, as NVML has no figures of it.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub charged: Vec<GpuCharge>,
    /// One sentence.
    pub message: String,
}

impl Event {
    /// How grave it is: what it says of itself, or else what its kind is.
    #[must_use]
    pub fn gravity(&self) -> EventPriority {
        self.priority.unwrap_or_else(|| self.kind.priority())
    }
}

/// How grave an [`Event`] is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum EventPriority {
    /// What an administrator would want to be woken for, or to find in the morning.
    Warning,
    /// What happens on an ordinary day.
    Information,
}

/// GPU time that was charged to a lease.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct GpuCharge {
    /// The GPU.
    pub gpu_uuid: GpuUuid,
    /// Nanoseconds of its time, those under earlier supervisors included.
    pub charged_gpu_ns: u64,
}

/// The kinds of [`Event`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum EventKind {
    /// The supervisor started.
    SupervisorStarted,
    /// It stood still for so long that containers took it to be away, and ran unpaced.
    SupervisorStalled,
    /// A lease was granted.
    LeaseGranted,
    /// A request was refused.
    LeaseRefused,
    /// A request waits for room.
    LeaseQueued,
    /// A request that waited has left the queue, with a lease or without.
    LeaseUnqueued,
    /// A lease was bound to its container.
    LeaseBound,
    /// A lease was taken over after a restart of the supervisor.
    LeaseTakenOver,
    /// A share or cap was changed.
    LeaseUpdated,
    /// A lease's gate is kept closed from now on.
    LeasePaused,
    /// A paused lease is served again.
    LeaseResumed,
    /// What a lease's programs hold of its GPUs was moved to the host's memory and its room is free for others, or that could not be.
    LeaseSuspended,
    /// A suspended lease is on its GPUs again, or could not come back.
    LeaseWoken,
    /// The GPUs of a lease were taken from its running container.
    LeaseRevoked,
    /// A lease's container makes no use of its GPUs.
    LeaseIdle,
    /// A lease's GPUs are about to be taken for one of a higher priority that waits, or are not any more.
    LeasePreempted,
    /// The run time of a lease is about to be over, or its GPUs could not be taken when it was.
    LeaseRunTime,
    /// Room was planned for one that waits and has a deadline, or is not any more.
    Deadline,
    /// A lease ended.
    LeaseEnded,
    /// Four fifths of a budget of a team or a user are spent, or all of it.
    Budget,
    /// The host is short of room from now on, or not any more.
    Overflow,
    /// For a while no quota holds for a team or a user, who stands first in the queue; or that is over.
    Override,
    /// The time of a reservation has begun or is over, something of it is missing, or nothing is any more.
    Reservation,
    /// Requests of a container take longer than is promised, or no longer do; or others are kept from running for that.
    Latency,
    /// An allocation was refused because of the cap.
    AllocationRefused,
    /// An allocation had no room within the cap and lies in the host's memory.
    AllocationSpilled,
    /// A GPU had no memory left for an allocation within a lease's cap.
    GpuFull,
    /// A look-up of a function by name was refused because the shim does not know its version.
    UnknownVersion,
    /// As many processes of a lease use its GPUs as may; further ones are refused by the driver's error.
    PlacesFull,
    /// A tenant broke the rules of its region.
    Breach,
    /// The device was busy for a tenant for longer than the tenant has reported.
    UnderReported,
    /// A tenant was charged less than it has reported and the device was busy for it, because others reported the same time.
    Undercharged,
    /// A tenant's work on the device does not come to an end.
    Hung,
    /// A process of a leased container uses a GPU past the shims.
    Bypass,
    /// A lease holds more of a GPU than its cap, by the device's own figures.
    OverCap,
    /// A program has lost its work on a GPU for good, after a fault of its own or of the GPU.
    ProgramFault,
    /// A process without a lease uses a GPU.
    Outside,
    /// NVML does not answer for a GPU: it was left out at the start, or takes no new leases.
    GpuSilent,
    /// It answers again.
    GpuAnswers,
    /// The driver has told of an Xid: something went wrong on a GPU.
    GpuXid,
    /// A GPU has failed as a whole, and with it the work of a lease.
    GpuFailed,
    /// A GPU's own figures show that something is wrong with it, or that this is over.
    GpuHealth,
    /// A test of a GPU has passed, or could not be made.
    GpuTested,
    /// A test of a GPU has found that it does something wrong.
    GpuTestFailed,
    /// A GPU takes no new leases from now on, because somebody said so or of a fault of its own.
    GpuDrained,
    /// It does again.
    GpuUndrained,
    /// The driver's libraries were replaced while its kernel module was in use: no container is started.
    DriverReplaced,
    /// They are of one version again.
    DriverInOrder,
    /// GPUs were divided as somebody asked.
    MigApplied,
    /// MIG instances came or went without gpool.
    MigChanged,
    /// An MPS daemon was started for a team's first container on its GPUs.
    MpsStarted,
    /// An MPS daemon was stopped after the last of its containers.
    MpsStopped,
    /// An MPS server or its daemon ended while containers had it: their programs have lost the GPU.
    MpsServerDied,
    /// A fatal fault of a program has ended the work of all under its MPS server, which takes nobody in until they have ended.
    MpsServerFault,
    /// The `/dev/shm` that containers under an MPS server share is nearly full, or the server has as many clients as it can have.
    MpsLimit,
    /// It was tried whether a GPU's hardware keeps shares by time slices.
    TimeSlicesTried,
    /// A container has made its own time slices longer.
    TimeSlicesChanged,
    /// The driver does not keep a container's memory cap, or somebody has changed the limit by which it does.
    MemoryLimit,
    /// The configured layout was not made after a boot.
    MigNotApplied,
    /// A changed configuration is in force.
    ConfigurationReloaded,
    /// A changed configuration cannot be used, and the old one stays in force.
    ConfigurationRefused,
    /// What the audit says of itself: what it cut off, left out or took out.
    Audit,
}

impl EventKind {
    /// Every kind, in the order of its definition.
    pub const ALL: [EventKind; 62] = [
        EventKind::SupervisorStarted,
        EventKind::SupervisorStalled,
        EventKind::LeaseGranted,
        EventKind::LeaseRefused,
        EventKind::LeaseQueued,
        EventKind::LeaseUnqueued,
        EventKind::LeaseBound,
        EventKind::LeaseTakenOver,
        EventKind::LeaseUpdated,
        EventKind::LeasePaused,
        EventKind::LeaseResumed,
        EventKind::LeaseSuspended,
        EventKind::LeaseWoken,
        EventKind::LeaseRevoked,
        EventKind::LeaseIdle,
        EventKind::LeasePreempted,
        EventKind::LeaseRunTime,
        EventKind::Deadline,
        EventKind::LeaseEnded,
        EventKind::Budget,
        EventKind::Overflow,
        EventKind::Override,
        EventKind::Reservation,
        EventKind::Latency,
        EventKind::AllocationRefused,
        EventKind::AllocationSpilled,
        EventKind::GpuFull,
        EventKind::UnknownVersion,
        EventKind::PlacesFull,
        EventKind::Breach,
        EventKind::UnderReported,
        EventKind::Undercharged,
        EventKind::Hung,
        EventKind::Bypass,
        EventKind::OverCap,
        EventKind::ProgramFault,
        EventKind::Outside,
        EventKind::GpuSilent,
        EventKind::GpuAnswers,
        EventKind::GpuXid,
        EventKind::GpuFailed,
        EventKind::GpuHealth,
        EventKind::GpuTested,
        EventKind::GpuTestFailed,
        EventKind::GpuDrained,
        EventKind::GpuUndrained,
        EventKind::DriverReplaced,
        EventKind::DriverInOrder,
        EventKind::MigApplied,
        EventKind::MigChanged,
        EventKind::MpsStarted,
        EventKind::MpsStopped,
        EventKind::MpsServerDied,
        EventKind::MpsServerFault,
        EventKind::MpsLimit,
        EventKind::TimeSlicesTried,
        EventKind::TimeSlicesChanged,
        EventKind::MemoryLimit,
        EventKind::MigNotApplied,
        EventKind::ConfigurationReloaded,
        EventKind::ConfigurationRefused,
        EventKind::Audit,
    ];

    /// How grave an event of the kind is that says nothing else of itself.
    #[must_use]
    pub fn priority(self) -> EventPriority {
        match self {
            EventKind::SupervisorStalled
            | EventKind::GpuFull
            | EventKind::UnknownVersion
            | EventKind::PlacesFull
            | EventKind::Breach
            | EventKind::UnderReported
            | EventKind::Undercharged
            | EventKind::Hung
            | EventKind::Bypass
            | EventKind::OverCap
            | EventKind::Outside
            | EventKind::GpuSilent
            | EventKind::GpuXid
            | EventKind::GpuFailed
            | EventKind::GpuHealth
            | EventKind::GpuTestFailed
            | EventKind::DriverReplaced
            | EventKind::MpsServerDied
            | EventKind::MpsServerFault
            | EventKind::MpsLimit
            | EventKind::TimeSlicesChanged
            | EventKind::MemoryLimit
            | EventKind::MigNotApplied
            | EventKind::ConfigurationRefused => EventPriority::Warning,
            EventKind::SupervisorStarted
            | EventKind::LeaseGranted
            | EventKind::LeaseRefused
            | EventKind::LeaseQueued
            | EventKind::LeaseUnqueued
            | EventKind::LeaseBound
            | EventKind::LeaseTakenOver
            | EventKind::LeaseUpdated
            | EventKind::LeasePaused
            | EventKind::LeaseResumed
            | EventKind::LeaseSuspended
            | EventKind::LeaseWoken
            | EventKind::LeaseRevoked
            | EventKind::LeaseIdle
            | EventKind::LeasePreempted
            | EventKind::LeaseRunTime
            | EventKind::Deadline
            | EventKind::LeaseEnded
            | EventKind::Budget
            | EventKind::Overflow
            | EventKind::Override
            | EventKind::Reservation
            | EventKind::Latency
            | EventKind::AllocationRefused
            | EventKind::AllocationSpilled
            | EventKind::ProgramFault
            | EventKind::GpuAnswers
            | EventKind::GpuTested
            | EventKind::GpuDrained
            | EventKind::GpuUndrained
            | EventKind::DriverInOrder
            | EventKind::MigApplied
            | EventKind::MigChanged
            | EventKind::MpsStarted
            | EventKind::MpsStopped
            | EventKind::TimeSlicesTried
            | EventKind::ConfigurationReloaded
            | EventKind::Audit => EventPriority::Information,
        }
    }

    /// The word on the wire, `lease-granted`.
    #[must_use]
    pub fn word(self) -> String {
        serde_json::to_value(self).ok().and_then(|word| word.as_str().map(str::to_owned)).unwrap_or_default()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_kind_is_left_out() {
        for (index, kind) in EventKind::ALL.into_iter().enumerate() {
            assert_eq!(kind as usize, index, "{kind:?}");
        }
        // What is read names all that could be written there.
        let error = serde_json::from_str::<EventKind>("\"no-such-kind\"").unwrap_err().to_string();
        let known = error.split_once("expected one of").unwrap().1;
        assert_eq!(known.matches('`').count(), 2 * EventKind::ALL.len(), "{error}");
        assert!(EventKind::ALL.iter().all(|kind| known.contains(&format!("`{}`", kind.word()))), "{error}");
    }
}
