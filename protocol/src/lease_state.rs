//! Where a lease stands: in its life, with what it cannot recover from, and out of the GPU's memory.

use serde::{Deserialize, Serialize};

/// Where a lease stands in its life.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum LeaseState {
    /// Granted; the container is being made.
    Pending,
    /// Bound to a running container.
    Active,
    /// Its GPUs were taken from its container, which runs on without them.
    Revoked,
    /// The container's init has ended; other processes of its cgroup have not.
    Ending,
    /// The container is gone; its place is kept a while for a restart of the same container.
    Held,
    /// Its container runs, and a supervisor that was started meanwhile could not take it over: it keeps its place, and nobody
    /// opens or closes its gate.
    Stranded,
}

/// What a lease's processes cannot recover from.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum LeaseFault {
    /// Its MPS server ended while they were its clients.
    MpsServerDied,
    /// Their MPS server has had a fatal fault, and takes nobody in before they have ended.
    MpsServerFault,
    /// The driver has told one of them that its context cannot be used any more, after a fault of its own work or of the GPU.
    ProgramFault,
    /// A GPU of theirs has failed as a whole.
    GpuFailed,
}

impl LeaseFault {
    /// As it is written.
    pub fn text(self) -> &'static str {
        match self {
            LeaseFault::MpsServerDied => "mps-server-died",
            LeaseFault::MpsServerFault => "mps-server-fault",
            LeaseFault::ProgramFault => "program-fault",
            LeaseFault::GpuFailed => "gpu-failed",
        }
    }
}

/// How far a lease's way to the host's memory has come, or its way back.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum SuspensionStage {
    /// What its processes hold is being moved to the host's memory. Its room is its own.
    Suspending,
    /// It is there, and others may have its room. It comes back when it is wanted and has room.
    Suspended,
    /// It is being brought back. The room for it is its own again.
    Resuming,
}

impl SuspensionStage {
    /// As it is written.
    pub fn text(self) -> &'static str {
        match self {
            SuspensionStage::Suspending => "suspending",
            SuspensionStage::Suspended => "suspended",
            SuspensionStage::Resuming => "resuming",
        }
    }
}

/// A lease whose processes are in the host's memory, or on their way there or back.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct SuspensionView {
    /// How far that has come.
    pub stage: SuspensionStage,
    /// Since when, Unix milliseconds.
    pub since_unix_ms: u64,
    /// What of GPU memory is in the host's, in bytes, contexts included.
    pub host_bytes: u64,
    /// Whether its programs want the GPU, or somebody has asked for it to be resumed: it comes back as soon as it has room.
    pub is_wanted: bool,
}
