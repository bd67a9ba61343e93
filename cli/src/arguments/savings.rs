//! `gpool savings`

use super::scope::ScopeOptions;
use super::{Format, words};
use clap::Args;
use clap::builder::TypedValueParser;
use gpool_protocol::UsageBy;

/// Of whom, and for how much of the time.
#[derive(Debug, Clone, Args)]
pub struct SavingsOptions {
    /// Who would have GPUs of its own
    #[arg(
        long,
        value_name = "WHO",
        default_value = "team",
        value_parser = words::owners().try_map(|word| UsageBy::of(&word).ok_or("no such thing"))
    )]
    pub by: UsageBy,
    /// For how many percent of the time the GPUs would have to be enough, 1 to 100; in the rest somebody would have waited
    #[arg(long, value_name = "PERCENT", default_value_t = 95, value_parser = clap::value_parser!(u8).range(1..=100))]
    pub percent: u8,
    /// Of what.
    #[command(flatten)]
    pub scope: ScopeOptions,
    /// How to print
    #[arg(long, value_enum, default_value_t)]
    pub format: Format,
}
