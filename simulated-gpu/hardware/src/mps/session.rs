//! A program as the client of a daemon.

use super::{Answer, CONTROL, Membership, Question, SHARED_DIRECTORY, percentage_of, pinned_limits, pipe_directory};
use gpool_device_model::ClientLimits;
use std::io::{self, BufRead, BufReader, Write};
use std::os::fd::{AsRawFd, RawFd};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::time::Duration;

/// How long an answer of the daemon may take; it may have to start a server.
const PATIENCE: Duration = Duration::from_secs(10);
/// Between two questions of who has to wait.
const WAIT: Duration = Duration::from_millis(100);

/// Why a program that found a daemon is no client of it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum JoinError {
    /// The daemon cannot be talked to, or does not share its `/dev/shm`.
    ConnectionFailed,
    /// It takes nobody in until those have gone whom a fault has reached.
    NotReady,
}

/// A connection with a server's daemon, to be kept for as long as the program runs.
#[derive(Debug)]
pub struct Session {
    stream: UnixStream,
    membership: Membership,
}

impl Session {
    /// Joins the daemon whose directory the environment names; none where no daemon runs. Waits while the server is another
    /// user's.
    ///
    /// # Errors
    /// Why there is a daemon and this program no client.
    pub fn open() -> Result<Option<Self>, JoinError> {
        let path = pipe_directory().join(CONTROL);
        loop {
            // The pipe of a daemon that has ended is no daemon.
            let Ok(stream) = UnixStream::connect(&path) else { return Ok(None) };
            match ask(&stream, &Question::Join).map_err(|_| JoinError::ConnectionFailed)? {
                Answer::Joined(membership) if Path::new(SHARED_DIRECTORY).join(&membership.token).exists() => {
                    return Ok(Some(Self { stream, membership }));
                }
                Answer::Wait => std::thread::sleep(WAIT),
                Answer::Recovering => return Err(JoinError::NotReady),
                Answer::Joined(_) | Answer::Failed | Answer::Said(..) => return Err(JoinError::ConnectionFailed),
            }
        }
    }

    /// Host pid of its server.
    pub fn server(&self) -> u32 {
        self.membership.server
    }

    /// What this program may have of the device with this UUID, which is its device number `ordinal`: the least of what the
    /// server gives and what the environment says.
    pub fn limits(&self, ordinal: usize, uuid: &str) -> ClientLimits {
        let variable = |name: &str| std::env::var(name).unwrap_or_default();
        let own_percent = percentage_of(&variable("CUDA_MPS_ACTIVE_THREAD_PERCENTAGE")).unwrap_or(100);
        let own = pinned_limits(&variable("CUDA_MPS_PINNED_DEVICE_MEM_LIMIT"));
        let own = own.into_iter().find(|(device, _)| *device == ordinal).map(|(_, bytes)| bytes);
        let given = self.membership.memory_bytes.iter().find(|(its, _)| its == uuid).map(|(_, bytes)| *bytes);
        let memory_bytes = own.into_iter().chain(given).min();
        ClientLimits { percent: own_percent.min(self.membership.percent), memory_bytes }
    }

    /// The connection's descriptor, for a child after fork to close.
    pub fn descriptor(&self) -> RawFd {
        self.stream.as_raw_fd()
    }
}

/// Says one thing to the daemon and waits for its answer.
pub(super) fn ask(stream: &UnixStream, question: &Question) -> io::Result<Answer> {
    stream.set_read_timeout(Some(PATIENCE))?;
    let mut line = serde_json::to_vec(question)?;
    line.push(b'\n');
    (&*stream).write_all(&line)?;
    let mut answer = String::new();
    BufReader::new(stream).read_line(&mut answer)?;
    Ok(serde_json::from_str(&answer)?)
}
