//! `gpool quota`

use super::Format;
use clap::Subcommand;

/// Verbs of `gpool quota`.
#[derive(Debug, Clone, Subcommand)]
pub enum QuotaVerb {
    /// List how much teams and users have reserved, and how much they may
    Ls {
        /// How to print; wide says which table of the configuration bounds each of them
        #[arg(long, value_enum, default_value_t)]
        format: Format,
    },
}
