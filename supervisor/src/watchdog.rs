//! Whether the work goes on: the gatekeeper decides, the attendant has looked after deaths, and the sampler has asked NVML. A
//! thread that merely lives proves nothing, so each is asked or counted. Without the first two nobody is served. Without the
//! sampler everybody is, and whoever keeps it waiting, as a sick GPU may, would keep the next supervisor's as well: so it is told
//! and nobody is killed for it.

use crate::lease::Leases;
use crate::service_manager;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

/// The attendant looks twice a second, and works for some milliseconds.
const ATTENDANT_PATIENCE: Duration = Duration::from_secs(10);
/// A sampler that has finished no round for so long hangs. Each of several sick GPUs may take some seconds of a round.
const SAMPLER_PATIENCE: Duration = Duration::from_secs(90);
/// Looks in the time that the service manager waits for a word.
const LOOKS: u32 = 4;

/// Rounds that a thread has begun.
#[derive(Debug, Default)]
pub struct Rounds(AtomicU64);

impl Rounds {
    /// Counts one.
    pub fn note(&self) {
        self.0.fetch_add(1, Ordering::Relaxed);
    }

    /// How many so far.
    pub fn count(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }
}

/// How far the threads have come that nobody waits for.
#[derive(Debug, Default)]
pub struct Progress {
    /// Once a second.
    pub sampler: Rounds,
    /// At least twice a second.
    pub attendant: Rounds,
    /// Looks after which the service manager was told nothing.
    pub complaints: Rounds,
}

/// Tells the service manager that the work goes on, for as long as it does; runs on its own thread.
pub fn watch(leases: &Leases, patience: Duration) {
    let period = patience / LOOKS;
    let now = Instant::now();
    let mut sampler = Watched::new("the sampler", SAMPLER_PATIENCE, now);
    let mut attendant = Watched::new("the attendant", ATTENDANT_PATIENCE, now);
    let mut told = None;
    loop {
        let decides = leases.gatekeeper.answers_within(period);
        let now = Instant::now();
        let gatekeeper = (!decides).then(|| "the gatekeeper does not answer".to_owned());
        let stands = gatekeeper.or_else(|| attendant.complaint(leases.progress.attendant.count(), now));
        let lags = sampler.complaint(leases.progress.sampler.count(), now);
        let state = State::of(stands, lags);
        let complaint = state.complaint();
        if let Some(complaint) = complaint.filter(|_| state.is_news_after(told.as_ref())) {
            log!("{complaint}");
        }
        match complaint {
            Some(complaint) => service_manager::status(complaint),
            None if told.as_ref().is_some_and(|told: &State| told.complaint().is_some()) => {
                service_manager::status("the work goes on again");
            }
            None => {}
        }
        match state {
            State::Stands(_) => leases.progress.complaints.note(),
            State::Works | State::Lags(_) => service_manager::work_goes_on(),
        }
        told = Some(state);
        if decides {
            std::thread::sleep(period);
        }
    }
}

/// What a look has found.
#[derive(Debug, PartialEq, Eq)]
enum State {
    /// All of them work.
    Works,
    /// The sampler does not, which is told.
    Lags(String),
    /// Somebody does not without whom nobody is served: the service manager is not told that the work goes on.
    Stands(String),
}

impl State {
    fn of(stands: Option<String>, lags: Option<String>) -> Self {
        match (stands, lags) {
            (Some(complaint), _) => Self::Stands(complaint),
            (None, Some(complaint)) => Self::Lags(complaint),
            (None, None) => Self::Works,
        }
    }

    fn complaint(&self) -> Option<&str> {
        match self {
            Self::Works => None,
            Self::Lags(complaint) | Self::Stands(complaint) => Some(complaint),
        }
    }

    /// Whether the log is to have it: what lags may do so for hours, and is told once.
    fn is_news_after(&self, before: Option<&Self>) -> bool {
        !matches!((self, before), (Self::Lags(_), Some(Self::Lags(_))))
    }
}

/// A count that should grow.
struct Watched {
    name: &'static str,
    patience: Duration,
    count: u64,
    since: Instant,
}

impl Watched {
    fn new(name: &'static str, patience: Duration, now: Instant) -> Self {
        Self { name, patience, count: 0, since: now }
    }

    /// What there is to complain of now that the count is `count`.
    fn complaint(&mut self, count: u64, now: Instant) -> Option<String> {
        if count != self.count {
            (self.count, self.since) = (count, now);
        }
        let silent = now.saturating_duration_since(self.since);
        (silent > self.patience).then(|| format!("{} has begun no round for {} s", self.name, silent.as_secs()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_thread_that_lives_and_does_not_work_is_found() {
        let start = Instant::now();
        let after = |seconds| start + Duration::from_secs(seconds);
        let rounds = Rounds::default();
        let mut watched = Watched::new("the sampler", Duration::from_secs(10), start);
        assert_eq!(watched.complaint(rounds.count(), after(10)), None);
        rounds.note();
        assert_eq!(watched.complaint(rounds.count(), after(15)), None);
        assert_eq!(watched.complaint(rounds.count(), after(25)), None);
        let complaint = watched.complaint(rounds.count(), after(26)).unwrap();
        assert_eq!(complaint, "the sampler has begun no round for 11 s");
        rounds.note();
        assert_eq!(watched.complaint(rounds.count(), after(27)), None, "it has come back");
    }

    #[test]
    fn a_sampler_that_hangs_is_told_once_and_nobody_is_killed_for_it() {
        let complaint = |text: &str| Some(text.to_owned());
        let lags = State::of(None, complaint("the sampler has begun no round for 91 s"));
        assert_eq!(lags, State::Lags("the sampler has begun no round for 91 s".to_owned()));
        assert!(lags.is_news_after(Some(&State::Works)) && !lags.is_news_after(Some(&State::Lags(String::new()))));
        let stands = State::of(complaint("the attendant"), complaint("the sampler"));
        assert_eq!(stands, State::Stands("the attendant".to_owned()));
        assert!(stands.is_news_after(Some(&stands)), "whoever is killed for it finds it in the log");
        assert_eq!(State::of(None, None), State::Works);
    }
}
