//! A connection on which nothing lasts longer than the caller's patience, however the other side behaves: hung with
//! a full queue of connections, silent, or sending one byte at a time.

use std::io::{Error, ErrorKind, Read, Result, Write};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::sync::mpsc::{RecvTimeoutError, channel};
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
        let deadline = Instant::now() + patience;
        let path = path.to_owned();
        let (done, wait) = channel();
        // In a thread: with a full queue `connect` blocks, and a limit cannot be set on it through the standard
        // library. A thread that stays in it ends with this process, which has nothing left to do then.
        let connecting = std::thread::Builder::new().name("connect".into());
        connecting.spawn(move || done.send(UnixStream::connect(path)))?;
        match wait.recv_timeout(patience) {
            Ok(stream) => Ok(Self { stream: stream?, deadline: Some(deadline) }),
            Err(RecvTimeoutError::Timeout | RecvTimeoutError::Disconnected) => Err(ErrorKind::TimedOut.into()),
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
