//! What systemd is told, and what it hands over: readiness, the watchdog, the socket that it listens on meanwhile, and
//! the pidfds that it keeps for the next supervisor. Without it nothing of this does anything.

use crate::mps::ended_within;
use gpool_protocol::LeaseId;
use rustix::net::{AddressFamily, SendAncillaryBuffer, SendAncillaryMessage, SendFlags, SocketType, sendmsg, sockopt};
use sd_notify::NotifyState;
use std::ffi::OsStr;
use std::io::{self, IoSlice, Read};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, FromRawFd, OwnedFd, RawFd};
use std::os::unix::net::{UnixDatagram, UnixListener};
use std::path::Path;
use std::process::{Command, Stdio};
use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

/// Stands before a lease's id in the name of its descriptor in the store. The listening socket has its unit's name.
const KEPT_PREFIX: &str = "lease-";
/// What is read of systemd's words.
const SAID_BYTES: u64 = 4096;

/// The supervisor serves; `status` is what `systemctl status` shows.
pub fn ready(status: &str) {
    tell(&[NotifyState::Ready, NotifyState::Status(status)]);
}

/// The start takes longer than usual, so long at most.
pub fn starting_takes(longest: Duration) {
    tell(&[NotifyState::ExtendTimeoutUsec(u32::try_from(longest.as_micros()).unwrap_or(u32::MAX))]);
}

/// The work goes on.
pub fn work_goes_on() {
    tell(&[NotifyState::Watchdog]);
}

/// It is about to end, as it was told to.
pub fn stopping() {
    tell(&[NotifyState::Stopping]);
}

/// Something keeps the work from going on.
pub fn status(status: &str) {
    tell(&[NotifyState::Status(status)]);
}

/// For how long at most [`work_goes_on`] may be left out; none if nobody watches.
pub fn watchdog_patience() -> Option<Duration> {
    sd_notify::watchdog_enabled()
}

fn tell(what: &[NotifyState<'_>]) {
    // A service manager that does not listen loses nothing but its own view.
    let _ = sd_notify::notify(what);
}

/// Has systemd do `verb` with another unit and waits until it has; one that does its work and ends has ended.
///
/// # Errors
/// The text is systemd's, or says that it has not ended within `patience`; it goes on all the same.
pub fn systemctl(verb: &str, unit: &str, patience: Duration) -> io::Result<()> {
    let mut command = Command::new("systemctl");
    command.args([verb, "--no-ask-password", unit]);
    let mut process = command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::piped()).spawn()?;
    let status = ended_within(&mut process, patience)?;
    let status =
        status.ok_or_else(|| io::Error::new(io::ErrorKind::TimedOut, format!("systemctl {verb} does not end")))?;
    let mut said = String::new();
    if let Some(errors) = process.stderr.take() {
        errors.take(SAID_BYTES).read_to_string(&mut said)?;
    }
    if status.success() { Ok(()) } else { Err(io::Error::other(said.trim().to_owned())) }
}

/// The listening socket at `path` among those that were handed over, for who asks first: it takes the descriptor.
pub fn socket_at(path: &Path) -> Option<UnixListener> {
    static IS_TAKEN: AtomicBool = AtomicBool::new(false);
    if IS_TAKEN.swap(true, Ordering::Relaxed) {
        return None;
    }
    let handed = handed_over().iter().filter(|(_, name)| kept_for(name).is_none());
    let found = handed.map(|(fd, _)| *fd).find(|fd| {
        // SAFETY: descriptors that were handed over are open, and of those with such a name none is taken but below.
        listens_at(unsafe { BorrowedFd::borrow_raw(*fd) }, path)
    })?;
    // SAFETY: as above; this is the one place that takes it.
    Some(UnixListener::from(unsafe { OwnedFd::from_raw_fd(found) }))
}

/// Everything that was handed over, with its name. Found once: where one of them has been closed since, none is found.
fn handed_over() -> &'static [(RawFd, String)] {
    static ALL: OnceLock<Vec<(RawFd, String)>> = OnceLock::new();
    ALL.get_or_init(|| sd_notify::listen_fds_with_names().map_or_else(|_| Vec::new(), Iterator::collect))
}

/// The lease for which a descriptor of this name is kept, if it is such a name.
fn kept_for(name: &str) -> Option<LeaseId> {
    name.strip_prefix(KEPT_PREFIX).map(|id| LeaseId(id.to_owned()))
}

