//! What a process costs the host, and how busy the host is.

use crate::failure::{Context, Failure, Result};
use std::fs;

/// CPU time of all threads of `pid`, also of those that have ended, in nanoseconds.
pub fn cpu_ns(pid: u32) -> Result<u64> {
    let (mut clock, mut time) = (0, libc::timespec { tv_sec: 0, tv_nsec: 0 });
    let pid = libc::pid_t::try_from(pid).context("pid")?;
    // SAFETY: both answers go to live locals.
    let failed =
        unsafe { libc::clock_getcpuclockid(pid, &mut clock) != 0 || libc::clock_gettime(clock, &mut time) != 0 };
    if failed {
        return Err(Failure::new(format!("process {pid} has no CPU clock")));
    }
    Ok(time.tv_sec as u64 * 1_000_000_000 + time.tv_nsec as u64)
}

/// CPU time of the calling thread, in nanoseconds.
pub fn thread_cpu_ns() -> u64 {
    let time = rustix::time::clock_gettime(rustix::time::ClockId::ThreadCPUTime);
    time.tv_sec as u64 * 1_000_000_000 + time.tv_nsec as u64
}

/// Resident memory of `pid` in MiB.
pub fn resident_mib(pid: u32) -> Result<f64> {
    let path = format!("/proc/{pid}/status");
    let status = fs::read_to_string(&path).context(&path)?;
    let kib =
        status.lines().find_map(|line| line.strip_prefix("VmRSS:")?.trim().strip_suffix(" kB")?.parse::<f64>().ok());
    kib.map(|kib| kib / 1024.0).ok_or_else(|| Failure::new(format!("{path} has no VmRSS")))
}

/// Time in which some process of this machine waited for a CPU, in microseconds since its start; none where the kernel
/// does not account for it.
pub fn cpu_wait_us() -> Option<u64> {
    let pressure = fs::read_to_string("/proc/pressure/cpu").ok()?;
    pressure.lines().find(|line| line.starts_with("some"))?.rsplit_once("total=")?.1.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn this_process_has_a_size_and_uses_its_time() {
        let own = std::process::id();
        let before = cpu_ns(own).unwrap();
        while cpu_ns(own).unwrap() == before {}
        assert!(resident_mib(own).unwrap() > 0.5);
    }
}
