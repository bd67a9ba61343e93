//! The audit: every event, written down for good as it happens, in files whose lines are chained (see [`gpool_policy::chain`]). They
//! outlive the supervisor and the boot. A thread of its own writes them, for which nothing waits: what cannot be written, on a full
//! disk, is kept in memory for a while, and how much was lost is written down as well.

mod files;
mod floods;
mod trail;

pub use floods::{Floods, Who};

use crate::clock;
use crate::events::{Events, Unwritten};
use crate::faults::Faults;
use crate::lease::{Leases, write_whole};
use crate::log::{self, Priority};
use files::{DAY_MS, forget_beyond, forget_old};
use gpool_configuration::Audit as Configured;
use gpool_protocol::{Event, EventKind};
use std::collections::VecDeque;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};
use trail::Trail;

/// After a failure it is tried again.
const AFTER_FAILURE: Duration = Duration::from_secs(10);
/// It wakes up as often as this without anything new: what there is may have become too much.
const PERIOD: Duration = Duration::from_secs(60);
/// How often what is old is taken out, for the first time when the supervisor has run for so long: its clock may be wrong when a
/// host has just booted.
const FORGET_PERIOD: Duration = Duration::from_secs(3600);
/// How often the end of the trail is said to the journal.
const DAY: Duration = Duration::from_secs(86_400);
/// In `[paths] run_dir`, which a boot empties, since what holds the audit is full then: how many events the supervisor before could not
/// write down before it ended.
const MARK: &str = "audit-unwritten.json";
/// How long the end of the supervisor waits for what is not written yet.
const FINISH_PATIENCE: Duration = Duration::from_secs(2);

/// What has become of events, since the supervisor started.
#[derive(Debug, Default)]
pub struct Figures {
    /// Written down.
    written: AtomicU64,
    /// Had no room, and never will be.
    lost: AtomicU64,
    /// Of those, as many as the audit does not say yet that they are.
    untold: AtomicU64,
    /// Taken from [`Events`], and written or lost.
    settled: AtomicU64,
    /// When all that there was had been written last, Unix seconds; 0 while it was not.
    written_unix_s: AtomicU64,
}

impl Figures {
    /// Written down, and lost.
    pub fn figures(&self) -> [u64; 2] {
        [&self.written, &self.lost].map(|figure| figure.load(Ordering::Relaxed))
    }

    /// How many have happened and are neither.
    pub fn pending(&self, events: &Events) -> u64 {
        // First: what happens meanwhile is one more that is pending.
        let settled = self.settled.load(Ordering::SeqCst);
        events.offered().saturating_sub(settled)
    }

    /// When all that there was had been written last, Unix seconds, which is once a minute if nothing happens; none while it was not.
    pub fn written_unix_s(&self) -> Option<u64> {
        Some(self.written_unix_s.load(Ordering::Relaxed)).filter(|unix_s| *unix_s > 0)
    }

    /// Waits a moment until all that has happened is written.
    pub fn finish(&self, events: &Events) {
        let deadline = Instant::now() + FINISH_PATIENCE;
        while self.settled.load(Ordering::SeqCst) < events.offered() && Instant::now() < deadline {
            std::thread::sleep(Duration::from_millis(5));
        }
    }

    /// Has the next supervisor say in the audit how many are missing there because this one ends before they could be written.
    pub fn leave_mark(&self, events: &Events, run_dir: &Path) {
        let unwritten = self.pending(events) + self.untold.load(Ordering::SeqCst);
        if unwritten > 0
            && let Err(error) = write_whole(&run_dir.join(MARK), &unwritten)
        {
            log!("{unwritten} events are missing in the audit, which will not say so: {error}");
        }
    }
}

/// How many events the supervisor before has left unwritten. What cannot be read was written by none of ours.
fn unwritten_before(mark: &Path) -> u64 {
    std::fs::read(mark).ok().and_then(|text| serde_json::from_slice(&text).ok()).unwrap_or(0)
}

/// Writes for ever; runs on its own thread.
pub fn keep(leases: &Leases) {
    let mut keeper = Keeper::new();
    keeper.note_mark(leases.configuration().paths.run_dir.join(MARK), &leases.audit);
    loop {
        let patience = if keeper.failed.is_some() { AFTER_FAILURE } else { PERIOD };
        keeper.note(leases.events.unwritten(patience), &leases.audit);
        if keeper.failed.is_none_or(|failed| failed.elapsed() >= AFTER_FAILURE) {
            let outcome = keeper.write(&leases.configuration().audit, &leases.audit);
            keeper.failed = outcome.is_err().then(Instant::now);
            let told =
                outcome.map_err(|error| format!("the audit is not written, and kept in memory meanwhile: {error}"));
            keeper.faults.note("not written", &told);
        }
    }
}

