//! Sets the limits of all leases, and looks again every few seconds: others on the host may set them, too.

use super::MemoryLimitNote;
use super::verdicts::judge;
use crate::cgroup;
use crate::clock;
use crate::device::{FoundLimit, Gpu, Kind, LimitRefusal, WantedLimit};
use crate::lease::{Lease, Leases, Record, about};
use gpool_protocol::{EventKind, LeaseId, LeaseState};
use std::collections::{BTreeMap, BTreeSet};
use std::path::PathBuf;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

/// Between two looks at all of them when nothing happens.
const PERIOD: Duration = Duration::from_secs(10);
/// While more is held than some cap that was lowered.
const SHORT_PERIOD: Duration = Duration::from_secs(1);
/// With a driver that has none.
const REST: Duration = Duration::from_secs(3600);
/// So many are one question to a board, which has some seconds for its answer.
const AT_ONCE: usize = 32;

/// A cgroup on a board, by NVML's index.
type Place = (u32, PathBuf);

/// Keeps them for ever; runs on its own thread.
pub fn keep(leases: &Leases) {
    let mut keeper = Keeper { set: set_before(leases) };
    let mut looked: Option<Instant> = None;
    loop {
        let orders = leases.memory_limits.take_orders();
        if !orders.urgent.is_empty() {
            keeper.look(leases, Some(&orders.urgent));
        }
        leases.memory_limits.finish(orders.number);
        if orders.wants_all || looked.is_none_or(|at| at.elapsed() >= period(leases)) {
            keeper.look(leases, None);
            looked = Some(Instant::now());
        }
        let since = looked.map_or(Duration::ZERO, |at| at.elapsed());
        leases.memory_limits.bell.wait(period(leases).saturating_sub(since));
    }
}

/// Between two looks at all of them, as things are.
fn period(leases: &Leases) -> Duration {
    match leases.memory_limits.has_none(leases) {
        true => REST,
        false if is_any_unsettled(leases) => SHORT_PERIOD,
        false => PERIOD,
    }
}

/// Those that an earlier life of the supervisor has set, of leases that are taken over, or will be.
fn set_before(leases: &Leases) -> BTreeSet<Place> {
    let gpus = leases.gpus();
    let book = leases.book();
    let records = book.leases.values().map(|lease| &lease.record).chain(&book.stranded);
    places_of(records, &gpus, cgroup::directory_of_version_2)
}

/// Those of leases that could not be taken over: their containers run, and what they have stays as it is.
fn of_stranded(leases: &Leases) -> BTreeSet<Place> {
    let is_on = leases.configuration().driver.memory_limits;
    let gpus = leases.gpus();
    let book = leases.book();
    let records = book.stranded.iter().filter(|record| is_on || record.caps_time_slices);
    places_of(records, &gpus, cgroup::directory_of_version_2)
}

/// The places of the limits that leases have.
fn places_of<'a>(
    records: impl Iterator<Item = &'a Record>,
    gpus: &[Gpu],
    directory_of: impl Fn(&str) -> Option<PathBuf>,
) -> BTreeSet<Place> {
    let mut set = BTreeSet::new();
    for record in records.filter(|record| record.has_driver_limit) {
        let Some(directory) = record.cgroup.as_deref().and_then(&directory_of) else { continue };
        let its = gpus.iter().filter(|gpu| record.gpus().contains(&gpu.uuid));
        set.extend(its.map(|gpu| (gpu.index, directory.clone())));
    }
    set
}

/// Whether the driver keeps something else for now than some lease is to have.
fn is_any_unsettled(leases: &Leases) -> bool {
    let book = leases.book();
    let is_one = |lease: &Lease| lease.accounts.iter().any(|account| account.memory_limit.is_unsettled());
    book.leases.values().any(is_one)
}

/// A lease's place on one of its GPUs.
struct LimitPlace {
    lease: LeaseId,
    /// The GPU's place among those of the host.
    gpu: usize,
    /// Its index in NVML.
    index: u32,
    /// What is wanted there, in bytes; none where what there is stays as it is.
    bytes: Option<u64>,
    /// What was seen of it last.
    note: MemoryLimitNote,
    cgroup: String,
    /// None where version 2 is not the only one, and of a cgroup that has gone.
    directory: Option<PathBuf>,
}

