//! Whether a request would be granted now, without granting it.

use crate::{GpuUuid, Mechanism, Request};
use serde::{Deserialize, Serialize};

/// Asks whether a container with this request would have a lease now: of the user who asks, if that one starts containers without root,
/// else of root, whose are docker's.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct TrialRequest {
    /// What it would ask for.
    pub request: Request,
}

/// What it would have. Where it would be refused, that is the answer.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Trial {
    /// Of which user the container would be: whose quota holds.
    pub uid: u32,
    /// How it would have its share.
    pub mechanism: Mechanism,
    /// On which GPUs, or in which MIG instance.
    pub gpu_uuids: Vec<GpuUuid>,
    /// The profile, if that is a MIG instance.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub mig_profile: Option<String>,
    /// Its share of each, permille; 1000 of whole GPUs and instances.
    pub fraction_permille: u16,
    /// Its memory cap on each, bytes.
    pub memory_bytes: u64,
    /// Whether it would have what is idle in place of that share, because a budget of its team or its user is spent.
    #[serde(default)]
    pub beyond_budget: bool,
}
