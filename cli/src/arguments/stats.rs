//! `gpool stats`

use super::Format;
use super::seconds::parse_seconds;
use clap::Args;
use std::time::Duration;

/// Whose figures, how often, and how they are printed.
#[derive(Debug, Clone, Args)]
pub struct StatsOptions {
    /// Ids or names of containers, or ids of leases, or unique prefixes of ids: theirs alone, until the last of them has ended
    #[arg(value_name = "ID")]
    pub ids: Vec<String>,
    /// Print one sample and leave: it takes two looks, one interval apart
    #[arg(long)]
    pub no_stream: bool,
    /// Time between two looks: seconds, or with a unit, 1m; GPU time is counted once a second, however short this is
    #[arg(
        short,
        long,
        value_name = "TIME",
        default_value = "1",
        value_parser = parse_seconds,
        allow_negative_numbers = true
    )]
    pub interval: Duration,
    /// Of one team alone; of containers without one if it is empty
    #[arg(long, value_name = "NAME", conflicts_with = "ids")]
    pub team: Option<String>,
    /// How to print; json is one object a line for each lease and sample
    #[arg(long, value_enum, default_value_t)]
    pub format: Format,
}
