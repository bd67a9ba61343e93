//! `gpool latency`

use super::Format;
use clap::Args;
use gpool_protocol::parse_time;

/// What `gpool latency` shows.
#[derive(Debug, Clone, Args)]
pub struct LatencyOptions {
    /// Ids or names of containers, or ids of leases, or unique prefixes of ids [default: all of class latency; to be checked, all that were promised a p99]
    #[arg(value_name = "ID")]
    pub ids: Vec<String>,
    /// End with 0 if all keep what they were promised, with 10 if one does not, and with 75 if there are too few requests to say so
    #[arg(long)]
    pub check: bool,
    /// Look for so long, 90s or 5m, at the requests that come meanwhile, and end before that only if a promise is missed
    #[arg(long = "for", value_name = "TIME", value_parser = parse_time, allow_hyphen_values = true, requires = "check")]
    pub seconds: Option<u64>,
    /// How to print
    #[arg(long, value_enum, default_value_t)]
    pub format: Format,
}
