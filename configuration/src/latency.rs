//! `[latency]`: what follows where requests take longer than is promised.

use serde::{Deserialize, Serialize};

/// `[latency]`
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Latency {
    /// What follows where the requests of a container take longer than its `p99` because of others.
    pub action: LatencyAction,
    /// For how long that goes on at least, in seconds.
    pub hold_seconds: u64,
}

/// What follows where a promise is missed because of others. Each includes those before it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum LatencyAction {
    /// It is told.
    Event,
    /// Its GPUs take no new leases.
    Close,
    /// Those of a lower priority on its GPUs are kept from running.
    Hold,
}

/// The shortest of these times, in seconds: requests have to be measured meanwhile.
pub const HOLD_SECONDS_MIN: u64 = 10;
/// The longest.
pub const HOLD_SECONDS_MAX: u64 = 3600;

impl Default for Latency {
    fn default() -> Self {
        Self { action: LatencyAction::Event, hold_seconds: 60 }
    }
}

impl Latency {
    /// The first key that is out of range, and what to write.
    pub(crate) fn out_of_range(&self) -> Option<(&'static str, String)> {
        let seconds = self.hold_seconds;
        let is_within = (HOLD_SECONDS_MIN..=HOLD_SECONDS_MAX).contains(&seconds);
        (!is_within).then(|| {
            let cause = format!("{seconds} is out of range; write {HOLD_SECONDS_MIN} to {HOLD_SECONDS_MAX} seconds");
            ("latency.hold_seconds", cause)
        })
    }
}
