//! What systemd is told, and what it hands over: readiness, the watchdog, and the socket that it listens on meanwhile.
//! Without it nothing of this does anything.

use rustix::net::{AddressFamily, SocketType, sockopt};
use sd_notify::NotifyState;
use std::os::fd::{BorrowedFd, FromRawFd, OwnedFd, RawFd};
use std::os::unix::net::UnixListener;
use std::path::Path;
use std::time::Duration;

/// The supervisor serves; `status` is what `systemctl status` shows.
pub fn ready(status: &str) {
    tell(&[NotifyState::Ready, NotifyState::Status(status)]);
}

/// The work goes on.
pub fn work_goes_on() {
    tell(&[NotifyState::Watchdog]);
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

/// The listening socket at `path` among those that were handed over. Called once: it takes the descriptor.
pub fn socket_at(path: &Path) -> Option<UnixListener> {
    let handed: Vec<RawFd> = sd_notify::listen_fds().ok()?.collect();
    let found = handed.into_iter().find(|fd| {
        // SAFETY: descriptors that were handed over are open and nobody's until one is taken below.
        listens_at(unsafe { BorrowedFd::borrow_raw(*fd) }, path)
    })?;
    // SAFETY: as above; this is the one place that takes it.
    Some(UnixListener::from(unsafe { OwnedFd::from_raw_fd(found) }))
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
    use std::os::fd::AsFd;
    use std::os::unix::net::UnixStream;

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