struct Keeper {
    trail: Option<Trail>,
    faults: Faults<&'static str>,
    failed: Option<Instant>,
    /// What it says of itself, in front of what has happened since.
    remarks: VecDeque<String>,
    /// What is to be written next, in order.
    pending: VecDeque<Arc<Event>>,
    /// Events behind those that had no room.
    lost: u64,
    /// What the supervisor before has left, while the audit does not say it.
    mark: Option<PathBuf>,
    /// When the end was said.
    told: Option<Instant>,
    /// When what is old was taken out, and what the time was as far as that goes, Unix milliseconds: at most a day further each
    /// time, whatever the clock says.
    forgotten: (Instant, Option<u64>),
}

impl Keeper {
    fn new() -> Self {
        Self {
            trail: None,
            faults: Faults::default(),
            failed: None,
            remarks: VecDeque::new(),
            pending: VecDeque::new(),
            lost: 0,
            mark: None,
            told: None,
            forgotten: (Instant::now(), None),
        }
    }

    /// Takes over what the supervisor before has left.
    fn note_mark(&mut self, mark: PathBuf, figures: &Figures) {
        let missing = unwritten_before(&mark);
        if missing > 0 {
            self.remarks.push_back(format!(
                "{missing} events are missing here, for the supervisor before was stopped before they could be written; the journal may \
                 have them"
            ));
            figures.untold.fetch_add(missing, Ordering::SeqCst);
        }
        self.mark = Some(mark);
    }

    /// Takes events over. While the disk is full memory is not: the newest go, as the log has them.
    fn note(&mut self, unwritten: Unwritten, figures: &Figures) {
        self.remarks.extend(unwritten.remarks);
        let mut lost = unwritten.lost;
        for event in unwritten.events {
            match self.pending.len() < Events::UNWRITTEN && self.lost == 0 {
                true => self.pending.push_back(event),
                false => lost += 1,
            }
        }
        self.lost += lost;
        figures.lost.fetch_add(lost, Ordering::Relaxed);
        figures.untold.fetch_add(lost, Ordering::SeqCst);
        figures.settled.fetch_add(lost, Ordering::SeqCst);
    }

    fn write(&mut self, configured: &Configured, figures: &Figures) -> io::Result<()> {
        // Before anything is written: on a full disk this makes the room for it.
        self.forget_beyond(configured);
        let mut trail = match self.trail.take().filter(Trail::is_in_place) {
            Some(trail) => trail,
            None => Trail::open(&configured.directory)?,
        };
        // Before anything is written: what this host's clock says now may be wrong.
        self.forgotten.1.get_or_insert_with(|| trail.found_unix_ms().unwrap_or_else(clock::unix_ms));
        self.forget_old(configured);
        self.remarks.extend(trail.take_remarks());
        self.write_remarks(&mut trail, figures)?;
        let batch: Vec<Arc<Event>> = self.pending.iter().cloned().collect();
        let (count, outcome) = trail.write(&batch);
        self.pending.drain(..count);
        figures.written.fetch_add(count as u64, Ordering::Relaxed);
        figures.settled.fetch_add(count as u64, Ordering::SeqCst);
        outcome?;
        if self.lost > 0 {
            let lost = std::mem::take(&mut self.lost);
            self.remarks.push_back(format!(
                "{lost} events were lost here, for which there was no room; the journal may have them"
            ));
        }
        self.write_remarks(&mut trail, figures)?;
        figures.untold.store(0, Ordering::SeqCst);
        if let Some(mark) = self.mark.take() {
            // What is not there needs no removing.
            let _ = std::fs::remove_file(mark);
        }
        self.tell_end(&trail, configured);
        figures.written_unix_s.store(clock::unix_ms() / 1000, Ordering::Relaxed);
        self.trail = Some(trail);
        Ok(())
    }

    fn write_remarks(&mut self, trail: &mut Trail, figures: &Figures) -> io::Result<()> {
        while let Some(message) = self.remarks.front() {
            trail.write(&[Arc::new(remark(message.clone()))]).1?;
            log!("the audit: {message}");
            figures.written.fetch_add(1, Ordering::Relaxed);
            self.remarks.pop_front();
        }
        Ok(())
    }

    /// Takes out what is too much.
    fn forget_beyond(&mut self, configured: &Configured) {
        // The first time there may be nothing yet.
        if configured.directory.exists() {
            let outcome = forget_beyond(&configured.directory, u64::from(configured.most_mib) << 20);
            self.note_forgotten(outcome, "is beyond [audit] most_mib");
        }
    }

