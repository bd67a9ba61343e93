//! Tests of GPUs. A program of its own makes them (`gpu-test`), which whoever administers the host starts with `gpool gpu test`;
//! here is who may begin one, what is in its way, and what follows of what it has found. A test gives way: what is in its way
//! while it goes on is told to whoever has begun it, who ends it. What its processes hold is nobody's room.
//!
//! What the last tests have found is written down, since it should outlive the supervisor and a boot.

use crate::clock;
use crate::device::{Gpu, Kind};
use crate::drains;
use crate::events::About;
use crate::health;
use crate::lease::{Leases, failed};
use crate::procfs::{self, ProcessName, WatchedProcess};
use gpool_protocol::{
    ErrorBody, ErrorCode, EventKind, GpuTest, GpuTestOutcome, GpuTestReport, GpuTestView, GpuUuid, HostPid,
};
use serde::{Deserialize, Serialize};
use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

/// In `[paths] state_dir`.
const NAME: &str = "gpu-tests.json";

/// What is known of one board.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
struct Known {
    last: GpuTest,
    /// How many have failed since all that failed has passed.
    failures: u64,
    /// Parts that have failed and not passed since: a short test that passes takes back nothing that a longer one has found.
    failed: BTreeSet<String>,
}

impl Known {
    /// After one more test, of which something was tried.
    fn after(before: Option<&Self>, test: GpuTest) -> Self {
        let (mut failures, mut failed) =
            before.map_or((0, BTreeSet::new()), |before| (before.failures, before.failed.clone()));
        for part in &test.report.parts {
            match part.outcome {
                GpuTestOutcome::Passed => drop(failed.remove(&part.name)),
                GpuTestOutcome::Failed => drop(failed.insert(part.name.clone())),
                GpuTestOutcome::NotRun => {}
            }
        }
        failures += u64::from(test.outcome == GpuTestOutcome::Failed);
        Self { last: test, failures: if failed.is_empty() { 0 } else { failures }, failed }
    }
}

/// Whoever has begun a test, which a child of its own makes.
#[derive(Debug)]
struct Tester {
    process: WatchedProcess,
    /// Since when it ought to end.
    late: Option<Instant>,
}

/// One that has not ended so long after somebody came counts as anybody who uses a GPU.
const GRACE: Duration = Duration::from_secs(5);

/// What is known of all boards, and who tests one now.
#[derive(Debug)]
pub struct GpuTests {
    file: PathBuf,
    /// Held while the file is written.
    changing: Mutex<()>,
    /// Taken last of all, also after that of who is listed on GPUs.
    state: Mutex<State>,
}

#[derive(Debug, Default)]
struct State {
    known: BTreeMap<GpuUuid, Known>,
    testers: BTreeMap<GpuUuid, Tester>,
    counts: BTreeMap<GpuUuid, [u64; OUTCOMES.len()]>,
}

/// As tests are counted.
const OUTCOMES: [GpuTestOutcome; 3] = [GpuTestOutcome::Passed, GpuTestOutcome::Failed, GpuTestOutcome::NotRun];

/// How tests of a board stand, for the metrics.
pub struct Count {
    /// Which board.
    pub uuid: GpuUuid,
    /// When the last one ended that passed or failed, Unix time in milliseconds.
    pub ended_unix_ms: Option<u64>,
    /// How many have ended so since the supervisor started.
    pub by_outcome: [(GpuTestOutcome, u64); OUTCOMES.len()],
}

