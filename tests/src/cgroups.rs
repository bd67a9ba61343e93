//! Cgroup directories of a test run. They are not namespaced, so they are the one thing that a killed run can leave
//! behind. Works for version 1, hybrid and version 2 alike, by looking at what is mounted.

use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

/// Every run's directory starts with this.
const PREFIX: &str = "gpool-demo-";

/// Name of the cgroup parent of the run whose outermost process is `pid`: the pid, and the PID namespace in which it
/// means something, since containers on one machine may see the same cgroup directories.
pub fn parent_name(pid: u32) -> String {
    format!("{PREFIX}{pid}-{}", pid_namespace())
}

fn pid_namespace() -> u64 {
    fs::metadata("/proc/self/ns/pid").map_or(0, |namespace| namespace.ino())
}

/// The mount points of every cgroup hierarchy, from `/proc/self/mountinfo`.
pub fn hierarchies() -> Vec<PathBuf> {
    mount_points(&fs::read_to_string("/proc/self/mountinfo").unwrap_or_default())
}

fn mount_points(mountinfo: &str) -> Vec<PathBuf> {
    let cgroup_mount = |line: &str| {
        let (mount, filesystem) = line.split_once(" - ")?;
        let kind = filesystem.split(' ').next()?;
        ["cgroup", "cgroup2"].contains(&kind).then(|| mount.split(' ').nth(4).map(PathBuf::from))?
    };
    let mut points: Vec<PathBuf> = mountinfo.lines().filter_map(cgroup_mount).collect();
    points.sort();
    points.dedup();
    points
}

/// Takes the second hierarchy of a hybrid machine out of this mount namespace: crun (1.8) refuses to run where that
/// has a controller, and writes ordinary files to its place where it is not mounted.
///
/// # Errors
/// When it is there and cannot be taken out.
pub fn hide_unified() -> std::io::Result<()> {
    const UNIFIED: &str = "/sys/fs/cgroup/unified";
    if !hierarchies().iter().any(|mounted| mounted == Path::new(UNIFIED)) {
        return Ok(());
    }
    rustix::mount::unmount(UNIFIED, rustix::mount::UnmountFlags::empty())?;
    rustix::mount::mount("tmpfs", UNIFIED, "tmpfs", rustix::mount::MountFlags::empty(), c"mode=755")?;
    Ok(())
}

/// Makes version 2 the only one of this mount namespace, as hosts with systemd have it. Of a hybrid machine's controllers
/// it has those that version 1 does not hold; device rules, the freezer and the end of a cgroup need none.
///
/// # Errors
/// When the machine has no version 2.
pub fn only_version_2() -> std::io::Result<()> {
    const ROOT: &str = "/sys/fs/cgroup";
    if hierarchies() == [Path::new(ROOT)] && Path::new(ROOT).join("cgroup.controllers").exists() {
        return Ok(());
    }
    rustix::mount::unmount(ROOT, rustix::mount::UnmountFlags::DETACH)?;
    rustix::mount::mount("cgroup2", ROOT, "cgroup2", rustix::mount::MountFlags::empty(), None)?;
    Ok(())
}

/// What the machine offers, in words.
pub fn version() -> &'static str {
    let points = fs::read_to_string("/proc/self/mountinfo").unwrap_or_default();
    match (points.contains(" - cgroup "), points.contains(" - cgroup2 ")) {
        (true, true) => "1 (hybrid)",
        (true, false) => "1",
        (false, true) => "2",
        (false, false) => "none",
    }
}

/// Directories called `name` at the top of each hierarchy that exist now.
pub fn directories(name: &str) -> Vec<PathBuf> {
    hierarchies().into_iter().map(|root| root.join(name)).filter(|path| path.is_dir()).collect()
}

/// Thaws what is frozen below `name`: a frozen process of cgroup version 1 does not even take SIGKILL.
pub fn thaw(name: &str) {
    for top in directories(name) {
        for directory in below(&top) {
            // Only one of the two files exists, the other write fails, which is as it should be.
            let _ = fs::write(directory.join("freezer.state"), "THAWED");
            if directory.join("cgroup.freeze").exists() {
                let _ = fs::write(directory.join("cgroup.freeze"), "0");
            }
        }
    }
}

/// Whether a process below `name` is frozen, in cgroup version 1 or 2.
pub fn is_anything_frozen(name: &str) -> bool {
    let says = |path: PathBuf, what: &str| fs::read_to_string(path).is_ok_and(|text| text.contains(what));
    let frozen =
        |path: &PathBuf| says(path.join("freezer.state"), "FROZEN") || says(path.join("cgroup.events"), "frozen 1");
    directories(name).iter().any(|top| below(top).iter().any(frozen))
}

/// Removes the empty directories of `name`, bottom-up, in every hierarchy; true when none is left.
pub fn remove(name: &str) -> bool {
    for top in directories(name) {
        for directory in below(&top).iter().rev() {
            // A directory with processes refuses, and is tried again by the caller.
            let _ = fs::remove_dir(directory);
        }
    }
    directories(name).is_empty()
}

/// Removes the empty directories below those of `name`, bottom-up, and leaves `name` itself.
pub fn remove_below(name: &str) {
    for top in directories(name) {
        for directory in below(&top).iter().skip(1).rev() {
            // A directory with processes refuses, and is found by whoever counts.
            let _ = fs::remove_dir(directory);
        }
    }
}

/// Removes what runs left whose outermost process is gone.
pub fn sweep_dead_runs() {
    for root in hierarchies() {
        let Ok(entries) = fs::read_dir(&root) else { continue };
        for name in entries.flatten().filter_map(|entry| entry.file_name().into_string().ok()) {
            let owner = name.strip_prefix(PREFIX).and_then(|owner| owner.split_once('-'));
            let Some((pid, namespace)) = owner else { continue };
            let is_dead = namespace == pid_namespace().to_string() && !Path::new("/proc").join(pid).exists();
            if is_dead {
                thaw(&name);
                remove(&name);
            }
        }
    }
}

/// `top` and every directory below it, parents first.
fn below(top: &Path) -> Vec<PathBuf> {
    let mut found = vec![top.to_owned()];
    let mut next = 0;
    while next < found.len() {
        let entries = fs::read_dir(&found[next]).into_iter().flatten().flatten();
        found.extend(
            entries.filter(|entry| entry.file_type().is_ok_and(|kind| kind.is_dir())).map(|entry| entry.path()),
        );
        next += 1;
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hierarchies_of_all_versions_are_found() {
        let hybrid = "\
31 24 0:27 / /sys/fs/cgroup ro,nosuid shared:9 - tmpfs tmpfs ro,mode=755
32 31 0:28 / /sys/fs/cgroup/unified rw shared:10 - cgroup2 cgroup2 rw,nsdelegate
33 31 0:29 / /sys/fs/cgroup/memory rw shared:11 - cgroup cgroup rw,memory
";
        assert_eq!(mount_points(hybrid), ["/sys/fs/cgroup/memory", "/sys/fs/cgroup/unified"].map(PathBuf::from));
        assert_eq!(
            mount_points("24 1 0:22 / /sys/fs/cgroup rw - cgroup2 cgroup2 rw\n"),
            [PathBuf::from("/sys/fs/cgroup")]
        );
    }

    #[test]
    fn directories_are_listed_parents_first() {
        let listed = below(Path::new(env!("CARGO_MANIFEST_DIR")));
        let at = |end: &str| listed.iter().position(|path| path.ends_with(end)).unwrap();
        assert!(at("src") < at("src/host"));
    }
}
