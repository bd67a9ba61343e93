//! The health of GPUs beyond Xids: what their own figures show is told, counted, and a GPU takes no new leases where the
//! configuration says so.
//!
//! Who opens a GPU again in spite of a finding knows of it: it is not drained for that again until it becomes more or comes back.
//! That is written down, since it should outlive the supervisor.

use crate::clock;
use crate::device::{Gpu, Kind as GpuKind};
use crate::drains;
use crate::lease::Leases;
use crate::state_file::StateFile;
use crate::watchers::PAUSE_PERIOD;
use crate::xids::{about, on_it, whose};
use gpool_policy::health::{Health, Kind, News, Reading};
use gpool_policy::xid::Fault;
use gpool_protocol::{EventKind, GpuUuid, HealthFinding};
use std::collections::BTreeMap;
use std::io;
use std::path::Path;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

/// Between two looks at whether a board is to be read: a reload is felt within this.
const LOOK_PERIOD: Duration = Duration::from_secs(1);
const NS_PER_MS: u64 = 1_000_000;
const NS_PER_SECOND: u64 = 1_000_000_000;
/// In `[paths] state_dir`.
const NAME: &str = "health.json";

/// Which findings are accepted of which board, by name and with their amounts.
type Accepted = BTreeMap<GpuUuid, BTreeMap<String, u64>>;

/// What is known of one board.
#[derive(Debug, Default)]
struct Board {
    health: Health,
    /// Of each figure what was told last, for who asks.
    reading: Reading,
    /// What has failed in tests and not passed since, by name.
    failed: Vec<String>,
}

/// What is known of all boards.
#[derive(Debug)]
pub struct Healths {
    /// Held while it is decided what follows of a reading, and while somebody opens a GPU again: nothing comes between. It is
    /// taken before all other locks.
    deciding: Mutex<()>,
    /// What of it is accepted, as written down.
    written: StateFile<Accepted>,
    /// Held for a moment. Taken last of all.
    boards: Mutex<BTreeMap<GpuUuid, Board>>,
}

/// How one kind of finding stands on a board, for the metrics.
pub struct Count {
    /// Which board.
    pub uuid: GpuUuid,
    /// Which kind.
    pub kind: &'static str,
    /// It is found now.
    pub is_found: bool,
    /// Somebody has said that the GPU may serve as it is.
    pub is_accepted: bool,
    /// How often it was found or became more since the supervisor started.
    pub count: u64,
}

impl Healths {
    /// With what was accepted as it was written down in this directory, which need not be there. Of what cannot be read nothing
    /// is accepted: at worst a GPU is drained once more.
    pub fn open(state_dir: &Path) -> Self {
        let written = StateFile::<Accepted>::open(state_dir, NAME, "no finding about a GPU's health is accepted");
        let accepted = written.lock().clone();
        let known = |kinds: BTreeMap<String, u64>| {
            let kinds = kinds.into_iter().filter_map(|(word, amount)| Some((Kind::named(&word)?, amount)));
            Board { health: Health::with_accepted(kinds), ..Board::default() }
        };
        let boards = accepted.into_iter().map(|(uuid, kinds)| (uuid, known(kinds))).collect();
        Self { deciding: Mutex::default(), written, boards: Mutex::new(boards) }
    }

    fn lock(&self) -> MutexGuard<'_, BTreeMap<GpuUuid, Board>> {
        self.boards.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// While it is held nothing follows of what is read.
    pub fn decide(&self) -> MutexGuard<'_, ()> {
        self.deciding.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// What is found of a GPU, or of the board that an instance is of; none where nothing is known.
    pub fn of(&self, gpu: &Gpu) -> Option<Vec<HealthFinding>> {
        let (now_ns, unix_ms) = (clock::now_ns(), clock::unix_ms());
        let boards = self.lock();
        let board = boards.get(gpu.board()?)?;
        let mut standings = board.health.standings().peekable();
        standings.peek()?;
        let finding = |its: gpool_policy::health::Standing| {
            let age_ms = now_ns.saturating_sub(its.since_ns?) / NS_PER_MS;
            Some(HealthFinding {
                kind: its.kind.word().to_owned(),
                since_unix_ms: unix_ms.saturating_sub(age_ms),
                cause: cause(its.kind, &board.reading, &board.failed),
                remedy: its.kind.remedy().to_owned(),
                accepted: its.is_accepted,
            })
        };
        Some(standings.filter_map(finding).collect())
    }

