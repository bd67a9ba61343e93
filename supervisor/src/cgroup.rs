//! A container's cgroup, found from its init and read from the host, cgroup v1 and v2.

mod bpf;
pub mod devices;
pub mod openings;
pub mod run_groups;

use crate::procfs::{self, WatchedProcess};
use gpool_protocol::HostPid;
use rustix::process::{Signal, pidfd_send_signal};
use std::collections::{BTreeSet, VecDeque};
use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

/// How long the kernel may take to freeze a cgroup.
const FREEZE_PATIENCE: Duration = Duration::from_secs(2);
/// Processes that are being started while others are killed are found in the next round.
const KILL_ROUNDS: usize = 20;
/// No more groups of a container are looked into, in each hierarchy, each time: whoever may write to its own makes as many as it likes.
const GROUPS: usize = 1024;

/// Of linux/magic.h: the file systems of versions 1 and 2.
const CGROUP_SUPER_MAGIC: i64 = 0x0027_e0eb;
const CGROUP2_SUPER_MAGIC: i64 = 0x6367_7270;

/// The controllers whose line in /proc/PID/cgroup names the container, best first. The unified hierarchy comes before all but the
/// first, and before that too where its group has the same name: it is the whole container's then. On a hybrid host runc before 1.1
/// leaves containers in their starter's group there; and where version 2 is in use alone a process may still be in groups of
/// others that nobody has mounted.
const V1_CONTROLLERS: [&str; 4] = ["devices", "memory", "freezer", "pids"];

/// Path of the process's cgroup, as the host's /proc shows it. None for the root cgroup: that is no container.
pub fn path_of(pid: HostPid) -> Option<String> {
    known_path_of(pid).ok().flatten()
}

/// The same, where a process that cannot be looked at must not pass for one in the root cgroup.
///
/// # Errors
/// When the process has ended.
pub fn known_path_of(pid: HostPid) -> std::io::Result<Option<String>> {
    Ok(path_in(&procfs::text(format!("/proc/{pid}/cgroup"))?))
}

/// The same of a thread of the process that lives: with version 1, one whose first thread has ended is said to be in none.
pub fn path_of_a_thread(pid: HostPid) -> Option<String> {
    let threads = std::fs::read_dir(format!("/proc/{pid}/task")).ok()?;
    threads.flatten().find_map(|thread| path_in(&procfs::text(thread.path().join("cgroup")).ok()?))
}

fn path_in(text: &str) -> Option<String> {
    let entries: Vec<(&str, &str)> = text
        .lines()
        .filter_map(|line| {
            let mut parts = line.splitn(3, ':');
            let (_, controllers, path) = (parts.next()?, parts.next()?, parts.next()?);
            (path != "/" && !path.is_empty()).then_some((controllers, path))
        })
        .collect();
    let unified = entries.iter().find(|(controllers, _)| controllers.is_empty());
    let of = |wanted: &str| {
        entries.iter().find(|(controllers, _)| controllers.split(',').any(|controller| controller == wanted))
    };
    let [first, others @ ..] = V1_CONTROLLERS;
    let name = |(_, path): &(&str, &str)| path.rsplit('/').next().map(str::to_owned);
    let is_alike = |its: &&(&str, &str)| of(first).is_none_or(|first| name(first) == name(its));
    let found = unified.filter(is_alike).or(of(first)).or_else(|| others.into_iter().find_map(of));
    found.map(|(_, path)| (*path).to_owned())
}

/// Whether any process is left in the cgroup `path` or below it, in whatever hierarchy holds it.
pub fn is_populated(path: &str) -> bool {
    directories(path).iter().any(|directory| populated(directory).unwrap_or_else(|| holds_processes(directory)))
}

/// Whether the cgroup `path` has been handed to the user `uid`, in every hierarchy that has it.
pub fn is_owned_by(path: &str, uid: u32) -> bool {
    let found = directories(path);
    let is_its = |directory: &PathBuf| fs::metadata(directory).is_ok_and(|found| found.uid() == uid);
    !found.is_empty() && found.iter().all(is_its)
}

