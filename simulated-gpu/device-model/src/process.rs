//! What single processes have had of the device: how much in all, and when in the last seconds.

use serde::{Deserialize, Serialize};
use std::collections::{BTreeMap, VecDeque};

/// Busy time is sampled over periods of this length, which begin at the clock's multiples of it.
pub const SAMPLE_PERIOD_NS: u64 = 250_000_000;

/// Samples are kept for ten seconds.
pub const SAMPLES_KEPT: u64 = 40;

/// Beyond so many processes the one that has been idle for longest is forgotten.
const PROCESSES_KEPT: usize = 256;

/// How busy a process kept the device in one period.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ProcessSample {
    /// The host pid.
    pub process: u32,
    /// The end of the period, in the device's time.
    pub end_ns: u64,
    /// The part of the period in which a kernel of the process executed, rounded: 1 to 100.
    pub percent: u32,
}

/// What one process has had of the device.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ProcessUsage {
    /// Time in which a kernel of the process executed.
    pub busy_ns: u64,
    samples: Samples,
}

/// One byte for each finished period, since all of this is written out with every change of the device.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
struct Samples {
    /// The number of the period in which the process was last busy.
    period: u64,
    /// Busy time in that period.
    current_ns: u64,
    /// The periods before that one in percent, the latest last. Never begins with a zero.
    percents: VecDeque<u8>,
}

impl Samples {
    fn record(&mut self, start_ns: u64, end_ns: u64) {
        let within = |period: u64| {
            let from_ns = start_ns.max(period * SAMPLE_PERIOD_NS);
            end_ns.min((period + 1) * SAMPLE_PERIOD_NS).saturating_sub(from_ns)
        };
        let last = end_ns.saturating_sub(1) / SAMPLE_PERIOD_NS;
        if last > self.period {
            let oldest = last.saturating_sub(SAMPLES_KEPT);
            if oldest > self.period {
                self.percents.clear();
                (self.period, self.current_ns) = (oldest, 0);
            }
            for period in self.period..last {
                self.percents.push_back(percent(self.current_ns + within(period)));
                self.current_ns = 0;
            }
            while self.percents.len() as u64 > SAMPLES_KEPT || self.percents.front() == Some(&0) {
                self.percents.pop_front();
            }
            self.period = last;
        }
        self.current_ns += within(last);
    }

    /// End and percentage of every finished period of the last ten seconds that was not idle, oldest first.
    fn finished(&self, now_ns: u64) -> impl Iterator<Item = (u64, u8)> {
        let first = self.period - self.percents.len() as u64;
        let all = self.percents.iter().copied().chain([percent(self.current_ns)]);
        let with_ends = all.zip(first..).map(|(percent, period)| ((period + 1) * SAMPLE_PERIOD_NS, percent));
        let kept_ns = SAMPLES_KEPT * SAMPLE_PERIOD_NS;
        with_ends.filter(move |(end_ns, percent)| *percent > 0 && *end_ns <= now_ns && end_ns + kept_ns > now_ns)
    }
}

/// Rounded, so that the sum over many periods errs to neither side.
fn percent(busy_ns: u64) -> u8 {
    ((busy_ns * 100 + SAMPLE_PERIOD_NS / 2) / SAMPLE_PERIOD_NS).min(100) as u8
}

/// A kernel of `process` executed for this stretch of time.
pub(crate) fn record(processes: &mut BTreeMap<u32, ProcessUsage>, process: u32, start_ns: u64, end_ns: u64) {
    if !processes.contains_key(&process) && processes.len() >= PROCESSES_KEPT {
        let idle_longest = processes.iter().min_by_key(|(_, usage)| usage.samples.period).map(|(pid, _)| *pid);
        idle_longest.map(|pid| processes.remove(&pid));
    }
    let usage = processes.entry(process).or_default();
    usage.busy_ns += end_ns - start_ns;
    usage.samples.record(start_ns, end_ns);
}

/// The samples of all processes up to `now_ns`, by time and then by process.
pub(crate) fn samples(processes: &BTreeMap<u32, ProcessUsage>, now_ns: u64) -> Vec<ProcessSample> {
    let of_process = |(process, usage): (&u32, &ProcessUsage)| {
        let process = *process;
        let sample = move |(end_ns, percent)| ProcessSample { process, end_ns, percent: u32::from(percent) };
        usage.samples.finished(now_ns).map(sample).collect::<Vec<_>>()
    };
    let mut all: Vec<ProcessSample> = processes.iter().flat_map(of_process).collect();
    all.sort_by_key(|sample| (sample.end_ns, sample.process));
    all
}

#[cfg(test)]
mod tests {
    use super::*;

    const PERIOD: u64 = SAMPLE_PERIOD_NS;

    #[test]
    fn a_stretch_is_divided_between_periods_whatever_its_pieces() {
        let (start_ns, end_ns) = (PERIOD * 4 + PERIOD / 2, PERIOD * 7 + PERIOD / 4);
        let mut whole = Samples::default();
        whole.record(start_ns, end_ns);
        let mut parts = Samples::default();
        for from_ns in (start_ns..end_ns).step_by(10_000_000) {
            parts.record(from_ns, end_ns.min(from_ns + 10_000_000));
        }
        assert_eq!(whole, parts);
        let finished: Vec<_> = whole.finished(PERIOD * 8).collect();
        assert_eq!(finished, [(PERIOD * 5, 50), (PERIOD * 6, 100), (PERIOD * 7, 100), (PERIOD * 8, 25)]);
        assert_eq!(whole.finished(PERIOD * 8 - 1).count(), 3);
    }

    #[test]
    fn samples_are_kept_for_ten_seconds_and_take_little_room() {
        let mut samples = Samples::default();
        samples.record(0, PERIOD * 1000);
        assert_eq!(samples.percents.len(), 40);
        assert_eq!(samples.finished(PERIOD * 1000).count(), 40);
        assert_eq!(samples.finished(PERIOD * 1030).map(|(end_ns, _)| end_ns).min(), Some(PERIOD * 991));
        assert_eq!(samples.finished(PERIOD * 1040).count(), 0);
        samples.record(PERIOD * 2000, PERIOD * 2000 + PERIOD / 10);
        assert_eq!(samples.finished(PERIOD * 2001).collect::<Vec<_>>(), [(PERIOD * 2001, 10)]);
        assert!(samples.percents.is_empty());
    }

    #[test]
    fn of_many_processes_the_one_idle_for_longest_is_forgotten() {
        let mut processes = BTreeMap::new();
        for process in 0..=PROCESSES_KEPT as u32 {
            let start_ns = u64::from(process) * PERIOD;
            record(&mut processes, process, start_ns, start_ns + PERIOD / 2);
        }
        assert_eq!(processes.len(), PROCESSES_KEPT);
        assert!(!processes.contains_key(&0) && processes.contains_key(&1));
        let newest = samples(&processes, PERIOD * (PROCESSES_KEPT as u64 + 1));
        assert_eq!(newest.len(), 40);
        assert_eq!((newest[39].process, newest[39].percent), (PROCESSES_KEPT as u32, 50));
    }
}
