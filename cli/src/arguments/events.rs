//! `gpool events`

use super::Format;
use super::when::{When, parse_when};
use clap::Args;

/// Which of the events that the supervisor keeps, and whether to go on.
#[derive(Debug, Clone, Args)]
pub struct EventsOptions {
    /// Those of leases and containers alone whose ids begin with this, or of the container with this name
    pub id: Option<String>,
    /// From when on: 90s, 10m, 24h or 7d ago, or a moment of UTC, 2026-11-01 or 2026-11-01T08:30 [default: all that are kept]
    #[arg(long, value_name = "WHEN", value_parser = parse_when)]
    pub since: Option<When>,
    /// The newest N of them; with --follow, those that come afterwards follow them
    #[arg(short = 'n', long, value_name = "N")]
    pub tail: Option<usize>,
    /// Go on as things happen
    #[arg(short, long)]
    pub follow: bool,
    /// How to print; json is one object a line
    #[arg(long, value_enum, default_value_t)]
    pub format: Format,
}
