//! What the device has seen: who ran for how long and who held what.

use crate::process::{self, ProcessSample, ProcessUsage};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

/// Utilisation is that of a window of a sixth of a second, the shortest sample period that the documentation of
/// nvmlDeviceGetUtilizationRates names.
const WINDOW_NS: u64 = 166_666_667;

/// Power with nobody on the device, and how much more it is with contexts, and with work on top. Round figures of a board of this
/// kind: an H100 was measured at 77 W, 134 W and 674 W.
const ALONE_WATTS: u64 = 80;
const CONTEXT_WATTS: u64 = 60;
const WORK_WATTS: u64 = 500;

/// What one owner has had of the device.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct OwnerUsage {
    /// Time in which a kernel of the owner executed; beside other clients of an MPS server, the part of it that it had of
    /// the device, so that owners together never have more than the device's busy time.
    pub busy_ns: u64,
    /// Kernels completed, and copies and memsets that ran like kernels.
    pub kernels: u64,
    /// Memory held now, contexts included.
    pub bytes_now: u64,
    /// The most memory ever held, contexts included.
    pub bytes_peak: u64,
}

/// The device's own record. Owners stay in it after they are gone.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Meter {
    /// When the device was made.
    pub started_ns: u64,
    /// Up to when the record goes.
    pub now_ns: u64,
    /// Time in which a kernel executed; once, however many did.
    pub busy_ns: u64,
    /// Time in which contexts were exchanged. Not part of `busy_ns`.
    pub switch_ns: u64,
    /// Time in which there was at least one context.
    pub context_ns: u64,
    /// Time in which at least one context had work.
    pub pending_ns: u64,
    /// By owner, which is the cgroup path of the process.
    pub owners: BTreeMap<String, OwnerUsage>,
    /// By host pid. Processes stay in it after they are gone, until more than 256 are there.
    pub processes: BTreeMap<u32, ProcessUsage>,
    recent: RecentBusy,
}

impl Meter {
    pub(crate) fn new(now_ns: u64) -> Self {
        Self { started_ns: now_ns, now_ns, ..Self::default() }
    }

    /// Time since the device was made.
    pub fn elapsed_ns(&self) -> u64 {
        self.now_ns - self.started_ns
    }

    /// Time in which the device did nothing: neither a kernel nor a switch.
    pub fn idle_ns(&self) -> u64 {
        self.elapsed_ns() - self.busy_ns - self.switch_ns
    }

    /// What it has drawn since it was made, millijoules.
    pub fn energy_millijoules(&self) -> u64 {
        let at_work_ns = self.busy_ns + self.switch_ns;
        let nanowatt_seconds =
            [(self.elapsed_ns(), ALONE_WATTS), (self.context_ns, CONTEXT_WATTS), (at_work_ns, WORK_WATTS)];
        let sum: u128 = nanowatt_seconds.iter().map(|(ns, watts)| u128::from(*ns) * u128::from(*watts)).sum();
        u64::try_from(sum / 1_000_000).unwrap_or(u64::MAX)
    }

    /// Busy time in the last whole window of 166 ms of the clock, in thousandths.
    pub fn recent_busy_permille(&self) -> u32 {
        u32::try_from(self.recent.last_whole_window(self.now_ns) * 1000 / WINDOW_NS).unwrap_or(1000)
    }

    /// How busy each process kept the device in the finished sampling periods of the last ten seconds, by time and
    /// then by process. Periods in which a process was idle are left out.
    pub fn process_samples(&self) -> Vec<ProcessSample> {
        process::samples(&self.processes, self.now_ns)
    }

    /// Kernels executed for this stretch of time.
    pub(crate) fn busy(&mut self, start_ns: u64, end_ns: u64) {
        self.busy_ns += end_ns - start_ns;
        self.pending_ns += end_ns - start_ns;
        self.recent.record(start_ns, end_ns);
    }

    /// Of such a stretch, which began at `start_ns`, a kernel of `process`, which works for `owner`, had `done_ns`.
    pub(crate) fn execute(&mut self, process: u32, owner: &str, start_ns: u64, done_ns: u64, complete: bool) {
        if done_ns > 0 {
            process::record(&mut self.processes, process, start_ns, start_ns + done_ns);
        }
        self.change(owner, |usage| {
            usage.busy_ns += done_ns;
            usage.kernels += u64::from(complete);
        });
    }

    /// A switch went on for this long. Only a context with work is ever switched to.
    pub(crate) fn switch(&mut self, elapsed_ns: u64) {
        self.switch_ns += elapsed_ns;
        self.pending_ns += elapsed_ns;
    }

    pub(crate) fn hold(&mut self, owner: &str, bytes: u64) {
        self.change(owner, |usage| {
            usage.bytes_now += bytes;
            usage.bytes_peak = usage.bytes_peak.max(usage.bytes_now);
        });
    }

    pub(crate) fn release(&mut self, owner: &str, bytes: u64) {
        self.change(owner, |usage| usage.bytes_now -= bytes);
    }

    fn change(&mut self, owner: &str, change: impl FnOnce(&mut OwnerUsage)) {
        match self.owners.get_mut(owner) {
            Some(usage) => change(usage),
            None => change(self.owners.entry(owner.to_owned()).or_default()),
        }
    }
}

/// Busy time in the current window of the clock and in the one before.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
struct RecentBusy {
    window: u64,
    current_ns: u64,
    previous_ns: u64,
}

impl RecentBusy {
    fn record(&mut self, start_ns: u64, end_ns: u64) {
        let within = |window: u64| {
            let from_ns = start_ns.max(window * WINDOW_NS);
            end_ns.min((window + 1) * WINDOW_NS).saturating_sub(from_ns)
        };
        let last = end_ns.saturating_sub(1) / WINDOW_NS;
        if last > self.window {
            let carried_ns = if last == self.window + 1 { self.current_ns } else { 0 };
            self.previous_ns = carried_ns + within(last - 1);
            self.current_ns = 0;
            self.window = last;
        }
        self.current_ns += within(last);
    }

    fn last_whole_window(&self, now_ns: u64) -> u64 {
        match (now_ns / WINDOW_NS).checked_sub(self.window) {
            Some(0) => self.previous_ns,
            Some(1) => self.current_ns,
            Some(_) | None => 0,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn recent_busy_does_not_depend_on_the_steps() {
        let (start_ns, end_ns) = (WINDOW_NS / 2, WINDOW_NS * 2 + WINDOW_NS / 4);
        let mut whole = RecentBusy::default();
        whole.record(start_ns, end_ns);
        let mut parts = RecentBusy::default();
        for from_ns in (start_ns..end_ns).step_by(7_000_000) {
            parts.record(from_ns, end_ns.min(from_ns + 7_000_000));
        }
        assert_eq!(whole, parts);
        assert_eq!(whole.last_whole_window(WINDOW_NS * 2 + 1), WINDOW_NS);
        assert_eq!(whole.last_whole_window(WINDOW_NS * 3 + 1), WINDOW_NS / 4);
        assert_eq!(whole.last_whole_window(WINDOW_NS * 4 + 1), 0);
    }
}