/// Whether the process is in the cgroup `path` or below it.
pub fn holds(path: &str, process: &WatchedProcess) -> bool {
    // Asked last: a process that lives has its pid to itself.
    has(path, process.name.pid) && !process.has_ended()
}

/// Whether what has this pid now is. That of one whose first thread has ended its other threads tell.
pub fn has(path: &str, pid: HostPid) -> bool {
    let its = path_of(pid).or_else(|| path_of_a_thread(pid));
    its.is_some_and(|its| is_at_or_below(path, &its))
}

/// Whether the cgroup `its` is `path` or below it.
pub fn is_at_or_below(path: &str, its: &str) -> bool {
    its.strip_prefix(path).is_some_and(|rest| rest.is_empty() || rest.starts_with('/'))
}

/// Whether the cgroup `path` is frozen, by itself or with what it lies in: its processes can do and say nothing.
pub fn is_frozen(path: &str) -> bool {
    directories(path).iter().any(|directory| is_frozen_directory(directory))
}

fn is_frozen_directory(directory: &Path) -> bool {
    let text = |name| fs::read_to_string(directory.join(name)).unwrap_or_default();
    // The first is version 2's, the second version 1's; FREEZING is as good as FROZEN.
    text("cgroup.events").lines().any(|line| line == "frozen 1") || text("freezer.state").starts_with("FR")
}

/// Freezes the cgroup `path` and waits until it is; false if it is not within two seconds, or cannot be.
pub fn freeze(path: &str) -> bool {
    let deadline = Instant::now() + FREEZE_PATIENCE;
    // Version 2's file, and version 1's: each hierarchy has one of them or none.
    for directory in directories(path) {
        for (file, word) in [("cgroup.freeze", "1"), ("freezer.state", "FROZEN")] {
            write_existing(&directory.join(file), word);
        }
    }
    while !is_wholly_frozen(path) {
        if Instant::now() > deadline {
            return false;
        }
        std::thread::sleep(Duration::from_millis(10));
    }
    true
}

fn is_wholly_frozen(path: &str) -> bool {
    let says = |directory: &PathBuf, file: &str, line: &str| {
        fs::read_to_string(directory.join(file)).is_ok_and(|text| text.lines().any(|said| said == line))
    };
    directories(path)
        .iter()
        .any(|directory| says(directory, "cgroup.events", "frozen 1") || says(directory, "freezer.state", "FROZEN"))
}

/// Kills all processes in the cgroup `path` and below it, also those that begin meanwhile; those that were there.
pub fn kill(path: &str) -> BTreeSet<HostPid> {
    let mut killed = BTreeSet::new();
    for _ in 0..KILL_ROUNDS {
        let (found, is_all) = processes_in(path);
        if !is_all {
            // The kernel finds them all, from Linux 5.14 on with version 2.
            directories(path).iter().for_each(|directory| write_existing(&directory.join("cgroup.kill"), "1"));
        }
        let processes: Vec<WatchedProcess> =
            found.into_iter().filter_map(|pid| WatchedProcess::open(pid).ok()).collect();
        // Asked again with the pidfd in hand: the pid may have been another's when the list was read.
        for process in processes.iter().filter(|process| holds(path, process)) {
            if pidfd_send_signal(&process.pidfd, Signal::KILL).is_ok() {
                killed.insert(process.name.pid);
            }
        }
        let_die(path);
        if processes.is_empty() {
            break;
        }
        std::thread::sleep(Duration::from_millis(5));
    }
    killed
}

/// Has those die who were sent SIGKILL: a frozen process of version 1 does not even take that. Whether anybody was frozen so, and goes
/// on now.
pub fn let_die(path: &str) -> bool {
    let mut was_frozen = false;
    for file in directories(path).iter().map(|directory| directory.join("freezer.state")) {
        was_frozen |= fs::read_to_string(&file).is_ok_and(|state| state.starts_with("FR"));
        write_existing(&file, "THAWED");
    }
    was_frozen
}