/// Those of all leases with a container that have a limit, or had one and are to keep it.
fn places(leases: &Leases) -> Vec<LimitPlace> {
    let is_on = leases.configuration().driver.memory_limits;
    let gpus = leases.gpus();
    let mut all = Vec::new();
    {
        let book = leases.book();
        let has_container =
            |lease: &&Lease| matches!(lease.state, LeaseState::Active | LeaseState::Ending | LeaseState::Revoked);
        for lease in book.leases.values().filter(has_container) {
            let record = &lease.record;
            // Who has a cap by nothing else keeps it.
            let is_wanted = is_on || record.caps_time_slices;
            let bytes = record.limit_bytes().filter(|_| is_wanted);
            let (Some(bytes), Some(cgroup)) = (bytes, &record.cgroup) else { continue };
            for account in &lease.accounts {
                let Some(gpu) = gpus.get(account.gpu).filter(|gpu| gpu.kind == Kind::Whole) else { continue };
                all.push(LimitPlace {
                    lease: record.lease_id.clone(),
                    gpu: account.gpu,
                    index: gpu.index,
                    // What it had stays as it was when its GPUs were taken from it.
                    bytes: (!record.has_lost_share()).then_some(bytes),
                    note: account.memory_limit.clone(),
                    cgroup: cgroup.clone(),
                    directory: None,
                });
            }
        }
    }
    for one in &mut all {
        one.directory = cgroup::directory_of_version_2(&one.cgroup);
    }
    share_groups(&mut all);
    all
}

/// Who shares a cgroup shares its limit, which is all of theirs together. (One that lies in another's has one of its own, which the
/// kernel's controller bounds by the upper one's: containers do not lie in each other's.)
fn share_groups(all: &mut [LimitPlace]) {
    let mut sums: BTreeMap<Place, u64> = BTreeMap::new();
    let place = |one: &LimitPlace| Some((one.index, one.directory.clone()?));
    for one in all.iter() {
        if let Some((place, bytes)) = place(one).zip(one.bytes) {
            let sum = sums.entry(place).or_default();
            *sum = sum.saturating_add(bytes);
        }
    }
    for one in all {
        one.bytes = one.bytes.map(|own| place(one).and_then(|place| sums.get(&place).copied()).unwrap_or(own));
    }
}

struct Keeper {
    /// Those that were set.
    set: BTreeSet<Place>,
}

impl Keeper {
    /// Sees to the limits of all leases, or of some.
    fn look(&mut self, leases: &Leases, only: Option<&BTreeSet<LeaseId>>) {
        if leases.memory_limits.has_none(leases) {
            judge(leases);
            return;
        }
        let all = places(leases);
        if only.is_none() {
            self.lift_others(leases, &all);
        }
        let mut by_board: BTreeMap<u32, Vec<LimitPlace>> = BTreeMap::new();
        let is_meant = |one: &LimitPlace| one.bytes.is_some() && only.is_none_or(|ids| ids.contains(&one.lease));
        for one in all.into_iter().filter(is_meant) {
            by_board.entry(one.index).or_default().push(one);
        }
        for (index, wanted) in by_board {
            let (asked, unasked): (Vec<LimitPlace>, Vec<LimitPlace>) =
                wanted.into_iter().partition(|one| one.directory.is_some());
            for some in asked.chunks(AT_ONCE) {
                self.set.extend(some.iter().filter_map(|one| Some((index, one.directory.clone()?))));
                let outcomes = ask(leases, index, some.iter().filter_map(limit_of).collect());
                let outcomes = outcomes.unwrap_or_else(|| vec![Err(LimitRefusal::Unanswered); some.len()]);
                note(leases, some.iter().zip(outcomes));
            }
            let why = match cgroup::is_version_2_alone() {
                true => LimitRefusal::Gone,
                false => LimitRefusal::NotSupported,
            };
            note(leases, unasked.iter().map(|one| (one, Err(why.clone()))));
        }
        judge(leases);
    }

    /// Those that were set and are no lease's, neither `here` nor `stranded`.
    fn to_lift(&self, here: &BTreeSet<(u32, &PathBuf)>, stranded: &BTreeSet<Place>) -> Vec<Place> {
        let is_no_more = |place: &&Place| !here.contains(&(place.0, &place.1)) && !stranded.contains(place);
        self.set.iter().filter(is_no_more).cloned().collect()
    }

