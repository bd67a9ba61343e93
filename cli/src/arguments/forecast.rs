//! `gpool forecast`

use super::Format;
use super::scope::ScopeOptions;
use clap::Args;

/// Of whom, by which time, and for how many weeks.
#[derive(Debug, Clone, Args)]
pub struct ForecastOptions {
    /// For so many weeks from now on, 1 to 12
    #[arg(long, value_name = "N", default_value_t = 4, value_parser = clap::value_parser!(u8).range(1..=12))]
    pub weeks: u8,
    /// Of what.
    #[command(flatten)]
    pub scope: ScopeOptions,
    /// How to print
    #[arg(long, value_enum, default_value_t)]
    pub format: Format,
}
