//! `gpool config`

use super::Format;
use clap::{Args, Subcommand};
use std::path::PathBuf;

/// Verbs of `gpool config`.
#[derive(Debug, Clone, Subcommand)]
pub enum ConfigVerb {
    /// Show every key with the value that the files give it
    Show {
        /// Say of each key where its value comes from
        #[arg(long)]
        origin: bool,
        /// Which files
        #[command(flatten)]
        files: ConfigFiles,
        /// How to print
        #[arg(long, value_enum, default_value_t)]
        format: Format,
    },
    /// Check one file, or the installed one with its drop-ins
    Validate {
        /// A file that is checked alone, without drop-ins
        #[arg(conflicts_with = "config")]
        file: Option<PathBuf>,
        /// Which files
        #[command(flatten)]
        files: ConfigFiles,
    },
    /// Print the file as it is shipped: every key, explained, with its default
    Defaults,
    /// Show the keys that differ from their defaults
    Diff {
        /// Compare with what the supervisor works with instead: what a reload or a restart would change
        #[arg(long)]
        running: bool,
        /// Which files
        #[command(flatten)]
        files: ConfigFiles,
        /// How to print
        #[arg(long, value_enum, default_value_t)]
        format: Format,
    },
    /// Let the supervisor take the files over: all of them or, where one cannot be used, none
    Reload {
        /// How to print
        #[arg(long, value_enum, default_value_t)]
        format: Format,
    },
}

/// The files that make up a configuration.
#[derive(Debug, Clone, Args)]
pub struct ConfigFiles {
    /// Configuration file; conf.d beside it holds its drop-ins
    #[arg(long, value_name = "FILE", default_value = gpool_configuration::DEFAULT_PATH)]
    pub config: PathBuf,
}
