//! `gpool overflow`

use super::Format;
use clap::{Args, Subcommand};
use gpool_protocol::parse_time;
use std::ffi::OsString;
use std::path::PathBuf;

/// Verbs of `gpool overflow`.
#[derive(Debug, Clone, Subcommand)]
pub enum OverflowVerb {
    /// Show whether containers have waited for room for long, [overflow] in config.toml, and what they would have
    Show {
        /// How to print
        #[arg(long, value_enum, default_value_t)]
        format: Format,
    },
    /// Run a program once when the host becomes short of room, with the word began, and once when it is not any more, with ended; what
    /// gpool overflow show --format json prints is on its stdin. It goes on until it is ended itself
    Watch(WatchOptions),
}

/// Options of `gpool overflow watch`.
#[derive(Debug, Clone, Args)]
pub struct WatchOptions {
    /// Where it is kept what the program was told last; without it the program is told anew with each start while the host is short
    #[arg(long, value_name = "FILE")]
    pub state: Option<PathBuf>,
    /// For how long the program may run; what takes longer is ended, and run again
    #[arg(long, value_name = "TIME", value_parser = parse_patience, allow_hyphen_values = true, default_value = "10m")]
    pub timeout: u64,
    /// The program and its arguments, behind which the word is put
    #[arg(required = true, trailing_var_arg = true, value_name = "PROGRAM")]
    pub command: Vec<OsString>,
}

/// A time in which something can be done.
fn parse_patience(text: &str) -> Result<u64, String> {
    let seconds = parse_time(text).map_err(|error| error.to_string())?;
    if seconds == 0 { Err("give a second at least".to_owned()) } else { Ok(seconds) }
}
