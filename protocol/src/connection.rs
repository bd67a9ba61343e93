//! A connection on which nothing lasts longer than the caller's patience, however the other side behaves: hung with
//! a full queue of connections, silent, or sending one byte at a time.

use rustix::io::Errno;
use rustix::net::sockopt::{Timeout, set_socket_timeout};
use rustix::net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType, connect, socket_with};
use std::io::{Error, ErrorKind, Read, Result, Write};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::time::{Duration, Instant};

/// A stream with a deadline for everything together.
#[derive(Debug)]
pub struct Connection {
    stream: UnixStream,
    deadline: Option<Instant>,
}

impl Connection {
    /// Connects to the socket at `path`; all that follows ends `patience` from now.
    ///
    /// # Errors
    /// The kernel's, or `TimedOut` if nobody takes the connection.
    pub fn open(path: &Path, patience: Duration) -> Result<Self> {
        let address = SocketAddrUnix::new(path)?;
        let socket = socket_with(AddressFamily::UNIX, SocketType::STREAM, SocketFlags::CLOEXEC, None)?;
        let connection = Self { stream: socket.into(), deadline: Some(Instant::now() + patience) };
        // With a full queue `connect` waits as long as a write may (socket(7), SO_SNDTIMEO), which the standard library can
        // set only once there is a connection. After a signal nothing of it remains, and it is begun again.
        loop {
            set_socket_timeout(&connection.stream, Timeout::Send, connection.left()?)?;
            match connect(&connection.stream, &address) {
                Ok(()) => return Ok(connection),
                Err(Errno::INTR) => {}
                Err(error) => return Err(named(error.into())),
            }
        }
    }

    /// From now on silence is no error.
    pub fn wait_for_ever(&mut self) -> Result<()> {
        self.deadline = None;
        self.stream.set_read_timeout(None)
    }

    /// What is left of the patience.
    fn left(&self) -> Result<Option<Duration>> {
        let Some(deadline) = self.deadline else { return Ok(None) };
        let left = deadline.saturating_duration_since(Instant::now());
        if left.is_zero() { Err(ErrorKind::TimedOut.into()) } else { Ok(Some(left)) }
    }
}

/// The kernel calls a limit that has run out "try again".
fn named(error: Error) -> Error {
    if error.kind() == ErrorKind::WouldBlock { ErrorKind::TimedOut.into() } else { error }
}

impl Read for Connection {
    fn read(&mut self, buffer: &mut [u8]) -> Result<usize> {
        if let Some(left) = self.left()? {
            self.stream.set_read_timeout(Some(left))?;
        }
        self.stream.read(buffer).map_err(named)
    }
}

impl Write for Connection {
    fn write(&mut self, bytes: &[u8]) -> Result<usize> {
        if let Some(left) = self.left()? {
            self.stream.set_write_timeout(Some(left))?;
        }
        self.stream.write(bytes).map_err(named)
    }

    fn flush(&mut self) -> Result<()> {
        self.stream.flush()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::net::UnixListener;

    #[test]
    fn bytes_that_trickle_do_not_stretch_the_patience() {
        let socket = std::env::temp_dir().join(format!("gpool-trickle-{}.sock", std::process::id()));
        let listener = UnixListener::bind(&socket).unwrap();
        let trickle = std::thread::spawn(move || {
            let mut stream = listener.accept().unwrap().0;
            let mut sent = 0;
            while stream.write_all(b"x").is_ok() {
                sent += 1;
                std::thread::sleep(Duration::from_millis(20));
            }
            sent
        });
        let mut connection = Connection::open(&socket, Duration::from_millis(300)).unwrap();
        std::fs::remove_file(&socket).unwrap();
        let mut got = Vec::new();
        let error = connection.read_to_end(&mut got).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::TimedOut);
        assert!(!got.is_empty(), "it was not silent");
        drop(connection);
        assert!(trickle.join().unwrap() >= got.len());
    }
}