/// Writes to a control file, if there is one. What the kernel makes of it is seen by its effect.
fn write_existing(file: &Path, word: &str) {
    if file.exists() {
        let _ = fs::write(file, word);
    }
}

/// The processes in the cgroup `path` and below it, by the pids that the host knows, and whether these are all: of more groups than are
/// looked into, those of the upper ones are found.
pub fn processes_in(path: &str) -> (BTreeSet<HostPid>, bool) {
    let (mut processes, mut is_all) = (BTreeSet::new(), true);
    for directory in directories(path) {
        is_all &= collect_some(directory, GROUPS, &mut processes);
    }
    (processes, is_all)
}

/// The same of the first groups that are found, so many in each hierarchy.
pub fn processes_in_some(path: &str, groups: usize) -> BTreeSet<HostPid> {
    let mut processes = BTreeSet::new();
    directories(path).into_iter().for_each(|directory| {
        collect_some(directory, groups, &mut processes);
    });
    processes
}

/// Whether there were no more groups.
fn collect_some(hierarchy: PathBuf, groups: usize, processes: &mut BTreeSet<HostPid>) -> bool {
    let (mut found, mut is_all) = (VecDeque::from([hierarchy]), true);
    for looked_at in 0..groups {
        let Some(directory) = found.pop_front() else { break };
        let text = fs::read_to_string(directory.join("cgroup.procs")).unwrap_or_default();
        processes.extend(text.lines().filter_map(|line| line.trim().parse().ok().map(HostPid)));
        // What will not be looked at need not be kept.
        let left = (groups - looked_at - 1).saturating_sub(found.len());
        let entries = fs::read_dir(&directory).into_iter().flatten().flatten();
        let mut below = entries.filter(|entry| entry.file_type().is_ok_and(|kind| kind.is_dir()));
        found.extend(below.by_ref().take(left).map(|entry| entry.path()));
        is_all &= below.next().is_none();
    }
    is_all && found.is_empty()
}

/// Where cgroups are.
const ROOT: &str = "/sys/fs/cgroup";

/// Whether version 2 is the only one of this host.
pub fn is_version_2_alone() -> bool {
    is_of(Path::new(ROOT), &[CGROUP2_SUPER_MAGIC])
}

/// The directory of `path` where version 2 is the only one; none on a hybrid host, and of a cgroup that is not there.
pub fn directory_of_version_2(path: &str) -> Option<PathBuf> {
    directories(path).into_iter().next().filter(|_| is_version_2_alone())
}

/// The group `path` of version 2 and those below it, so many at most, by the inodes of their directories, which is what the kernel calls
/// them; none where it is in no hierarchy of version 2, or there are more.
pub fn groups_of_version_2(path: &str, most: usize) -> Option<Vec<u64>> {
    let top = directories(path).into_iter().find(|directory| is_of(directory, &[CGROUP2_SUPER_MAGIC]))?;
    let mut found = Vec::from([(fs::metadata(&top).ok()?.ino(), top)]);
    let mut looked_at = 0;
    while let Some((_, directory)) = found.get(looked_at) {
        let entries = fs::read_dir(directory).into_iter().flatten().flatten();
        let below = entries.filter(|entry| entry.file_type().is_ok_and(|kind| kind.is_dir()));
        let below: Vec<_> = below.filter_map(|entry| Some((entry.metadata().ok()?.ino(), entry.path()))).collect();
        found.extend(below);
        looked_at += 1;
        if found.len() > most {
            return None;
        }
    }
    Some(found.into_iter().map(|(group, _)| group).collect())
}

fn is_of(path: &Path, kinds: &[i64]) -> bool {
    path.is_dir() && rustix::fs::statfs(path).is_ok_and(|found| kinds.contains(&found.f_type))
}

