//! What a process calls others that use the devices. NVIDIA's kernel driver lists the clients of a GPU by their pids in
//! the PID namespace of whoever asks, and leaves out those that have none there (`gpuGetProcWithObject` and
//! `os_find_ns_pid` in NVIDIA's open kernel modules). Here the kernel itself translates: the server sends the credentials
//! of each process, and the receiver's kernel writes the pid of the receiver's namespace into them.

use crate::credentials;
use crate::layout::Layout;
use std::collections::BTreeMap;
use std::io;
use std::os::unix::net::UnixStream;
use std::time::Duration;

/// Tells the peer of `stream` the pids of these processes. One that has ended meanwhile is left out. Needs
/// CAP_SYS_ADMIN. Does not wait for a peer that does not read.
pub(crate) fn send(stream: &UnixStream, pids: impl Iterator<Item = u32>) -> io::Result<()> {
    for pid in pids {
        match credentials::send(stream, pid.to_ne_bytes(), pid) {
            Err(cause) if cause.raw_os_error() != Some(libc::ESRCH) => return Err(cause),
            Ok(()) | Err(_) => {}
        }
    }
    Ok(())
}

/// What the calling process calls the processes that use the host's devices, by their pids on the host. Those that its
/// PID namespace does not hold are left out.
///
/// # Errors
/// When the server does not answer within ten seconds.
pub fn visible_pids(layout: &Layout) -> io::Result<BTreeMap<u32, u32>> {
    let stream = UnixStream::connect(layout.pids_socket())?;
    stream.set_read_timeout(Some(Duration::from_secs(10)))?;
    credentials::expect(&stream)?;
    let mut found = BTreeMap::new();
    while let Some((host_pid, pid)) = receive(&stream)? {
        if pid != 0 {
            found.insert(host_pid, pid);
        }
    }
    Ok(found)
}

/// The next process: its pid on the host and the one in this namespace, 0 if it has none. None at the end.
fn receive(stream: &UnixStream) -> io::Result<Option<(u32, u32)>> {
    Ok(credentials::receive(stream)?.map(|(host_pid, pid)| (u32::from_ne_bytes(host_pid), pid)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_process_is_told_its_own_pid_and_the_dead_are_left_out() {
        let (server, client) = UnixStream::pair().unwrap();
        credentials::expect(&client).unwrap();
        let own = std::process::id();
        let mut child = std::process::Command::new("true").spawn().unwrap();
        child.wait().unwrap();
        // Others' credentials need root, one's own do not: without root, user and group must be the sender's.
        if !rustix::process::geteuid().is_root() {
            return;
        }
        send(&server, [child.id(), own].into_iter()).unwrap();
        drop(server);
        assert_eq!(receive(&client).unwrap(), Some((own, own)));
        assert_eq!(receive(&client).unwrap(), None);
    }
}
