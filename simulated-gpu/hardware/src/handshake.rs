//! How a process learns what it is called on the host, and gets the gate of its driver.

use crate::gate::Gate;
use crate::layout::Layout;
use rustix::net::{
    RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendAncillaryBuffer, SendAncillaryMessage, SendFlags,
    recvmsg, sendmsg,
};
use serde::{Deserialize, Serialize};
use std::io::{self, IoSlice, IoSliceMut};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::sync::Arc;
use std::time::Duration;

/// What the server sees of a process that connects. One line of JSON on the wire, with the gate's file.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Identity {
    /// The pid in the server's PID namespace.
    pub host_pid: u32,
    /// The cgroup path.
    pub owner: String,
}

/// A process's connection with the server, to be kept for as long as it uses the device.
#[derive(Debug)]
pub struct Connection {
    stream: UnixStream,
    identity: Identity,
    gate: Arc<Gate>,
}

impl Connection {
    /// Connects and waits, at most ten seconds, for the server to say who this process is.
    pub fn open(layout: &Layout) -> io::Result<Self> {
        let stream = UnixStream::connect(layout.socket())?;
        stream.set_read_timeout(Some(Duration::from_secs(10)))?;
        let (line, gate) = receive(&stream)?;
        let identity = serde_json::from_slice(&line)?;
        let gate = Arc::new(Gate::map(gate.ok_or(io::ErrorKind::InvalidData)?)?);
        Ok(Self { stream, identity, gate })
    }

    /// What the server said.
    pub fn identity(&self) -> &Identity {
        &self.identity
    }

    /// The gate that every call of the driver goes through.
    pub fn gate(&self) -> &Arc<Gate> {
        &self.gate
    }

    /// The connection's descriptor, for a child after fork to close.
    pub fn descriptor(&self) -> std::os::fd::RawFd {
        std::os::fd::AsRawFd::as_raw_fd(&self.stream)
    }
}

/// Tells a process who it is, and gives it its gate's file. The answer fits into an empty socket.
pub(crate) fn send(stream: &UnixStream, identity: &Identity, gate: &OwnedFd) -> io::Result<()> {
    let mut line = serde_json::to_vec(identity)?;
    line.push(b'\n');
    let files = [gate.as_fd()];
    let mut room = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
    let mut control = SendAncillaryBuffer::new(&mut room);
    if !control.push(SendAncillaryMessage::ScmRights(&files)) {
        return Err(io::ErrorKind::InvalidInput.into());
    }
    let sent = sendmsg(stream, &[IoSlice::new(&line)], &mut control, SendFlags::NOSIGNAL)?;
    if sent == line.len() { Ok(()) } else { Err(io::ErrorKind::WriteZero.into()) }
}

/// Reads a line, and the file that comes with it.
fn receive(stream: &UnixStream) -> io::Result<(Vec<u8>, Option<OwnedFd>)> {
    let (mut line, mut file) = (Vec::new(), None);
    while line.last() != Some(&b'\n') {
        let mut part = [0; 4096];
        let mut room = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
        let mut control = RecvAncillaryBuffer::new(&mut room);
        let received = match recvmsg(stream, &mut [IoSliceMut::new(&mut part)], &mut control, RecvFlags::CMSG_CLOEXEC) {
            Err(rustix::io::Errno::INTR) => continue,
            received => received?.bytes,
        };
        if received == 0 {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        line.extend_from_slice(&part[..received]);
        let files = control.drain().filter_map(|message| match message {
            RecvAncillaryMessage::ScmRights(mut files) => files.next(),
            _ => None,
        });
        file = files.last().or(file);
    }
    Ok((line, file))
}
