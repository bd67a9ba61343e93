//! A command of `gpool run` that runs: its init, which the lease names, looked at until no other process can be meant.

use crate::run::cgroup;
use crate::run::description::Person;
use crate::run::device_folder::{hold, through};
use crate::run::{inner, unprepared};
use gpool_protocol::{ErrorBody, ErrorCode, LeaseView, RUN_CGROUP, maker_of_run_cgroup};
use std::ffi::{OsStr, OsString};
use std::fs::{self, File};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

/// How long a command that has its lease may take until it is started.
const PATIENCE: Duration = Duration::from_secs(2);
/// How often it is looked whether it is.
const LOOK: Duration = Duration::from_millis(10);

/// The init of the command's PID namespace.
pub struct Running {
    /// Its folder in /proc. What is opened below that is this process's, or nothing is: not another's that has its pid later.
    init: File,
    /// What its cgroups are called.
    group: String,
}

impl Running {
    /// Finds it, and waits until it has become its user and started its command, which it does at once when it has its lease.
    ///
    /// # Errors
    /// It is not here, was started by an older release, or its processes are frozen.
    pub fn find(lease: &LeaseView, digits: &str) -> Result<Self, ErrorBody> {
        let group = format!("{RUN_CGROUP}{digits}");
        let (maker, pid) = maker_of_run_cgroup(&group).zip(lease.init_pid).ok_or_else(not_here)?;
        let pid = pid.to_string();
        let init = hold(&Path::new("/proc").join(&pid)).map_err(|_| not_here())?;
        let running = Self { init, group: group.clone() };
        let is_it = is_init_of(&running.text("status")?, &running.text("cgroup")?, maker, &group);
        let namespace = |folder: &File| fs::read_link(through(folder, Path::new("ns/user"))).ok();
        let own = fs::read_link("/proc/self/ns/user").ok();
        // Nobody but root of this host's own makes a PID namespace without a user namespace, and nobody else is the parent of its init.
        let maker = hold(&Path::new("/proc").join(maker)).map_err(|_| not_here())?;
        let is_of_root = text(&maker, "status").is_ok_and(|status| user_in(&status).is_some_and(|(uid, ..)| uid == 0));
        let are_here = own.is_some() && [&running.init, &maker].into_iter().all(|folder| namespace(folder) == own);
        (is_it && is_of_root && are_here).then_some(()).ok_or_else(not_here)?;
        if running.words()?.get(1).is_none_or(|verb| verb != inner::VERB) {
            return Err(ErrorBody::new(
                ErrorCode::CommandNotPrepared,
                "the command was not started: an older release of gpool has started the one beside which it is to run",
                "gpool exec enters commands that were started since gpool was updated",
            ));
        }
        if cgroup::is_frozen(&group, &running.text("cgroup")?, &mount_table()?) {
            return Err(ErrorBody::new(
                ErrorCode::LeaseConflict,
                format!(
                    "{} is frozen, and what is started in it would stand still as well",
                    lease.container_id.short()
                ),
                "gpool events says whether gpool has frozen it, and why; or whoever has, as Slurm by scontrol suspend, lets it go on",
            ));
        }
        let deadline = Instant::now() + PATIENCE;
        while !has_child(&pid) {
            if Instant::now() > deadline || running.has_ended() {
                return Err(not_here());
            }
            std::thread::sleep(LOOK);
        }
        Ok(running)
    }

    /// Whether it has ended, or is about to.
    pub fn has_ended(&self) -> bool {
        // Its memory is the first that it gives back.
        self.words().map_or(true, |words| words.is_empty())
    }

    /// Who runs its command.
    ///
    /// # Errors
    /// It has ended.
    pub fn user(&self) -> Result<Person, ErrorBody> {
        let (uid, gid, groups) = user_in(&self.text("status")?).ok_or_else(not_here)?;
        Ok(Person { name: uid.to_string(), uid, gid, groups, home: PathBuf::from("/") })
    }

    /// The variables with which its command was started.
    ///
    /// # Errors
    /// It has ended, or they may not be read.
    pub fn environment(&self) -> Result<Vec<(OsString, OsString)>, ErrorBody> {
        let block = fs::read(self.path("environ"));
        let block = block.map_err(|error| unprepared("the environment of the command beside cannot be read", error))?;
        Ok(variables_in(&block))
    }

    /// One of its namespaces.
    ///
    /// # Errors
    /// It has ended, or may not be entered.
    pub fn namespace(&self, name: &str) -> Result<File, ErrorBody> {
        File::open(self.path(&format!("ns/{name}")))
            .map_err(|error| unprepared(format!("the namespace {name} of the command beside cannot be opened"), error))
    }

