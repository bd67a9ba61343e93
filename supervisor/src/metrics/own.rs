//! What the supervisor itself uses. Prometheus' client libraries call such figures `process_...`, and so does the node exporter those of
//! its own, into whose page a file of `gpool metrics` goes: two of one name spoil that.

use super::families::Family;
use super::seconds;
use super::text::Page;
use rustix::time::{ClockId, clock_gettime};
use std::fs;

/// As of one moment; none of what /proc does not tell.
#[derive(Debug, Default)]
pub struct OwnUse {
    /// Time of processors, in nanoseconds.
    pub cpu_ns: u64,
    /// Memory that is its own and in the host's.
    pub memory_bytes: Option<u64>,
    /// Open descriptors.
    pub descriptors: Option<usize>,
}

impl OwnUse {
    /// Of this process, now.
    pub fn now() -> Self {
        let cpu = clock_gettime(ClockId::ProcessCPUTime);
        let status = fs::read_to_string("/proc/self/status").ok();
        // One of them is there for this look.
        let descriptors = fs::read_dir("/proc/self/fd").ok().map(|all| all.count().saturating_sub(1));
        Self {
            cpu_ns: cpu.tv_sec as u64 * 1_000_000_000 + cpu.tv_nsec as u64,
            memory_bytes: status.as_deref().and_then(resident_bytes),
            descriptors,
        }
    }

    /// Adds its figures.
    pub fn show(&self, page: &mut Page) {
        page.add(Family::OwnProcessors, &[], seconds(self.cpu_ns));
        if let Some(bytes) = self.memory_bytes {
            page.add(Family::OwnMemory, &[], bytes as f64);
        }
        if let Some(count) = self.descriptors {
            page.add(Family::OwnDescriptors, &[], count as f64);
        }
    }
}

/// `VmRSS:` of /proc/PID/status, which is in KiB; see proc(5).
fn resident_bytes(status: &str) -> Option<u64> {
    let text = status.lines().find_map(|line| line.strip_prefix("VmRSS:"))?;
    text.trim().strip_suffix(" kB")?.parse::<u64>().ok()?.checked_mul(1024)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_process_sees_what_it_uses() {
        let before = OwnUse::now();
        let held: Vec<fs::File> = (0..50).map(|_| fs::File::open("/proc/self/status").unwrap()).collect();
        let now = OwnUse::now();
        assert!(now.cpu_ns > before.cpu_ns && now.memory_bytes > Some(1 << 20), "{now:?}");
        assert!(now.descriptors >= Some(held.len()), "{now:?}");
        assert_eq!(resident_bytes("Name:\tx\nVmRSS:\t     12 kB\n"), Some(12 << 10));
        assert_eq!(resident_bytes("Name:\tx\n"), None);
    }
}