impl GpuTests {
    /// With what was written down in this directory, which need not be there. Of what cannot be read nothing is known: at worst a
    /// GPU is tested again.
    pub fn open(state_dir: &Path) -> Self {
        let file = state_dir.join(NAME);
        let known = read(&file).unwrap_or_else(|cause| {
            log!("{} cannot be read: {cause}; of no GPU a test is known", file.display());
            BTreeMap::new()
        });
        Self { file, changing: Mutex::default(), state: Mutex::new(State { known, ..State::default() }) }
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// How many tests of a board have failed since one has passed; none if there was none.
    pub fn failures(&self, uuid: &GpuUuid) -> Option<u64> {
        self.lock().known.get(uuid).map(|known| known.failures)
    }

    /// Who tests a board now: a test whose process has ended is over.
    fn tester(&self, uuid: &GpuUuid) -> Option<ProcessName> {
        let mut state = self.lock();
        state.testers.retain(|_, tester| !tester.process.has_ended());
        state.testers.get(uuid).map(|tester| tester.process.name)
    }

    /// A board is tested from now on, unless somebody tests it: who that is.
    fn take(&self, uuid: &GpuUuid, process: WatchedProcess) -> Option<ProcessName> {
        let mut state = self.lock();
        state.testers.retain(|_, tester| !tester.process.has_ended());
        if let Some(other) = state.testers.get(uuid) {
            return Some(other.process.name);
        }
        state.testers.insert(uuid.clone(), Tester { process, late: None });
        None
    }

    /// Notes whether a lease is on a board, as is seen each second. A test that goes on all the same is no longer one: what it holds is
    /// missing then.
    fn see(&self, uuid: &GpuUuid, is_leased: bool) {
        let mut state = self.lock();
        let Some(tester) = state.testers.get_mut(uuid) else { return };
        let since = is_leased.then(|| *tester.late.get_or_insert_with(Instant::now));
        tester.late = since;
        if since.is_some_and(|since| since.elapsed() >= GRACE) {
            log!("process {} goes on with a test of {uuid} although a lease is on it", tester.process.name.pid);
            state.testers.remove(uuid);
        }
    }

    /// Whether a process is one that tests a GPU: what it holds goes before anybody could want it.
    pub fn has(&self, pid: HostPid) -> bool {
        let testers: Vec<HostPid> = {
            let state = self.lock();
            let living = state.testers.values().filter(|tester| !tester.process.has_ended());
            living.map(|tester| tester.process.name.pid).collect()
        };
        !testers.is_empty()
            && (testers.contains(&pid) || procfs::parent_of(pid).is_some_and(|pid| testers.contains(&pid)))
    }

    /// How all boards stand of which something is known.
    pub fn counts(&self) -> Vec<Count> {
        let state = self.lock();
        let mut uuids: Vec<&GpuUuid> = state.known.keys().chain(state.counts.keys()).collect();
        uuids.sort();
        uuids.dedup();
        let count = |uuid: &GpuUuid| {
            let counted = state.counts.get(uuid).copied().unwrap_or_default();
            Count {
                uuid: uuid.clone(),
                ended_unix_ms: state.known.get(uuid).map(|known| known.last.ended_unix_ms),
                by_outcome: std::array::from_fn(|place| (OUTCOMES[place], counted[place])),
            }
        };
        uuids.into_iter().map(count).collect()
    }

    /// Notes how a test has ended. One that could not be tried says nothing, and what is known stays.
    ///
    /// # Errors
    /// It cannot be written down, and is known until the supervisor ends.
    fn note(&self, uuid: &GpuUuid, test: GpuTest) -> io::Result<()> {
        let _turn = self.changing.lock().unwrap_or_else(PoisonError::into_inner);
        let known = {
            let mut state = self.lock();
            let counts = state.counts.entry(uuid.clone()).or_default();
            let place = OUTCOMES.iter().position(|outcome| *outcome == test.outcome);
            place.into_iter().for_each(|place| counts[place] += 1);
            if test.outcome == GpuTestOutcome::NotRun {
                return Ok(());
            }
            let known = Known::after(state.known.get(uuid), test);
            state.known.insert(uuid.clone(), known);
            state.known.clone()
        };
        drains::write(&self.file, &known)
    }
}

fn read(file: &Path) -> io::Result<BTreeMap<GpuUuid, Known>> {
    match fs::read(file) {
        Ok(text) => serde_json::from_slice(&text).map_err(io::Error::from),
        Err(cause) if cause.kind() == io::ErrorKind::NotFound => Ok(BTreeMap::new()),
        Err(cause) => Err(cause),
    }
}

/// How each board stands.
pub fn views(leases: &Leases) -> Vec<GpuTestView> {
    let gpus = leases.gpus();
    let boards = gpus.iter().enumerate().filter(|(_, gpu)| matches!(gpu.kind, Kind::Whole | Kind::Divided));
    boards.map(|(place, gpu)| view(leases, place, gpu)).collect()
}

fn view(leases: &Leases, place: usize, gpu: &Gpu) -> GpuTestView {
    let known = leases.gpu_tests.lock().known.get(&gpu.uuid).cloned();
    GpuTestView {
        uuid: gpu.uuid.clone(),
        index: gpu.index,
        failures: known.as_ref().map_or(0, |known| known.failures),
        failed: known.iter().flat_map(|known| known.failed.iter().cloned()).collect(),
        last: known.map(|known| known.last),
        under_way: leases.gpu_tests.tester(&gpu.uuid).is_some(),
        in_the_way: in_the_way(leases, place, gpu),
    }
}

/// Looks whether a test of the GPU at this place goes on beside a lease.
pub fn see(leases: &Leases, place: usize) {
    let gpu = leases.gpus()[place].clone();
    if leases.gpu_tests.tester(&gpu.uuid).is_some() {
        leases.gpu_tests.see(&gpu.uuid, leases_on(leases, place, &gpu) > 0);
    }
}

/// How many leases are on a board that have a share of it.
fn leases_on(leases: &Leases, place: usize, gpu: &Gpu) -> usize {
    let book = leases.book();
    let running = book.leases.values().filter(|lease| lease.gpus().any(|its| its == place));
    let stranded = book.stranded.iter().filter(|record| record.gpus().contains(&gpu.uuid) && !record.has_no_share());
    running.filter(|lease| !lease.record.has_no_share()).count() + stranded.count()
}

/// Why no test of a board may go on, as the end of a sentence.
fn in_the_way(leases: &Leases, place: usize, gpu: &Gpu) -> Option<String> {
    if gpu.kind == Kind::Divided {
        return Some("it is divided with MIG".to_owned());
    }
    if leases.silence.is_silent(place) {
        return Some("NVML does not answer for it".to_owned());
    }
    match leases_on(leases, place, gpu) {
        0 => {}
        1 => return Some("1 lease is on it".to_owned()),
        count => return Some(format!("{count} leases are on it")),
    }
    match leases.occupants.living(place, |pid| procfs::is_alive(pid) && !leases.gpu_tests.has(pid)) {
        0 => None,
        1 => Some("1 other process uses it".to_owned()),
        count => Some(format!("{count} other processes use it")),
    }
}

/// The board that is meant, and its place.
fn board(leases: &Leases, text: &str) -> Result<(usize, Gpu), ErrorBody> {
    let uuid = drains::board(leases, text)?;
    let gpus = leases.gpus();
    let found = gpus.iter().position(|gpu| gpu.uuid == uuid);
    found.map(|place| (place, gpus[place].clone())).ok_or_else(|| {
        let remedy = "gpool gpu ls shows the GPUs that are there";
        ErrorBody::new(ErrorCode::RequestInvalid, format!("{uuid} is not there"), remedy)
    })
}

/// A test of the GPU that `text` means begins, which a child of `tester` makes. It is over when that says so, or ends.
///
/// # Errors
/// An unknown GPU, one that has something in the way of a test, or is tested.
pub fn begin(leases: &Leases, text: &str, tester: WatchedProcess) -> Result<GpuTestView, ErrorBody> {
    let (place, gpu) = board(leases, text)?;
    let refused = |why: String| {
        let message = format!("GPU {} ({}) cannot be tested: {why}", gpu.index, gpu.uuid);
        let remedy =
            "gpool gpu drain --wait lets the leases on it end first; gpool gpu test --due leaves out who is in use";
        Err(ErrorBody::new(ErrorCode::LeaseConflict, message, remedy))
    };
    if let Some(why) = in_the_way(leases, place, &gpu) {
        return refused(why);
    }
    if let Some(other) = leases.gpu_tests.take(&gpu.uuid, tester) {
        return refused(format!("process {} tests it", other.pid));
    }
    Ok(view(leases, place, &gpu))
}

/// The test of the GPU that `text` means has found this. It is told and written down, and the GPU takes no new leases if the
/// configuration says so of one that has failed.
///
/// # Errors
/// An unknown GPU, one of which this process has begun no test, or a report that cannot be.
pub fn finish(
    leases: &Leases,
    text: &str,
    report: GpuTestReport,
    (tester, uid): (&ProcessName, u32),
) -> Result<GpuTestView, ErrorBody> {
    report.check()?;
    let (place, gpu) = board(leases, text)?;
    if leases.gpu_tests.tester(&gpu.uuid) != Some(*tester) {
        let message = format!("process {} has begun no test of GPU {} ({})", tester.pid, gpu.index, gpu.uuid);
        return Err(ErrorBody::new(ErrorCode::LeaseConflict, message, "gpool gpu test begins and ends one"));
    }
    leases.gpu_tests.lock().testers.remove(&gpu.uuid);
    let (outcome, took_ms, found) = (report.outcome(), report.took_ms, report.told());
    let noted = leases.gpu_tests.note(&gpu.uuid, GpuTest { ended_unix_ms: clock::unix_ms(), uid, outcome, report });
    let view = view(leases, place, &gpu);
    let took = format!("its test of {}.{} s", took_ms / 1000, took_ms % 1000 / 100);
    let ended = match outcome {
        GpuTestOutcome::Passed => format!("has passed {took}"),
        GpuTestOutcome::Failed => format!("has failed {took}"),
        GpuTestOutcome::NotRun => "was not tested".to_owned(),
    };
    let open = match (outcome, view.failed.as_slice()) {
        (GpuTestOutcome::Failed, _) | (_, []) => String::new(),
        (_, failed) => format!("; {} failed before and has not passed since", failed.join(", ")),
    };
    let message = format!("GPU {} ({}) {ended}: {found}{open}", gpu.index, gpu.uuid);
    let kind = if outcome == GpuTestOutcome::Failed { EventKind::GpuTestFailed } else { EventKind::GpuTested };
    leases.events.note(kind, About { uid: Some(uid), ..About::default() }, message);
    health::look_at_tests(leases, &gpu);
    noted.map_err(|cause| failed("the test is told and counted, and cannot be written down", cause))?;
    Ok(view)
}

#[cfg(test)]
mod tests {
    use super::*;
    use gpool_protocol::GpuTestPart;

