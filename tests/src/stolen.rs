//! Processor time that a hypervisor gave to other machines.
//!
//! The simulated GPU runs in real time on real processors. Where those are away for a tenth of the time, containers do
//! not send work when they would, and shares of GPU time say something about the hypervisor instead of about gpool.

use std::fs;

/// A failure means nothing when at least this part of the processors' time, 0 to 1, was stolen meanwhile. Scenarios that
/// judge shares were seen to fail from 0.07 on.
pub const TOO_MUCH: f64 = 0.03;

/// What the processors have done since the machine started, in ticks of `/proc/stat`, all processors together.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ProcessorTime {
    stolen: u64,
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
        Some(Self { stolen: *ticks.get(7)?, whole: ticks.iter().sum() })
    }

    /// The part of the time since `earlier` that was stolen, 0 to 1.
    pub fn stolen_since(self, earlier: Self) -> f64 {
        let whole = self.whole.saturating_sub(earlier.whole).max(1);
        self.stolen.saturating_sub(earlier.stolen) as f64 / whole as f64
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_part_of_all_processors_time_is_stolen() {
        let earlier = ProcessorTime::parse("cpu  100 0 100 800 0 0 0 0 50 0\ncpu0 1 2 3 4 5 6 7 8 9 10\n").unwrap();
        let later = ProcessorTime::parse("cpu  150 0 110 830 0 0 0 10 90 0\n").unwrap();
        assert_eq!(earlier, ProcessorTime { stolen: 0, whole: 1000 });
        assert!((later.stolen_since(earlier) - 0.1).abs() < 1e-9, "10 of 100 ticks");
        assert!(later.stolen_since(later).abs() < 1e-9);
    }

    #[test]
    fn an_old_kernel_says_nothing() {
        assert_eq!(ProcessorTime::parse("cpu 1 2 3 4 5 6 7\n"), None);
        assert_eq!(ProcessorTime::parse("intr 1\n"), None);
        assert!(ProcessorTime::now().is_some(), "this machine's kernel does");
    }
}
