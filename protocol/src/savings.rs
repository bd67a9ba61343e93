//! How many GPUs would have been enough without sharing, and with it.

use serde::{Deserialize, Serialize};

/// What one owner of leases asked for, or all together. Figures are thousandths of a GPU, each enough for the part of the time that
/// was asked for.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct OwnerDemand {
    /// The team, project, cost center or user; empty for leases without one, and for all together.
    pub key: String,
    /// Leases that were there.
    pub leases: u64,
    /// Places on GPUs that containers had at once.
    pub places_permille: u64,
    /// GPU time, promised or had, whichever is more.
    pub share_permille: u64,
    /// Memory caps, of a GPU's memory.
    pub memory_permille: u64,
    /// Both of these: the more of them in each minute.
    pub needed_permille: u64,
    /// Whole GPUs for what is needed.
    pub gpus: u64,
}

/// The answer to `GET /v1/savings`.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Savings {
    /// From when on, Unix seconds, where a minute begins.
    pub since_unix_s: u64,
    /// Until when, where one ends.
    pub until_unix_s: u64,
    /// From when on anything is written down at all; none while nothing is.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub begins_unix_s: Option<u64>,
    /// For which part of the time it is enough, percent.
    pub percent: u8,
    /// How much of it is in the ledger, nanoseconds.
    pub known_ns: u64,
    /// Who would have GPUs of its own.
    pub owners: Vec<OwnerDemand>,
    /// All of them together.
    pub together: OwnerDemand,
    /// GPUs, if each container had whole ones.
    pub gpus_for_each_container: u64,
    /// If each owner had its own, and shared them.
    pub gpus_for_each_owner: u64,
    /// Shared by all.
    pub gpus_shared: u64,
    /// How many there were, at most at once, in thousandths: MIG instances count by their compute slices.
    pub there_permille: u64,
    /// GPUs and instances whose memory is not known any more, as they are gone: caps on them are not counted.
    #[serde(default)]
    pub unknown_gpus: u64,
}
