//! Processor time that went elsewhere: what a hypervisor gave to other machines, and what only computes beside a scenario.
//!
//! The simulated GPU runs in real time on real processors. Where those are away for a tenth of the time, containers do
//! not send work when they would, and shares of GPU time say something about the hypervisor instead of about gpool. `make
//! test` compiles, checks and downloads beside its scenarios, with the least priority there is; but caches, disks and the kernel's
//! locks have none.

use std::fs;

/// A failure means nothing when at least this part of the processors' time, 0 to 1, was stolen meanwhile. Scenarios that
/// judge shares were seen to fail from 0.07 on.
const TOO_MUCH: f64 = 0.03;
/// The same of time that went to processes with less than the usual priority, which nothing in a scenario has: half of one of
/// two processors.
const TOO_MUCH_BESIDE: f64 = 0.25;

/// What the processors have done since the machine started, in ticks of `/proc/stat`, all processors together.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ProcessorTime {
    stolen: u64,
    niced: u64,
    whole: u64,
}

impl ProcessorTime {
    /// Now. None where the kernel does not say.
    pub fn now() -> Option<Self> {
        Self::parse(&fs::read_to_string("/proc/stat").ok()?)
    }

    /// The line `cpu` of proc_stat(5): user, nice, system, idle, iowait, irq, softirq, steal, and two that are counted in
    /// the first two already.
    fn parse(text: &str) -> Option<Self> {
        let line = text.lines().find_map(|line| line.strip_prefix("cpu "))?;
        let ticks: Vec<u64> = line.split_whitespace().take(8).map(str::parse).collect::<Result<_, _>>().ok()?;
        Some(Self { stolen: *ticks.get(7)?, niced: *ticks.get(1)?, whole: ticks.iter().sum() })
    }

    /// The part of the time since `earlier` that was stolen, 0 to 1.
    pub fn stolen_since(self, earlier: Self) -> f64 {
        part(self.stolen, earlier.stolen, self.whole_since(earlier))
    }

    fn whole_since(self, earlier: Self) -> u64 {
        self.whole.saturating_sub(earlier.whole).max(1)
    }

    /// Where so much of the time since `earlier` went that a failure says nothing; none if it says something.
    pub fn elsewhere_since(self, earlier: Self) -> Option<String> {
        let stolen = self.stolen_since(earlier);
        let niced = part(self.niced, earlier.niced, self.whole_since(earlier));
        let told =
            |part: f64, whose: &str| Some(format!("{:.1} % of the processors' time went to {whose}", part * 100.0));
        match (stolen >= TOO_MUCH, niced >= TOO_MUCH_BESIDE) {
            (true, _) => told(stolen, "other machines"),
            (false, true) => told(niced, "processes of a lower priority"),
            (false, false) => None,
        }
    }
}

fn part(now: u64, before: u64, whole: u64) -> f64 {
    now.saturating_sub(before) as f64 / whole as f64
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_part_of_all_processors_time_is_stolen() {
        let earlier = ProcessorTime::parse("cpu  100 0 100 800 0 0 0 0 50 0\ncpu0 1 2 3 4 5 6 7 8 9 10\n").unwrap();
        let later = |text: &str| ProcessorTime::parse(text).unwrap().elsewhere_since(earlier);
        assert_eq!(earlier, ProcessorTime { stolen: 0, niced: 0, whole: 1000 });
        let told = |part: &str| Some(format!("{part} % of the processors' time went to "));
        let stolen = later("cpu  150 0 110 830 0 0 0 10 90 0\n");
        assert_eq!(stolen, told("10.0").map(|told| told + "other machines"));
        let beside = later("cpu  120 60 110 810 0 0 0 0 90 0\n");
        assert_eq!(beside, told("60.0").map(|told| told + "processes of a lower priority"));
        assert_eq!(later("cpu  150 20 110 818 0 0 0 2 90 0\n"), None, "2 and 20 of 100 ticks");
        assert_eq!(earlier.elsewhere_since(earlier), None);
    }

    #[test]
    fn an_old_kernel_says_nothing() {
        assert_eq!(ProcessorTime::parse("cpu 1 2 3 4 5 6 7\n"), None);
        assert_eq!(ProcessorTime::parse("intr 1\n"), None);
        assert!(ProcessorTime::now().is_some(), "this machine's kernel does");
    }
}