    /// Puts a process into its cgroups.
    ///
    /// # Errors
    /// One of them cannot be entered.
    pub fn join(&self, pid: u32) -> Result<(), ErrorBody> {
        cgroup::join(pid, &cgroups_of(pid)?, &self.text("cgroup")?, &mount_table()?)
    }

    /// Whether a process is where the share holds: in its cgroups, and in its namespaces. The last look before that starts something.
    ///
    /// # Errors
    /// It is not.
    pub fn check_holds(&self, pid: u32) -> Result<(), ErrorBody> {
        let is_within = cgroup::is_within(&self.group, &cgroups_of(pid)?, &self.text("cgroup")?);
        let is_in = |name: &str| {
            let place = format!("ns/{name}");
            let its = fs::read_link(Path::new("/proc").join(pid.to_string()).join(&place));
            matches!((its, fs::read_link(self.path(&place))), (Ok(its), Ok(theirs)) if its == theirs)
        };
        if is_within && is_in("pid") && is_in("mnt") {
            return Ok(());
        }
        Err(ErrorBody::new(
            ErrorCode::CommandNotPrepared,
            format!(
                "the command was not started: it would not be in the cgroups {} and in the namespaces of the share",
                self.group
            ),
            "call gpool exec where the cgroups are mounted of the host on which gpool run was called",
        ))
    }

    fn path(&self, name: &str) -> PathBuf {
        through(&self.init, Path::new(name))
    }

    fn text(&self, name: &str) -> Result<String, ErrorBody> {
        text(&self.init, name)
    }

    /// The words with which it was started.
    fn words(&self) -> Result<Vec<String>, ErrorBody> {
        let text = self.text("cmdline")?;
        Ok(text.split_terminator('\0').map(str::to_owned).collect())
    }
}

fn text(folder: &File, name: &str) -> Result<String, ErrorBody> {
    // Names in it are of any bytes.
    let bytes = fs::read(through(folder, Path::new(name))).map_err(|_| not_here())?;
    Ok(String::from_utf8_lossy(&bytes).into_owned())
}

fn cgroups_of(pid: u32) -> Result<String, ErrorBody> {
    let bytes = fs::read(format!("/proc/{pid}/cgroup")).map_err(|error| unprepared("its cgroups", error))?;
    Ok(String::from_utf8_lossy(&bytes).into_owned())
}

fn mount_table() -> Result<String, ErrorBody> {
    let bytes = fs::read("/proc/self/mountinfo").map_err(|error| unprepared("the mount table", error))?;
    Ok(String::from_utf8_lossy(&bytes).into_owned())
}

fn not_here() -> ErrorBody {
    ErrorBody::new(
        ErrorCode::CommandNotPrepared,
        "the command was not started: the one beside which it is to run is not found here, or is about to end",
        "gpool ps shows whether it still runs; call gpool exec where gpool run was called, on the host or in the same container",
    )
}

/// Whether that is the init of a PID namespace one below this one, the child of `maker`, in a group called `group`: `status` and `cgroups` are
/// files of its folder in /proc.
fn is_init_of(status: &str, cgroups: &str, maker: &str, group: &str) -> bool {
    let pids: Vec<&str> = field(status, "NSpid:").unwrap_or_default().split_whitespace().collect();
    field(status, "PPid:") == Some(maker)
        && matches!(pids.as_slice(), [_, "1"])
        && cgroup::is_within(group, cgroups, cgroups)
}

/// User, main group and groups of /proc/PID/status.
fn user_in(status: &str) -> Option<(u32, u32, Vec<u32>)> {
    let first = |name| field(status, name)?.split_whitespace().next()?.parse().ok();
    let groups = field(status, "Groups:")?.split_whitespace().map(str::parse).collect::<Result<_, _>>().ok()?;
    Some((first("Uid:")?, first("Gid:")?, groups))
}

fn field<'a>(status: &'a str, name: &str) -> Option<&'a str> {
    status.lines().find_map(|line| line.strip_prefix(name)).map(str::trim)
}

/// What stands in a block of variables, as /proc/PID/environ is one.
fn variables_in(block: &[u8]) -> Vec<(OsString, OsString)> {
    let entries = block.split(|byte| *byte == 0).filter_map(|entry| {
        let end = entry.iter().position(|byte| *byte == b'=').filter(|at| *at > 0)?;
        Some((&entry[..end], &entry[end + 1..]))
    });
    let own = |bytes: &[u8]| OsStr::from_bytes(bytes).to_owned();
    entries.map(|(name, value)| (own(name), own(value))).collect()
}

