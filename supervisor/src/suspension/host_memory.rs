//! What of the host's memory could be had: by anybody, and by a container within its limits.

use std::fs;
use std::path::{Path, PathBuf};

/// Where cgroups are, in version 2 and in hybrid hosts' version 1.
const ROOT: &str = "/sys/fs/cgroup";
/// The files of the limit and of what is used, in bytes, and what in `memory.stat` counts pages of files that the kernel gives up for
/// others: version 2's, and version 1's.
const FILES: [(&str, [&str; 3]); 2] = [
    ("", ["memory.max", "memory.current", "inactive_file "]),
    ("memory", ["memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file "]),
];

/// All of the host's memory and what of it is available, in bytes; nothing where the kernel does not say.
pub fn of_host() -> (u64, u64) {
    let text = fs::read_to_string("/proc/meminfo").unwrap_or_default();
    (in_meminfo(&text, "MemTotal:").unwrap_or(0), in_meminfo(&text, "MemAvailable:").unwrap_or(0))
}

fn in_meminfo(text: &str, key: &str) -> Option<u64> {
    let line = text.lines().find_map(|line| line.strip_prefix(key))?;
    let kib: u64 = line.split_whitespace().next()?.parse().ok()?;
    Some(kib.saturating_mul(1024))
}

/// What the container in this cgroup may take beside what it has, in bytes: the least that it and those that it lies in leave. None if
/// nothing bounds it.
pub fn of_container(cgroup: &str) -> Option<u64> {
    of_container_below(Path::new(ROOT), cgroup)
}

fn of_container_below(root: &Path, cgroup: &str) -> Option<u64> {
    let below = |(hierarchy, files): (&str, [&'static str; 3])| {
        let top = root.join(hierarchy);
        let its = top.join(cgroup.trim_start_matches('/'));
        let up: Vec<PathBuf> = its.ancestors().take_while(|at| at.starts_with(&top)).map(Path::to_path_buf).collect();
        up.into_iter().filter_map(move |at| left(&at, files))
    };
    FILES.into_iter().flat_map(below).min()
}

/// What is left below the limit of one cgroup; none if it has none.
fn left(directory: &Path, [limit, used, given_up]: [&str; 3]) -> Option<u64> {
    let text = |file: &str| fs::read_to_string(directory.join(file)).ok();
    let number = |file: &str| text(file)?.trim().parse::<u64>().ok();
    let lines = text("memory.stat").unwrap_or_default();
    let given_up = lines.lines().find_map(|line| line.strip_prefix(given_up)?.trim().parse::<u64>().ok());
    // Version 2 writes "max", and version 1 a number beyond all memory, which bounds as little.
    let held = number(used)?.saturating_sub(given_up.unwrap_or(0));
    Some(number(limit)?.saturating_sub(held))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_least_that_anything_above_it_leaves_is_what_it_may_have() {
        let root = tempfile::tempdir().unwrap();
        let write = |path: &str, limit: &str, used: &str| {
            let at = root.path().join(path);
            fs::create_dir_all(&at).unwrap();
            fs::write(at.join("memory.max"), limit).unwrap();
            fs::write(at.join("memory.current"), used).unwrap();
        };
        write("pods/one/web", "max\n", "5\n");
        assert_eq!(of_container_below(root.path(), "/pods/one/web"), None);
        write("pods/one", "100\n", "30\n");
        assert_eq!(of_container_below(root.path(), "/pods/one/web"), Some(70));
        write("pods/one/web", "60\n", "5\n");
        assert_eq!(of_container_below(root.path(), "/pods/one/web"), Some(55));
        fs::write(root.path().join("pods/one/web/memory.stat"), "anon 1\ninactive_file 3\n").unwrap();
        assert_eq!(
            of_container_below(root.path(), "/pods/one/web"),
            Some(58),
            "what the kernel gives up is no hindrance"
        );
        write("pods/one/web", "60\n", "90\n");
        assert_eq!(of_container_below(root.path(), "/pods/one/web"), Some(0), "beyond a limit that was lowered");
        let old = root.path().join("memory/docker/a");
        fs::create_dir_all(&old).unwrap();
        fs::write(old.join("memory.limit_in_bytes"), "9223372036854771712\n").unwrap();
        fs::write(old.join("memory.usage_in_bytes"), "1\n").unwrap();
        assert_eq!(of_container_below(root.path(), "/docker/a"), Some(9_223_372_036_854_771_711));
    }

    #[test]
    fn the_kernel_s_own_figures_are_read() {
        let text = "MemTotal:       24595212 kB\nMemFree:          100 kB\nMemAvailable:   23000000 kB\n";
        assert_eq!(in_meminfo(text, "MemTotal:"), Some(24_595_212 * 1024));
        assert_eq!(in_meminfo(text, "MemAvailable:"), Some(23_000_000 * 1024));
        assert_eq!(in_meminfo(text, "HugePages:"), None);
        let (all, available) = of_host();
        assert!(available <= all && all > 0);
    }
}