/// The directories that `path` names: one on cgroup v2, one per controller on v1.
fn directories(path: &str) -> Vec<PathBuf> {
    let relative = path.trim_start_matches('/');
    if relative.is_empty() || Path::new(relative).components().any(|part| part.as_os_str() == "..") {
        return Vec::new();
    }
    let root = Path::new(ROOT);
    let mut hierarchies = vec![root.to_owned(), root.join("unified")];
    hierarchies.extend(V1_CONTROLLERS.iter().map(|controller| root.join(controller)));
    hierarchies.into_iter().map(|hierarchy| hierarchy.join(relative)).filter(|path| is_cgroup(path)).collect()
}

/// Whether `path` is a folder of a cgroup file system. Where no cgroup2 is mounted, crun (tried: 1.8.1) writes an
/// ordinary folder with an ordinary `cgroup.procs` instead, and leaves both when the container has ended.
fn is_cgroup(path: &Path) -> bool {
    is_of(path, &[CGROUP_SUPER_MAGIC, CGROUP2_SUPER_MAGIC])
}

/// What the kernel says of a cgroup and all below it, however many those are; none of version 1, which says nothing.
fn populated(directory: &Path) -> Option<bool> {
    let text = fs::read_to_string(directory.join("cgroup.events")).ok()?;
    text.lines().find_map(|line| line.strip_prefix("populated ")).map(|said| said != "0")
}

