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
use crate::state_file;
use gpool_protocol::{
    ErrorBody, ErrorCode, EventKind, GpuTest, GpuTestOutcome, GpuTestReport, GpuTestView, GpuUuid, HostPid,
};
use serde::{Deserialize, Serialize};
use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::io::{self, Read};
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
    /// When the last one failed, as long as something of it has not passed since.
    failed_unix_ms: Option<u64>,
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
        let mut failed_unix_ms = before.and_then(|before| before.failed_unix_ms);
        if test.outcome == GpuTestOutcome::Failed {
            failures += 1;
            // Later than the one before, whatever has become of the clock.
            failed_unix_ms = Some(test.ended_unix_ms.max(failed_unix_ms.map_or(0, |before| before + 1)));
        }
        let is_over = failed.is_empty();
        let failed_unix_ms = failed_unix_ms.filter(|_| !is_over);
        Self { last: test, failures: if is_over { 0 } else { failures }, failed_unix_ms, failed }
    }
}

/// Whoever has begun a test, which a child of its own makes.
#[derive(Debug)]
struct Tester {
    process: WatchedProcess,
    /// Since when it ought to end.
    late: Option<Instant>,
}

/// One that has not ended so long after somebody came is ended by force: it may be stopped, and holds memory that is promised to others.
/// Longer than whoever heeds it waits for what he has ended.
const GRACE: Duration = Duration::from_secs(15);
/// The most that is read of what was written down.
const FILE_BYTES: u64 = 16 << 20;

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
            log!(
                "{} cannot be read: {cause}; of no GPU a test is known{}",
                file.display(),
                state_file::put_aside(&file)
            );
            BTreeMap::new()
        });
        Self { file, changing: Mutex::default(), state: Mutex::new(State { known, ..State::default() }) }
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// When the last test of a board has failed, and which parts have not passed since, if any have not; none if there was none.
    pub fn open_failures(&self, uuid: &GpuUuid) -> Option<Option<(u64, Vec<String>)>> {
        let state = self.lock();
        let known = state.known.get(uuid)?;
        Some(known.failed_unix_ms.map(|failed_unix_ms| (failed_unix_ms, known.failed.iter().cloned().collect())))
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

    /// A board is not tested any more by this process.
    fn leave(&self, uuid: &GpuUuid, name: &ProcessName) {
        self.lock().testers.retain(|its, tester| its != uuid || tester.process.name != *name);
    }

    /// Notes whether a lease is on a board, as is seen each second. A test that goes on all the same is ended, with whoever has begun it.
    fn see(&self, uuid: &GpuUuid, is_leased: bool) {
        let mut state = self.lock();
        let Some(tester) = state.testers.get_mut(uuid) else { return };
        // Also if that lease has ended since: who heeds it is gone by then.
        if is_leased {
            tester.late.get_or_insert_with(Instant::now);
        }
        if tester.late.is_some_and(|since| since.elapsed() >= GRACE) {
            log!(
                "process {} goes on with a test of {uuid} although a lease came to it, and is ended",
                tester.process.name.pid
            );
            tester.process.kill();
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
        state_file::write(&self.file, &known)
    }
}

/// What of one board cannot be read, as a word of a newer version, keeps nothing of the others from being known.
fn read(file: &Path) -> io::Result<BTreeMap<GpuUuid, Known>> {
    let mut text = Vec::new();
    match fs::File::open(file) {
        Ok(opened) => drop(opened.take(FILE_BYTES).read_to_end(&mut text)?),
        Err(cause) if cause.kind() == io::ErrorKind::NotFound => return Ok(BTreeMap::new()),
        Err(cause) => return Err(cause),
    }
    let all: BTreeMap<GpuUuid, serde_json::Value> = serde_json::from_slice(&text)?;
    let known = |(uuid, value): (GpuUuid, serde_json::Value)| match serde_json::from_value(value) {
        Ok(known) => Some((uuid, known)),
        Err(_) => {
            log!("what is written of tests of {uuid} in {} cannot be read, and is not known", file.display());
            None
        }
    };
    Ok(all.into_iter().filter_map(known).collect())
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
    let name = tester.name;
    match leases.gpu_tests.take(&gpu.uuid, tester) {
        Some(other) if other != name => {
            let message = format!("GPU {} ({}) cannot be tested: process {} tests it", gpu.index, gpu.uuid, other.pid);
            return Err(ErrorBody::new(ErrorCode::LeaseConflict, message, "wait until that has ended"));
        }
        // Said again, as by one whose supervisor was another meanwhile.
        _ => {}
    }
    // Its own children are known by now: those of a test that goes on over a restart of the supervisor are not in its way.
    if let Some(why) = in_the_way(leases, place, &gpu) {
        leases.gpu_tests.leave(&gpu.uuid, &name);
        return refused(why);
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
    // What is wrong is heard of everybody who may drain a GPU; that nothing is, of a test alone.
    if leases.gpu_tests.tester(&gpu.uuid) != Some(*tester) && report.outcome() != GpuTestOutcome::Failed {
        let message = format!("process {} has begun no test of GPU {} ({})", tester.pid, gpu.index, gpu.uuid);
        return Err(ErrorBody::new(ErrorCode::LeaseConflict, message, "gpool gpu test begins and ends one"));
    }
    leases.gpu_tests.leave(&gpu.uuid, tester);
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
        assert_eq!(tests.open_failures(&uuid), None);
        tests.note(&uuid, test(GpuTestOutcome::NotRun)).unwrap();
        assert_eq!(tests.open_failures(&uuid), None, "it says nothing");
        tests.note(&uuid, test(GpuTestOutcome::Failed)).unwrap();
        tests.note(&uuid, test(GpuTestOutcome::Failed)).unwrap();
        tests.note(&uuid, test(GpuTestOutcome::NotRun)).unwrap();
        let again = GpuTests::open(&state_dir);
        let open = Some((8, vec!["memory".to_owned()]));
        assert_eq!((again.open_failures(&uuid), again.counts()[0].ended_unix_ms), (Some(open), Some(7)));
        let counted = tests.counts()[0].by_outcome.map(|(_, count)| count);
        assert_eq!(counted, [0, 2, 2]);
        let other = Gpu::sample(1).uuid;
        again.note(&other, test(GpuTestOutcome::Failed)).unwrap();
        again.note(&uuid, test(GpuTestOutcome::Passed)).unwrap();
        assert_eq!(GpuTests::open(&state_dir).open_failures(&uuid), Some(None));
        let text = fs::read_to_string(state_dir.join(NAME)).unwrap();
        fs::write(state_dir.join(NAME), text.replacen("passed", "surpassed", 1)).unwrap();
        let newer = GpuTests::open(&state_dir);
        assert!(newer.open_failures(&uuid).is_none() && newer.open_failures(&other).flatten().is_some());
        fs::write(state_dir.join(NAME), "{").unwrap();
        assert_eq!(GpuTests::open(&state_dir).open_failures(&uuid), None);
        assert_eq!(fs::read(state_dir.join("gpu-tests.json.unreadable")).unwrap(), b"{");
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
    fn a_test_that_goes_on_beside_a_lease_is_ended() {
        let directory = tempfile::tempdir().unwrap();
        let (tests, uuid) = (GpuTests::open(directory.path()), Gpu::sample(0).uuid);
        let mut child = std::process::Command::new("sleep").arg("60").spawn().unwrap();
        let pid = HostPid(child.id());
        tests.take(&uuid, WatchedProcess::open(pid).unwrap());
        let ago = |seconds| Instant::now().checked_sub(Duration::from_secs(seconds));
        tests.see(&uuid, true);
        tests.lock().testers.get_mut(&uuid).unwrap().late = ago(14);
        tests.see(&uuid, true);
        assert!(tests.has(pid), "it may be ending");
        tests.lock().testers.get_mut(&uuid).unwrap().late = ago(15);
        tests.see(&uuid, false);
        assert!(!tests.has(pid) && tests.tester(&uuid).is_none());
        assert_eq!(std::os::unix::process::ExitStatusExt::signal(&child.wait().unwrap()), Some(9));
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
        use GpuTestOutcome::{Failed, Passed};
        let known = Known::after(None, parts(&[("memory", Passed), ("dcgm", Failed)]));
        let known = Known::after(Some(&known), parts(&[("memory", Passed), ("products", Failed)]));
        assert_eq!((known.failures, known.failed.len()), (2, 2));
        let known = Known::after(Some(&known), parts(&[("memory", Passed), ("products", Passed)]));
        assert_eq!((known.failures, known.failed.into_iter().collect::<Vec<_>>()), (2, vec!["dcgm".to_owned()]));
        let failed_unix_ms = known.failed_unix_ms;
        assert_eq!(failed_unix_ms, Some(8));
        let known = Known { failed: ["dcgm".to_owned()].into(), failures: 2, failed_unix_ms, last: known.last };
        assert_eq!(Known::after(Some(&known), parts(&[("dcgm", Passed)])).failures, 0);
    }
}