    /// How all kinds stand whose figures are told, by board.
    pub fn counts(&self) -> Vec<Count> {
        let of_one = |(uuid, board): (&GpuUuid, &Board)| {
            let count = |its: gpool_policy::health::Standing| Count {
                uuid: uuid.clone(),
                kind: its.kind.word(),
                is_found: its.since_ns.is_some(),
                is_accepted: its.is_accepted,
                count: its.count,
            };
            board.health.standings().map(count).collect::<Vec<_>>()
        };
        self.lock().iter().flat_map(of_one).collect()
    }

    /// Takes what was read of a board: what is to be told of it, and for what it is to take no new leases.
    fn look(&self, uuid: &GpuUuid, now_ns: u64, reading: &Reading, thermal_ns: u64) -> (Vec<News>, Vec<Kind>) {
        let found = {
            let mut boards = self.lock();
            let board = boards.entry(uuid.clone()).or_default();
            let Reading { rows, uncorrected_errors, clock_reasons, pcie_replays, pcie_lanes, temperature_celsius } =
                *reading;
            board.reading = Reading {
                rows: rows.or(board.reading.rows),
                uncorrected_errors: uncorrected_errors.or(board.reading.uncorrected_errors),
                clock_reasons: clock_reasons.or(board.reading.clock_reasons),
                pcie_replays: pcie_replays.or(board.reading.pcie_replays),
                pcie_lanes: pcie_lanes.or(board.reading.pcie_lanes),
                temperature_celsius,
            };
            let news = board.health.look(now_ns, reading, thermal_ns);
            (news, board.health.open().collect())
        };
        self.write_changes();
        found
    }

    /// Takes what has failed in tests of a board and not passed since, and when the last one failed; the same of that.
    fn look_at_tests(&self, uuid: &GpuUuid, now_ns: u64, open: Option<(u64, Vec<String>)>) -> (Vec<News>, Vec<Kind>) {
        let found = {
            let mut boards = self.lock();
            let board = boards.entry(uuid.clone()).or_default();
            let (failed_unix_ms, failed) = open.unzip();
            board.failed = failed.unwrap_or_default();
            let news = board.health.look_at_tests(now_ns, failed_unix_ms);
            (news.into_iter().collect(), board.health.open().filter(|kind| *kind == Kind::TestFailed).collect())
        };
        self.write_changes();
        found
    }

    /// Somebody opens a board again: what is found of it is accepted, and named.
    pub fn accept(&self, uuid: &GpuUuid) -> Vec<&'static str> {
        let known = self.lock().entry(uuid.clone()).or_default().health.accept();
        self.write_changes();
        known.into_iter().map(Kind::word).collect()
    }

    /// Nobody reads it any more.
    fn forget(&self, uuid: &GpuUuid) {
        if let Some(board) = self.lock().get_mut(uuid) {
            board.health.forget();
            board.reading = Reading::default();
        }
    }

    fn accepted(&self) -> Accepted {
        let of_one = |(uuid, board): (&GpuUuid, &Board)| {
            let kinds: BTreeMap<String, u64> =
                board.health.accepted().map(|(kind, amount)| (kind.word().to_owned(), amount)).collect();
            (!kinds.is_empty()).then(|| (uuid.clone(), kinds))
        };
        self.lock().iter().filter_map(of_one).collect()
    }

    fn write_changes(&self) {
        if let Err(cause) = self.written.change(|old| *old = self.accepted()) {
            log!("{NAME} cannot be written: {cause}; until it can be, a GPU may be drained again after a restart");
            self.written.change_in_memory(|old| *old = self.accepted());
        }
    }

    /// Writes down what could not be written before.
    pub fn catch_up(&self) {
        self.written.catch_up();
    }
}

/// What a finding means, with what was read, or what failed in tests.
fn cause(kind: Kind, reading: &Reading, failed: &[String]) -> String {
    let figures = if kind == Kind::TestFailed { failed.join(", ") } else { reading.figures(kind) };
    if figures.is_empty() { kind.words().to_owned() } else { format!("{} ({figures})", kind.words()) }
}

/// Reads each board on a thread of its own, for ever: one that hangs in the driver keeps nobody else from anything.
///
/// # Errors
/// No thread can be started.
pub fn watch(leases: &Arc<Leases>) -> io::Result<()> {
    for board in leases.gpus().iter().filter(|gpu| matches!(gpu.kind, GpuKind::Whole | GpuKind::Divided)) {
        let (leases, board) = (leases.clone(), board.clone());
        let reader = std::thread::Builder::new().name(format!("health-{}", board.index));
        reader.spawn(move || watch_one(&leases, &board))?;
    }
    Ok(())
}

