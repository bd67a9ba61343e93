//! The command's cgroup, below the caller's own: limits of a session, a unit or a Slurm job go on to hold.

use super::unprepared;
use gpool_protocol::{ErrorBody, RUN_CGROUP, maker_of_run_cgroup};
use std::fs;
use std::io::ErrorKind;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

/// The v1 hierarchies in which the command gets a group: by these it is known, frozen and counted.
const CONTROLLERS: [&str; 4] = ["devices", "memory", "freezer", "pids"];
/// How long the kernel may take to let the last process of a group go.
const EMPTY_PATIENCE: Duration = Duration::from_secs(2);
/// How often a group is made anew that somebody else has taken away.
const AGAIN: u32 = 5;
/// ENODEV, by which the kernel answers who writes to a group that goes away meanwhile.
const NO_DEVICE: i32 = 19;

/// The groups of one command. Removed when dropped.
pub struct Cgroup {
    directories: Vec<PathBuf>,
}

impl Cgroup {
    /// Makes a group in each hierarchy, named by the `digits` with which the command's id ends, and takes away those whose `gpool-run`
    /// was killed.
    ///
    /// # Errors
    /// There is no hierarchy in which one can be made.
    pub fn make(digits: &str) -> Result<Self, ErrorBody> {
        let read = |path| fs::read(path).map_err(|error| unprepared(format!("{path} cannot be read"), error));
        // Others may have mounted something under a name of any bytes.
        let (cgroups, mounts) = (read("/proc/self/cgroup")?, read("/proc/self/mountinfo")?);
        let name = format!("{RUN_CGROUP}{digits}");
        let parents = parents(&String::from_utf8_lossy(&cgroups), &String::from_utf8_lossy(&mounts));
        let mut cgroup = Self { directories: Vec::new() };
        let mut refused = std::io::Error::from(std::io::ErrorKind::Unsupported);
        for parent in parents {
            remove_leftovers(&parent);
            let directory = parent.join(&name);
            match fs::create_dir(&directory) {
                Ok(()) => cgroup.directories.push(directory),
                Err(error) => refused = error,
            }
        }
        if cgroup.directories.is_empty() {
            return Err(unprepared("no cgroup can be made below the caller's own", refused));
        }
        Ok(cgroup)
    }

    /// Puts a process into the groups.
    ///
    /// # Errors
    /// The kernel refuses it.
    pub fn take(&self, pid: u32) -> Result<(), ErrorBody> {
        for directory in &self.directories {
            let file = directory.join("cgroup.procs");
            put(directory, &file, pid)
                .map_err(|error| unprepared(format!("{} cannot be written", file.display()), error))?;
        }
        Ok(())
    }
}

/// Puts a process into one group. While nothing is in it, a call of another PID namespace with the same cgroups may take it for
/// the leftover of one that is dead, since it cannot see this one: then it is made anew.
fn put(directory: &Path, file: &Path, pid: u32) -> std::io::Result<()> {
    let mut written = fs::write(file, pid.to_string());
    for _ in 0..AGAIN {
        match &written {
            Err(error) if error.kind() == ErrorKind::NotFound || error.raw_os_error() == Some(NO_DEVICE) => {}
            _ => break,
        }
        match fs::create_dir(directory) {
            Err(error) if error.kind() != ErrorKind::AlreadyExists => return Err(error),
            _ => written = fs::write(file, pid.to_string()),
        }
    }
    written
}

impl Drop for Cgroup {
    fn drop(&mut self) {
        let deadline = Instant::now() + EMPTY_PATIENCE;
        for directory in &self.directories {
            while fs::remove_dir(directory).is_err() && directory.exists() && Instant::now() < deadline {
                std::thread::sleep(Duration::from_millis(5));
            }
        }
    }
}

/// The directories of the caller's own groups: `own` is /proc/self/cgroup, `table` the mount table.
fn parents(own: &str, table: &str) -> Vec<PathBuf> {
    let mut found = Vec::new();
    for line in own.lines() {
        let mut fields = line.splitn(3, ':').skip(1);
        let (Some(controllers), Some(path)) = (fields.next(), fields.next()) else { continue };
        let names: Vec<&str> = controllers.split(',').collect();
        let wanted = controllers.is_empty() || names.iter().any(|name| CONTROLLERS.contains(name));
        let Some((point, root)) = table.lines().filter(|_| wanted).find_map(|line| hierarchy(line, &names)) else {
            continue;
        };
        // In a cgroup namespace the mount's root is not the hierarchy's.
        let below = Path::new(path).strip_prefix(root).unwrap_or(Path::new(path.trim_start_matches('/')));
        let directory = if below.as_os_str().is_empty() { point.to_owned() } else { point.join(below) };
        if !found.contains(&directory) {
            found.push(directory);
        }
    }
    found
}

