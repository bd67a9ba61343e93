//! What /proc says of a process, and handles that outlive the reuse of a pid.

use gpool_protocol::HostPid;
use rustix::process::{Pid, PidfdFlags, pidfd_open};
use serde::{Deserialize, Serialize};
use std::io;
use std::os::fd::{AsRawFd, OwnedFd};
use std::path::Path;

/// A process by pid and start time, which together name it for one boot.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct ProcessName {
    /// Pid on the host.
    pub pid: HostPid,
    /// Start time in clock ticks since boot, field 22 of /proc/PID/stat.
    pub start_ticks: u64,
}

/// A process that is watched: readable when it has ended.
#[derive(Debug)]
pub struct WatchedProcess {
    /// Which one.
    pub name: ProcessName,
    /// Its pidfd.
    pub pidfd: OwnedFd,
}

impl WatchedProcess {
    /// Takes hold of the process that has `pid` now.
    ///
    /// # Errors
    /// When there is none, or it ends meanwhile.
    pub fn open(pid: HostPid) -> io::Result<Self> {
        let no_process = || io::Error::from(io::ErrorKind::NotFound);
        let raw = i32::try_from(pid.0).ok().and_then(Pid::from_raw).ok_or_else(no_process)?;
        let pidfd = pidfd_open(raw, PidfdFlags::empty())?;
        // Read after the pidfd is open: if the process lives, pid and pidfd mean the same one.
        let start_ticks = stat_field(pid, START_FIELD)?;
        let watched = Self { name: ProcessName { pid, start_ticks }, pidfd };
        if watched.has_ended() { Err(no_process()) } else { Ok(watched) }
    }

    /// Ends it by force. One that has ended is as ended as can be.
    pub fn kill(&self) {
        let _ = rustix::process::pidfd_send_signal(&self.pidfd, rustix::process::Signal::KILL);
    }

    /// Takes hold of its parent. One that has none left but the first process of all is its own.
    ///
    /// # Errors
    /// When either of them has ended.
    pub fn parent(self) -> io::Result<Self> {
        let parent = HostPid(stat_field(self.name.pid, PARENT_FIELD)?);
        if parent.0 <= 1 {
            return Ok(self);
        }
        let parent = Self::open(parent)?;
        // While the child lives it would have another parent by now if that one had ended before it was opened.
        let same = stat_field::<u32>(self.name.pid, PARENT_FIELD)? == parent.name.pid.0;
        if same && !self.has_ended() { Ok(parent) } else { Err(io::ErrorKind::NotFound.into()) }
    }

    /// Takes hold of exactly the process `name`.
    ///
    /// # Errors
    /// When it has ended, also if another one has its pid now.
    pub fn reopen(name: ProcessName) -> io::Result<Self> {
        let watched = Self::open(name.pid)?;
        if watched.name == name { Ok(watched) } else { Err(io::ErrorKind::NotFound.into()) }
    }

    /// The process `name`, if it lives.
    ///
    /// # Errors
    /// When that cannot be told, as where there is no descriptor or no memory left.
    pub fn find(name: ProcessName) -> io::Result<Option<Self>> {
        match Self::reopen(name) {
            Ok(watched) => Ok(Some(watched)),
            Err(error) if is_end(&error) => Ok(None),
            Err(error) => Err(error),
        }
    }

    /// The process of a pidfd that was opened for `name` and kept since; none if it is no pidfd, or another process's. It
    /// may have ended, and then the pidfd alone cannot say who it was: whoever kept it has to know.
    pub fn adopt(name: ProcessName, pidfd: OwnedFd) -> Option<Self> {
        let watched = Self { name, pidfd };
        let pid = watched.pid_of_descriptor()?;
        (pid == ENDED || u32::try_from(pid) == Ok(name.pid.0)).then_some(watched)
    }

    /// What the kernel says of a pidfd: `Pid:` in /proc/self/fdinfo, see pidfd_open(2) and proc(5).
    fn pid_of_descriptor(&self) -> Option<i32> {
        let text = std::fs::read_to_string(format!("/proc/self/fdinfo/{}", self.pidfd.as_raw_fd())).ok()?;
        text.lines().find_map(|line| line.strip_prefix("Pid:"))?.trim().parse().ok()
    }

    /// Another handle of the same process.
    ///
    /// # Errors
    /// When there is no descriptor left.
    pub fn try_clone(&self) -> io::Result<Self> {
        Ok(Self { name: self.name, pidfd: self.pidfd.try_clone()? })
    }

