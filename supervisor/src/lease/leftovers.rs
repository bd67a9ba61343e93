//! What could not be taken off the disk when a lease ended, as its region was not unmounted in time: it is tried again.

use super::grant::Leases;
use super::record::{Record, dir_of, region_dir_of};
use crate::cgroup::run_groups;
use crate::faults::Faults;
use crate::region::{Mounts, RegionHost};
use gpool_protocol::LeaseId;
use std::collections::VecDeque;
use std::path::Path;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

/// Between two tries, each at one of them: who mounts may not answer, and is waited for each time by who attends to
/// everybody.
const PERIOD: Duration = Duration::from_secs(10);

/// Leases that have ended and of which something is left. Its lock is taken last of all.
#[derive(Debug, Default)]
pub struct Leftovers(Mutex<State>);

#[derive(Debug, Default)]
struct State {
    /// In the order in which they are tried.
    waiting: VecDeque<LeaseId>,
    /// When the first of them is.
    next: Option<Instant>,
    /// Why it could not be done.
    faults: Faults<LeaseId>,
}

impl Leftovers {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// What came at `now` of clearing the lease away.
    fn note(&self, id: &LeaseId, now: Instant, outcome: &Result<(), String>) {
        let mut state = self.lock();
        state.faults.note(id.clone(), outcome);
        let waited = state.waiting.iter().position(|its| its == id).map(|place| state.waiting.remove(place)).is_some();
        match outcome {
            Ok(()) if waited => state.next = Some(now),
            Ok(()) => {}
            Err(_) => {
                state.waiting.push_back(id.clone());
                state.next.get_or_insert(now + PERIOD);
            }
        }
        if state.waiting.is_empty() {
            state.next = None;
        }
    }

    /// One that is to be tried again at `now`; the next one a while later, unless this succeeds.
    fn due(&self, now: Instant) -> Option<LeaseId> {
        let mut state = self.lock();
        state.next.as_mut().filter(|next| **next <= now).map(|next| *next = now + PERIOD)?;
        state.waiting.front().cloned()
    }
}

impl Leases {
    /// Takes what is left of a lease off the disk, now or later.
    pub fn clear_away(&self, id: &LeaseId) {
        let outcome = clear_away(&self.mounts, &self.configuration().paths.run_dir, id);
        self.leftovers.note(id, Instant::now(), &outcome);
    }

    /// The same of a lease of which the record is known: that leads to the cgroups that a killed `gpool run` could not remove.
    pub fn clear_away_of(&self, record: &Record) {
        run_groups::remove(&record.run_groups);
        self.clear_away(&record.lease_id);
    }

    /// Tries again with one of those that could not be cleared away.
    pub fn clear_leftovers(&self) {
        if let Some(id) = self.leftovers.due(Instant::now()) {
            self.clear_away(&id);
        }
    }
}

/// Takes what is left of a lease off the disk.
///
/// # Errors
/// Something stays, and why.
fn clear_away(mounts: &Mounts, run_dir: &Path, id: &LeaseId) -> Result<(), String> {
    let unmounted = RegionHost::remove(mounts, &region_dir_of(run_dir, id));
    Record::remove(run_dir, id).map_err(|cause| {
        let cause = unmounted.err().unwrap_or(cause);
        format!("{} stays and is tried again: {cause}", dir_of(run_dir, id).display())
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_a_kill_has_left_of_a_lease_is_taken_away() {
        let run_dir = tempfile::tempdir().unwrap();
        let id = LeaseId("01".into());
        let region = region_dir_of(run_dir.path(), &id);
        std::fs::create_dir_all(&region).unwrap();
        assert_eq!(clear_away(&Mounts::Here, run_dir.path(), &id), Ok(()));
        assert!(!region.parent().unwrap().exists());
        assert_eq!(clear_away(&Mounts::Here, run_dir.path(), &id), Ok(()), "it is gone");
    }

    /// A file in the place of the directory stands for a mount that stays: neither can be removed as a directory.
    #[test]
    fn what_stays_is_tried_again_until_it_is_gone() {
        let (run_dir, id) = (tempfile::tempdir().unwrap(), LeaseId("01".into()));
        let dir = dir_of(run_dir.path(), &id);
        std::fs::create_dir_all(dir.parent().unwrap()).unwrap();
        std::fs::write(&dir, "").unwrap();
        let (leftovers, now) = (Leftovers::default(), Instant::now());
        let no_mounter = Mounts::Mounter(run_dir.path().join("none"));
        let outcome = clear_away(&no_mounter, run_dir.path(), &id);
        assert!(
            outcome.as_ref().is_err_and(|why| why.contains("01 stays and is tried again: No such file")),
            "{outcome:?}"
        );
        leftovers.note(&id, now, &outcome);
        assert_eq!((leftovers.due(now), leftovers.due(now + PERIOD)), (None, Some(id.clone())));
        std::fs::remove_file(&dir).unwrap();
        std::fs::create_dir(&dir).unwrap();
        let outcome = clear_away(&no_mounter, run_dir.path(), &id);
        assert_eq!(outcome, Ok(()), "nothing was mounted");
        leftovers.note(&id, now + PERIOD, &outcome);
        assert_eq!(leftovers.due(now + 10 * PERIOD), None);
    }

    #[test]
    fn one_is_tried_at_a_time_and_each_in_turn() {
        let (leftovers, now) = (Leftovers::default(), Instant::now());
        let [first, second] = ["01", "02"].map(|id| LeaseId(id.into()));
        let stays: Result<(), String> = Err("it does not answer".into());
        leftovers.note(&first, now, &stays);
        leftovers.note(&second, now + PERIOD / 2, &stays);
        let tried = |at: Instant, outcome: &Result<(), String>| {
            let id = leftovers.due(at)?;
            leftovers.note(&id, at, outcome);
            Some(id)
        };
        assert_eq!(tried(now + PERIOD, &stays), Some(first.clone()));
        assert_eq!(tried(now + PERIOD, &stays), None, "that has been waited for just now");
        assert_eq!(tried(now + 2 * PERIOD, &Ok(())), Some(second));
        assert_eq!(tried(now + 2 * PERIOD, &Ok(())), Some(first), "whoever mounts answers again");
        assert_eq!(tried(now + 9 * PERIOD, &Ok(())), None);
    }
}
