//! Naming processes across PID namespaces: a pid goes as a credential, and the receiver's kernel writes the pid of the
//! receiver's namespace into it.

use std::io;
use std::os::fd::AsRawFd;
use std::os::unix::net::UnixStream;

/// Room for one control message with credentials, header included and aligned as it must be.
const CONTROL_WORDS: usize = 8;

/// A message's parts: a payload, and room for credentials.
struct Message<const BYTES: usize> {
    payload: [u8; BYTES],
    control: [u64; CONTROL_WORDS],
}

impl<const BYTES: usize> Message<BYTES> {
    /// Calls `work` with the header of this message, and `control` bytes of room for its control part.
    fn with_header<T>(&mut self, control: usize, work: impl FnOnce(&mut libc::msghdr) -> T) -> T {
        let mut part = libc::iovec { iov_base: self.payload.as_mut_ptr().cast(), iov_len: BYTES };
        // SAFETY: a header of zeroes is a valid one without any part.
        let mut header: libc::msghdr = unsafe { std::mem::zeroed() };
        header.msg_iov = &mut part;
        header.msg_iovlen = 1;
        header.msg_control = self.control.as_mut_ptr().cast();
        header.msg_controllen = control;
        work(&mut header)
    }
}

/// Sends a payload, and the process with this pid in the caller's namespace. Needs CAP_SYS_ADMIN there, unless it is the
/// caller itself. Does not wait for a peer that does not read.
///
/// # Errors
/// ESRCH: there is no such process. EPERM: the caller may not name it.
pub(crate) fn send<const BYTES: usize>(stream: &UnixStream, payload: [u8; BYTES], pid: u32) -> io::Result<()> {
    let mut message = Message { payload, control: [0; CONTROL_WORDS] };
    // SAFETY: both cannot fail and touch nothing.
    let (uid, gid) = unsafe { (libc::geteuid(), libc::getegid()) };
    let credentials = libc::ucred { pid: pid as libc::pid_t, uid, gid };
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
    if sent < 0 { Err(io::Error::last_os_error()) } else { Ok(()) }
}

/// From now on credentials come with what is read.
pub(crate) fn expect(stream: &UnixStream) -> io::Result<()> {
    let on: libc::c_int = 1;
    let (value, length) = ((&raw const on).cast(), size_of_val(&on) as libc::socklen_t);
    // SAFETY: the descriptor is open, and the option's value a live integer of that length.
    match unsafe { libc::setsockopt(stream.as_raw_fd(), libc::SOL_SOCKET, libc::SO_PASSCRED, value, length) } {
        0 => Ok(()),
        _ => Err(io::Error::last_os_error()),
    }
}

/// The next payload, and the pid of its process in this namespace, 0 if it has none. None at the end.
pub(crate) fn receive<const BYTES: usize>(stream: &UnixStream) -> io::Result<Option<([u8; BYTES], u32)>> {
    let mut message = Message { payload: [0; BYTES], control: [0; CONTROL_WORDS] };
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
            if length as usize != BYTES || first.is_null() || (*first).cmsg_type != libc::SCM_CREDENTIALS {
                return Err(io::ErrorKind::InvalidData.into());
            }
            Ok(Some(libc::CMSG_DATA(first).cast::<libc::ucred>().read_unaligned().pid as u32))
        }
    })?;
    Ok(pid.map(|pid| (message.payload, pid)))
}