/// Mount point and root of the hierarchy with these controllers, if this line of the mount table is its.
fn hierarchy<'a>(line: &'a str, controllers: &[&str]) -> Option<(&'a Path, &'a str)> {
    let (before, after) = line.split_once(" - ")?;
    let mut fields = before.split(' ').skip(3);
    let (root, point) = (fields.next()?, fields.next()?);
    let mut after = after.split(' ');
    let (kind, options) = (after.next()?, after.nth(1)?);
    let fits = match kind {
        "cgroup2" => controllers == [""],
        "cgroup" => controllers.iter().all(|name| options.split(',').any(|option| option == *name)),
        _ => false,
    };
    fits.then_some((Path::new(point), root))
}

/// Takes away empty groups of calls that are no more. One that holds processes stays: the kernel refuses it.
fn remove_leftovers(parent: &Path) {
    for entry in fs::read_dir(parent).into_iter().flatten().flatten() {
        let name = entry.file_name();
        let maker = name.to_str().and_then(maker_of_run_cgroup);
        if maker.is_some_and(|pid| !Path::new("/proc").join(pid).exists()) {
            let _ = fs::remove_dir(entry.path());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const TABLE: &str = "\
30 24 0:26 / /sys/fs/cgroup ro - tmpfs tmpfs ro
31 30 0:27 / /sys/fs/cgroup/unified rw,nosuid - cgroup2 cgroup2 rw,nsdelegate
32 30 0:28 / /sys/fs/cgroup/devices rw - cgroup cgroup rw,devices
33 30 0:29 / /sys/fs/cgroup/cpu,cpuacct rw - cgroup cgroup rw,cpu,cpuacct
34 30 0:30 /job /sys/fs/cgroup/freezer rw - cgroup cgroup rw,freezer
";

    #[test]
    fn groups_are_made_below_the_callers_own() {
        let own = "9:freezer:/job/step\n8:cpu,cpuacct:/x\n7:devices:/\n1:name=systemd:/y\n0::/user.slice\n";
        let want = ["/sys/fs/cgroup/freezer/step", "/sys/fs/cgroup/devices", "/sys/fs/cgroup/unified/user.slice"];
        assert_eq!(parents(own, TABLE), want.map(PathBuf::from));
        assert_eq!(parents("0::/\n", "31 30 0:27 / /sys/fs/cgroup rw - cgroup2 c rw\n"), [Path::new("/sys/fs/cgroup")]);
        assert!(parents("0::/\n", "").is_empty());
    }

    #[test]
    fn a_group_that_another_call_took_away_is_made_anew() {
        let parent = tempfile::tempdir().unwrap();
        let directory = parent.path().join("gpool-run-7aaaaaaaaaaaa");
        let cgroup = Cgroup { directories: vec![directory.clone()] };
        cgroup.take(42).unwrap();
        assert_eq!(fs::read_to_string(directory.join("cgroup.procs")).unwrap(), "42");
        // Where nothing can be made it is an error as before.
        let nowhere = parent.path().join("gone/gpool-run-7aaaaaaaaaaaa");
        let error = put(&nowhere, &nowhere.join("cgroup.procs"), 42).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::NotFound);
        fs::remove_file(directory.join("cgroup.procs")).unwrap();
    }

    #[test]
    fn only_groups_of_dead_calls_are_leftovers() {
        let parent = tempfile::tempdir().unwrap();
        let own = format!("gpool-run-{}aaaaaaaaaaaa", std::process::id());
        let names = ["gpool-run-4194305aaaaaaaaaaaa", &own, "gpool-run-x", "other"];
        names.iter().for_each(|name| fs::create_dir(parent.path().join(name)).unwrap());
        remove_leftovers(parent.path());
        let left = names.map(|name| parent.path().join(name).exists());
        assert_eq!(left, [false, true, true, true]);
    }
}
