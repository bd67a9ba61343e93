//! `gpool doctor`

use super::Format;
use clap::{Args, Subcommand};
use std::path::PathBuf;

/// An examination of this host.
#[derive(Debug, Args)]
#[command(args_conflicts_with_subcommands = true)]
pub struct Checkup {
    /// Something else than examining it.
    #[command(subcommand)]
    pub verb: Option<DoctorVerb>,
    /// Configuration file
    #[arg(long, value_name = "FILE", default_value = gpool_configuration::DEFAULT_PATH)]
    pub config: PathBuf,
    /// Do what is safe about what is found: modes of gpool's own files, and what ended leases have left
    #[arg(long)]
    pub fix: bool,
    /// Write what is found, and what somebody else needs to look into it, into this tar archive; no environment, no
    /// token and no host name goes in
    #[arg(long, value_name = "FILE")]
    pub bundle: Option<PathBuf>,
    /// How to print
    #[arg(long, value_enum, default_value_t)]
    pub format: Format,
    /// The same as --format json
    #[arg(long, conflicts_with = "format")]
    pub json: bool,
}

impl Checkup {
    /// How to print, whichever way it was said.
    pub fn format(&self) -> Format {
        if self.json { Format::Json } else { self.format }
    }
}

/// Verbs of `gpool doctor`.
#[derive(Debug, Clone, Subcommand)]
pub enum DoctorVerb {
    /// Print the page of an error code, such as GPOOL-E201, or of a check by its number
    Explain {
        /// The code, in any case, with or without GPOOL-; or the number of a check
        code: String,
    },
}
