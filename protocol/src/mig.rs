//! MIG on the socket: what GPUs are divided into, and what they are to be divided into.

use crate::identity::{GpuUuid, LeaseId};
use serde::{Deserialize, Serialize};

/// What a refusal with `GPOOL-E107` says if those who use the GPUs are in the way, who may be waited for: nothing else that
/// fixes a layout goes by itself.
pub const NOT_UNDER_USERS: &str = "instances are not changed under who uses them";

/// A GPU that can be divided, as `gpool mig show` shows it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct MigGpuView {
    /// NVML's index now.
    pub index: u32,
    /// Stable identity.
    pub uuid: GpuUuid,
    /// Product name.
    pub name: String,
    /// NVML's PCI device and vendor id, as mig-parted's `device-filter` has it.
    pub pci_device_id: u32,
    /// Whether MIG is on: then the GPU serves nobody as a whole.
    pub enabled: bool,
    /// Whether it is to be on when nobody uses the GPU any more.
    pub pending: bool,
    /// Who else divides the GPUs of this host, so that gpool does not.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub owner: Option<String>,
    /// How much is left of the maintenance window that is open now, in seconds; absent: none is.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub window_left_s: Option<u64>,
    /// The instances, by their starts.
    pub instances: Vec<MigInstanceView>,
    /// GPU instances that are no lease's: without a compute instance over all of them, by their starts.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub parted: Vec<MigPartedView>,
    /// Leases that have it or a part of it, kept places not counted.
    pub leases: u32,
}

/// A GPU instance that is divided further, or that no program can use. gpool leases none.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct MigPartedView {
    /// NVIDIA's name of its profile, for example `3g.40gb`.
    pub profile: String,
    /// Number of the GPU instance.
    pub gpu_instance: u32,
    /// The first of its memory slices.
    pub start: u8,
    /// How many.
    pub size: u8,
    /// How many compute instances it has.
    pub compute_instances: u32,
}

/// A MIG instance.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct MigInstanceView {
    /// By which CUDA calls it.
    pub uuid: GpuUuid,
    /// NVIDIA's name of its profile, for example `3g.40gb`.
    pub profile: String,
    /// Number of the GPU instance.
    pub gpu_instance: u32,
    /// Number of the compute instance in it.
    pub compute_instance: u32,
    /// The first of its memory slices.
    pub start: u8,
    /// How many.
    pub size: u8,
    /// All of its memory.
    pub memory_bytes: u64,
    /// Who has all of it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub lease_id: Option<LeaseId>,
    /// Who has slices of it.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub slices: Vec<LeaseId>,
    /// Whose it is while it has leases or kept places of a team.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub team: Option<String>,
    /// Share of it that is promised, in permille, kept places included.
    #[serde(default)]
    pub share_leased_permille: u16,
    /// Memory of it that is promised, kept places included.
    #[serde(default)]
    pub memory_leased_bytes: u64,
}

/// What one GPU is to be divided into.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct MigGoal {
    /// The GPU.
    pub uuid: GpuUuid,
    /// Whether MIG is to be on.
    pub enabled: bool,
    /// A profile for each instance.
    pub profiles: Vec<String>,
}

/// A request to divide GPUs.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct MigApply {
    /// What is to be; GPUs that are not named stay as they are.
    pub goals: Vec<MigGoal>,
    /// Whether those that have to change take nobody in for the next five seconds if leases are in the way; to be asked
    /// again before they are over.
    #[serde(default)]
    pub drain: bool,
}
