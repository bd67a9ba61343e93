//! What ran: each lease with when it began, how long it had waited, what it had and how it ended.

use crate::identity::{ContainerId, GpuUuid, LeaseId};
use serde::{Deserialize, Serialize};

/// One GPU of a lease.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct PastGpu {
    /// The GPU or MIG instance.
    pub gpu_uuid: GpuUuid,
    /// Its model.
    pub product: String,
    /// The profile of an instance.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub mig_profile: Option<String>,
}

/// A lease that has ended, or runs. Its figures are of all its life, as far as the ledger goes back.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct PastLease {
    /// Which.
    pub lease_id: LeaseId,
    /// Its container.
    pub container_id: ContainerId,
    /// Namespace and name of its pod, of a container in one; where its engine does not say them, the sandbox and its name there.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub pod: Option<String>,
    /// Who pays.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub team: Option<String>,
    /// For which project.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub project: Option<String>,
    /// On whose bill.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cost_center: Option<String>,
    /// The user who started it.
    pub uid: u32,
    /// The class that it had last.
    pub class: String,
    /// The priority that it had last.
    pub priority: String,
    /// How the GPU was shared.
    pub mechanism: String,
    /// When it was granted, Unix milliseconds.
    pub created_unix_ms: u64,
    /// When it ended, if it has; where nobody has seen that, until when it is known to have run.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ended_unix_ms: Option<u64>,
    /// How it ended: `ended` by itself or by its engine, `not-started`, `fault` of a GPU or an MPS server, `killed` by the supervisor, its
    /// GPUs taken from it (`evicted`, `idle`, `preempted`, `run-time`, `bypass`), or `unseen`. None while it runs, and where that was not
    /// written down.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ending: Option<String>,
    /// For how long its container had waited for it, milliseconds. None where that was not written down.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub waited_ms: Option<u64>,
    /// The share of each GPU that it had last, in thousandths. None where that was not written down.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub fraction_permille: Option<u16>,
    /// Its memory cap on each, the last one. None where that was not written down.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub memory_cap_bytes: Option<u64>,
    /// The most memory that it held on one at a time. None where that was not written down.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub memory_peak_bytes: Option<u64>,
    /// Its GPUs; those on which something of it is still written down.
    pub gpus: Vec<PastGpu>,
    /// GPU time promised on all of them, nanoseconds.
    pub reserved_gpu_ns: u64,
    /// Charged.
    pub used_gpu_ns: u64,
    /// Charged beyond the share.
    pub burst_gpu_ns: u64,
    /// Promised, left, and had by others.
    pub lent_gpu_ns: u64,
    /// Promised, left, and had by nobody.
    pub idle_gpu_ns: u64,
    /// Promised in MIG instances, of whose work NVML has no figures: nobody knows what of it was used.
    pub unmetered_gpu_ns: u64,
    /// Its part of what the GPUs drew, millijoules.
    pub energy_millijoules: u64,
}

/// The answer to `GET /v1/history`.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct History {
    /// From when on, Unix seconds, where a minute begins.
    pub since_unix_s: u64,
    /// Until when, where one ends.
    pub until_unix_s: u64,
    /// From when on anything is written down at all; none while nothing is.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub begins_unix_s: Option<u64>,
    /// Those that had their GPUs at some time in it, in the order in which they were granted.
    pub leases: Vec<PastLease>,
}