    /// Whether it has ended.
    pub fn has_ended(&self) -> bool {
        use rustix::event::{PollFd, PollFlags, Timespec, poll};
        let mut fds = [PollFd::new(&self.pidfd, PollFlags::IN)];
        let at_once = Timespec { tv_sec: 0, tv_nsec: 0 };
        poll(&mut fds, Some(&at_once)).is_ok_and(|ready| ready > 0)
    }
}

/// Whether this says that there is no such process. By EINVAL pidfd_open(2) says that the number is a thread's of another one,
/// which has come to it since; newer kernels say ENOENT.
fn is_end(error: &io::Error) -> bool {
    let no_process = [rustix::io::Errno::SRCH, rustix::io::Errno::INVAL].map(|errno| Some(errno.raw_os_error()));
    error.kind() == io::ErrorKind::NotFound || no_process.contains(&error.raw_os_error())
}

/// The pid of a pidfd whose process has ended and was waited for.
const ENDED: i32 = -1;
/// Field of /proc/PID/stat that has the state, counted from 1 as proc(5) does.
const STATE_FIELD: usize = 3;
/// Field of /proc/PID/stat that has the parent's pid.
const PARENT_FIELD: usize = 4;
/// Field of /proc/PID/stat that has the flags of the process's first task.
const FLAGS_FIELD: usize = 9;
/// Of these, that it is at its end: it has let go of its locks, or is about to (PF_EXITING of include/linux/sched.h).
const EXITING: u32 = 0x4;
/// Field of /proc/PID/stat that has the number of its threads.
const THREADS_FIELD: usize = 20;
/// Field of /proc/PID/stat that has the start time in clock ticks since boot.
const START_FIELD: usize = 22;
/// Field of /proc/PID/stat that has the address at which the program's stack begins.
const STACK_FIELD: usize = 28;

/// A program that a process runs: where its stack begins, which the kernel draws by lot with each execve(2). One that is
/// executed without that lot (personality(2)) may have the mark of the one before.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct ProgramMark(u64);

impl ProgramMark {
    /// Of the process that has `pid` now; none where it cannot be told.
    pub fn of(pid: HostPid) -> Option<Self> {
        stat_field(pid, STACK_FIELD).ok().filter(|address| *address != 0).map(Self)
    }

    /// Whether a process runs another program now; where nothing is known, not. One that loads a library twice has the same
    /// mark both times.
    pub fn has_changed(before: Option<Self>, now: Option<Self>) -> bool {
        before.zip(now).is_some_and(|(before, now)| before != now)
    }
}

/// Threads that are asked for their children.
const THREADS: usize = 4096;

/// Whether the process has children, which may hold what it has opened; so it is taken to where the kernel does not tell,
/// and where it has more threads than are asked. Those that it has not waited for hold nothing any more, and a program knows
/// nothing of the children of the one that was executed before it.
pub fn has_children(pid: HostPid) -> bool {
    let Ok(threads) = std::fs::read_dir(format!("/proc/{pid}/task")) else { return false };
    let of = |thread: std::fs::DirEntry| std::fs::read_to_string(thread.path().join("children"));
    let lives = |pid: &str| pid.parse().map_or(true, |pid| !is_over(HostPid(pid)));
    let is_parent = |thread| of(thread).map_or(true, |children| children.split_whitespace().any(lives));
    threads.flatten().enumerate().any(|(count, thread)| count >= THREADS || is_parent(thread))
}

/// Whether the process is stopped by a signal or by a debugger: it does and says nothing until it is let go on.
pub fn is_stopped(pid: HostPid) -> bool {
    // States of proc(5): T is stopped, t is stopped while it is traced.
    stat_field(pid, STATE_FIELD).is_ok_and(|state: String| matches!(state.as_str(), "T" | "t"))
}

/// Whether the first task of this process has ended, while others of it may still be in the kernel. False once nothing of it is
/// left.
pub fn is_dead(name: &ProcessName) -> bool {
    // States of proc(5): Z is a zombie, X is dead.
    let is_over = |state: String| matches!(state.as_str(), "Z" | "X");
    stat_field(name.pid, STATE_FIELD).is_ok_and(is_over) && start_ticks(name.pid) == Some(name.start_ticks)
}

