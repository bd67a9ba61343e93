//! Memory caps that the driver itself keeps: the limit of a container's cgroup, set from outside. What goes past the shims is
//! bound by it too, and neither the container nor this supervisor's death lifts it.
//!
//! It is set when a container is bound, before its program begins, when its cap is changed, and looked at again every few seconds:
//! others on the host may set it, too. The shims go on counting: they say what is free, and refuse with a reason that can be told.

use crate::bell::Bell;
use crate::cgroup;
use crate::device::{FoundLimit, Kind, LimitRefusal, WantedLimit};
use crate::lease::{Leases, about};
use gpool_protocol::{
    EventKind, GpuUuid, LeaseId, LeaseState, MemoryLimits as Verdict, MemoryLimitsState, format_bytes,
};
use std::collections::{BTreeMap, BTreeSet};
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

/// Between two looks when nothing happens.
const PERIOD: Duration = Duration::from_secs(10);

/// A cgroup on a board, by NVML's index.
type Place = (u32, PathBuf);

/// What is known of each GPU, and what was set in this life of the supervisor.
#[derive(Debug, Default)]
pub struct MemoryLimits {
    bell: Bell,
    /// The driver was found to have none.
    is_absent: AtomicBool,
    /// Those that were set. Held by who sets some, so that what a lease wants is read and set in one go; taken before the book.
    set: Mutex<BTreeSet<Place>>,
    /// Its lock is taken last of all.
    verdicts: Mutex<BTreeMap<GpuUuid, Verdict>>,
}

impl MemoryLimits {
    /// Leases have changed: look now.
    pub fn ring(&self) {
        self.bell.ring();
    }

    /// Whether the driver of a GPU keeps caps; none where that is not wanted.
    pub fn of(&self, gpu: &GpuUuid) -> Option<Verdict> {
        self.verdicts().get(gpu).cloned()
    }

    fn verdicts(&self) -> MutexGuard<'_, BTreeMap<GpuUuid, Verdict>> {
        self.verdicts.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// What was seen last of one lease's limit on one GPU.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct MemoryLimitNote {
    /// What the driver was asked to keep and what it made of it, in bytes; none while it keeps nothing.
    kept: Option<(u64, u64)>,
    /// Why it does not, as was told last.
    refused: Option<LimitRefusal>,
}

impl MemoryLimitNote {
    /// What the driver keeps, in bytes.
    pub fn kept_bytes(&self) -> Option<u64> {
        self.kept.map(|(_, kept_bytes)| kept_bytes)
    }

    /// What the driver made of this limit when it was set last.
    fn known_bytes(&self, asked_bytes: u64) -> Option<u64> {
        self.kept.filter(|(asked, _)| *asked == asked_bytes).map(|(_, kept_bytes)| kept_bytes)
    }

    /// Takes what came of a limit of `asked_bytes`. What is to be told, the end of a sentence about a container.
    fn take(&mut self, asked_bytes: u64, outcome: Result<FoundLimit, LimitRefusal>) -> Option<String> {
        let known_bytes = self.known_bytes(asked_bytes);
        let outcome = outcome.and_then(|found| match found.kept_bytes {
            Some(kept_bytes) => Ok((kept_bytes, found.before_bytes)),
            None => Err(LimitRefusal::Other("it took the limit and keeps none".to_owned())),
        });
        match outcome {
            Ok((kept_bytes, before_bytes)) => {
                let was_changed = known_bytes.is_some() && before_bytes != known_bytes;
                *self = Self { kept: Some((asked_bytes, kept_bytes)), refused: None };
                let was =
                    before_bytes.map_or_else(|| "lifted".to_owned(), |bytes| format!("set to {}", format_bytes(bytes)));
                was_changed.then(|| {
                    format!(
                        "had its memory limit in the driver {was} by somebody; it is {} again",
                        format_bytes(kept_bytes)
                    )
                })
            }
            Err(refusal) => {
                self.kept = None;
                let is_news = self.refused.replace(refusal.clone()).as_ref() != Some(&refusal);
                // What is so on the whole host is no news of a container, and a cgroup that has ended needs none.
                let is_usual =
                    matches!(refusal, LimitRefusal::NoFunction | LimitRefusal::NotSupported | LimitRefusal::Gone);
                (is_news && !is_usual).then(|| format!("has its memory cap kept by its shims alone: {refusal}"))
            }
        }
    }
}

/// Keeps them for ever; runs on its own thread.
pub fn keep(leases: &Leases) {
    loop {
        if leases.configuration().driver.memory_limits {
            note_beginning(leases);
        }
        look(leases, None);
        leases.memory_limits.bell.wait(PERIOD);
    }
}

/// Sees to the limits of one lease before this returns, unless a board hangs.
pub fn keep_of(leases: &Leases, lease: &LeaseId) {
    look(leases, Some(lease));
}

