//! Which leases are shown.

use super::scope::{parse_plain, parse_user};
use clap::Args;

/// Those of whom, and where.
#[derive(Debug, Clone, Default, Args)]
pub struct LeasesOptions {
    /// Of one team alone; of containers without one if it is empty
    #[arg(long, value_name = "NAME")]
    pub team: Option<String>,
    /// Of containers that one user started, by name or number
    #[arg(long, value_name = "NAME", value_parser = parse_user)]
    pub user: Option<u32>,
    /// On one GPU, by its number or the beginning of its UUID, its MIG instances included, or on an instance, by the beginning of that
    #[arg(long, value_name = "GPU", value_parser = parse_plain)]
    pub gpu: Option<String>,
}