fn holds_processes(directory: &Path) -> bool {
    let here = fs::read_to_string(directory.join("cgroup.procs")).is_ok_and(|procs| !procs.trim().is_empty());
    here || fs::read_dir(directory)
        .into_iter()
        .flatten()
        .flatten()
        .any(|entry| entry.file_type().is_ok_and(|kind| kind.is_dir()) && holds_processes(&entry.path()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_container_is_found_on_every_layout() {
        assert_eq!(path_in("0::/system.slice/docker-1.scope\n"), Some("/system.slice/docker-1.scope".into()));
        let hybrid = "5:devices:/docker/1\n4:memory:/docker/1\n0::/\n";
        assert_eq!(path_in(hybrid), Some("/docker/1".into()));
        let starters = "5:devices:/docker/1\n0::/system.slice/docker.service\n";
        assert_eq!(path_in(starters), Some("/docker/1".into()));
        let alone = "5:devices:/\n4:memory:/outside\n0::/docker/1\n";
        assert_eq!(path_in(alone), Some("/docker/1".into()));
        let run = "5:devices:/user.slice/gpool-run-7\n0::/user.slice/user-0.slice/session-1.scope/gpool-run-7\n";
        assert_eq!(path_in(run), Some("/user.slice/user-0.slice/session-1.scope/gpool-run-7".into()));
        let session = "5:devices:/\n0::/user.slice/session-1.scope\n";
        assert_eq!(path_in(session), Some("/user.slice/session-1.scope".into()));
        assert_eq!(path_in("12:cpu,cpuacct:/x\n11:pids:/docker/2\n"), Some("/docker/2".into()));
        assert_eq!(path_in("5:devices:/\n0::/\n"), None);
    }

    #[test]
    fn a_group_of_any_name_is_below_its_container() {
        let file = tempfile::NamedTempFile::new().unwrap();
        fs::write(&file, b"0::/docker/1/\xff\xfe\n").unwrap();
        let its = path_in(&procfs::text(file.path()).unwrap()).unwrap();
        assert!(is_at_or_below("/docker/1", &its) && !is_at_or_below("/docker/1/a", &its));
    }

    #[test]
    fn of_more_groups_than_are_looked_at_the_upper_ones_are() {
        let root = tempfile::tempdir().unwrap();
        let mut pid = 0;
        let mut group = |path: &str| {
            pid += 1;
            fs::create_dir_all(root.path().join(path)).unwrap();
            fs::write(root.path().join(path).join("cgroup.procs"), format!("{pid}\n")).unwrap();
        };
        ["", "a", "b", "a/x", "b/x", "b/x/y"].into_iter().for_each(&mut group);
        let found = |groups| {
            let mut processes = BTreeSet::new();
            let is_all = collect_some(root.path().to_owned(), groups, &mut processes);
            (processes.iter().map(|pid| pid.0).collect::<Vec<u32>>(), is_all)
        };
        assert_eq!((found(3), found(100)), ((vec![1, 2, 3], false), (vec![1, 2, 3, 4, 5, 6], true)));
        assert_eq!((found(0), found(4).0.len()), ((vec![], false), 4));
        assert_eq!((found(5).1, found(6).1), (false, true));
    }

    #[test]
    fn a_path_that_climbs_names_nothing() {
        assert!(directories("/../../etc").is_empty());
        assert!(!is_populated("/gpool-no-such-cgroup"));
        assert_eq!(processes_in("/gpool-no-such-cgroup"), (BTreeSet::new(), true));
    }

    #[test]
    fn a_folder_that_only_looks_like_a_cgroup_is_none() {
        let root = tempfile::tempdir().unwrap();
        fs::write(root.path().join("cgroup.procs"), "7\n").unwrap();
        assert!(!is_cgroup(root.path()) && !is_cgroup(&root.path().join("absent")));
        let own = fs::read_to_string("/proc/self/mountinfo").unwrap();
        let mut mounts =
            own.lines().filter(|line| line.contains(" - cgroup")).filter_map(|line| line.split(' ').nth(4));
        assert!(mounts.all(|mounted| is_cgroup(Path::new(mounted))));
    }

    #[test]
    fn a_cgroup_is_frozen_on_either_version() {
        let root = tempfile::tempdir().unwrap();
        assert!(!is_frozen_directory(root.path()));
        for (file, text, frozen) in [
            ("cgroup.events", "populated 1\nfrozen 0\n", false),
            ("cgroup.events", "populated 1\nfrozen 1\n", true),
            ("freezer.state", "THAWED\n", false),
            ("freezer.state", "FREEZING\n", true),
        ] {
            let path = root.path().join(file);
            fs::write(&path, text).unwrap();
            assert_eq!(is_frozen_directory(root.path()), frozen, "{text}");
            fs::remove_file(path).unwrap();
        }
        assert!(!is_frozen("/gpool-no-such-cgroup"));
    }

    #[test]
    fn version_2_says_of_a_whole_tree_whether_a_process_is_left() {
        let root = tempfile::tempdir().unwrap();
        assert_eq!(populated(root.path()), None);
        for (text, is_populated) in [("populated 0\nfrozen 0\n", Some(false)), ("frozen 0\npopulated 1\n", Some(true))]
        {
            fs::write(root.path().join("cgroup.events"), text).unwrap();
            assert_eq!(populated(root.path()), is_populated, "{text}");
        }
    }

    #[test]
    fn a_cgroup_holds_what_is_below_it_and_not_its_namesakes() {
        assert!(is_at_or_below("/docker/1", "/docker/1") && is_at_or_below("/docker/1", "/docker/1/init"));
        assert!(!is_at_or_below("/docker/1", "/docker/12") && !is_at_or_below("/docker/1", "/docker"));
    }

    #[test]
    fn processes_of_all_directories_below_are_found() {
        let root = tempfile::tempdir().unwrap();
        let below = root.path().join("a/b");
        fs::create_dir_all(&below).unwrap();
        fs::write(root.path().join("cgroup.procs"), "7\n8\n").unwrap();
        fs::write(below.join("cgroup.procs"), "9\n").unwrap();
        let mut found = BTreeSet::new();
        assert!(collect_some(root.path().to_owned(), GROUPS, &mut found));
        assert_eq!(found, BTreeSet::from([7, 8, 9].map(HostPid)));
    }
}
