//! What is counted for the metrics alone and nowhere else.

use gpool_protocol::ErrorCode;
use std::collections::BTreeMap;
use std::sync::{Mutex, MutexGuard, PoisonError};

/// Counts of one life of the supervisor, by a word of a small set.
#[derive(Debug, Default)]
pub struct Counters {
    refusals: Mutex<BTreeMap<&'static str, u64>>,
    guard_actions: Mutex<BTreeMap<&'static str, u64>>,
}

fn lock<'a>(counts: &'a Mutex<BTreeMap<&'static str, u64>>) -> MutexGuard<'a, BTreeMap<&'static str, u64>> {
    counts.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Counters {
    /// A request for a lease was refused.
    pub fn note_refusal(&self, code: ErrorCode) {
        *lock(&self.refusals).entry(code.text()).or_default() += 1;
    }

    /// The guard has done this about a finding.
    pub fn note_guard_action(&self, action: &'static str) {
        *lock(&self.guard_actions).entry(action).or_default() += 1;
    }

    /// Refused requests by code; none of codes that have not come up.
    pub fn refusals(&self) -> Vec<(&'static str, u64)> {
        lock(&self.refusals).iter().map(|(code, count)| (*code, *count)).collect()
    }

    /// What the guard has done, by action.
    pub fn guard_actions(&self) -> Vec<(&'static str, u64)> {
        lock(&self.guard_actions).iter().map(|(action, count)| (*action, *count)).collect()
    }
}
