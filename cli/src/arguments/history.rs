//! `gpool history`

use super::Format;
use super::charges::{Month, parse_month};
use super::scope::{ScopeOptions, parse_plain};
use clap::Args;

/// Which leases are shown.
#[derive(Debug, Clone, Args)]
pub struct HistoryOptions {
    /// Of one container alone: its id, the beginning of one, its name for docker or podman, or a lease's id
    #[arg(value_name = "CONTAINER", value_parser = parse_plain)]
    pub id: Option<String>,
    /// A month of UTC, 2026-11, in place of since and until
    #[arg(long, value_name = "MONTH", value_parser = parse_month, conflicts_with_all = ["since", "until"])]
    pub month: Option<Month>,
    /// Of what.
    #[command(flatten)]
    pub scope: ScopeOptions,
    /// How to print
    #[arg(long, value_enum, default_value_t)]
    pub format: Format,
}