    /// Lifts limits of cgroups whose leases have ended and that are there still, and of those that nobody wants any more.
    fn lift_others(&mut self, leases: &Leases, all: &[LimitPlace]) {
        let here: BTreeSet<(u32, &PathBuf)> =
            all.iter().filter_map(|one| Some((one.index, one.directory.as_ref()?))).collect();
        for place in self.to_lift(&here, &of_stranded(leases)) {
            let (index, directory) = place.clone();
            let lifted = WantedLimit { directory, bytes: None, known_bytes: None };
            // A cgroup that has gone has taken its limit along.
            let is_done = !place.1.exists()
                || ask(leases, index, vec![lifted]).is_some_and(|outcomes| outcomes.iter().all(Result::is_ok));
            if is_done {
                self.set.remove(&place);
            }
        }
        if !leases.configuration().driver.memory_limits {
            for lease in leases.book().leases.values_mut().filter(|lease| !lease.record.caps_time_slices) {
                lease.accounts.iter_mut().for_each(|account| account.memory_limit = MemoryLimitNote::default());
            }
        }
    }
}

fn limit_of(wanted: &LimitPlace) -> Option<WantedLimit> {
    let (directory, bytes) = (wanted.directory.clone()?, wanted.bytes?);
    Some(WantedLimit { directory, bytes: Some(bytes), known_bytes: wanted.note.known_bytes(bytes) })
}

/// What a board makes of limits, each; nothing if it does not answer.
fn ask(leases: &Leases, index: u32, limits: Vec<WantedLimit>) -> Option<Vec<Result<FoundLimit, LimitRefusal>>> {
    leases.inventory.ask(index, move |its| Ok(its.keep_memory_limits(index, &limits))).ok()
}

fn note<'a>(leases: &Leases, outcomes: impl Iterator<Item = (&'a LimitPlace, Result<FoundLimit, LimitRefusal>)>) {
    let mut book = leases.book();
    for (wanted, outcome) in outcomes {
        if outcome == Err(LimitRefusal::NoFunction) {
            leases.memory_limits.is_absent.store(true, Ordering::Relaxed);
        }
        let Ok(lease) = book.exactly(&wanted.lease.0) else { continue };
        let asked = (wanted.bytes.unwrap_or(0), lease.record.mechanism.has_shims());
        let Some(account) = lease.account_on(wanted.gpu) else { continue };
        let news = account.memory_limit.take(clock::now_ns(), asked, outcome);
        if account.memory_limit.kept_bytes().is_some() && !lease.record.has_driver_limit {
            lease.record.has_driver_limit = true;
            // Whoever comes after this supervisor would not know whose it is.
            if let Err(error) = lease.record.write(&leases.configuration().paths.run_dir) {
                log!("a memory limit of the driver: {error}");
            }
        }
        if let Some(news) = news {
            let uuid = lease.record.gpus().get(lease.place_of(wanted.gpu).unwrap_or(0)).cloned();
            let gpu = uuid.map_or_else(String::new, |uuid| format!(" (GPU {uuid})"));
            let message = format!("{} {news}{gpu}", lease.record.container_id.short());
            leases.events.note(EventKind::MemoryLimit, about(&lease.record, None), message);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::lease::sample;

    #[test]
    fn who_shares_a_cgroup_shares_its_limit() {
        let one = |index, directory: &str, bytes| LimitPlace {
            lease: LeaseId("01".into()),
            gpu: 0,
            index,
            bytes,
            note: MemoryLimitNote::default(),
            cgroup: directory.to_owned(),
            directory: (!directory.is_empty()).then(|| directory.into()),
        };
        let mut all = [
            one(0, "/a", Some(1)),
            one(0, "/a", Some(2)),
            one(0, "/a", None),
            one(1, "/a", Some(4)),
            one(0, "/a/b", Some(8)),
            one(0, "", Some(16)),
        ];
        share_groups(&mut all);
        assert_eq!(all.map(|one| one.bytes), [Some(3), Some(3), None, Some(4), Some(8), Some(16)]);
    }

    #[test]
    fn a_lease_that_could_not_be_taken_over_keeps_the_limit_that_it_has() {
        let record = |cgroup: &str, has_driver_limit| Record {
            gpu_uuid: Gpu::sample(1).uuid,
            cgroup: Some(cgroup.to_owned()),
            has_driver_limit,
            ..sample()
        };
        let (stranded, ended) = (record("/stranded", true), record("/ended", true));
        let places = |records: &[Record]| {
            places_of(records.iter(), &[0, 1].map(Gpu::sample), |cgroup| Some(PathBuf::from(cgroup)))
        };
        let keeper = Keeper { set: places(&[stranded.clone(), ended, record("/without", false)]) };
        assert_eq!(keeper.set.len(), 2);
        let lifted = keeper.to_lift(&BTreeSet::new(), &places(&[stranded]));
        assert_eq!(lifted, [(1, PathBuf::from("/ended"))]);
    }
}
