//! Whether the host has the memory that containers may have of it beside that of their GPUs.

use super::{Outcome, Surroundings};
use gpool_protocol::format_bytes;
use std::fs;

/// More than this part of a host's memory is not to be page-locked: what else runs there would be starved.
const MOST_PERMILLE: u64 = 800;

pub fn check(host: &Surroundings) -> Outcome {
    let bytes = host.configuration().spill.bytes();
    if bytes == 0 {
        return Outcome::ok("containers have no memory of the host's beside that of their GPUs ([spill] memory)");
    }
    let Some(total_bytes) = memory_total(host) else {
        return Outcome::skip("the kernel does not say how much memory there is");
    };
    if bytes > total_bytes / 1000 * MOST_PERMILLE {
        return Outcome::warn(
            format!(
                "[spill] memory lets containers page-lock {} of the host's {}",
                format_bytes(bytes),
                format_bytes(total_bytes)
            ),
            "let it be a part that what else runs here can do without, and run gpool config reload",
        );
    }
    Outcome::ok(format!("containers may have {} of the host's {}", format_bytes(bytes), format_bytes(total_bytes)))
}

/// All memory of the host, in bytes.
fn memory_total(host: &Surroundings) -> Option<u64> {
    let text = fs::read_to_string(host.path("/proc/meminfo")).ok()?;
    let line = text.lines().find_map(|line| line.strip_prefix("MemTotal:"))?;
    let kib: u64 = line.trim().strip_suffix("kB")?.trim().parse().ok()?;
    kib.checked_mul(1024)
}

#[cfg(test)]
mod tests {
    use super::super::State;
    use super::super::tests::healthy;
    use super::*;
    use std::path::Path;

    /// What is said on a host with so much memory, where containers may have so much of it.
    fn said(meminfo: Option<&str>, memory: &str) -> (State, String) {
        let root = tempfile::tempdir().unwrap();
        let mut host = healthy(root.path());
        if let Some(text) = meminfo {
            fs::create_dir_all(root.path().join("proc")).unwrap();
            fs::write(root.path().join("proc/meminfo"), text).unwrap();
        }
        let text = if memory.is_empty() { String::new() } else { format!("[spill]\nmemory = \"{memory}\"\n") };
        host.configuration = gpool_configuration::parse(Path::new("config.toml"), &text);
        let outcome = check(&host);
        (outcome.state, format!("{}; {}", outcome.found, outcome.remedy.unwrap_or_default()))
    }

    #[test]
    fn what_the_host_cannot_spare_is_said() {
        let has_100_gib = Some("MemTotal:       104857600 kB\nMemFree:        1 kB\n");
        assert_eq!(said(has_100_gib, "").0, State::Ok);
        assert_eq!(said(None, "64GiB").0, State::Skip, "nobody knows how much there is");
        let (state, text) = said(has_100_gib, "64GiB");
        assert!(state == State::Ok && text.contains("64GiB of the host's 100GiB"), "{text}");
        let (state, text) = said(has_100_gib, "640GiB");
        assert!(state == State::Warn && text.contains("page-lock 640GiB"), "{text}");
    }
}