    fn test(outcome: GpuTestOutcome) -> GpuTest {
        let part = GpuTestPart { name: "memory".into(), outcome, told: "so it was".into() };
        GpuTest { ended_unix_ms: 7, uid: 0, outcome, report: GpuTestReport { took_ms: 1, parts: vec![part] } }
    }

    #[test]
    fn failures_are_counted_until_one_passes_also_over_a_restart() {
        let directory = tempfile::tempdir().unwrap();
        let (state_dir, uuid) = (directory.path().join("not/made"), Gpu::sample(0).uuid);
        let tests = GpuTests::open(&state_dir);
        assert_eq!(tests.failures(&uuid), None);
        tests.note(&uuid, test(GpuTestOutcome::NotRun)).unwrap();
        assert_eq!(tests.failures(&uuid), None, "it says nothing");
        tests.note(&uuid, test(GpuTestOutcome::Failed)).unwrap();
        tests.note(&uuid, test(GpuTestOutcome::Failed)).unwrap();
        tests.note(&uuid, test(GpuTestOutcome::NotRun)).unwrap();
        let again = GpuTests::open(&state_dir);
        assert_eq!((again.failures(&uuid), again.counts()[0].ended_unix_ms), (Some(2), Some(7)));
        let counted = tests.counts()[0].by_outcome.map(|(_, count)| count);
        assert_eq!(counted, [0, 2, 2]);
        again.note(&uuid, test(GpuTestOutcome::Passed)).unwrap();
        assert_eq!(GpuTests::open(&state_dir).failures(&uuid), Some(0));
        fs::write(state_dir.join(NAME), "{").unwrap();
        assert_eq!(GpuTests::open(&state_dir).failures(&uuid), None);
    }

