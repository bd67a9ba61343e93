//! `gpool usage`

use super::charges::{Month, parse_month};
use super::scope::{ContainerOption, ScopeOptions};
use super::{Format, words};
use clap::Args;
use clap::builder::TypedValueParser;
use gpool_protocol::UsageBy;

/// What the sums are of, and how they are kept apart.
#[derive(Debug, Clone, Args)]
pub struct UsageOptions {
    /// By what to keep the sums apart, and with ,day behind it, as in team,day, each day for itself; hours and days are UTC's
    #[arg(
        long,
        value_name = "WHAT",
        default_value = "team",
        value_delimiter = ',',
        value_parser = words::usage_by().try_map(|word| UsageBy::of(&word).ok_or("no such thing"))
    )]
    pub by: Vec<UsageBy>,
    /// A month of UTC, 2026-11, in place of since and until
    #[arg(long, value_name = "MONTH", value_parser = parse_month, conflicts_with_all = ["since", "until"])]
    pub month: Option<Month>,
    /// Of what.
    #[command(flatten)]
    pub scope: ScopeOptions,
    /// Of which container.
    #[command(flatten)]
    pub of: ContainerOption,
    /// How to print
    #[arg(long, value_enum, default_value_t)]
    pub format: Format,
}
