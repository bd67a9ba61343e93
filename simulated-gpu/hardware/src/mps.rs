//! A stand-in for NVIDIA's MPS: the control daemon `nvidia-cuda-mps-control` with its servers, and what a program is told
//! that is their client. NVIDIA's are closed programs, which no registry carries.
//!
//! The daemon's commands and variables are those of NVIDIA's documentation of MPS (docs.nvidia.com/deploy/mps) and of the
//! man page nvidia-cuda-mps-control(1). What goes over its pipe is not documented; here it is lines of JSON on a socket. As
//! there, a daemon has one server at a time, of one user; a client needs the daemon's `/dev/shm`; a client's own variables
//! only lower what the server gives it.

mod commands;
mod daemon;
mod limits;
pub mod program;
mod server;
mod session;

pub use limits::{percentage_of, pinned_limits};
pub use session::{JoinError, Session};

use serde::{Deserialize, Serialize};
use std::path::PathBuf;

/// Where a daemon is looked for that is not named.
const DEFAULT_PIPE_DIRECTORY: &str = "/tmp/nvidia-mps";
/// The daemon's socket in its directory; NVIDIA's has a pipe of this name.
const CONTROL: &str = "control";
/// The daemon's pid in its directory.
const PID_FILE: &str = "nvidia-cuda-mps-control.pid";
/// What the daemon and its clients both have to see.
const SHARED_DIRECTORY: &str = "/dev/shm";

/// The directory of the daemon that this process would use.
fn pipe_directory() -> PathBuf {
    std::env::var_os("CUDA_MPS_PIPE_DIRECTORY").map_or_else(|| DEFAULT_PIPE_DIRECTORY.into(), PathBuf::from)
}

/// What is said to the daemon.
#[derive(Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
enum Question {
    /// A program starts; the connection is kept until it ends.
    Join,
    /// A line of what a person types.
    Command(String),
}

/// What the daemon says.
#[derive(Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
enum Answer {
    /// The program is a client.
    Joined(Membership),
    /// The server is another user's; to be asked again.
    Wait,
    /// Clients that a fault has reached have not ended.
    Recovering,
    /// No server could be started.
    Failed,
    /// What a command prints, and whether it succeeded.
    Said(String, bool),
}

/// What a server gives a client.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
struct Membership {
    /// Host pid of the server.
    server: u32,
    /// A file in the shared directory that only a client with the daemon's `/dev/shm` sees.
    token: String,
    /// The most of each device.
    percent: u32,
    /// The most memory, by the device's UUID.
    memory_bytes: Vec<(String, u64)>,
}