/// Nothing has been tried yet.
fn note_beginning(leases: &Leases) {
    let (state, told) = match leases.inventory.has_memory_limits() {
        true => (MemoryLimitsState::Untried, "no container has had one since the supervisor started".to_owned()),
        false => (MemoryLimitsState::Absent, LimitRefusal::NoFunction.to_string()),
    };
    let gpus = leases.gpus();
    let mut verdicts = leases.memory_limits.verdicts();
    for gpu in gpus.iter().filter(|gpu| gpu.kind == Kind::Whole) {
        verdicts.entry(gpu.uuid.clone()).or_insert_with(|| Verdict { state, told: told.clone() });
    }
}

/// What the last one says of all.
fn verdict_of(outcome: &Result<FoundLimit, LimitRefusal>) -> Option<Verdict> {
    let verdict = |state, told: String| Some(Verdict { state, told });
    match outcome {
        Ok(_) => verdict(MemoryLimitsState::Kept, "it keeps those of containers".to_owned()),
        Err(LimitRefusal::Gone) => None,
        Err(refusal @ LimitRefusal::NoFunction) => verdict(MemoryLimitsState::Absent, refusal.to_string()),
        Err(refusal) => verdict(MemoryLimitsState::Refused, refusal.to_string()),
    }
}

/// The limit of one lease on one GPU.
struct Wanted {
    lease: LeaseId,
    /// The GPU's place among those of the host.
    gpu: usize,
    uuid: GpuUuid,
    /// Its index in NVML.
    index: u32,
    bytes: u64,
    /// What was seen of it last.
    note: MemoryLimitNote,
    /// None where version 2 is not the only one.
    directory: Option<PathBuf>,
}

/// What is wanted now, of all leases.
fn wanted(leases: &Leases) -> Vec<Wanted> {
    if !leases.configuration().driver.memory_limits {
        return Vec::new();
    }
    let (gpus, book) = (leases.gpus(), leases.book());
    let mut all = Vec::new();
    for lease in book.leases.values().filter(|lease| lease.state == LeaseState::Active) {
        let (Some(bytes), Some(cgroup)) = (lease.record.limit_bytes(), &lease.record.cgroup) else { continue };
        let directory = cgroup::directory_of_version_2(cgroup);
        for account in &lease.accounts {
            let Some(gpu) = gpus.get(account.gpu).filter(|gpu| gpu.kind == Kind::Whole) else { continue };
            all.push(Wanted {
                lease: lease.record.lease_id.clone(),
                gpu: account.gpu,
                uuid: gpu.uuid.clone(),
                index: gpu.index,
                bytes,
                note: account.memory_limit.clone(),
                directory: directory.clone(),
            });
        }
    }
    share_groups(&mut all);
    all
}

/// Who shares a cgroup shares its limit, which is all of theirs together.
fn share_groups(all: &mut [Wanted]) {
    let mut sums: BTreeMap<Place, u64> = BTreeMap::new();
    let place = |one: &Wanted| Some((one.index, one.directory.clone()?));
    for one in all.iter() {
        if let Some(place) = place(one) {
            let sum = sums.entry(place).or_default();
            *sum = sum.saturating_add(one.bytes);
        }
    }
    for one in all {
        one.bytes = place(one).and_then(|place| sums.get(&place).copied()).unwrap_or(one.bytes);
    }
}

/// Sees to the limits of all leases, or of one.
fn look(leases: &Leases, only: Option<&LeaseId>) {
    let limits = &leases.memory_limits;
    if !leases.inventory.has_memory_limits() || limits.is_absent.load(Ordering::Relaxed) {
        return;
    }
    let mut set = limits.set.lock().unwrap_or_else(PoisonError::into_inner);
    let all = wanted(leases);
    if only.is_none() {
        lift_others(leases, &mut set, &all);
    }
    let mut by_board: BTreeMap<u32, Vec<Wanted>> = BTreeMap::new();
    for one in all.into_iter().filter(|one| only.is_none_or(|id| one.lease == *id)) {
        by_board.entry(one.index).or_default().push(one);
    }
    for (index, wanted) in by_board {
        let (asked, unasked): (Vec<Wanted>, Vec<Wanted>) = wanted.into_iter().partition(|one| one.directory.is_some());
        let outcomes = ask(leases, index, asked.iter().filter_map(limit_of).collect());
        set.extend(asked.iter().filter_map(|one| Some((index, one.directory.clone()?))));
        let unsupported = unasked.iter().map(|one| (one, Err(LimitRefusal::NotSupported)));
        // A board that does not answer says nothing of any.
        note(leases, asked.iter().zip(outcomes.into_iter().flatten()).chain(unsupported));
    }
}

fn limit_of(wanted: &Wanted) -> Option<WantedLimit> {
    let directory = wanted.directory.clone()?;
    Some(WantedLimit { directory, bytes: Some(wanted.bytes), known_bytes: wanted.note.known_bytes(wanted.bytes) })
}

/// What a board makes of limits, each; nothing if it does not answer.
fn ask(leases: &Leases, index: u32, limits: Vec<WantedLimit>) -> Option<Vec<Result<FoundLimit, LimitRefusal>>> {
    leases.inventory.ask(index, move |its| Ok(its.keep_memory_limits(index, &limits))).ok()
}

