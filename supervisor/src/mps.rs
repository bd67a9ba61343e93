//! MPS: programs of one team and user side by side on a GPU, under a server of the driver's.
//!
//! For each such trust domain and set of GPUs there is one control daemon of the driver (`nvidia-cuda-mps-control`), with
//! folders of its own. It is started for the first lease and stopped after the last, outlives this process, and is found
//! again by the one that comes after. What a server gives its clients at most is told to the daemon; a container's own part
//! stands in its variables.

mod clients;
mod control;
mod daemon;
mod died;
mod fault;
mod group;
mod join;
mod logs;
mod room;
mod termination;
mod watch;

pub use control::ended_within;
pub use daemon::{become_daemon, starts_detached};
pub use fault::note_xid;
pub use group::{Domain, GroupRecord, Groups};
pub use join::edits;
pub use termination::terminate_clients;
pub use watch::{take_over, watch};