/// Whether a process has one that it has started, or that was left to it.
fn has_child(pid: &str) -> bool {
    let processes = fs::read_dir("/proc").into_iter().flatten().flatten();
    let is_process = |name: &OsStr| name.as_bytes().iter().all(u8::is_ascii_digit);
    processes.filter(|entry| is_process(&entry.file_name())).any(|entry| {
        let stat = fs::read(entry.path().join("stat")).unwrap_or_default();
        parent_in(&String::from_utf8_lossy(&stat)) == Some(pid)
    })
}

/// The parent of /proc/PID/stat, which is field 4 (proc(5)).
fn parent_in(stat: &str) -> Option<&str> {
    // The name in parentheses may hold anything, so count from its end.
    stat.rsplit_once(')')?.1.split_whitespace().nth(1)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::report::assert_presentable;

    const GROUP: &str = "gpool-run-4711aaaaaaaaaaaa";

    #[test]
    fn only_the_init_that_gpool_run_has_made_is_taken_for_it() {
        let status = |ppid: u32, pids: &str| format!("Name:\tshare-init\nPPid:\t{ppid}\nNSpid:\t{pids}\n");
        let cgroups = format!("8:devices:/{GROUP}\n0::/user.slice/{GROUP}\n");
        let is_it = |status: &str, cgroups: &str| is_init_of(status, cgroups, "4711", GROUP);
        assert!(is_it(&status(4711, "4712\t1"), &cgroups));
        for other in [
            status(1, "4712\t1"),
            status(4711, "4712"),
            status(4711, "4712\t2"),
            // An init that a program of the share has made.
            status(4711, "4712\t8\t1"),
            String::new(),
        ] {
            assert!(!is_it(&other, &cgroups), "{other}");
        }
        for elsewhere in ["0::/user.slice\n", &format!("0::/{GROUP}/below\n"), "0::/gpool-run-4711bbbbbbbbbbbb\n"] {
            assert!(!is_it(&status(4711, "4712\t1"), elsewhere), "{elsewhere}");
        }
    }

    #[test]
    fn a_process_s_user_and_parent_are_read() {
        let status =
            "Name:\tx\nUid:\t1000\t1000\t1000\t1000\nGid:\t100\t100\t100\t100\nGroups:\t44 100 \nNSpid:\t7\t1\n";
        assert_eq!(user_in(status), Some((1000, 100, vec![44, 100])));
        assert_eq!(user_in("Uid:\t0\nGid:\t0\nGroups:\t\n"), Some((0, 0, Vec::new())));
        assert_eq!(user_in("Uid:\t0\n"), None);
        assert_eq!(parent_in("12 (a) 4) S 11 10 9 0\n"), Some("11"));
        let own = std::process::id().to_string();
        let mut child = std::process::Command::new("cat").stdin(std::process::Stdio::piped()).spawn().unwrap();
        assert!(has_child(&own) && !has_child("0x"));
        drop(child.stdin.take());
        child.wait().unwrap();
    }

    #[test]
    fn variables_are_of_any_bytes() {
        let read = variables_in(b"A=1\0B=a=b\0LATIN=caf\xe9\0EMPTY=\0=x\0noise\0");
        let want: [(&str, &[u8]); 4] = [("A", b"1"), ("B", b"a=b"), ("LATIN", b"caf\xe9"), ("EMPTY", b"")];
        assert_eq!(read, want.map(|(name, value)| (name.into(), OsStr::from_bytes(value).to_owned())));
    }

    #[test]
    fn who_is_elsewhere_is_not_where_the_share_holds() {
        let own = std::process::id();
        let held = || hold(&Path::new("/proc").join(own.to_string())).unwrap();
        let cgroups = fs::read_to_string("/proc/self/cgroup").unwrap();
        let running = Running { init: held(), group: GROUP.to_owned() };
        assert_presentable(&running.check_holds(own).unwrap_err());
        assert!(!cgroups.contains(GROUP) && !running.has_ended());
        assert!(!running.environment().unwrap().is_empty());
        running.namespace("mnt").unwrap();
        running.join(own).unwrap();
        let mut child = std::process::Command::new("true").spawn().unwrap();
        let gone =
            Running { init: hold(&Path::new("/proc").join(child.id().to_string())).unwrap(), group: GROUP.into() };
        child.wait().unwrap();
        assert!(gone.has_ended());
        assert_presentable(&gone.user().unwrap_err());
        assert_presentable(&gone.namespace("pid").map(drop).unwrap_err());
    }
}
