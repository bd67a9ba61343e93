//! `gpool quota`

use super::Format;
use clap::Subcommand;

/// Verbs of `gpool quota`.
#[derive(Debug, Clone, Subcommand)]
pub enum QuotaVerb {
    /// List how much teams and users have reserved, now and in this month, and how much they may
    Ls {
        /// How to print; wide says what any one container may have, when a budget begins anew and how long it lasts, and which table of the configuration bounds each
        #[arg(long, value_enum, default_value_t)]
        format: Format,
    },
}