fn watch_one(leases: &Leases, board: &Gpu) {
    let mut untold = Vec::new();
    let mut last: Option<Instant> = None;
    loop {
        // Before anything that may have to wait for NVML.
        look_at_tests(leases, board);
        let poll_seconds = leases.configuration().health.poll_seconds;
        let period = Duration::from_secs(poll_seconds.into());
        if poll_seconds == 0 {
            if last.take().is_some() {
                leases.healths.forget(&board.uuid);
            }
        } else if last.is_none_or(|last| last.elapsed() >= period) {
            let Some(watching) = leases.watchers.begin() else {
                std::thread::sleep(PAUSE_PERIOD);
                continue;
            };
            last = Some(Instant::now());
            let reading = read_board(leases, board, &mut untold);
            drop(watching);
            take(leases, board, &reading);
        }
        std::thread::sleep(LOOK_PERIOD);
    }
}

/// Tells what tests of a board have found, and drains it where the configuration says so: nobody is asked for it but who keeps that.
pub fn look_at_tests(leases: &Leases, board: &Gpu) {
    // First: what was open a moment ago may have passed by the time it is this one's turn.
    let _turn = leases.healths.decide();
    let Some(open) = leases.gpu_tests.open_failures(&board.uuid) else { return };
    let found = leases.healths.look_at_tests(&board.uuid, clock::now_ns(), open.clone());
    let failed = open.map(|(_, failed)| failed).unwrap_or_default();
    tell(leases, board, (&Reading::default(), &failed), found);
}

/// What the board says now: nothing if it does not answer, which is told by who asks it each second. A line of the log when
/// something else than before is not told.
fn read_board(leases: &Leases, board: &Gpu, untold: &mut Vec<String>) -> Reading {
    if leases.inventory.hangs_since(board.index).is_some() {
        return Reading::default();
    }
    let Ok(told) = leases.inventory.health(board.index) else { return Reading::default() };
    if told.untold != *untold && !told.untold.is_empty() {
        log!("of GPU {} ({}) NVML does not tell {}", board.index, board.uuid, told.untold.join(", "));
    }
    *untold = told.untold;
    told.reading
}

/// Tells what a reading shows, and drains the board where the configuration says so.
fn take(leases: &Leases, board: &Gpu, reading: &Reading) {
    let settings = leases.configuration();
    let thermal_ns = u64::from(settings.health.thermal_seconds) * NS_PER_SECOND;
    let _turn = leases.healths.decide();
    let found = leases.healths.look(&board.uuid, clock::now_ns(), reading, thermal_ns);
    tell(leases, board, (reading, &[]), found);
}

/// Tells news, and drains the board for what is found and not accepted.
fn tell(leases: &Leases, board: &Gpu, shown: (&Reading, &[String]), (news, open): (Vec<News>, Vec<Kind>)) {
    let settings = leases.configuration();
    if !news.is_empty() {
        let on_it = on_it(leases, board);
        let is_drained = leases.drains.of(board).is_some();
        for its in news {
            let message = message(board, its, shown, (&whose(Fault::Device, &on_it), is_drained));
            leases.events.note(EventKind::GpuHealth, about(&on_it), message);
        }
    }
    for kind in open.into_iter().filter(|kind| settings.health.drain_on.iter().any(|word| word == kind.word())) {
        drains::drain_for_fault(leases, &board.uuid, &format!("{}, {}", kind.word(), kind.words()));
    }
}