    /// Takes out what is old, once an hour.
    fn forget_old(&mut self, configured: &Configured) {
        if self.forgotten.0.elapsed() < FORGET_PERIOD {
            return;
        }
        self.forget_old_at(configured, clock::unix_ms());
    }

    fn forget_old_at(&mut self, configured: &Configured, unix_ms: u64) {
        let known_ms = self.forgotten.1.unwrap_or(unix_ms);
        // Never later than the clock says: what was written when it was years ahead is no time to measure by.
        let now_ms = unix_ms.min(known_ms.saturating_add(DAY_MS));
        self.forgotten = (Instant::now(), Some(now_ms.max(known_ms)));
        let outcome = forget_old(&configured.directory, configured.keep_days, now_ms);
        self.note_forgotten(outcome, "is older than [audit] keep_days");
    }

    fn note_forgotten(&mut self, outcome: io::Result<Vec<PathBuf>>, why: &'static str) {
        for path in outcome.iter().flatten() {
            self.remarks.push_back(format!("took out {}, which {why}", path.display()));
        }
        let told = outcome.map_err(|error| format!("old files of the audit cannot be taken out: {error}"));
        self.faults.note(why, &told);
    }

    /// Says once a day what it ends with, so that it stands elsewhere too.
    fn tell_end(&mut self, trail: &Trail, configured: &Configured) {
        if self.told.is_some_and(|told| told.elapsed() < DAY) {
            return;
        }
        self.told = Some(Instant::now());
        if let Some((number, link)) = trail.end() {
            let directory = configured.directory.display();
            log::line(
                Priority::Information,
                format_args!("the audit in {directory} ends with number {number}, chain {link}"),
            );
        }
    }
}

