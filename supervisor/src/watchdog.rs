//! Whether the work goes on: the gatekeeper decides, the sampler has asked NVML, and the attendant has looked after
//! deaths. A thread that merely lives proves nothing, so each is asked or counted.

use crate::lease::Leases;
use crate::service_manager;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

/// The attendant looks twice a second, and works for some milliseconds.
const ATTENDANT_PATIENCE: Duration = Duration::from_secs(10);
/// A sampler that has finished no round for so long hangs in NVML. Calls on a sick GPU have been seen to take half a
/// minute; a restart, which tenants survive, is tried only beyond.
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
    let mut has_complained = false;
    loop {
        let decides = leases.gatekeeper.answers_within(period);
        let now = Instant::now();
        let late = [
            (!decides).then(|| "the gatekeeper does not answer".to_owned()),
            sampler.complaint(leases.progress.sampler.count(), now),
            attendant.complaint(leases.progress.attendant.count(), now),
        ];
        match late.into_iter().flatten().next() {
            None => {
                if std::mem::take(&mut has_complained) {
                    service_manager::status("the work goes on again");
                }
                service_manager::work_goes_on();
            }
            Some(complaint) => {
                leases.progress.complaints.note();
                log!("{complaint}");
                service_manager::status(&complaint);
                has_complained = true;
            }
        }
        if decides {
            std::thread::sleep(period);
        }
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
}