/// Whether a process that has not ended has `pid` now; one that its parent has not waited for has.
pub fn is_alive(pid: HostPid) -> bool {
    stat_field(pid, STATE_FIELD).is_ok_and(|state: String| !matches!(state.as_str(), "Z" | "X"))
}

/// Whether nothing goes on of the process that has `pid`, or had it. Its first task may end before others of it.
fn is_over(pid: HostPid) -> bool {
    !is_alive(pid) && !stat_field(pid, THREADS_FIELD).is_ok_and(|threads: u32| threads > 1)
}

/// Whether the process that had `pid` and was started at `start_ticks` is still there, and is not at its end: its end takes
/// as long as what it has opened does to be closed, and it has its pid meanwhile, but no record lock.
pub fn goes_on(pid: HostPid, start_ticks: Option<u64>) -> bool {
    let is_at_its_end = stat_field(pid, FLAGS_FIELD).is_ok_and(|flags: u32| flags & EXITING != 0);
    start_ticks.is_some() && !is_at_its_end && self::start_ticks(pid) == start_ticks
}

/// When the process that has `pid` now was started, in clock ticks since boot; none if there is none.
pub fn start_ticks(pid: HostPid) -> Option<u64> {
    stat_field(pid, START_FIELD).ok()
}

/// Whether the process that has `pid` now is a child of this one, as those are that time slices are tried on.
pub fn is_own_child(pid: HostPid) -> bool {
    parent_of(pid) == Some(HostPid(std::process::id()))
}

/// The parent of the process that has `pid` now.
pub fn parent_of(pid: HostPid) -> Option<HostPid> {
    stat_field(pid, PARENT_FIELD).ok().map(HostPid)
}

/// Generations that are looked at.
const GENERATIONS: usize = 64;

/// Whether the process that has `pid` now has been started by that one, which lives, or by one that it has started and that lives.
pub fn descends(pid: HostPid, from: &ProcessName) -> bool {
    let mut parents = std::iter::successors(parent_of(pid), |parent| parent_of(*parent)).take(GENERATIONS);
    parents.any(|parent| parent == from.pid) && stat_field(from.pid, START_FIELD).ok() == Some(from.start_ticks)
}

/// Whether `name` may still be meant by its pid, where the process that has that pid now was started at `start_ticks`:
/// nobody has it, or it has it itself.
pub fn is_same(name: &ProcessName, start_ticks: Option<u64>) -> bool {
    start_ticks.is_none_or(|start_ticks| start_ticks == name.start_ticks)
}

/// What a file says in which others may have put any bytes: the name of a process, of a cgroup or of a mount.
///
/// # Errors
/// The kernel's.
pub fn text(path: impl AsRef<Path>) -> io::Result<String> {
    Ok(String::from_utf8_lossy(&std::fs::read(path)?).into_owned())
}

fn stat_field<T: std::str::FromStr>(pid: HostPid, number: usize) -> io::Result<T> {
    let stat = text(format!("/proc/{pid}/stat"))?;
    // The name in parentheses may hold anything, so count from its end.
    let after_name = stat.rsplit_once(')').map_or("", |(_, rest)| rest);
    let field = after_name.split_whitespace().nth(number - STATE_FIELD).and_then(|field| field.parse().ok());
    field.ok_or_else(|| io::ErrorKind::InvalidData.into())
}

/// The name of the process that has `pid` now, at most 15 bytes, as printable text; a question mark if it has ended.
pub fn comm(pid: HostPid) -> String {
    let name = std::fs::read(format!("/proc/{pid}/comm")).unwrap_or_else(|_| b"?".to_vec());
    let name = String::from_utf8_lossy(&name);
    let shown = |letter: char| if letter.is_control() || is_format(letter) { '?' } else { letter };
    name.trim_end_matches('\n').chars().take(16).map(shown).collect()
}

/// Letters that show nothing, or turn what is shown around (general category Cf of Unicode, as far as it is of scripts).
fn is_format(letter: char) -> bool {
    matches!(letter, '\u{ad}' | '\u{61c}' | '\u{200b}'..='\u{200f}' | '\u{202a}'..='\u{202e}' | '\u{2060}'..='\u{206f}' | '\u{feff}'
        | '\u{e0000}'..='\u{e007f}')
}

/// The real user of the process, as this host numbers users; none if it has ended.
pub fn uid_of(pid: HostPid) -> Option<u32> {
    // Uid: real, effective, saved and file system's, proc_pid_status(5).
    let status = text(format!("/proc/{pid}/status")).ok()?;
    status.lines().find_map(|line| line.strip_prefix("Uid:"))?.split_whitespace().next()?.parse().ok()
}

