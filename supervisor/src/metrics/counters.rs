//! What is counted for the metrics alone and nowhere else.

use crate::queue::Left;
use gpool_protocol::ErrorCode;
use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

/// What the guard does about findings, as it says.
pub(super) const GUARD_ACTIONS: [&str; 7] =
    ["told", "frozen", "not_frozen", "revoked", "not_revoked", "killed", "not_killed"];

/// What was done about leases that nobody uses.
pub(super) const IDLE_ACTIONS: [&str; 5] = ["told", "revoked", "not_revoked", "suspended", "not_suspended"];

/// What was done about leases that make room for a higher priority.
pub(super) const PREEMPTIONS: [&str; 6] = ["told", "withdrawn", "left", "suspended", "revoked", "not_revoked"];

/// What was done about leases whose run time is over.
pub(super) const RUN_TIMES: [&str; 3] = ["told", "revoked", "not_revoked"];

/// What became of requests that have a deadline and wait.
pub(super) const DEADLINES: [&str; 2] = ["planned", "at_risk"];

/// What came of leases that were to be suspended or to come back.
pub(super) const SUSPENSIONS: [&str; 4] = ["suspended", "not_suspended", "woken", "lost"];

/// What requests for leases are refused with. Others may come up and are counted from then on.
const REFUSALS: [ErrorCode; 11] = [
    ErrorCode::SupervisorFailed,
    ErrorCode::RequestInvalid,
    ErrorCode::RequestNotAllowed,
    ErrorCode::RequestFeatureMissing,
    ErrorCode::ShareNotFree,
    ErrorCode::MemoryNotFree,
    ErrorCode::NoGpu,
    ErrorCode::NoMechanism,
    ErrorCode::QuotaReached,
    ErrorCode::DeadlineNotMet,
    ErrorCode::LeaseConflict,
];

/// Counts of one life of the supervisor, by a word of a small set.
#[derive(Debug)]
pub struct Counters {
    refusals: Mutex<BTreeMap<&'static str, u64>>,
    guard_actions: Mutex<BTreeMap<&'static str, u64>>,
    idle: Mutex<BTreeMap<&'static str, u64>>,
    preemptions: Mutex<BTreeMap<&'static str, u64>>,
    run_times: Mutex<BTreeMap<&'static str, u64>>,
    suspensions: Mutex<BTreeMap<&'static str, u64>>,
    deadlines: Mutex<BTreeMap<&'static str, u64>>,
    lent: AtomicU64,
    queue: Mutex<BTreeMap<&'static str, Waits>>,
}

/// Waits for room that ended in one way.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Waits {
    /// How many.
    pub count: u64,
    /// How long all of them together were.
    pub total_ns: u64,
}

impl Default for Counters {
    /// Everything that is known to come up begins with zero: Prometheus sees a first time only beside that.
    fn default() -> Self {
        let zeroes = |words: &mut dyn Iterator<Item = &'static str>| Mutex::new(words.map(|word| (word, 0)).collect());
        Self {
            refusals: zeroes(&mut REFUSALS.iter().map(|code| code.text())),
            guard_actions: zeroes(&mut GUARD_ACTIONS.into_iter()),
            idle: zeroes(&mut IDLE_ACTIONS.into_iter()),
            preemptions: zeroes(&mut PREEMPTIONS.into_iter()),
            run_times: zeroes(&mut RUN_TIMES.into_iter()),
            suspensions: zeroes(&mut SUSPENSIONS.into_iter()),
            deadlines: zeroes(&mut DEADLINES.into_iter()),
            lent: AtomicU64::new(0),
            queue: Mutex::new(Left::ALL.map(|how| (how.word(), Waits::default())).into()),
        }
    }
}

