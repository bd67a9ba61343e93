//! `gpool queue`

use super::Format;
use clap::Subcommand;

/// Verbs of `gpool queue`.
#[derive(Debug, Clone, Subcommand)]
pub enum QueueVerb {
    /// List who waits, the next one first
    Ls {
        /// How to print; wide says why each of them waits
        #[arg(long, value_enum, default_value_t)]
        format: Format,
    },
    /// Take containers out of the queue: they are refused
    Cancel {
        /// Ids or names of containers that wait, or unique prefixes of ids
        #[arg(required = true, value_name = "ID")]
        ids: Vec<String>,
    },
    /// Hold containers back: they keep their places and do not begin, and those behind them go on
    Hold {
        /// Ids or names of containers that wait, or unique prefixes of ids
        #[arg(required = true, value_name = "ID")]
        ids: Vec<String>,
    },
    /// Release containers that are held back
    Release {
        /// Ids or names of containers that wait, or unique prefixes of ids
        #[arg(required = true, value_name = "ID")]
        ids: Vec<String>,
    },
    /// Put containers before the others of their priority
    First {
        /// Ids or names of containers that wait, or unique prefixes of ids
        #[arg(required = true, value_name = "ID")]
        ids: Vec<String>,
    },
}