/// This boot's id; state of another boot is void.
pub fn boot_id() -> io::Result<String> {
    Ok(std::fs::read_to_string("/proc/sys/kernel/random/boot_id")?.trim().to_owned())
}

/// Whether the process is in another time namespace than this one, so that CLOCK_MONOTONIC is another one there. Of one that has ended
/// meanwhile, that cannot be read, and on a kernel without such namespaces (before 5.6) nothing says so.
pub fn has_other_clock(pid: HostPid) -> bool {
    let of = |who: &dyn std::fmt::Display| std::fs::read_link(format!("/proc/{who}/ns/time")).ok();
    of(&pid).is_some_and(|its| of(&"self").is_some_and(|own| own != its))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_process_is_known_by_more_than_its_pid() {
        let me = WatchedProcess::open(HostPid(std::process::id())).unwrap();
        assert!(!me.has_ended() && me.name.start_ticks > 0);
        assert!(is_format('\u{202e}') && !is_format('é'));
        assert!(!comm(me.name.pid).is_empty() && comm(HostPid(u32::MAX)) == "?");
        assert!(WatchedProcess::reopen(me.name).is_ok());
        let impostor = ProcessName { start_ticks: me.name.start_ticks + 1, ..me.name };
        assert!(WatchedProcess::reopen(impostor).is_err());
        assert!(WatchedProcess::find(me.name).unwrap().is_some() && WatchedProcess::find(impostor).unwrap().is_none());
        let start = start_ticks(me.name.pid);
        assert_eq!(start, Some(me.name.start_ticks));
        assert!(is_same(&me.name, start) && is_same(&me.name, None) && !is_same(&impostor, start));
        assert_eq!(start_ticks(HostPid(u32::MAX)), None);
        let uid = rustix::process::getuid().as_raw();
        assert_eq!((uid_of(me.name.pid), uid_of(HostPid(u32::MAX))), (Some(uid), None));
    }

    #[test]
    fn only_what_says_that_there_is_no_process_is_taken_for_its_end() {
        let of = |errno: rustix::io::Errno| is_end(&io::Error::from(errno));
        use rustix::io::Errno;
        assert!([Errno::SRCH, Errno::NOENT, Errno::INVAL].into_iter().all(of));
        assert!(![Errno::MFILE, Errno::NFILE, Errno::NOMEM, Errno::AGAIN].into_iter().any(of));
        // A pid that has come to a thread since.
        let (told, thread) = std::sync::mpsc::channel();
        let (done, waits) = std::sync::mpsc::channel::<()>();
        let other = std::thread::spawn(move || {
            told.send(rustix::thread::gettid().as_raw_nonzero().get() as u32).unwrap();
            waits.recv().unwrap_err();
        });
        let name = ProcessName { pid: HostPid(thread.recv().unwrap()), start_ticks: 1 };
        assert!(WatchedProcess::find(name).unwrap().is_none());
        drop(done);
        other.join().unwrap();
    }

    /// A thread of this process is named so; the kernel tells of a thread as of a process.
    #[test]
    fn a_name_of_any_bytes_hides_nobody() {
        let started = start_ticks(HostPid(std::process::id())).unwrap();
        let named = std::thread::spawn(|| {
            rustix::thread::set_name(c"\xff\xfe) R 1").unwrap();
            let thread = HostPid(rustix::thread::gettid().as_raw_nonzero().get() as u32);
            (start_ticks(thread), is_stopped(thread), comm(thread).is_empty())
        });
        let (since, is_stopped, has_no_name) = named.join().unwrap();
        assert!(since.is_some_and(|since| since >= started) && !is_stopped && !has_no_name);
    }

    #[test]
    fn a_process_that_executes_another_program_has_another_mark() {
        let mut child = std::process::Command::new("sh")
            .args(["-c", "echo begun; read go && exec sleep 60"])
            .stdin(std::process::Stdio::piped())
            .stdout(std::process::Stdio::piped())
            .spawn()
            .unwrap();
        let pid = HostPid(child.id());
        let is_named = |name: &str| {
            while comm(pid) != name {
                std::thread::yield_now()
            }
        };
        // A program has its name before its stack is laid out.
        let mut begun = [0; 6];
        std::io::Read::read_exact(&mut child.stdout.take().unwrap(), &mut begun).unwrap();
        let first = ProgramMark::of(pid).unwrap();
        assert_eq!(ProgramMark::of(pid), Some(first));
        std::io::Write::write_all(&mut child.stdin.take().unwrap(), b"go\n").unwrap();
        is_named("sleep");
        // Its stack is laid out after it has its name.
        let second = std::iter::repeat_with(|| ProgramMark::of(pid)).find(Option::is_some).flatten();
        assert!(ProgramMark::has_changed(Some(first), second) && !ProgramMark::has_changed(second, second));
        assert!(!ProgramMark::has_changed(None, second) && !ProgramMark::has_changed(second, None), "nothing is known");
        assert!(has_children(HostPid(std::process::id())) && !has_children(pid));
        child.kill().unwrap();
        child.wait().unwrap();
        assert_eq!(ProgramMark::of(pid), None);
    }

    #[test]
    fn a_child_that_was_not_waited_for_holds_nothing() {
        let script = "sleep 0 & exec sleep 60";
        let mut child = std::process::Command::new("sh").args(["-c", script]).spawn().unwrap();
        let pid = HostPid(child.id());
        let children = || std::fs::read_to_string(format!("/proc/{pid}/task/{pid}/children")).unwrap();
        while comm(pid) != "sleep" || children().trim().parse().map_or(true, |child| is_alive(HostPid(child))) {
            std::thread::yield_now();
        }
        assert!(!has_children(pid), "it is still there, and nobody waits for it");
        child.kill().and_then(|()| child.wait()).unwrap();
    }

    #[test]
    fn a_parent_is_found_while_both_live() {
        let mut child = std::process::Command::new("sleep").arg("60").spawn().unwrap();
        let parent = WatchedProcess::open(HostPid(child.id())).unwrap().parent().unwrap();
        assert_eq!(parent.name.pid.0, std::process::id());
        let watched = WatchedProcess::open(HostPid(child.id())).unwrap();
        child.kill().unwrap();
        child.wait().unwrap();
        assert!(watched.parent().is_err());
    }

    #[test]
    fn a_stopped_process_is_seen() {
        let mut child = std::process::Command::new("sleep").arg("60").spawn().unwrap();
        let watched = WatchedProcess::open(HostPid(child.id())).unwrap();
        let send = |signal| rustix::process::pidfd_send_signal(&watched.pidfd, signal).unwrap();
        let becomes = |stopped: bool| {
            (0..2000).any(|_| {
                std::thread::sleep(std::time::Duration::from_millis(5));
                is_stopped(watched.name.pid) == stopped
            })
        };
        assert!(becomes(false));
        send(rustix::process::Signal::STOP);
        assert!(becomes(true));
        send(rustix::process::Signal::CONT);
        assert!(becomes(false));
        child.kill().unwrap();
        child.wait().unwrap();
        assert!(!is_stopped(watched.name.pid));
    }

    #[test]
    fn a_kept_pidfd_names_the_very_process() {
        let mut child = std::process::Command::new("sleep").arg("60").spawn().unwrap();
        let watched = WatchedProcess::open(HostPid(child.id())).unwrap();
        let adopt = |name| WatchedProcess::adopt(name, watched.pidfd.try_clone().unwrap());
        let me = WatchedProcess::open(HostPid(std::process::id())).unwrap();
        assert!(adopt(watched.name).is_some_and(|kept| !kept.has_ended()));
        assert!(adopt(me.name).is_none(), "a pidfd of another process");
        let no_pidfd = std::fs::File::open("/dev/null").unwrap();
        assert!(WatchedProcess::adopt(watched.name, no_pidfd.into()).is_none());
        child.kill().unwrap();
        // Before and after it was waited for.
        while !watched.has_ended() {
            std::thread::yield_now();
        }
        assert!(adopt(watched.name).is_some_and(|kept| kept.has_ended()));
        child.wait().unwrap();
        assert!(adopt(watched.name).is_some_and(|kept| kept.has_ended()));
        assert!(watched.try_clone().unwrap().has_ended());
    }

    #[test]
    fn an_ended_process_is_seen() {
        let mut child = std::process::Command::new("sleep").arg("60").spawn().unwrap();
        let watched = WatchedProcess::open(HostPid(child.id())).unwrap();
        assert!(!watched.has_ended());
        child.kill().unwrap();
        child.wait().unwrap();
        assert!(watched.has_ended());
        assert!(WatchedProcess::reopen(watched.name).is_err());
    }
}
