//! `gpool sizes`

use super::scope::{ContainerOption, ScopeOptions};
use super::{Format, words};
use clap::Args;
use clap::builder::TypedValueParser;
use gpool_protocol::UsageBy;

/// Of whom, and for how much of the time.
#[derive(Debug, Clone, Args)]
pub struct SizesOptions {
    /// Who has a line: each container, or all containers of somebody together
    #[arg(
        long,
        value_name = "WHO",
        default_value = "container",
        value_parser = words::sized().try_map(|word| UsageBy::of(&word).ok_or("no such thing"))
    )]
    pub by: UsageBy,
    /// For how many percent of the time in which a container worked a share would have to be enough, 1 to 100; in the rest it would
    /// have been slower, unless others left it more
    #[arg(long, value_name = "PERCENT", default_value_t = 95, value_parser = clap::value_parser!(u8).range(1..=100))]
    pub percent: u8,
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
