//! `[health]`: faults of GPUs.

use serde::{Deserialize, Serialize};

/// `[health]`
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Health {
    /// Xids after which a GPU takes no new leases until somebody ends that.
    pub drain_xids: Vec<u64>,
    /// So many faults of memory within a day that ended one program alone, after which a GPU takes no new leases either; 0: never.
    pub contained_faults: u32,
    /// Between two readings of a GPU's own figures, in seconds; 0: they are not read.
    pub poll_seconds: u32,
    /// Findings after which a GPU takes no new leases until somebody ends that.
    pub drain_on: Vec<String>,
    /// For how long all readings must say that a GPU's clocks are held down, in seconds.
    pub thermal_seconds: u32,
}

/// What can be found of a GPU by its own figures and by tests, as `[health] drain_on` names it.
pub const HEALTH_FINDINGS: [&str; 7] =
    ["remap-failure", "remap-pending", "ecc-uncorrected", "thermal", "pcie-replay", "pcie-width", "test-failed"];
/// The most faults of memory that are waited for.
pub const CONTAINED_FAULTS_MAX: u32 = 100;
/// The longest time between two readings of a GPU's own figures, in seconds.
pub const POLL_SECONDS_MAX: u32 = 3600;
/// The longest time for which clocks must be held down, in seconds.
pub const THERMAL_SECONDS_MAX: u32 = 86_400;

impl Default for Health {
    fn default() -> Self {
        Self {
            drain_xids: vec![46, 48, 62, 63, 64, 74, 79, 92, 95, 119, 120, 140, 158],
            contained_faults: 2,
            poll_seconds: 10,
            drain_on: vec!["remap-failure".into(), "remap-pending".into(), "test-failed".into()],
            thermal_seconds: 60,
        }
    }
}