fn lock<'a, T>(counts: &'a Mutex<BTreeMap<&'static str, T>>) -> MutexGuard<'a, BTreeMap<&'static str, T>> {
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

    /// This was done about a lease that nobody uses.
    pub fn note_idle(&self, action: &'static str) {
        *lock(&self.idle).entry(action).or_default() += 1;
    }

    /// This came of a lease that makes room for a higher priority.
    pub fn note_preemption(&self, outcome: &'static str) {
        *lock(&self.preemptions).entry(outcome).or_default() += 1;
    }

    /// This came of a lease that was to be suspended, or to come back.
    pub fn note_suspension(&self, outcome: &'static str) {
        *lock(&self.suspensions).entry(outcome).or_default() += 1;
    }

    /// This was done about a lease whose run time is over.
    pub fn note_run_time(&self, outcome: &'static str) {
        *lock(&self.run_times).entry(outcome).or_default() += 1;
    }

    /// This became of a request that has a deadline and waits.
    pub fn note_deadline(&self, outcome: &'static str) {
        *lock(&self.deadlines).entry(outcome).or_default() += 1;
    }

    /// What became of those, by outcome.
    pub fn deadlines(&self) -> Vec<(&'static str, u64)> {
        lock(&self.deadlines).iter().map(|(outcome, count)| (*outcome, *count)).collect()
    }

    /// A lease was granted, in room that is kept for another one if `is_lent`.
    pub fn note_lent(&self, is_lent: bool) {
        self.lent.fetch_add(is_lent.into(), Ordering::Relaxed);
    }

    /// A request has left the queue in this way, after so long.
    pub fn note_left(&self, how: &'static str, waited: Duration) {
        let mut queue = lock(&self.queue);
        let waits = queue.entry(how).or_default();
        waits.count += 1;
        waits.total_ns = waits.total_ns.saturating_add(u64::try_from(waited.as_nanos()).unwrap_or(u64::MAX));
    }

    /// Waits for room, by how they ended.
    pub fn waits(&self) -> Vec<(&'static str, Waits)> {
        lock(&self.queue).iter().map(|(how, waits)| (*how, *waits)).collect()
    }

    /// Refused requests by code.
    pub fn refusals(&self) -> Vec<(&'static str, u64)> {
        lock(&self.refusals).iter().map(|(code, count)| (*code, *count)).collect()
    }

    /// What was done about leases that nobody uses, by action.
    pub fn idle_actions(&self) -> Vec<(&'static str, u64)> {
        lock(&self.idle).iter().map(|(action, count)| (*action, *count)).collect()
    }

    /// What came of leases that make room for a higher priority, by outcome.
    pub fn preemptions(&self) -> Vec<(&'static str, u64)> {
        lock(&self.preemptions).iter().map(|(outcome, count)| (*outcome, *count)).collect()
    }

    /// What came of leases that were to be suspended or to come back.
    pub fn suspensions(&self) -> Vec<(&'static str, u64)> {
        lock(&self.suspensions).iter().map(|(outcome, count)| (*outcome, *count)).collect()
    }

    /// What was done about leases whose run time is over, by outcome.
    pub fn run_times(&self) -> Vec<(&'static str, u64)> {
        lock(&self.run_times).iter().map(|(outcome, count)| (*outcome, *count)).collect()
    }

    /// How many leases were granted in room that is kept for another one.
    pub fn lent(&self) -> u64 {
        self.lent.load(Ordering::Relaxed)
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
        counters.note_left("granted", Duration::from_secs(3));
        counters.note_left("granted", Duration::from_secs(4));
        let of_queue = |how: &str| counters.waits().into_iter().find(|(its, _)| *its == how).map(|(_, waits)| waits);
        assert_eq!(of_queue("granted"), Some(Waits { count: 2, total_ns: 7_000_000_000 }));
        assert_eq!(of_queue("gone"), Some(Waits::default()));
        // One that the list lacks is counted all the same.
        counters.note_refusal(ErrorCode::BundleInvalid);
        assert_eq!(of(counters.refusals(), "GPOOL-E501"), Some(1));
        assert_eq!(counters.guard_actions().len(), GUARD_ACTIONS.len());
    }
}
