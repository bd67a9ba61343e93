//! `gpool baseline`

use super::Format;
use super::scope::{SpanOptions, parse_plain, parse_user};
use clap::Args;

/// Of whom, and for how much of the time.
#[derive(Debug, Clone, Args)]
pub struct BaselineOptions {
    /// For how many percent of the time in which it worked a share would have to be enough, 1 to 100; in the rest it would have
    /// been slower, unless others left it more
    #[arg(long, value_name = "PERCENT", default_value_t = 95, value_parser = clap::value_parser!(u8).range(1..=100))]
    pub percent: u8,
    /// Of which time.
    #[command(flatten)]
    pub time: SpanOptions,
    /// Jobs, services and programs of one user, by name or number
    #[arg(long, value_name = "NAME", value_parser = parse_user)]
    pub user: Option<u32>,
    /// On one GPU, by its number or the beginning of its UUID, or on a MIG instance, by the beginning of that
    #[arg(long, value_name = "GPU", value_parser = parse_plain)]
    pub gpu: Option<String>,
    /// How to print
    #[arg(long, value_enum, default_value_t)]
    pub format: Format,
}
