//! `gpool reservation`

use super::Format;
use clap::Subcommand;

/// Verbs of `gpool reservation`.
#[derive(Debug, Clone, Subcommand)]
pub enum ReservationVerb {
    /// List what is kept free for whom, until when, and what of it those have already
    Ls {
        /// How to print; wide says on which GPUs, and what others have of it still
        #[arg(long, value_enum, default_value_t)]
        format: Format,
    },
}
