//! `gpool usage`

use super::scope::ScopeOptions;
use super::{Format, words};
use clap::Args;
use clap::builder::TypedValueParser;
use gpool_protocol::UsageBy;

/// What the sums are of, and how they are kept apart.
#[derive(Debug, Clone, Args)]
pub struct UsageOptions {
    /// By what to keep the sums apart; hours and days are UTC's
    #[arg(
        long,
        value_name = "WHAT",
        default_value = "team",
        value_parser = words::usage_by().try_map(|word| UsageBy::of(&word).ok_or("no such thing"))
    )]
    pub by: UsageBy,
    /// Of what.
    #[command(flatten)]
    pub scope: ScopeOptions,
    /// How to print
    #[arg(long, value_enum, default_value_t)]
    pub format: Format,
}
