//! What exists in a run's namespaces: taken before the run and after it, the two must be equal.

use crate::cgroups;
use std::collections::BTreeSet;
use std::fs;
use std::time::{Duration, Instant};

/// Containers' cgroups and shims end a moment after what started them.
const PATIENCE: Duration = Duration::from_secs(20);

/// Mounts, processes, sockets and cgroup directories, in words.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Census(BTreeSet<String>);

impl Census {
    /// Counts everything now.
    pub fn take(cgroup_parent: &str) -> Self {
        let mut all = BTreeSet::new();
        all.extend(mounts());
        all.extend(processes());
        all.extend(sockets());
        all.extend(containers_cgroups(cgroup_parent));
        Self(all)
    }

    /// What is there now and was not `before`. Things that are about to go are given a moment.
    pub fn left_since(before: &Self, cgroup_parent: &str) -> Vec<String> {
        let deadline = Instant::now() + PATIENCE;
        loop {
            let now = Self::take(cgroup_parent);
            let left: Vec<String> = now.0.difference(&before.0).cloned().collect();
            if left.is_empty() || Instant::now() > deadline {
                return left;
            }
            std::thread::sleep(Duration::from_millis(50));
        }
    }
}

fn mounts() -> Vec<String> {
    let table = fs::read_to_string("/proc/self/mountinfo").unwrap_or_default();
    table.lines().filter_map(|line| line.split(' ').nth(4)).map(|point| format!("mount {point}")).collect()
}

/// Every process of the namespace but kernel threads, which it has none of, and this one's own threads.
fn processes() -> Vec<String> {
    let entries = fs::read_dir("/proc").into_iter().flatten().flatten();
    let pids = entries.filter_map(|entry| entry.file_name().to_str().and_then(|name| name.parse::<u32>().ok()));
    let name = |pid: u32| {
        let name = fs::read_to_string(format!("/proc/{pid}/comm")).ok()?;
        Some(format!("process {pid} {}", name.trim_end()))
    };
    pids.filter_map(name).collect()
}

/// Named sockets of this network namespace; abstract ones and pairs have no path.
fn sockets() -> Vec<String> {
    let table = fs::read_to_string("/proc/net/unix").unwrap_or_default();
    let paths = table.lines().skip(1).filter_map(|line| line.split_whitespace().nth(7));
    paths.filter(|path| path.starts_with('/')).map(|path| format!("socket {path}")).collect()
}

/// The run's parent directory itself stays until the janitor removes it; below it nothing may.
fn containers_cgroups(parent: &str) -> Vec<String> {
    let children = |top: std::path::PathBuf| fs::read_dir(top).into_iter().flatten().flatten();
    let directories = cgroups::directories(parent).into_iter().flat_map(children);
    let is_directory = |entry: &fs::DirEntry| entry.file_type().is_ok_and(|kind| kind.is_dir());
    directories.filter(is_directory).map(|entry| format!("cgroup {}", entry.path().display())).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_there_before_is_not_left_behind() {
        let now = Census::take("gpool-no-such-run");
        assert!(now.0.iter().any(|entry| entry.starts_with("mount /")));
        let nothing_before = Census(BTreeSet::new());
        let missing: Vec<_> = nothing_before.0.difference(&now.0).collect();
        assert!(missing.is_empty(), "what went away is no leftover");
    }
}
