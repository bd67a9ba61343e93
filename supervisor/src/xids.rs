//! What goes wrong on GPUs by the driver's own word, the Xid: it is told, counted, and a GPU whose own fault it is takes no new
//! leases from then on.
//!
//! NVML says the number and the GPU, not the process. Who was on the GPU is told with it.

use crate::clock;
use crate::device::{Gpu, Kind};
use crate::drains;
use crate::events::About;
use crate::gpu_failures;
use crate::lease::Leases;
use crate::mps;
use crate::state_file::StateFile;
use crate::watchers::PAUSE_PERIOD;
use gpool_policy::repetition::Repetition;
use gpool_policy::xid::{Contained, Fault, ends_all, ends_all_of_its_server, follows, meaning, words_under_mps};
use gpool_protocol::{EventKind, GpuUuid};
use std::cell::Cell;
use std::collections::{BTreeMap, VecDeque};
use std::io;
use std::path::Path;
use std::sync::mpsc::{Sender, channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

/// In `[paths] state_dir`.
const NAME: &str = "contained-faults.json";
const NS_PER_MS: u64 = 1_000_000;
/// After a failure the driver is asked again.
const RETRY_PERIOD: Duration = Duration::from_secs(10);
/// So many containers are named.
const NAMED: usize = 4;
/// So many of one GPU are remembered with their times.
const RECENT: usize = 16;
/// Different numbers of one GPU that are counted each for itself.
const NUMBERS: usize = 64;

/// What has been told.
#[derive(Debug)]
pub struct Xids {
    seen: Mutex<BTreeMap<GpuUuid, BTreeMap<u64, Seen>>>,
    /// When memory failed and that ended one program alone, Unix nanoseconds: those of a day count together, over restarts and boots.
    contained: StateFile<BTreeMap<GpuUuid, Vec<u64>>>,
    /// The last ones of each GPU, and when each was heard.
    recent: Mutex<BTreeMap<GpuUuid, VecDeque<(u64, u64)>>>,
}

/// One number on one GPU.
#[derive(Debug, Default)]
struct Seen {
    count: u64,
    told: u64,
    repetition: Repetition,
}

impl Xids {
    /// With what was written down in this directory, which need not be there.
    pub fn open(state_dir: &Path) -> Self {
        let contained = StateFile::open(state_dir, NAME, "no GPU is known to have had memory that failed");
        Self { seen: Mutex::default(), contained, recent: Mutex::default() }
    }

    /// Writes down what could not be written before.
    pub fn catch_up(&self) {
        self.contained.catch_up();
    }

    /// How often each number came, by GPU.
    pub fn counts(&self) -> Vec<(GpuUuid, u64, u64)> {
        let seen = self.seen.lock().unwrap_or_else(PoisonError::into_inner);
        seen.iter().flat_map(|(uuid, all)| all.iter().map(|(number, its)| (uuid.clone(), *number, its.count))).collect()
    }

    /// The number of the one of a GPU that was heard next to `at_ns`, if that is within `within_ns`. Those that follow another one
    /// say less.
    pub fn about(&self, uuid: &GpuUuid, at_ns: u64, within_ns: u64) -> Option<u64> {
        let recent = self.recent.lock().unwrap_or_else(PoisonError::into_inner);
        let near = recent.get(uuid)?.iter().filter(|(_, heard_ns)| heard_ns.abs_diff(at_ns) <= within_ns);
        near.min_by_key(|(number, heard_ns)| (follows(*number), heard_ns.abs_diff(at_ns))).map(|(number, _)| *number)
    }

    fn hear(&self, uuid: &GpuUuid, number: u64, now_ns: u64) {
        let mut recent = self.recent.lock().unwrap_or_else(PoisonError::into_inner);
        let its = recent.entry(uuid.clone()).or_default();
        if its.len() == RECENT {
            its.pop_front();
        }
        its.push_back((number, now_ns));
    }

    /// Counts a fault of memory that ended one program alone. Whether those of a day are `most` with it. If that cannot be written down it
    /// counts all the same, and is written later.
    fn contain(&self, uuid: &GpuUuid, most: u32, unix_ns: u64) -> bool {
        let note = |all: &mut BTreeMap<GpuUuid, Vec<u64>>| {
            let mut its = Contained::of(all.remove(uuid).unwrap_or_default());
            let is_enough = its.note(most, unix_ns);
            if !its.times().is_empty() {
                all.insert(uuid.clone(), its.times().to_vec());
            }
            is_enough
        };
        let noted = self.contained.change(note).map(|(is_enough, _)| is_enough);
        noted.unwrap_or_else(|cause| {
            log!("{NAME} cannot be written: {cause}; until it can be, what failed on {uuid} does not count after a restart of the supervisor");
            let mut is_enough = false;
            self.contained.change_in_memory(|all| is_enough = note(all));
            is_enough
        })
    }

    /// Counts one. How many have not been told, if these are to be told now.
    fn count(&self, uuid: &GpuUuid, number: u64, now_ns: u64) -> Option<u64> {
        let mut seen = self.seen.lock().unwrap_or_else(PoisonError::into_inner);
        let all = seen.entry(uuid.clone()).or_default();
        if all.len() >= NUMBERS && !all.contains_key(&number) {
            return None;
        }
        let its = all.entry(number).or_default();
        its.count += 1;
        let is_told = its.repetition.look(now_ns, its.count, its.told);
        is_told.then(|| its.count - std::mem::replace(&mut its.told, its.count))
    }
}

/// Watches each board on a thread of its own, for ever. What they hear another thread writes down, which may have to wait for a
/// disk: of several Xids that come before the driver is asked again NVML tells the last one alone.
///
/// # Errors
/// No thread can be started.
pub fn watch(leases: &Arc<Leases>) -> io::Result<()> {
    let (tell, told) = channel::<(Gpu, u64)>();
    for board in leases.gpus().iter().filter(|gpu| matches!(gpu.kind, Kind::Whole | Kind::Divided)) {
        let (leases, board, tell) = (leases.clone(), board.clone(), tell.clone());
        let watcher = std::thread::Builder::new().name(format!("xids-{}", board.index));
        watcher.spawn(move || watch_one(&leases, &board, &tell))?;
    }
    let leases = leases.clone();
    let noting = move || told.into_iter().for_each(|(board, number)| note(&leases, &board, number));
    std::thread::Builder::new().name("xids".into()).spawn(noting).map(drop)
}

fn watch_one(leases: &Leases, board: &Gpu, tell: &Sender<(Gpu, u64)>) {
    let is_failing = Cell::new(false);
    let goes_on = || {
        is_failing.set(false);
        !leases.watchers.is_paused()
    };
    loop {
        let Some(watching) = leases.watchers.begin() else {
            std::thread::sleep(PAUSE_PERIOD);
            continue;
        };
        // Nobody takes them any more only when this process ends.
        let hear = |number| {
            leases.xids.hear(&board.uuid, number, clock::now_ns());
            drop(tell.send((board.clone(), number)));
        };
        let outcome = leases.inventory.xids(board.index, hear, goes_on);
        drop(watching);
        match outcome {
            Ok(true) => {}
            Ok(false) => {
                log!("NVML tells of no Xid of GPU {} ({}); the kernel's log has them", board.index, board.uuid);
                return;
            }
            Err(cause) => {
                // One that does not answer is told by who asks it each second.
                if !is_failing.replace(true) && leases.inventory.hangs_since(board.index).is_none() {
                    log!("Xids of GPU {} ({}) are not watched for now: {cause}", board.index, board.uuid);
                }
                std::thread::sleep(RETRY_PERIOD);
            }
        }
    }
}

/// Takes one that the driver has told.
fn note(leases: &Leases, board: &Gpu, number: u64) {
    let on_it = on_it(leases, board);
    let is_under_mps = leases.groups.serve(&board.uuid);
    if let Some(count) = leases.xids.count(&board.uuid, number, clock::now_ns()) {
        let message = message(board, (number, is_under_mps), count, &on_it);
        leases.events.note(EventKind::GpuXid, about(&on_it), message);
    }
    if is_under_mps && ends_all_of_its_server(number) {
        mps::note_xid(leases, &board.uuid, &format!("Xid {number}, {}", words_under_mps(number)));
    }
    let (health, its) = (leases.configuration().health.clone(), meaning(number));
    let unix_ns = clock::unix_ms().saturating_mul(NS_PER_MS);
    let is_repeated =
        its.fault == Fault::Contained && leases.xids.contain(&board.uuid, health.contained_faults, unix_ns);
    if health.drain_xids.contains(&number) {
        drains::drain_for_fault(leases, &board.uuid, &format!("Xid {number}, {}", its.words));
    } else if is_repeated {
        let often = match health.contained_faults {
            1 => String::new(),
            count => format!(", {count} times within a day"),
        };
        drains::drain_for_fault(leases, &board.uuid, &format!("Xid {number}{often}, {}", its.words));
    }
    // After the GPU takes nobody in, since who is ended here may be started again at once.
    if ends_all(number) {
        gpu_failures::fail_all(leases, board, &format!("Xid {number}, {}", its.words));
    }
}

/// The only one of those, for an event that may be about it.
pub fn about(on_it: &[About]) -> About {
    match on_it {
        [only] => only.clone(),
        _ => About::default(),
    }
}

/// Containers that use the board or an instance of it.
pub fn on_it(leases: &Leases, board: &Gpu) -> Vec<About> {
    let (gpus, book) = (leases.gpus(), leases.book());
    let is_its = |place: usize| gpus.get(place).is_some_and(|gpu| gpu.board() == Some(&board.uuid));
    let there = book.leases.values().filter(|lease| lease.gpus().any(is_its) && !lease.record.has_no_share());
    there.filter(|lease| lease.uses_gpus()).map(|lease| crate::lease::about(&lease.record, None)).collect()
}

fn message(board: &Gpu, (number, is_under_mps): (u64, bool), count: u64, on_it: &[About]) -> String {
    let its = meaning(number);
    let words = if is_under_mps { words_under_mps(number) } else { its.words.to_owned() };
    let often = if count > 1 { format!(", {count} times since it was told") } else { String::new() };
    let whose = whose(its.fault, on_it);
    format!("GPU {} ({}) has told of Xid {number}{often}: {words}; {whose}", board.index, board.uuid)
}

/// Who was on a GPU on which there was such a fault, as the end of a sentence.
pub fn whose(fault: Fault, on_it: &[About]) -> String {
    let names: Vec<&str> = on_it.iter().filter_map(|one| Some(one.container_id.as_ref()?.short())).collect();
    match (fault, names.as_slice()) {
        (Fault::Device | Fault::Unknown, []) | (_, []) => "no container uses it".to_owned(),
        (Fault::Program | Fault::Contained, [only]) => format!("the only container on it is {only}"),
        (Fault::Device | Fault::Unknown, [only]) => format!("{only} is on it"),
        (_, several) if several.len() <= NAMED => format!("on it are {}", several.join(", ")),
        (_, several) => format!("on it are {} and {} more", several[..NAMED].join(", "), several.len() - NAMED),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use gpool_protocol::ContainerId;

    #[test]
    fn without_a_word_in_the_configuration_a_gpu_is_drained_for_its_own_faults() {
        let drained = gpool_configuration::Configuration::default().health.drain_xids;
        assert_eq!(drained, gpool_policy::xid::of_the_device().collect::<Vec<u64>>());
    }

    #[test]
    fn who_was_on_the_gpu_is_named_with_what_went_wrong() {
        let on_it = |ids: &[&str]| -> Vec<About> {
            ids.iter().map(|id| About { container_id: Some(ContainerId((*id).into())), ..About::default() }).collect()
        };
        let said = |number, count, ids: &[&str]| message(&Gpu::sample(1), (number, false), count, &on_it(ids));
        let want = "GPU 1 (GPU-1) has told of Xid 31: a program has used an address that is not its; the only container on it is a";
        assert_eq!(said(31, 1, &["a"]), want);
        assert!(
            said(79, 3, &["a", "b"])
                .ends_with("Xid 79, 3 times since it was told: it has fallen off its bus; on it are a, b")
        );
        assert!(said(13, 1, &["a", "b", "c", "d", "e", "f"]).ends_with("on it are a, b, c, d and 2 more"));
        let under_mps = message(&Gpu::sample(1), (94, true), 1, &on_it(&["a", "b"]));
        let want = "Xid 94: memory has failed, which ends the work of all under its MPS server; on it are a, b";
        assert!(under_mps.ends_with(want), "{under_mps}");
        assert!(said(79, 1, &[]).ends_with("no container uses it") && said(79, 1, &["a"]).ends_with("a is on it"));
    }

    #[test]
    fn of_several_the_one_is_told_with_a_fault_that_came_with_it_and_follows_no_other() {
        const S: u64 = 1_000_000_000;
        let (xids, uuid) = (Xids::open(Path::new("/nonexistent")), Gpu::sample(0).uuid);
        let heard = [(31, 10 * S), (45, 10 * S + 9), (43, 10 * S + 9), (13, 14 * S)];
        heard.into_iter().for_each(|(number, at_ns)| xids.hear(&uuid, number, at_ns));
        let about = |at_ns| xids.about(&uuid, at_ns, 2 * S);
        assert_eq!((about(10 * S + 9), about(8 * S), about(12 * S)), (Some(31), Some(31), Some(31)));
        assert_eq!((about(12 * S + 5), about(16 * S), about(7 * S), about(17 * S)), (Some(13), Some(13), None, None));
        assert_eq!(xids.about(&Gpu::sample(1).uuid, 10 * S, 2 * S), None);
        (0..20).for_each(|at_ns| xids.hear(&uuid, 45, 100 * S + at_ns));
        assert_eq!((about(10 * S), about(100 * S)), (None, Some(45)), "no more than the last are kept");
    }

    #[test]
    fn what_comes_again_and_again_is_told_ever_more_rarely_and_counted_in_full() {
        const S: u64 = 1_000_000_000;
        let (xids, uuid) = (Xids::open(Path::new("/nonexistent")), Gpu::sample(0).uuid);
        let told: Vec<u64> = (0..100).filter_map(|tenth| xids.count(&uuid, 31, tenth * S / 10)).collect();
        assert!(told.len() < 8 && told[0] == 1, "{told:?}");
        assert_eq!(xids.count(&uuid, 79, 10 * S), Some(1), "another one is told at once");
        assert_eq!(xids.counts(), [(uuid.clone(), 31, 100), (uuid.clone(), 79, 1)]);
        for number in 1000..1100 {
            xids.count(&uuid, number, 11 * S);
        }
        assert_eq!(xids.counts().len(), NUMBERS);
    }

    #[test]
    fn memory_that_failed_before_a_restart_counts_after_it() {
        const HOUR: u64 = 3_600_000_000_000;
        let (state, uuid) = (tempfile::tempdir().unwrap(), Gpu::sample(0).uuid);
        let contain = |at_ns| Xids::open(state.path()).contain(&uuid, 2, at_ns);
        assert!(!contain(1000 * HOUR) && contain(1023 * HOUR), "the second one within a day");
        assert!(!contain(1024 * HOUR), "it began anew");
        assert!(!contain(1049 * HOUR), "a day later the one before is forgotten");
        assert!(!Xids::open(state.path()).contain(&Gpu::sample(1).uuid, 2, 1050 * HOUR), "each GPU has its own");
        assert!(contain(1050 * HOUR));
        let unwritable = Xids::open(Path::new("/proc/nowhere"));
        assert!(!unwritable.contain(&uuid, 2, HOUR) && unwritable.contain(&uuid, 2, 2 * HOUR), "in this life");
    }
}