/// Lifts limits of cgroups whose leases have ended and that are there still, and of all where nobody wants them any more.
fn lift_others(leases: &Leases, set: &mut BTreeSet<Place>, wanted: &[Wanted]) {
    let wanted: BTreeSet<(u32, &PathBuf)> =
        wanted.iter().filter_map(|one| Some((one.index, one.directory.as_ref()?))).collect();
    let others: Vec<Place> = set.iter().filter(|(index, path)| !wanted.contains(&(*index, path))).cloned().collect();
    for place in others {
        let (index, directory) = place.clone();
        let lifted = WantedLimit { directory, bytes: None, known_bytes: None };
        // A cgroup that has gone has taken its limit along.
        if !place.1.exists()
            || ask(leases, index, vec![lifted]).is_some_and(|outcomes| outcomes.iter().all(Result::is_ok))
        {
            set.remove(&place);
        }
    }
    if !leases.configuration().driver.memory_limits {
        leases.memory_limits.verdicts().clear();
        for account in leases.book().leases.values_mut().flat_map(|lease| &mut lease.accounts) {
            account.memory_limit = MemoryLimitNote::default();
        }
    }
}

fn note<'a>(leases: &Leases, outcomes: impl Iterator<Item = (&'a Wanted, Result<FoundLimit, LimitRefusal>)>) {
    for (wanted, outcome) in outcomes {
        if outcome == Err(LimitRefusal::NoFunction) {
            leases.memory_limits.is_absent.store(true, Ordering::Relaxed);
        }
        if let Some(verdict) = verdict_of(&outcome) {
            leases.memory_limits.verdicts().insert(wanted.uuid.clone(), verdict);
        }
        let mut book = leases.book();
        let Ok(lease) = book.exactly(&wanted.lease.0) else { continue };
        let Some(account) = lease.account_on(wanted.gpu) else { continue };
        let news = account.memory_limit.take(wanted.bytes, outcome);
        if let Some(news) = news {
            let message = format!("{} {news} (GPU {})", lease.record.container_id.short(), wanted.uuid);
            leases.events.note(EventKind::MemoryLimit, about(&lease.record, None), message);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn found(kept_bytes: Option<u64>, before_bytes: Option<u64>) -> Result<FoundLimit, LimitRefusal> {
        Ok(FoundLimit { kept_bytes, before_bytes })
    }

    #[test]
    fn who_changes_a_limit_is_told_of_and_who_changes_a_cap_is_not() {
        let mut note = MemoryLimitNote::default();
        assert_eq!(note.take(4 << 30, found(Some(4 << 30), None)), None, "it is new");
        assert_eq!(
            (note.kept_bytes(), note.known_bytes(4 << 30), note.known_bytes(5 << 30)),
            (Some(4 << 30), Some(4 << 30), None)
        );
        assert_eq!(note.take(4 << 30, found(Some(4 << 30), Some(4 << 30))), None);
        let told = note.take(4 << 30, found(Some(4 << 30), None)).unwrap();
        assert!(told.contains("lifted by somebody; it is 4GiB again"), "{told}");
        let told = note.take(4 << 30, found(Some(4 << 30), Some(9 << 30))).unwrap();
        assert!(told.contains("set to 9GiB by somebody"), "{told}");
        assert_eq!(note.take(6 << 30, found(Some(6 << 30), Some(4 << 30))), None, "gpool update has");
    }

    #[test]
    fn who_shares_a_cgroup_shares_its_limit() {
        let one = |index, directory: &str, bytes| Wanted {
            lease: LeaseId("01".into()),
            gpu: 0,
            uuid: GpuUuid("GPU-0".into()),
            index,
            bytes,
            note: MemoryLimitNote::default(),
            directory: (!directory.is_empty()).then(|| directory.into()),
        };
        let mut all = [one(0, "/a", 1), one(0, "/a", 2), one(1, "/a", 4), one(0, "/a/b", 8), one(0, "", 16)];
        share_groups(&mut all);
        assert_eq!(all.map(|one| one.bytes), [3, 3, 4, 8, 16]);
    }

    #[test]
    fn why_the_driver_does_not_keep_a_cap_is_told_once_and_what_is_usual_is_not() {
        let mut note = MemoryLimitNote::default();
        assert_eq!(note.take(1, Err(LimitRefusal::NoFunction)), None);
        assert_eq!(note.take(1, Err(LimitRefusal::NotSupported)), None);
        let told = note.take(1, Err(LimitRefusal::NoController)).unwrap();
        assert!(told.contains("by its shims alone: the cgroup has no dmem.max"), "{told}");
        assert_eq!(note.take(1, Err(LimitRefusal::NoController)), None);
        assert!(note.take(1, found(None, None)).is_some_and(|told| told.contains("keeps none")));
        assert_eq!((note.take(1, found(Some(1), None)), note.kept_bytes()), (None, Some(1)));
        assert!(note.take(1, Err(LimitRefusal::NoController)).is_some(), "it did, and does not any more");
        assert_eq!(note.kept_bytes(), None);
    }
}
