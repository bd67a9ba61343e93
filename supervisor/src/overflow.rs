//! Whether the host is short of room, for whom brings more machines: told once when it begins and once when it is over, also across a
//! restart of the supervisor. Programs are run by `gpool overflow watch`, beside the supervisor and with rights of their own.

use crate::clock;
use crate::events::About;
use crate::lease::{Book, Leases};
use crate::queue::Waiter;
use crate::state_file::StateFile;
use gpool_configuration::Overflow as Configured;
use gpool_policy::overflow::{Crossing, Overflow, Thresholds};
use gpool_protocol::{EventKind, MemoryCap, OverflowView, Priority, Request};
use serde::{Deserialize, Serialize};
use std::path::Path;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

/// In `[paths] state_dir`.
const NAME: &str = "overflow.json";

/// How the host stands.
#[derive(Debug)]
pub struct Short {
    told: StateFile<Told>,
    state: Mutex<Overflow>,
    /// What those who wait would have, as of the last look: everybody may ask for it, and to find it out takes the book a while.
    wanted: Mutex<[u64; 2]>,
}

/// What was told last.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
struct Told {
    is_short: bool,
    since_unix_ms: Option<u64>,
}

impl Short {
    /// As it was told in an earlier life, which is written down in this directory.
    pub fn open(state_dir: &Path) -> Self {
        let told = StateFile::<Told>::open(state_dir, NAME, "the host counts as not short of room");
        let state = Mutex::new(Overflow::known(told.lock().is_short));
        Self { told, state, wanted: Mutex::default() }
    }

    /// Writes down what could not be written before.
    pub fn catch_up(&self) {
        self.told.catch_up();
    }

    fn wanted(&self) -> MutexGuard<'_, [u64; 2]> {
        self.wanted.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Looks again, and writes down what has changed. Where that fails it has changed all the same.
    fn look(&self, waited: Option<Duration>, configured: Configured, now_ns: u64, unix_ms: u64) -> Option<Crossing> {
        let waited_ns = waited.map(ns);
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        let crossing = state.look(waited_ns, thresholds(configured), now_ns)?;
        let told = Told { is_short: state.is_short(), since_unix_ms: Some(unix_ms) };
        if let Err(cause) = self.told.change(|old| *old = told.clone()) {
            log!("whether the host is short of room cannot be written down: {cause}");
            self.told.change_in_memory(|old| *old = told);
        }
        Some(crossing)
    }
}

fn ns(time: Duration) -> u64 {
    u64::try_from(time.as_nanos()).unwrap_or(u64::MAX)
}

fn thresholds(configured: Configured) -> Option<Thresholds> {
    let of = |seconds: u64| ns(Duration::from_secs(seconds));
    (configured.after_seconds > 0)
        .then(|| Thresholds { after_ns: of(configured.after_seconds), clear_ns: of(configured.clear_seconds) })
}

/// Those who lack room on GPUs and nothing else, each with its place and since when, CLOCK_MONOTONIC. Who comes back from the host's memory
/// goes to its own GPUs, and is helped by no others.
fn short_of_room(book: &Book) -> Vec<(&Waiter, u32, u64)> {
    let all = book.queue.in_order().into_iter().zip(1..);
    let theirs = all.filter(|(waiter, _)| !book.is_suspended(&waiter.asked.container_id, waiter.uid));
    theirs.filter_map(|(waiter, place)| Some((waiter, place, waiter.lacks_room_since_ns?))).collect()
}

fn longest_wait(waiting: &[(&Waiter, u32, u64)], now_ns: u64) -> Option<Duration> {
    let since_ns = waiting.iter().map(|(_, _, since_ns)| *since_ns).min()?;
    Some(Duration::from_nanos(now_ns.saturating_sub(since_ns)))
}

/// Looks whether anything has changed, and tells it; to be called every few seconds.
pub fn tend(leases: &Leases) {
    let now_ns = clock::now_ns();
    let waited = {
        let book = leases.book();
        let waiting = short_of_room(&book);
        *leases.short.wanted() = wanted(leases, &book, &waiting);
        longest_wait(&waiting, now_ns)
    };
    let configured = leases.configuration().overflow;
    let Some(crossing) = leases.short.look(waited, configured, now_ns, clock::unix_ms()) else { return };
    let message = match crossing {
        Crossing::Began => format!("the host is short of room: {}", view(leases, &leases.book()).text()),
        Crossing::Ended if configured.after_seconds == 0 => {
            "nobody watches any more whether the host is short of room".to_owned()
        }
        Crossing::Ended => "the host is not short of room any more".to_owned(),
    };
    leases.events.note(EventKind::Overflow, About::default(), message);
}

