//! `gpool wait`

use super::Format;
use clap::{Args, ValueEnum};
use gpool_protocol::parse_time;

/// For what, for how long, and of whom.
#[derive(Debug, Clone, Args)]
pub struct WaitOptions {
    /// Ids or names of containers, or ids of leases, or unique prefixes of ids; with --for grant those of containers that wait for room
    #[arg(required = true, value_name = "ID")]
    pub ids: Vec<String>,
    /// What to wait for
    #[arg(long = "for", value_name = "WHAT", value_enum, default_value_t)]
    pub awaited: Awaited,
    /// Give up after this time, 90s, 5m, 1h30m or 2d: the exit code is 75 then [default: never]
    #[arg(long, value_name = "TIME", value_parser = parse_time, allow_hyphen_values = true)]
    pub timeout: Option<u64>,
    /// How to print; json is one object a line
    #[arg(long, value_enum, default_value_t)]
    pub format: Format,
}

/// What one can wait for.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, ValueEnum)]
pub enum Awaited {
    /// The lease has ended
    #[default]
    End,
    /// Who waits for room has a lease; the exit code is 1 if it leaves the queue without one
    Grant,
}