/// Has the pidfd of a lease's init kept for the supervisor that comes after this one (sd_pid_notify_with_fds(3)).
///
/// Nothing waits, and nobody answers: where the store is full or nobody keeps one, the next supervisor finds the process by
/// pid and start time. FDPOLL=0 lets the descriptor stay when the process has ended, which is what it is to tell.
pub fn keep(lease: &LeaseId, pidfd: BorrowedFd<'_>) {
    let message = format!("FDSTORE=1\nFDNAME={KEPT_PREFIX}{lease}\nFDPOLL=0\n");
    send_without_waiting(&message, Some(pidfd));
}

/// Has what is kept for a lease given up. A message that is lost leaves it there until the next start.
pub fn forget(lease: &LeaseId) {
    send_without_waiting(&format!("FDSTOREREMOVE=1\nFDNAME={KEPT_PREFIX}{lease}\n"), None);
}

/// What an earlier supervisor had kept, by lease. Called once: it takes the descriptors.
pub fn kept() -> Vec<(LeaseId, OwnedFd)> {
    let kept = handed_over().iter().filter_map(|(fd, name)| Some((kept_for(name)?, *fd)));
    // SAFETY: descriptors that were handed over are open, and this is the one place that takes those with such a name.
    kept.map(|(lease, fd)| (lease, unsafe { OwnedFd::from_raw_fd(fd) })).collect()
}

/// The book of leases may be held meanwhile, so a service manager that does not read must not hold anything up.
fn send_without_waiting(message: &str, fd: Option<BorrowedFd<'_>>) {
    let Some(address) = std::env::var_os("NOTIFY_SOCKET") else { return };
    if let Err(error) = send(&address, message, fd) {
        log!("the service manager was not told of a kept process ({error})");
    }
}

fn send(address: &OsStr, message: &str, fd: Option<BorrowedFd<'_>>) -> io::Result<()> {
    let socket = UnixDatagram::unbound()?;
    socket.set_nonblocking(true)?;
    socket.connect(address)?;
    let fds: Vec<BorrowedFd<'_>> = fd.into_iter().collect();
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
    let mut ancillary = SendAncillaryBuffer::new(&mut space);
    if !fds.is_empty() && !ancillary.push(SendAncillaryMessage::ScmRights(&fds)) {
        return Err(io::ErrorKind::InvalidInput.into());
    }
    sendmsg(socket.as_fd(), &[IoSlice::new(message.as_bytes())], &mut ancillary, SendFlags::NOSIGNAL)?;
    Ok(())
}

