//! What leases used of what they had asked for, and what would have been enough.

use crate::EnoughRequest;
use serde::{Deserialize, Serialize};

/// One container, or all leases of somebody.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct SizesRow {
    /// The container's id, or the team, project, cost center or user; empty for those without one.
    pub key: String,
    /// Leases that were there.
    pub leases: u64,
    /// For how long they had their GPUs, summed over these; an instance by its part of its board.
    pub held_gpu_ns: u64,
    /// Promised: their shares of that.
    pub reserved_gpu_ns: u64,
    /// Used, beyond their shares too.
    pub used_gpu_ns: u64,
    /// For how long they held GPUs in minutes in which they used all of their shares, so that they may have wanted more.
    pub full_gpu_ns: u64,
    /// What would have been enough of what was promised; of leases without a promise nothing.
    pub enough_gpu_ns: u64,
    /// Memory caps, MiB seconds.
    pub memory_cap_mib_s: u64,
    /// What would have been enough of them.
    pub memory_enough_mib_s: u64,
    /// The most memory that any of them held of one GPU at once.
    pub memory_peak_bytes: u64,
    /// The request that would have been enough; of one container alone.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub enough: Option<EnoughRequest>,
}

/// The answer to `GET /v1/sizes`.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Sizes {
    /// From when on, Unix seconds, where a minute begins.
    pub since_unix_s: u64,
    /// Until when, where one ends.
    pub until_unix_s: u64,
    /// From when on anything is written down at all; none while nothing is.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub begins_unix_s: Option<u64>,
    /// Until when hours alone are known, over which shares are means; none where all minutes are.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub hours_until_unix_s: Option<u64>,
    /// For which part of the time in which a container worked a share has to be enough, percent.
    pub percent: u8,
    /// Whose promises were more than enough by most comes first.
    pub rows: Vec<SizesRow>,
    /// All of them.
    pub total: SizesRow,
}
