//! The groups that `gpool run` makes for its command. It removes them itself, unless it is killed: below a job of a batch system, whose own
//! groups go with the job, no later call would find them.

use super::directories;
use crate::procfs;
use gpool_protocol::{HostPid, maker_of_run_cgroup};
use std::collections::BTreeSet;

/// The paths of the groups of `gpool run` in which a process is: of version 1 each hierarchy may have another.
pub fn of(pid: HostPid) -> Vec<String> {
    procfs::text(format!("/proc/{pid}/cgroup")).map(|text| named_in(&text)).unwrap_or_default()
}

fn named_in(text: &str) -> Vec<String> {
    let paths = text.lines().filter_map(|line| line.splitn(3, ':').nth(2));
    let its: BTreeSet<&str> = paths.filter(|path| is_one(path)).collect();
    its.into_iter().map(str::to_owned).collect()
}

fn is_one(path: &str) -> bool {
    path.rsplit('/').next().is_some_and(|name| maker_of_run_cgroup(name).is_some())
}

/// Removes those that are there and empty; of others the kernel refuses it, and nothing waits for them.
pub fn remove(paths: &[String]) {
    for path in paths.iter().filter(|path| is_one(path)) {
        directories(path).iter().for_each(|directory| drop(std::fs::remove_dir(directory)));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_hierarchy_s_group_of_gpool_run_is_found() {
        let name = "gpool-run-4711aaaaaaaaaaaa";
        let text = format!(
            "9:freezer:/slurm/job_7/step_0/{name}\n8:cpu:/slurm/job_7\n7:devices:/slurm/job_7/step_0/task_0/{name}\n\
             6:pids:/slurm/job_7/step_0/{name}\n0::/\n"
        );
        let want = [format!("/slurm/job_7/step_0/{name}"), format!("/slurm/job_7/step_0/task_0/{name}")];
        assert_eq!(named_in(&text), want);
        assert!(named_in(&format!("0::/{name}/below\n1:pids:/docker/gpool-run-x\n")).is_empty());
    }

    /// With the kernel's own groups where this host lets them be made.
    #[test]
    fn an_empty_one_is_removed_and_others_stay() {
        let path = format!("/gpool-run-{}aaaaaaaaaaaa", std::process::id());
        let other = format!("/gpool-other-{}", std::process::id());
        let root = std::path::Path::new(super::super::ROOT);
        let hierarchies = [root.to_owned(), root.join("unified"), root.join("pids")];
        let made: Vec<_> = hierarchies
            .iter()
            .filter(|hierarchy| super::super::is_cgroup(hierarchy))
            .filter(|hierarchy| std::fs::create_dir(hierarchy.join(&path[1..])).is_ok())
            .collect();
        for hierarchy in &made {
            std::fs::create_dir(hierarchy.join(&other[1..])).unwrap();
        }
        remove(&[path.clone(), other.clone(), "/../gpool-run-7aaaaaaaaaaaa".to_owned()]);
        let left: Vec<bool> = made.iter().map(|hierarchy| hierarchy.join(&path[1..]).exists()).collect();
        for hierarchy in &made {
            std::fs::remove_dir(hierarchy.join(&other[1..])).unwrap();
        }
        assert!(!left.contains(&true), "{left:?} of {made:?}");
    }
}
