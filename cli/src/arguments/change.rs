//! `gpool update`

use super::words;
use clap::builder::TypedValueParser;
use clap::{ArgGroup, Args};
use gpool_protocol::{Class, MemoryCap, Priority, parse_bytes, parse_p99, parse_permille, parse_time};

/// A live change of one lease. What is not named stays as it is.
#[derive(Debug, Args)]
#[command(group = ArgGroup::new("change").multiple(true).required(true))]
pub struct Change {
    /// Id or name of a container, or id of a lease, or a unique prefix of an id
    pub id: String,
    /// New share of each of its GPUs, for example 0.2
    #[arg(long, value_name = "SHARE", value_parser = parse_permille, allow_negative_numbers = true, group = "change")]
    pub fraction: Option<u16>,
    /// The most that it may have of each GPU, also when others leave time; not below the share
    #[arg(long, value_name = "SHARE", value_parser = parse_permille, allow_negative_numbers = true, group = "change")]
    pub limit: Option<u16>,
    /// Take the limit away
    #[arg(long, conflicts_with = "limit", group = "change")]
    pub no_limit: bool,
    /// New memory cap on each GPU, for example 4GiB or 25%
    #[arg(long, value_name = "SIZE", value_parser = MemoryCap::parse, allow_hyphen_values = true, group = "change")]
    pub memory: Option<MemoryCap>,
    /// How much of what it allocates beyond that may lie in the host's memory, for example 8GiB; 0 for nothing more
    #[arg(long, value_name = "SIZE", value_parser = parse_spill, allow_hyphen_values = true, group = "change")]
    pub spill: Option<u64>,
    /// New class
    #[arg(
        long,
        value_name = "CLASS",
        value_parser = words::classes().try_map(|word| Class::parse(&word)),
        group = "change"
    )]
    pub class: Option<Class>,
    /// How long 99 of 100 of its requests are to take at most from now on, for example 20ms
    #[arg(long, value_name = "TIME", value_parser = parse_p99, allow_hyphen_values = true, group = "change")]
    pub p99: Option<u64>,
    /// Take that away
    #[arg(long, conflicts_with = "p99", group = "change")]
    pub no_p99: bool,
    /// New priority
    #[arg(
        long,
        value_name = "PRIORITY",
        value_parser = words::priorities().try_map(|word| Priority::parse(&word)),
        group = "change"
    )]
    pub priority: Option<Priority>,
    /// New run time, all of it, from when it was granted: 90s, 5m, 1h30m or 2d. Root and the group gpool alone may put the end off
    #[arg(long, value_name = "TIME", value_parser = parse_time, allow_hyphen_values = true, group = "change")]
    pub run_time: Option<u64>,
    /// Take the run time away, for root and the group gpool
    #[arg(long, conflicts_with = "run_time", group = "change")]
    pub no_run_time: bool,
}

/// A size, or 0.
fn parse_spill(text: &str) -> Result<u64, String> {
    if text == "0" { Ok(0) } else { parse_bytes(text).map_err(|error| error.to_string()) }
}
