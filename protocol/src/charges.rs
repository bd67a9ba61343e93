//! The rows of a bill: what each lease is charged for each day on each of its GPUs.

use crate::identity::{ContainerId, GpuUuid, LeaseId};
use serde::{Deserialize, Serialize};

/// One lease on one GPU on one day of UTC, or the part of it that was asked for.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Charge {
    /// When it begins, Unix seconds.
    pub begins_unix_s: u64,
    /// When it ends.
    pub ends_unix_s: u64,
    /// The lease.
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
    /// When it ended, if it has.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ended_unix_ms: Option<u64>,
    /// The GPU or MIG instance.
    pub gpu_uuid: GpuUuid,
    /// Its model.
    pub product: String,
    /// The profile of an instance.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub mig_profile: Option<String>,
    /// Its compute slices; as many as there are of a whole GPU.
    pub compute_slices: u8,
    /// How many a whole one of its model has: its part is the one over the other, and all times are in whole GPUs.
    pub of_compute_slices: u8,
    /// GPU time promised, nanoseconds.
    pub reserved_gpu_ns: u64,
    /// Charged.
    pub used_gpu_ns: u64,
    /// Charged beyond the share.
    pub burst_gpu_ns: u64,
    /// Promised, left, and had by others.
    pub lent_gpu_ns: u64,
    /// Promised, left, and had by nobody.
    pub idle_gpu_ns: u64,
    /// Memory cap times the time for which it was held, MiB seconds.
    pub memory_cap_mib_s: u64,
    /// Memory in use times that, MiB seconds.
    pub memory_used_mib_s: u64,
    /// Its part of what the GPU drew, millijoules. 0 from an older supervisor, and where that is not counted.
    #[serde(default)]
    pub energy_millijoules: u64,
    /// Whether some of it is known by less than a supervisor that watched: how it ended, or what it did for a while.
    pub is_estimated: bool,
    /// What is billed, nanoseconds of a whole GPU: promised, and the part of what was had beyond that for which it is asked, less
    /// what is given back. 0 where this host has no prices.
    pub billed_gpu_ns: u64,
    /// What an hour of that costs, millionths of the currency; none where there is no price.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub price_micros: Option<u64>,
    /// The same for those with whom nothing else is agreed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub list_price_micros: Option<u64>,
    /// What it costs, billionths of the currency. Each minute or hour of the ledger is rounded for itself, so that all sums of the
    /// same time are the same.
    pub cost_nanos: u64,
    /// By the price of those with whom nothing else is agreed.
    pub list_cost_nanos: u64,
}

/// The answer to `GET /v1/charges`.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Charges {
    /// From when on, Unix seconds, where a minute begins.
    pub since_unix_s: u64,
    /// Until when, where one ends.
    pub until_unix_s: u64,
    /// From when on anything is written down at all; none while nothing is.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub begins_unix_s: Option<u64>,
    /// What costs are in; none where this host has no prices.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub currency: Option<String>,
    /// By day, then in the order in which leases were granted.
    pub rows: Vec<Charge>,
    /// What they cost together, billionths of the currency.
    pub total_cost_nanos: u64,
}