/// Something that the audit says of itself.
fn remark(message: String) -> Event {
    Event {
        sequence: 0,
        unix_ms: clock::unix_ms(),
        started_unix_ms: None,
        kind: EventKind::Audit,
        priority: Some(EventKind::Audit.priority()),
        lease_id: None,
        container_id: None,
        uid: None,
        charged: Vec::new(),
        message,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs;

    fn event(number: usize) -> Arc<Event> {
        Arc::new(remark(format!("event {number}")))
    }

    fn unwritten(numbers: std::ops::Range<usize>, lost: u64) -> Unwritten {
        Unwritten { events: numbers.map(event).collect(), lost, remarks: Vec::new() }
    }

    #[test]
    fn the_time_of_the_last_supervisor_is_what_old_is_measured_by() {
        let folder = tempfile::tempdir().unwrap();
        let configured = Configured { directory: folder.path().to_owned(), ..Configured::default() };
        let old = Event { unix_ms: 1000, ..remark("long ago".to_owned()) };
        assert!(Trail::open(folder.path()).unwrap().write(&[Arc::new(old)]).1.is_ok());
        let (mut keeper, figures) = (Keeper::new(), Figures::default());
        keeper.note(unwritten(0..1, 0), &figures);
        keeper.write(&configured, &figures).unwrap();
        assert_eq!(keeper.forgotten.1, Some(1000), "whatever the clock has been said to be since");
    }

    #[test]
    fn a_clock_that_was_ahead_once_takes_nothing_away() {
        let folder = tempfile::tempdir().unwrap();
        let configured = Configured { directory: folder.path().to_owned(), ..Configured::default() };
        let now_ms = 50 * 365 * DAY_MS;
        let at = |unix_ms| Arc::new(Event { unix_ms, ..remark("x".repeat(4 << 20)) });
        let mut trail = Trail::open(folder.path()).unwrap();
        // Four fill a file. The last one was written under a clock that is ahead by seventy years, and that was corrected since.
        let mut events = vec![at(now_ms - DAY_MS); 6];
        events.push(at(now_ms + 70 * 365 * DAY_MS));
        assert!(trail.write(&events).1.is_ok());
        drop(trail);
        let mut keeper = Keeper::new();
        keeper.write(&configured, &Figures::default()).unwrap();
        for day in 0..3 {
            keeper.forget_old_at(&configured, now_ms + day * DAY_MS);
        }
        assert_eq!(files::files(folder.path()).unwrap().len(), 2);
        // What is old by the clock goes on going.
        keeper.forget_old_at(&configured, now_ms + (u64::from(configured.keep_days) + 1) * DAY_MS);
        assert_eq!(files::files(folder.path()).unwrap().len(), 1);
    }

    #[test]
    fn a_full_disk_costs_what_has_no_room_and_no_more_however_often_it_is_tried() {
        let folder = tempfile::tempdir().unwrap();
        let directory = folder.path().join("audit");
        fs::write(&directory, "in its place").unwrap();
        let configured = Configured { directory: directory.clone(), ..Configured::default() };
        let (mut keeper, figures) = (Keeper::new(), Figures::default());
        keeper.note(unwritten(0..Events::UNWRITTEN + 5, 2), &figures);
        for _ in 0..3 {
            assert!(keeper.write(&configured, &figures).is_err());
            keeper.note(unwritten(0..0, 0), &figures);
        }
        assert_eq!((keeper.pending.len(), keeper.lost, figures.figures()), (Events::UNWRITTEN, 7, [0, 7]));
        fs::remove_file(&directory).unwrap();
        keeper.write(&configured, &figures).unwrap();
        assert_eq!((keeper.pending.len(), keeper.lost), (0, 0));
        assert_eq!(figures.figures(), [Events::UNWRITTEN as u64 + 1, 7], "and the line that says what was lost");
        let files = files::files(&directory).unwrap();
        let text = fs::read_to_string(&files[0].1).unwrap();
        let last = text.lines().last().unwrap();
        assert!(last.contains("7 events were lost here") && text.lines().count() == Events::UNWRITTEN + 2, "{last}");
        keeper.note(unwritten(0..1, 0), &figures);
        keeper.write(&configured, &figures).unwrap();
        assert_eq!(figures.settled.load(Ordering::SeqCst), Events::UNWRITTEN as u64 + 8);
    }

    #[test]
    fn what_one_supervisor_leaves_unwritten_the_next_one_says_is_missing() {
        let folder = tempfile::tempdir().unwrap();
        let (run_dir, directory) = (folder.path(), folder.path().join("audit"));
        fs::write(&directory, "in its place").unwrap();
        let configured = Configured { directory: directory.clone(), ..Configured::default() };
        let mark = run_dir.join(MARK);
        // Two lives in which nothing can be written.
        for left in [3, 6] {
            let (mut keeper, figures, events) = (Keeper::new(), Figures::default(), Events::for_the_audit());
            keeper.note_mark(mark.clone(), &figures);
            (0..3).for_each(|_| events.note(EventKind::LeaseGranted, crate::events::About::default(), "m".to_owned()));
            keeper.note(events.unwritten(Duration::ZERO), &figures);
            assert!(keeper.write(&configured, &figures).is_err());
            figures.leave_mark(&events, run_dir);
            assert_eq!(unwritten_before(&mark), left);
        }
        fs::remove_file(&directory).unwrap();
        let (mut keeper, figures, events) = (Keeper::new(), Figures::default(), Events::for_the_audit());
        keeper.note_mark(mark.clone(), &figures);
        keeper.write(&configured, &figures).unwrap();
        let text = fs::read_to_string(&files::files(&directory).unwrap()[0].1).unwrap();
        assert!(text.contains("6 events are missing here") && !mark.exists(), "{text}");
        figures.leave_mark(&events, run_dir);
        assert!(!mark.exists(), "nothing is left");
    }

    #[test]
    fn what_is_too_much_goes_while_nothing_can_be_written() {
        let folder = tempfile::tempdir().unwrap();
        let directory = folder.path();
        let configured = Configured { directory: directory.to_owned(), most_mib: 1, ..Configured::default() };
        let long = Arc::new(remark("x".repeat(1 << 20)));
        assert!(Trail::open(directory).unwrap().write(&[long]).1.is_ok());
        let place = |first: u64| directory.join(gpool_policy::chain::file_name(first));
        fs::copy(place(1), place(2)).unwrap();
        // Nothing is written where this is in the place of the newest file.
        fs::create_dir(place(3)).unwrap();
        let (mut keeper, figures) = (Keeper::new(), Figures::default());
        keeper.note(unwritten(0..1, 0), &figures);
        assert!(keeper.write(&configured, &figures).is_err() && !place(1).exists());
        assert_eq!((keeper.pending.len(), figures.written_unix_s()), (1, None));
    }

    #[test]
    fn what_waits_is_known_and_when_all_was_written() {
        let folder = tempfile::tempdir().unwrap();
        let directory = folder.path().join("audit");
        fs::write(&directory, "in its place").unwrap();
        let configured = Configured { directory: directory.clone(), ..Configured::default() };
        let (mut keeper, figures, events) = (Keeper::new(), Figures::default(), Events::for_the_audit());
        (0..3).for_each(|_| events.note(EventKind::LeaseGranted, crate::events::About::default(), "m".to_owned()));
        keeper.note(events.unwritten(Duration::ZERO), &figures);
        assert!(keeper.write(&configured, &figures).is_err());
        assert_eq!((figures.pending(&events), figures.written_unix_s()), (3, None));
        fs::remove_file(&directory).unwrap();
        keeper.write(&configured, &figures).unwrap();
        assert_eq!((figures.pending(&events), figures.written_unix_s().is_some()), (0, true));
    }
}
