//! Memory caps that a driver itself keeps.

use serde::{Deserialize, Serialize};

/// Whether a GPU's driver keeps memory caps.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct MemoryLimits {
    /// What is known of that.
    pub state: MemoryLimitsState,
    /// The same for people, with the cause.
    pub told: String,
}

/// What is known of memory caps that a driver is to keep.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum MemoryLimitsState {
    /// It has none, or none on this host.
    Absent,
    /// No container has been given one since the supervisor started.
    Untried,
    /// It keeps those of all containers.
    Kept,
    /// It does not keep one of them.
    Refused,
}

/// Whether a limit of `limit_bytes` keeps a cap: a driver may round. nvidia-smi's documentation shows 4000 MiB becoming 4096.
#[must_use]
pub fn is_limit_of(limit_bytes: u64, cap_bytes: u64) -> bool {
    const LEAST: u64 = 64 << 20;
    (cap_bytes..=cap_bytes.saturating_add((cap_bytes / 16).max(LEAST))).contains(&limit_bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_limit_may_be_rounded_up_and_not_down() {
        const MIB: u64 = 1 << 20;
        assert!(is_limit_of(4096 * MIB, 4000 * MIB) && is_limit_of(4000 * MIB, 4000 * MIB));
        assert!(!is_limit_of(4000 * MIB - 1, 4000 * MIB) && !is_limit_of(4251 * MIB, 4000 * MIB));
        assert!(is_limit_of(65 * MIB, MIB) && !is_limit_of(66 * MIB, MIB));
    }
}