fn message(
    board: &Gpu,
    news: News,
    (reading, failed): (&Reading, &[String]),
    (whose, is_drained): (&str, bool),
) -> String {
    let gpu = format!("GPU {} ({})", board.index, board.uuid);
    match news {
        News::Found(kind, times) => {
            let often = if times > 1 { format!(", {times} times since it was told") } else { String::new() };
            let (word, cause) = (kind.word(), cause(kind, reading, failed));
            format!("{gpu} shows {word}{often}: {cause}; {whose}; {}", kind.remedy())
        }
        News::Over(kind) => {
            let next = if is_drained {
                "; it stays drained until gpool gpu undrain, with --fault where it was drained for a fault"
            } else {
                ""
            };
            format!("{gpu} shows {} no more; {whose}{next}", kind.word())
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::device::MigInstance;
    use gpool_policy::health::Rows;
    use std::fs;

    const S: u64 = NS_PER_SECOND;

    fn pending(uncorrectable: u32) -> Reading {
        let rows = Rows { uncorrectable, is_pending: true, ..Rows::default() };
        Reading { rows: Some(rows), ..Reading::default() }
    }

    fn kinds(healths: &Healths, gpu: &Gpu) -> Option<Vec<String>> {
        healths.of(gpu).map(|found| found.into_iter().map(|finding| finding.kind).collect())
    }

    #[test]
    fn the_configuration_knows_all_that_can_be_found_and_drains_for_what_a_reset_or_a_repair_needs() {
        assert_eq!(gpool_configuration::HEALTH_FINDINGS, Kind::ALL.map(Kind::word));
        let drained = gpool_configuration::Configuration::default().health.drain_on;
        assert_eq!(drained, [Kind::RemapFailure, Kind::RemapPending, Kind::TestFailed].map(Kind::word));
    }

    #[test]
    fn what_is_found_of_a_board_is_found_of_its_instances_and_nothing_is_known_of_one_that_was_not_read() {
        let directory = tempfile::tempdir().unwrap();
        let healths = Healths::open(directory.path());
        let its = MigInstance {
            board: GpuUuid("GPU-0".into()),
            profile: "1g.10gb".into(),
            gpu_instance: 7,
            compute_instance: 0,
            start: 0,
            size: 1,
        };
        let instance = Gpu { uuid: GpuUuid("MIG-1".into()), kind: GpuKind::Instance(its), ..Gpu::sample(0) };
        assert_eq!(kinds(&healths, &Gpu::sample(0)), None);
        healths.look(&Gpu::sample(0).uuid, S, &pending(1), S);
        assert_eq!(kinds(&healths, &instance), Some(vec!["remap-pending".to_owned()]));
        assert_eq!(kinds(&healths, &Gpu::sample(1)), None);
        let known: Vec<_> = healths.counts().iter().map(|its| (its.kind, its.is_found, its.count)).collect();
        assert_eq!(known, [("remap-failure", false, 0), ("remap-pending", true, 1)]);
        healths.forget(&Gpu::sample(0).uuid);
        assert_eq!((kinds(&healths, &instance), healths.counts().len()), (None, 0));
    }

    #[test]
    fn what_was_accepted_is_so_after_a_restart_until_it_is_over() {
        let directory = tempfile::tempdir().unwrap();
        let (state_dir, uuid) = (directory.path().join("not/made"), Gpu::sample(0).uuid);
        let healths = Healths::open(&state_dir);
        assert_eq!(healths.look(&uuid, S, &pending(1), S).1, [Kind::RemapPending]);
        let counted = |healths: &Healths| healths.counts().iter().find(|its| its.is_found).map(|its| its.is_accepted);
        assert_eq!(counted(&healths), Some(false));
        assert_eq!(healths.accept(&uuid), ["remap-pending"]);
        assert_eq!(counted(&healths), Some(true));
        assert!(healths.look(&uuid, 2 * S, &pending(1), S).1.is_empty());
        let again = Healths::open(&state_dir);
        assert!(again.look(&uuid, S, &pending(1), S).1.is_empty(), "it is known");
        assert!(again.of(&Gpu::sample(0)).unwrap()[0].accepted);
        again.look(&uuid, 2 * S, &Reading { rows: Some(Rows::default()), ..Reading::default() }, S);
        assert_eq!(Healths::open(&state_dir).look(&uuid, S, &pending(1), S).1, [Kind::RemapPending], "it came back");
        fs::write(state_dir.join(NAME), "{").unwrap();
        assert_eq!(Healths::open(&state_dir).look(&uuid, S, &pending(1), S).1, [Kind::RemapPending]);
    }

    #[test]
    fn a_finding_is_told_with_its_figures_who_is_on_the_gpu_and_what_to_do() {
        let said = |news, reading: &Reading| message(&Gpu::sample(1), news, (reading, &[]), ("a is on it", false));
        let want = "GPU 1 (GPU-1) shows remap-pending: memory that has failed is to be replaced by spare memory at the next reset \
                    (rows replaced so far: 0 for correctable errors, 2 for others); a is on it; reset the GPU as the administrator's \
                    guide says (Resetting a GPU), or boot the host, when nobody is on it";
        assert_eq!(said(News::Found(Kind::RemapPending, 1), &pending(2)), want);
        assert!(
            said(News::Found(Kind::Thermal, 3), &Reading::default())
                .contains("thermal, 3 times since it was told: its")
        );
        let errors = Reading { uncorrected_errors: Some(5), ..Reading::default() };
        assert!(said(News::Found(Kind::EccUncorrected, 1), &errors).contains("be corrected (5 since its driver"));
        assert_eq!(said(News::Over(Kind::Thermal), &errors), "GPU 1 (GPU-1) shows thermal no more; a is on it");
        let drained = message(&Gpu::sample(1), News::Over(Kind::RemapPending), (&errors, &[]), ("a is on it", true));
        assert!(drained.contains("; it stays drained until gpool gpu undrain, with --fault"));
    }
}
