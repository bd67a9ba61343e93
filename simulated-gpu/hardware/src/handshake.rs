//! How a process learns what it is called on the host.

use crate::layout::Layout;
use serde::{Deserialize, Serialize};
use std::io::{self, BufRead, BufReader};
use std::os::unix::net::UnixStream;
use std::time::Duration;

/// What the server sees of a process that connects. One line of JSON on the wire.
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
}

impl Connection {
    /// Connects and waits, at most ten seconds, for the server to say who this process is.
    pub fn open(layout: &Layout) -> io::Result<Self> {
        let stream = UnixStream::connect(layout.socket())?;
        stream.set_read_timeout(Some(Duration::from_secs(10)))?;
        let mut line = String::new();
        BufReader::new(&stream).read_line(&mut line)?;
        let identity = serde_json::from_str(&line)?;
        Ok(Self { stream, identity })
    }

    /// What the server said.
    pub fn identity(&self) -> &Identity {
        &self.identity
    }

    /// The connection's descriptor, for a child after fork to close.
    pub fn descriptor(&self) -> std::os::fd::RawFd {
        std::os::fd::AsRawFd::as_raw_fd(&self.stream)
    }
}