/// What they would have: thousandths of GPUs' time, and bytes of their memory. Of one that would not even have room alone, as while its GPUs
/// are drained, what it names.
fn wanted(leases: &Leases, book: &Book, waiting: &[(&Waiter, u32, u64)]) -> [u64; 2] {
    if waiting.is_empty() {
        return [0; 2];
    }
    let gpus = leases.gpus();
    let scene = leases.scene(book, None, &gpus);
    let of = |(waiter, ..): &(&Waiter, u32, u64)| {
        let request = &waiter.asked.request;
        let named = u64::from(request.fraction_permille) * u64::from(request.gpus);
        match leases.alone(&waiter.asked, waiter.uid, &scene).map(|(_, tally)| tally.amounts()) {
            Some(amounts) if request.priority == Priority::Guaranteed => [amounts.share_permille, amounts.memory_bytes],
            Some(amounts) => [named, amounts.memory_bytes],
            None => [named, named_bytes(request)],
        }
    };
    waiting.iter().map(of).fold([0, 0], |sum, its| [0, 1].map(|part| sum[part].saturating_add(its[part])))
}

fn named_bytes(request: &Request) -> u64 {
    match request.memory {
        Some(MemoryCap::Bytes(bytes)) => bytes.saturating_mul(request.gpus.into()),
        Some(MemoryCap::Permille(_)) | None => 0,
    }
}

/// As the socket and the metrics show it; what they would have is as of the last look.
pub fn view(leases: &Leases, book: &Book) -> OverflowView {
    let waiting = short_of_room(book);
    let Configured { after_seconds, clear_seconds } = leases.configuration().overflow;
    let Told { is_short, since_unix_ms } = leases.short.told.lock().clone();
    let longest_wait = longest_wait(&waiting, clock::now_ns()).unwrap_or_default();
    let [wanted_permille, wanted_memory_bytes] = if waiting.is_empty() { [0; 2] } else { *leases.short.wanted() };
    OverflowView {
        is_short,
        since_unix_ms,
        after_seconds,
        clear_seconds,
        longest_wait_ms: u64::try_from(longest_wait.as_millis()).unwrap_or(u64::MAX),
        wanted_permille,
        wanted_memory_bytes,
        waiting: waiting.into_iter().map(|(waiter, place, _)| waiter.view(place)).collect(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const CONFIGURED: Configured = Configured { after_seconds: 60, clear_seconds: 30 };
    const SECOND: u64 = 1_000_000_000;

    fn look(its: &Short, waited_s: Option<u64>, now_s: u64) -> Option<Crossing> {
        its.look(waited_s.map(Duration::from_secs), CONFIGURED, now_s * SECOND, now_s * 1000)
    }

    #[test]
    fn what_was_told_is_not_told_again_by_the_next_supervisor() {
        let directory = tempfile::tempdir().unwrap();
        let first = Short::open(directory.path());
        assert_eq!(look(&first, Some(59), 1), None);
        assert!(!directory.path().join(NAME).exists());
        assert_eq!(look(&first, Some(60), 2), Some(Crossing::Began));
        let next = Short::open(directory.path());
        assert_eq!(*next.told.lock(), Told { is_short: true, since_unix_ms: Some(2000) });
        assert_eq!(look(&next, Some(61), 3), None);
        assert_eq!((look(&next, None, 4), look(&next, None, 34)), (None, Some(Crossing::Ended)));
        assert_eq!(*Short::open(directory.path()).told.lock(), Told { is_short: false, since_unix_ms: Some(34_000) });
    }

    #[test]
    fn it_has_changed_also_where_that_cannot_be_written_down() {
        let directory = tempfile::tempdir().unwrap();
        // A directory in the place of the file that is written.
        std::fs::create_dir(directory.path().join("overflow.json.new")).unwrap();
        let its = Short::open(directory.path());
        assert_eq!(look(&its, Some(60), 2), Some(Crossing::Began));
        assert_eq!(look(&its, Some(61), 3), None, "once");
        assert!(its.told.lock().is_short);
    }

    #[test]
    fn a_host_that_watches_nothing_is_short_of_nothing() {
        let directory = tempfile::tempdir().unwrap();
        let its = Short::open(directory.path());
        let off = Configured { after_seconds: 0, ..CONFIGURED };
        let look_off = |now_s| its.look(Some(Duration::from_secs(900)), off, now_s * SECOND, now_s * 1000);
        assert_eq!(look_off(1), None);
        assert_eq!((look(&its, Some(60), 2), look_off(3)), (Some(Crossing::Began), Some(Crossing::Ended)));
    }
}
