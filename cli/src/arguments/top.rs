//! `gpool top`

use super::Format;
use super::leases::LeasesOptions;
use super::seconds::parse_seconds;
use clap::builder::RangedU64ValueParser;
use clap::{Args, ValueEnum};
use std::time::Duration;

/// By what the leases stand one below the other.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum TopSort {
    /// Share received lately, the most first
    Received,
    /// Memory held, the most first
    Memory,
    /// Time at the closed gate, the longest first
    Gate,
    /// For how long their GPUs have not been used, the longest first; last those of whom nobody knows
    Idle,
    /// Their containers' ids
    Name,
}

/// Whose figures, how often, in which order and how many.
#[derive(Debug, Clone, Args)]
pub struct TopOptions {
    /// Print once and leave
    #[arg(long)]
    pub once: bool,
    /// Time between two looks: seconds, or with a unit, 1m
    #[arg(
        short,
        long,
        value_name = "TIME",
        default_value = "1",
        value_parser = parse_seconds,
        allow_negative_numbers = true
    )]
    pub interval: Duration,
    /// In which order; otherwise as they were granted
    #[arg(long, value_enum, value_name = "WHAT")]
    pub sort: Option<TopSort>,
    /// Which of them
    #[command(flatten)]
    pub whose: LeasesOptions,
    /// So many of them at most, the first
    #[arg(short = 'n', long, value_name = "COUNT", value_parser = RangedU64ValueParser::<usize>::new().range(1..))]
    pub lines: Option<usize>,
    /// How to print
    #[arg(long, value_enum, default_value_t)]
    pub format: Format,
}
