//! What is counted for the metrics alone and nowhere else.

use gpool_protocol::ErrorCode;
use std::collections::BTreeMap;
use std::sync::{Mutex, MutexGuard, PoisonError};

/// What the guard does about findings, as it says.
pub(super) const GUARD_ACTIONS: [&str; 7] =
    ["told", "frozen", "not_frozen", "revoked", "not_revoked", "killed", "not_killed"];

/// What requests for leases are refused with. Others may come up and are counted from then on.
const REFUSALS: [ErrorCode; 9] = [
    ErrorCode::SupervisorFailed,
    ErrorCode::RequestInvalid,
    ErrorCode::RequestNotAllowed,
    ErrorCode::RequestFeatureMissing,
    ErrorCode::ShareNotFree,
    ErrorCode::MemoryNotFree,
    ErrorCode::NoGpu,
    ErrorCode::NoMechanism,
    ErrorCode::LeaseConflict,
];

/// Counts of one life of the supervisor, by a word of a small set.
#[derive(Debug)]
pub struct Counters {
    refusals: Mutex<BTreeMap<&'static str, u64>>,
    guard_actions: Mutex<BTreeMap<&'static str, u64>>,
}

impl Default for Counters {
    /// Everything that is known to come up begins with zero: Prometheus sees a first time only beside that.
    fn default() -> Self {
        let zeroes = |words: &mut dyn Iterator<Item = &'static str>| Mutex::new(words.map(|word| (word, 0)).collect());
        Self {
            refusals: zeroes(&mut REFUSALS.iter().map(|code| code.text())),
            guard_actions: zeroes(&mut GUARD_ACTIONS.into_iter()),
        }
    }
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

    /// Refused requests by code.
    pub fn refusals(&self) -> Vec<(&'static str, u64)> {
        lock(&self.refusals).iter().map(|(code, count)| (*code, *count)).collect()
    }

    /// What the guard has done, by action.
    pub fn guard_actions(&self) -> Vec<(&'static str, u64)> {
        lock(&self.guard_actions).iter().map(|(action, count)| (*action, *count)).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_has_not_come_up_is_counted_as_never() {
        let counters = Counters::default();
        let of =
            |counts: Vec<(&'static str, u64)>, word: &str| counts.iter().find(|(its, _)| *its == word).map(|it| it.1);
        assert_eq!(of(counters.refusals(), "GPOOL-E201"), Some(0));
        assert_eq!(of(counters.guard_actions(), "frozen"), Some(0));
        counters.note_refusal(ErrorCode::ShareNotFree);
        counters.note_guard_action("frozen");
        assert_eq!(of(counters.refusals(), "GPOOL-E201"), Some(1));
        assert_eq!(of(counters.guard_actions(), "frozen"), Some(1));
        // One that the list lacks is counted all the same.
        counters.note_refusal(ErrorCode::BundleInvalid);
        assert_eq!(of(counters.refusals(), "GPOOL-E501"), Some(1));
        assert_eq!(counters.guard_actions().len(), GUARD_ACTIONS.len());
    }
}