    #[test]
    fn a_test_is_over_with_its_process_and_its_children_are_known() {
        let directory = tempfile::tempdir().unwrap();
        let (tests, uuid) = (GpuTests::open(directory.path()), Gpu::sample(0).uuid);
        let own = HostPid(std::process::id());
        assert_eq!(tests.take(&uuid, WatchedProcess::open(own).unwrap()), None);
        let mut child = std::process::Command::new("sleep").arg("60").spawn().unwrap();
        assert!(tests.has(own) && tests.has(HostPid(child.id())) && !tests.has(HostPid(1)));
        let second = || WatchedProcess::open(HostPid(child.id())).unwrap();
        assert_eq!(tests.take(&uuid, second()).map(|first| first.pid), Some(own), "one at a time");
        tests.lock().testers.clear();
        assert_eq!(tests.take(&uuid, second()), None);
        assert_eq!(tests.tester(&uuid).map(|tester| tester.pid), Some(HostPid(child.id())));
        child.kill().unwrap();
        child.wait().unwrap();
        assert!(!tests.has(HostPid(child.id())), "its pid may be another's");
        assert_eq!(tests.tester(&uuid), None);
        assert!(!tests.has(own));
    }

    #[test]
    fn a_test_that_goes_on_beside_a_lease_is_none() {
        let directory = tempfile::tempdir().unwrap();
        let (tests, uuid) = (GpuTests::open(directory.path()), Gpu::sample(0).uuid);
        let own = HostPid(std::process::id());
        tests.take(&uuid, WatchedProcess::open(own).unwrap());
        let ago = |seconds| Instant::now().checked_sub(Duration::from_secs(seconds));
        tests.see(&uuid, true);
        tests.see(&uuid, false);
        tests.lock().testers.get_mut(&uuid).unwrap().late = ago(4);
        tests.see(&uuid, true);
        assert!(tests.has(own), "it may be ending");
        tests.lock().testers.get_mut(&uuid).unwrap().late = ago(5);
        tests.see(&uuid, true);
        assert!(!tests.has(own) && tests.tester(&uuid).is_none());
    }

