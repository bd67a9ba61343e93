//! `gpool events`

use super::Format;
use super::when::{When, parse_when};
use clap::{Args, ValueEnum};
use gpool_protocol::EventPriority;

/// Which of the events that the supervisor keeps, and whether to go on.
#[derive(Debug, Clone, Args)]
pub struct EventsOptions {
    /// Those of leases and containers alone whose ids begin with this, or of the container with this name
    pub id: Option<String>,
    /// From when on: 90s, 10m, 24h or 7d ago, or a moment of UTC, 2026-11-01 or 2026-11-01T08:30 [default: all that are kept]
    #[arg(long, value_name = "WHEN", value_parser = parse_when)]
    pub since: Option<When>,
    /// Those of this priority alone; a warning is what somebody should look at, as what was to be done and could not be
    #[arg(long, value_enum)]
    pub priority: Option<Gravity>,
    /// The newest N of them; with --follow, those that come afterwards follow them
    #[arg(short = 'n', long, value_name = "N")]
    pub tail: Option<usize>,
    /// Go on as things happen, also over a restart of the supervisor
    #[arg(short, long)]
    pub follow: bool,
    /// How to print; json is one object a line
    #[arg(long, value_enum, default_value_t)]
    pub format: Format,
}

/// How grave an event is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum Gravity {
    Warning,
    Information,
}

impl From<Gravity> for EventPriority {
    fn from(gravity: Gravity) -> Self {
        match gravity {
            Gravity::Warning => Self::Warning,
            Gravity::Information => Self::Information,
        }
    }
}
