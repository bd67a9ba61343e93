//! The thread that opens gates: the slice schedulers of all GPUs, fed with what the tenants report.
//!
//! It does no disk, NVML, HTTP or cgroup work and takes no lock that somebody holds who does: orders come in
//! through a channel, and answers go out through channels.

mod demand;
mod gates;
mod handoffs;
mod measured;
mod order;
mod tenant;
mod thread;
mod wakeup;

pub use order::{Notice, Order, Standing, Statistics};
pub use thread::{Gatekeeper, start};
