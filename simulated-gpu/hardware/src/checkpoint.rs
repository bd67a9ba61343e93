//! Suspending a process to host memory and resuming it, as the driver's checkpoint API does. Source: cuda.h of CUDA 12.8
//! and "CUDA Checkpointing" of the CUDA Driver API reference.
//!
//! The server does it, for whoever asks at its socket. A request names the process as a credential, so that the pid is one
//! of the caller's PID namespace and the kernel says who may name whom. What a process has in its device memory lies in its
//! own host memory anyway: all that moves are the accounts.

mod devices;
mod progress;
mod requests;
#[cfg(test)]
mod tests;

pub(crate) use devices::Devices;
pub(crate) use progress::Progress;
pub(crate) use requests::Requests;

use crate::credentials;
use crate::layout::Layout;
use serde::{Deserialize, Serialize};
use std::io::{self, BufRead, BufReader};
use std::os::unix::net::UnixStream;

/// How far the suspension of a process is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum ProcessState {
    /// It is not suspended.
    Running,
    /// Its calls wait.
    Locked,
    /// It holds nothing of any device.
    Checkpointed,
    /// It did not come back, and never will.
    Failed,
}

/// What is asked of a process.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Verb {
    /// Its state.
    State,
    /// That its calls wait, once its work has ended.
    Lock {
        /// When to give up; 0: never.
        timeout_ms: u32,
    },
    /// That it leaves its devices.
    Checkpoint,
    /// That it comes back.
    Restore,
    /// That its calls go on.
    Unlock,
}

/// Why it is not done.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum Refusal {
    /// There is no such process, or it has not initialised the driver.
    NoProcess,
    /// The caller may not name this process.
    NotPermitted,
    /// Not from the state that it is in.
    WrongState,
    /// Its work has not ended in time; it runs on.
    NotReady,
    /// It holds memory that cannot leave the device, or has to do with MPS; its state is what it was.
    NotSupported,
    /// A device has no room for what the process held of it, which has failed.
    OutOfMemory,
    /// The simulation fails.
    Failed,
}

const REQUEST_BYTES: usize = 8;

impl Verb {
    fn to_bytes(self) -> [u8; REQUEST_BYTES] {
        let (number, timeout_ms) = match self {
            Self::State => (0, 0),
            Self::Lock { timeout_ms } => (1, timeout_ms),
            Self::Checkpoint => (2, 0),
            Self::Restore => (3, 0),
            Self::Unlock => (4, 0),
        };
        ((u64::from(timeout_ms) << 32) | number).to_le_bytes()
    }

    fn from_bytes(bytes: [u8; REQUEST_BYTES]) -> Option<Self> {
        let word = u64::from_le_bytes(bytes);
        Some(match word as u32 {
            0 => Self::State,
            1 => Self::Lock { timeout_ms: (word >> 32) as u32 },
            2 => Self::Checkpoint,
            3 => Self::Restore,
            4 => Self::Unlock,
            _ => return None,
        })
    }
}

/// Asks something of the process that the caller knows by this pid, and waits until it is done: the state in which the
/// process is then.
///
/// # Errors
/// Why it is not done.
pub fn ask(layout: &Layout, pid: i32, verb: Verb) -> Result<ProcessState, Refusal> {
    let pid = u32::try_from(pid).ok().filter(|pid| *pid > 0).ok_or(Refusal::NoProcess)?;
    let stream = UnixStream::connect(layout.checkpoint_socket()).map_err(|_| Refusal::Failed)?;
    credentials::send(&stream, verb.to_bytes(), pid).map_err(|cause| match cause.raw_os_error() {
        Some(libc::ESRCH) => Refusal::NoProcess,
        Some(libc::EPERM) => Refusal::NotPermitted,
        _ => Refusal::Failed,
    })?;
    answer(&stream).unwrap_or(Err(Refusal::Failed))
}

fn answer(stream: &UnixStream) -> io::Result<Result<ProcessState, Refusal>> {
    let mut line = String::new();
    BufReader::new(stream).read_line(&mut line)?;
    Ok(serde_json::from_str(&line)?)
}