fn listens_at(fd: BorrowedFd<'_>, path: &Path) -> bool {
    let is_stream = sockopt::socket_domain(fd).is_ok_and(|domain| domain == AddressFamily::UNIX)
        && sockopt::socket_type(fd).is_ok_and(|kind| kind == SocketType::STREAM)
        && sockopt::socket_acceptconn(fd).unwrap_or(false);
    if !is_stream {
        return false;
    }
    let Ok(copy) = fd.try_clone_to_owned() else { return false };
    UnixListener::from(copy).local_addr().is_ok_and(|address| address.as_pathname() == Some(path))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::procfs::WatchedProcess;
    use gpool_protocol::HostPid;
    use rustix::net::{RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, recvmsg};
    use std::io::IoSliceMut;
    use std::os::unix::net::UnixStream;

    const UNIT: &str = include_str!("../../packaging/systemd/gpool-supervisor.service");
    /// MAX_ARG_STRLEN of Linux, the longest string that execve(2) takes: 32 pages.
    const LONGEST_VARIABLE_BYTES: usize = 32 * 4096;

    #[test]
    fn a_pidfd_travels_with_its_message_and_nothing_waits_for_a_deaf_service_manager() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("notify");
        let manager = UnixDatagram::bind(&path).unwrap();
        let me = WatchedProcess::open(HostPid(std::process::id())).unwrap();
        send(path.as_os_str(), "FDSTORE=1\n", Some(me.pidfd.as_fd())).unwrap();
        send(path.as_os_str(), "FDSTOREREMOVE=1\n", None).unwrap();

        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(2))];
        let mut receive = || {
            let mut text = [0; 64];
            let mut ancillary = RecvAncillaryBuffer::new(&mut space);
            let received =
                recvmsg(&manager, &mut [IoSliceMut::new(&mut text)], &mut ancillary, RecvFlags::CMSG_CLOEXEC).unwrap();
            let fds: Vec<OwnedFd> = (ancillary.drain())
                .flat_map(|message| match message {
                    RecvAncillaryMessage::ScmRights(fds) => fds.collect(),
                    _ => Vec::new(),
                })
                .collect();
            (String::from_utf8(text[..received.bytes].to_vec()).unwrap(), fds)
        };
        let (text, mut fds) = receive();
        assert_eq!((text.as_str(), fds.len()), ("FDSTORE=1\n", 1));
        let adopted = WatchedProcess::adopt(me.name, fds.remove(0)).unwrap();
        assert!(!adopted.has_ended());
        let (text, fds) = receive();
        assert_eq!((text.as_str(), fds.len()), ("FDSTOREREMOVE=1\n", 0));

        let error = std::iter::repeat_with(|| send(path.as_os_str(), "x", None)).find_map(Result::err).unwrap();
        assert_eq!(error.kind(), io::ErrorKind::WouldBlock);
        assert!(send(directory.path().join("nobody").as_os_str(), "x", None).is_err());
    }

    #[test]
    fn sockets_and_kept_processes_are_told_apart_by_name() {
        let id = "01JD8ZQ3W4X5Y6Z7A8B9C0D1E2";
        assert_eq!(kept_for(&format!("{KEPT_PREFIX}{id}")), Some(LeaseId(id.to_owned())));
        for other in ["gpool-supervisor.socket", "stored", "unknown", id] {
            assert_eq!(kept_for(other), None, "{other}");
        }
    }

    /// In a process of its own, as descriptors are handed over to a whole process.
    #[test]
    fn the_socket_is_found_though_what_was_kept_is_of_no_use_and_closed() {
        const SOCKET: &str = "GPOOL_TEST_SOCKET";
        if let Some(path) = std::env::var_os(SOCKET) {
            assert_eq!(kept().len(), 1, "which are closed by this");
            assert!(socket_at(Path::new(&path)).is_some());
            return;
        }
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("one.sock");
        let listener = UnixListener::bind(&path).unwrap();
        let script = format!(
            "exec 3<&0 4</dev/null; export LISTEN_PID=$$ LISTEN_FDS=2 LISTEN_FDNAMES=one.socket:{KEPT_PREFIX}01; \
             exec \"$0\" --exact \"$1\" --test-threads=1"
        );
        let mut child = std::process::Command::new("sh");
        child.args(["-c", &script]).arg(std::env::current_exe().unwrap()).arg(std::thread::current().name().unwrap());
        let output = child.env(SOCKET, &path).stdin(OwnedFd::from(listener)).output().unwrap();
        let said = String::from_utf8_lossy(&output.stdout).into_owned();
        assert!(output.status.success() && said.contains("1 passed"), "{said}");
    }

    /// Names that do not fit into LISTEN_FDNAMES would keep systemd from starting the supervisor.
    #[test]
    fn the_names_of_a_full_store_fit_into_one_variable() {
        let store = UNIT.lines().find_map(|line| line.strip_prefix("FileDescriptorStoreMax=")).unwrap();
        let name_bytes = KEPT_PREFIX.len() + ulid::ULID_LEN + ":".len();
        let others = "LISTEN_FDNAMES=gpool-supervisor.socket".len() + 1;
        let names_bytes = store.parse::<usize>().unwrap() * name_bytes + others;
        assert!(names_bytes <= LONGEST_VARIABLE_BYTES, "{names_bytes} bytes");
    }

    #[test]
    fn only_a_socket_that_listens_there_is_taken() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("one.sock");
        let listener = UnixListener::bind(&path).unwrap();
        assert!(listens_at(listener.as_fd(), &path));
        assert!(!listens_at(listener.as_fd(), &directory.path().join("other.sock")));
        let client = UnixStream::connect(&path).unwrap();
        let (server, _) = listener.accept().unwrap();
        assert!(!listens_at(client.as_fd(), &path) && !listens_at(server.as_fd(), &path));
        assert!(!listens_at(std::fs::File::open("/dev/null").unwrap().as_fd(), &path));
    }
}
