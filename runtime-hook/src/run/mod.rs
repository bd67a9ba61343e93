//! `gpool-run`: a command of the host under a lease, without a container engine.
//!
//! ```text
//! gpool-run [--annotation KEY=VALUE ...] [--user NAME] [--name NAME] [--lock FILE] -- COMMAND [ARGUMENT ...]
//! ```
//!
//! `gpool run` reads what a person typed and executes this. It describes the command as an engine describes a container,
//! with the host's own root, so that request, lease, edits and the look at the mount table are the same code. Then
//!
//! - the **outer** process asks for the lease, makes a cgroup below its own, starts the inner one in a PID namespace,
//!   looks whether the shims are on top, binds the lease, and waits;
//! - the **inner** process, init of that namespace, makes the mounts in a mount namespace of its own, gives up what could
//!   undo them, starts the command and collects what it leaves.
//!
//! `gpool exec` executes it as well, for one more command under such a lease: see [`exec`].

mod cgroup;
mod description;
mod device_folder;
mod exec;
mod handing_on;
mod inner;
mod interruption;
mod job;
mod lock;
mod mounts;
mod order;
mod outer;
mod pipes;
mod plan;
mod rights;
mod signals;
mod terminal_input;

use gpool_protocol::{ErrorBody, ErrorCode};
use std::ffi::OsString;

pub use terminal_input::FilterCalls;

/// Exit status when gpool itself could not do what was asked, as docker has it.
const FAILED: u8 = 125;
/// Exit status when the command is there and cannot be executed, as a shell has it.
const NOT_EXECUTABLE: u8 = 126;
/// Exit status when there is no such command, as a shell has it.
const NOT_FOUND: u8 = 127;
/// What a shell makes of a signal is this and the signal's number.
const SIGNALLED: u8 = 128;

/// How `gpool-run` ends, which is how its command did.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum End {
    /// With an exit status.
    Status(u8),
    /// By the signal of this number. Not nix's: it knows no real-time ones.
    Signal(i32),
}

impl End {
    /// The exit status of whoever does not end by the signal itself.
    #[must_use]
    pub fn status(self) -> u8 {
        match self {
            Self::Status(status) => status,
            Self::Signal(signal) => SIGNALLED + signal as u8,
        }
    }
}

/// What the program asks of the kernel and no safe function offers.
#[derive(Debug, Clone, Copy)]
pub struct KernelCalls {
    /// Puts a filter over the calls of a thread.
    pub filter_calls: FilterCalls,
    /// Has the kernel keep nothing of children that end from now on.
    pub forget_children: fn(),
}

/// Runs `gpool-run` with `arguments`, the program's name left out. Returns how it is to end.
pub fn run_command(arguments: &[OsString], calls: KernelCalls) -> End {
    let outcome = match arguments {
        [inner, orders, words, ..] if inner == inner::VERB => {
            inner::run(orders, words, calls.filter_calls).map(End::Status)
        }
        [entrant, orders, words, mounts, ..] if entrant == exec::ENTRANT => {
            exec::enter(orders, words, mounts, calls.filter_calls).map(End::Status)
        }
        [exec, words @ ..] if exec == exec::VERB => exec::run(words, calls.forget_children),
        _ => order::Order::read(arguments).and_then(|order| outer::run(&order)),
    };
    outcome.unwrap_or_else(|error| {
        crate::report::report(&error, None);
        End::Status(FAILED)
    })
}

/// What the kernel refused, and what can be done.
fn unprepared(what: impl std::fmt::Display, cause: impl Into<std::io::Error>) -> ErrorBody {
    let cause = crate::low_level::cause(&cause.into());
    ErrorBody::new(
        ErrorCode::CommandNotPrepared,
        format!("the command was not started: {what} ({cause})"),
        "gpool run needs root, as gpool exec does, and a kernel with mount, PID and cgroup namespaces; in a container it needs --privileged",
    )
}
