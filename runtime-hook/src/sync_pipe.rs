//! Whether podman or CRI-O still wait for a start.
//!
//! Between them and the low-level runtime stands conmon, which goes on where they have ended or given up: they have detached it. What
//! tells of their end is the pipe, or pair of sockets, on which conmon is to answer them: its other end is closed then.

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::process::{Pid, PidfdFlags, PidfdGetfdFlags, getppid, pidfd_getfd, pidfd_open};
use std::os::fd::OwnedFd;

/// How every conmon's program is named in the end: CRI-O's packages have `crio-conmon`.
const MONITOR: &str = "conmon";
/// The variable that says under which number conmon has its end.
const NUMBER: &str = "_OCI_SYNCPIPE=";

/// conmon's end, held as well. It is closed when this process becomes another program.
#[derive(Debug)]
pub struct SyncPipe(OwnedFd);

impl SyncPipe {
    /// That of the process that has started this one, a program named `maker`; none if that is no conmon, or nothing can be told.
    pub fn of_maker(maker: &str) -> Option<Self> {
        let parent = getppid().filter(|_| maker.ends_with(MONITOR))?;
        // The process of that number is the parent as long as it is.
        Self::of(parent).filter(|_| getppid() == Some(parent))
    }

    fn of(monitor: Pid) -> Option<Self> {
        let environment = std::fs::read(format!("/proc/{}/environ", monitor.as_raw_nonzero())).ok()?;
        let number = environment.split(|byte| *byte == 0).find_map(|entry| entry.strip_prefix(NUMBER.as_bytes()))?;
        let number = std::str::from_utf8(number).ok()?.parse().ok()?;
        // A socket cannot be opened anew through /proc.
        let process = pidfd_open(monitor, PidfdFlags::empty()).ok()?;
        pidfd_getfd(process, number, PidfdGetfdFlags::empty()).ok().map(Self)
    }

    /// Whether nobody is at the other end any more.
    pub fn is_closed(&self) -> bool {
        let mut polled = [PollFd::new(&self.0, PollFlags::empty())];
        let at_once = Timespec { tv_sec: 0, tv_nsec: 0 };
        poll(&mut polled, Some(&at_once)).is_ok() && polled[0].revents().intersects(PollFlags::HUP | PollFlags::ERR)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use rustix::net::{AddressFamily, SocketFlags, SocketType, socketpair};
    use std::process::{Child, Command};

    /// A program that has `end` as its standard output, and says so as conmon's environment does.
    fn monitor(end: OwnedFd) -> (Child, SyncPipe) {
        let mut command = Command::new("sleep");
        let child = command.arg("60").env("_OCI_SYNCPIPE", "1").stdout(end).spawn().unwrap();
        // Its environment is there a moment after the program.
        let pipe = (0..500).find_map(|_| {
            std::thread::sleep(std::time::Duration::from_millis(10));
            SyncPipe::of(Pid::from_child(&child))
        });
        (child, pipe.unwrap())
    }

    #[test]
    fn the_end_of_podman_and_of_cri_o_is_seen_past_conmon() {
        let flags = SocketFlags::CLOEXEC;
        let sockets = socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, flags, None).unwrap();
        let (crio, pipe) = std::io::pipe().unwrap();
        for (engine, of_conmon) in [sockets, (crio.into(), pipe.into())] {
            let (mut child, pipe) = monitor(of_conmon);
            assert!(!pipe.is_closed(), "somebody waits");
            drop(engine);
            assert!(pipe.is_closed());
            child.kill().unwrap();
            child.wait().unwrap();
        }
    }

    #[test]
    fn of_others_nothing_is_told() {
        assert!(SyncPipe::of_maker("containerd-shim").is_none());
        let mut child = Command::new("sleep").arg("60").env_remove("_OCI_SYNCPIPE").spawn().unwrap();
        assert!(SyncPipe::of(Pid::from_child(&child)).is_none());
        child.kill().unwrap();
        child.wait().unwrap();
    }
}
