//! The thread that opens gates: one slice scheduler per GPU, fed with what the tenants report.
//!
//! It does no disk, NVML, HTTP or cgroup work and takes no lock that somebody holds who does: orders come in
//! through a channel, and answers go out through channels.

mod order;
mod server;
mod tenant;
mod thread;
mod wakeup;

pub use order::{Notice, Order};
pub use thread::{Gatekeeper, start};