    #[test]
    fn what_has_failed_is_over_when_that_has_passed() {
        let parts = |outcomes: &[(&str, GpuTestOutcome)]| {
            let part = |(name, outcome): &(&str, GpuTestOutcome)| GpuTestPart {
                name: (*name).into(),
                outcome: *outcome,
                told: "so it was".into(),
            };
            let report = GpuTestReport { took_ms: 1, parts: outcomes.iter().map(part).collect() };
            GpuTest { ended_unix_ms: 7, uid: 0, outcome: report.outcome(), report }
        };
        use GpuTestOutcome::{Failed, NotRun, Passed};
        let known = Known::after(None, parts(&[("memory", Passed), ("dcgm", Failed)]));
        let known = Known::after(Some(&known), parts(&[("memory", Passed), ("products", Failed)]));
        assert_eq!((known.failures, known.failed.len()), (2, 2));
        let known = Known::after(Some(&known), parts(&[("memory", Passed), ("products", Passed), ("dcgm", NotRun)]));
        assert_eq!((known.failures, known.failed.into_iter().collect::<Vec<_>>()), (2, vec!["dcgm".to_owned()]));
        let known = Known { failed: ["dcgm".to_owned()].into(), failures: 2, last: known.last };
        assert_eq!(Known::after(Some(&known), parts(&[("dcgm", Passed)])).failures, 0);
    }
}
