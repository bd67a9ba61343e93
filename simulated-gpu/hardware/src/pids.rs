//! What a process calls others that use the devices. NVIDIA's kernel driver lists the clients of a GPU by their pids in
//! the PID namespace of whoever asks, and leaves out those that have none there (`gpuGetProcWithObject` and
//! `os_find_ns_pid` in NVIDIA's open kernel modules). Here the kernel itself translates: the server sends the credentials
//! of each process, and the receiver's kernel writes the pid of the receiver's namespace into them.

use crate::layout::Layout;
use std::collections::BTreeMap;
use std::io;
use std::os::fd::AsRawFd;
use std::os::unix::net::UnixStream;
use std::time::Duration;

/// The payload of a message: the pid in the server's namespace.
const PAYLOAD_BYTES: usize = size_of::<u32>();
/// Room for one control message with credentials, header included and aligned as it must be.
const CONTROL_WORDS: usize = 8;

/// A message's parts: the host pid, and room for credentials.
struct Message {
    payload: [u8; PAYLOAD_BYTES],
    control: [u64; CONTROL_WORDS],
}

impl Message {
    /// Calls `work` with the header of this message, and `control` bytes of room for its control part.
    fn with_header<T>(&mut self, control: usize, work: impl FnOnce(&mut libc::msghdr) -> T) -> T {
        let mut part = libc::iovec { iov_base: self.payload.as_mut_ptr().cast(), iov_len: PAYLOAD_BYTES };
        // SAFETY: a header of zeroes is a valid one without any part.
        let mut header: libc::msghdr = unsafe { std::mem::zeroed() };
        header.msg_iov = &mut part;
        header.msg_iovlen = 1;
        header.msg_control = self.control.as_mut_ptr().cast();
        header.msg_controllen = control;
        work(&mut header)
    }
}

/// Tells the peer of `stream` the pids of these processes. One that has ended meanwhile is left out. Needs
/// CAP_SYS_ADMIN. Does not wait for a peer that does not read.
pub(crate) fn send(stream: &UnixStream, pids: impl Iterator<Item = u32>) -> io::Result<()> {
    for pid in pids {
        let mut message = Message { payload: pid.to_ne_bytes(), control: [0; CONTROL_WORDS] };
        let credentials = libc::ucred { pid: pid as libc::pid_t, uid: 0, gid: 0 };
        // SAFETY: computes a length.
        let length = unsafe { libc::CMSG_SPACE(size_of::<libc::ucred>() as u32) } as usize;
        let sent = message.with_header(length, |header| {
            // SAFETY: the header's control part has room for one message with credentials, which the first one is;
            // the descriptor is open and all parts are live.
            unsafe {
                let first = libc::CMSG_FIRSTHDR(header);
                (*first).cmsg_level = libc::SOL_SOCKET;
                (*first).cmsg_type = libc::SCM_CREDENTIALS;
                (*first).cmsg_len = libc::CMSG_LEN(size_of::<libc::ucred>() as u32) as usize;
                libc::CMSG_DATA(first).cast::<libc::ucred>().write_unaligned(credentials);
                libc::sendmsg(stream.as_raw_fd(), header, libc::MSG_DONTWAIT | libc::MSG_NOSIGNAL)
            }
        });
        if sent < 0 && io::Error::last_os_error().raw_os_error() != Some(libc::ESRCH) {
            return Err(io::Error::last_os_error());
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
    receive_credentials(&stream)?;
    let mut found = BTreeMap::new();
    while let Some((host_pid, pid)) = receive(&stream)? {
        if pid != 0 {
            found.insert(host_pid, pid);
        }
    }
    Ok(found)
}

/// From now on credentials come with what is read.
fn receive_credentials(stream: &UnixStream) -> io::Result<()> {
    let on: libc::c_int = 1;
    let (value, length) = ((&raw const on).cast(), size_of_val(&on) as libc::socklen_t);
    // SAFETY: the descriptor is open, and the option's value a live integer of that length.
    match unsafe { libc::setsockopt(stream.as_raw_fd(), libc::SOL_SOCKET, libc::SO_PASSCRED, value, length) } {
        0 => Ok(()),
        _ => Err(io::Error::last_os_error()),
    }
}

/// The next process: its pid on the host and the one in this namespace, 0 if it has none. None at the end.
fn receive(stream: &UnixStream) -> io::Result<Option<(u32, u32)>> {
    let mut message = Message { payload: [0; PAYLOAD_BYTES], control: [0; CONTROL_WORDS] };
    let pid = message.with_header(size_of::<[u64; CONTROL_WORDS]>(), |header| {
        // SAFETY: the descriptor is open and all parts of the header are live; what CMSG_FIRSTHDR gives lies in the
        // control part, and credentials are as long as their type.
        unsafe {
            let length = libc::recvmsg(stream.as_raw_fd(), header, libc::MSG_CMSG_CLOEXEC);
            if length < 0 {
                return Err(io::Error::last_os_error());
            }
            let first = libc::CMSG_FIRSTHDR(header);
            if length == 0 {
                return Ok(None);
            }
            if length as usize != PAYLOAD_BYTES || first.is_null() || (*first).cmsg_type != libc::SCM_CREDENTIALS {
                return Err(io::ErrorKind::InvalidData.into());
            }
            Ok(Some(libc::CMSG_DATA(first).cast::<libc::ucred>().read_unaligned().pid as u32))
        }
    })?;
    Ok(pid.map(|pid| (u32::from_ne_bytes(message.payload), pid)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_process_is_told_its_own_pid_and_the_dead_are_left_out() {
        let (server, client) = UnixStream::pair().unwrap();
        receive_credentials(&client).unwrap();
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
