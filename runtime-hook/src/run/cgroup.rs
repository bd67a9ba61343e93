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

/// Puts a process into every group in which another one is, `its` and `theirs` being /proc/PID/cgroup of the two: that of a
/// `gpool run`, and those that bind it beside, which it has from its caller.
///
/// # Errors
/// The kernel refuses it.
pub fn join(pid: u32, its: &str, theirs: &str, table: &str) -> Result<(), ErrorBody> {
    let missing = theirs.lines().filter(|line| !its.lines().any(|had| had == *line));
    // A hierarchy that nobody has mounted has nothing to write to; whether it mattered shows `is_within`.
    for directory in missing.filter_map(|line| directory_of(line, table)) {
        let file = directory.join("cgroup.procs");
        fs::write(&file, pid.to_string())
            .map_err(|error| unprepared(format!("{} cannot be written", file.display()), error))?;
    }
    Ok(())
}

/// Whether a process is in every group called `name` in which another one is, and there is one.
pub fn is_within(name: &str, its: &str, theirs: &str) -> bool {
    let mut groups = named(name, theirs).peekable();
    groups.peek().is_some() && groups.all(|group| its.lines().any(|line| line == group))
}

/// Whether one of the groups called `name` is frozen, by itself or with what it lies in: who comes into it stands still.
pub fn is_frozen(name: &str, theirs: &str, table: &str) -> bool {
    named(name, theirs).filter_map(|line| directory_of(line, table)).any(|directory| {
        let text = |file| fs::read_to_string(directory.join(file)).unwrap_or_default();
        // The first is version 2's, the second version 1's; FREEZING is as good as FROZEN.
        text("cgroup.events").lines().any(|line| line == "frozen 1") || text("freezer.state").starts_with("FR")
    })
}

/// The lines of /proc/PID/cgroup that name a group called `name`.
fn named<'a>(name: &'a str, text: &'a str) -> impl Iterator<Item = &'a str> {
    text.lines().filter(move |line| line.rsplit('/').next() == Some(name))
}

/// The directories of the caller's own groups: `own` is /proc/self/cgroup, `table` the mount table.
fn parents(own: &str, table: &str) -> Vec<PathBuf> {
    let is_wanted = |line: &&str| {
        let controllers = line.split(':').nth(1).unwrap_or_default();
        controllers.is_empty() || controllers.split(',').any(|name| CONTROLLERS.contains(&name))
    };
    let mut found = Vec::new();
    for directory in own.lines().filter(is_wanted).filter_map(|line| directory_of(line, table)) {
        if !found.contains(&directory) {
            found.push(directory);
        }
    }
    found
}

/// The directory of the group that a line of /proc/PID/cgroup names.
fn directory_of(line: &str, table: &str) -> Option<PathBuf> {
    let mut fields = line.splitn(3, ':').skip(1);
    let (controllers, path) = (fields.next()?, fields.next()?);
    let names: Vec<&str> = controllers.split(',').collect();
    let (point, root) = table.lines().find_map(|line| hierarchy(line, &names))?;
    // In a cgroup namespace the mount's root is not the hierarchy's.
    let below = Path::new(path).strip_prefix(root).unwrap_or(Path::new(path.trim_start_matches('/')));
    Some(if below.as_os_str().is_empty() { point.to_owned() } else { point.join(below) })
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
    fn who_joins_is_put_where_the_other_one_is_and_nowhere_else() {
        let root = tempfile::tempdir().unwrap();
        let point = |name: &str| root.path().join(name);
        let table = format!(
            "31 30 0:27 / {} rw - cgroup2 cgroup2 rw\n32 30 0:28 / {} rw - cgroup cgroup rw,devices\n\
             33 30 0:29 / {} rw - cgroup cgroup rw,xattr,name=systemd\n",
            point("unified").display(),
            point("devices").display(),
            point("systemd").display(),
        );
        let name = "gpool-run-7aaaaaaaaaaaa";
        for directory in ["unified/job", &format!("unified/job/{name}"), &format!("devices/{name}"), "systemd/job"] {
            fs::create_dir_all(point(directory)).unwrap();
        }
        let theirs = format!("9:cpu:/elsewhere\n8:devices:/{name}\n1:name=systemd:/job\n0::/job/{name}\n");
        let its = "9:cpu:/\n8:devices:/\n1:name=systemd:/job\n0::/session\n";
        join(42, its, &theirs, &table).unwrap();
        let holds = |directory: &str| fs::read_to_string(point(directory).join("cgroup.procs")).is_ok();
        assert!(holds(&format!("devices/{name}")) && holds(&format!("unified/job/{name}")));
        assert!(!holds("systemd/job") && !holds("unified/job"), "where it is already, and above");
        let gone = theirs.replace("/job/", "/gone/");
        assert!(join(42, its, &gone, &table).unwrap_err().message.contains("unified/gone"));
        for (text, want) in [("cgroup.events", "populated 1\nfrozen 1\n"), ("freezer.state", "FROZEN\n")] {
            assert!(!is_frozen(name, &theirs, &table));
            let file = point("unified/job").join(name).join(text);
            fs::write(&file, want).unwrap();
            assert!(is_frozen(name, &theirs, &table), "{text}");
            fs::remove_file(file).unwrap();
        }
    }

    #[test]
    fn who_lacks_one_group_of_the_share_is_not_in_it() {
        let name = "gpool-run-7aaaaaaaaaaaa";
        let theirs = format!("9:cpu:/x\n8:devices:/{name}\n0::/job/{name}\n");
        assert!(is_within(name, &format!("8:devices:/{name}\n0::/job/{name}\n"), &theirs));
        for its in [format!("8:devices:/{name}\n0::/job\n"), "0::/\n".into(), String::new()] {
            assert!(!is_within(name, &its, &theirs), "{its:?}");
        }
        assert!(!is_within(name, "0::/job\n", "0::/job\n"), "it is in none");
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
