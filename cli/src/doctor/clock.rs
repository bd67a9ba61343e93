//! The clocks: time runs forward, and reading it costs little.

use super::{Outcome, Surroundings};

/// Clock sources that are read without entering the kernel, so that a measurement costs nanoseconds.
const FAST: [&str; 5] = ["tsc", "kvm-clock", "hyperv_clocksource_tsc_page", "xen", "arch_sys_counter"];
const SOURCE: &str = "/sys/devices/system/clocksource/clocksource0/current_clocksource";
/// Differences between two readings of the wall clock that are no fault.
const SLACK_MS: u64 = 5_000;

pub fn check(host: &Surroundings) -> Outcome {
    if let Ok(info) = &host.info
        && info.started_unix_ms > host.now_unix_ms + SLACK_MS
    {
        let seconds = (info.started_unix_ms - host.now_unix_ms) / 1000;
        return Outcome::warn(
            format!("by the wall clock the supervisor was started {seconds} s in the future: the clock was set back"),
            "have it kept by NTP; times of events before that cannot be compared, shares and accounts are not affected",
        );
    }
    let source = std::fs::read_to_string(host.path(SOURCE)).unwrap_or_default();
    match source.trim() {
        "" => Outcome::ok("the kernel does not say which clock source it uses"),
        source if FAST.contains(&source) => Outcome::ok(format!("clock source {source}")),
        source => Outcome::warn(
            format!(
                "the clock source is {source}, which takes a microsecond or more to read: launches and the scheduler slow down"
            ),
            "look into the kernel's log for why it does not use tsc; clocksource=tsc on its command line chooses it",
        ),
    }
}
