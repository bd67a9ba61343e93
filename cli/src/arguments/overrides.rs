//! `gpool override`

use super::Format;
use clap::{Args, Subcommand};
use gpool_protocol::parse_time;

/// Verbs of `gpool override`.
#[derive(Debug, Clone, Subcommand)]
pub enum OverrideVerb {
    /// List those that are in force
    Ls {
        /// How to print
        #[arg(long, value_enum, default_value_t)]
        format: Format,
    },
    /// Begin one: until it is over no quota and no budget holds for the containers of a team or a user, they stand first in the queue, and
    /// lower priorities make room for them without their having waited; what others were promised stays theirs. Said again, it has another end and another reason
    Begin {
        /// For whom
        #[command(flatten)]
        whom: OverrideWhom,
        /// For how long from now on, 7d at most: 90s, 5m, 1h30m or 2d
        #[arg(long = "for", value_name = "TIME", value_parser = parse_time, allow_hyphen_values = true)]
        seconds: u64,
        /// Why, for who reads the audit
        #[arg(long, value_name = "TEXT")]
        reason: String,
    },
    /// End one before its time; what its containers have stays theirs
    End {
        /// For whom
        #[command(flatten)]
        whom: OverrideWhom,
    },
}

/// One team or one user.
#[derive(Debug, Clone, Args)]
#[group(required = true, multiple = false)]
pub struct OverrideWhom {
    /// The containers that name this team
    #[arg(long, value_name = "NAME")]
    pub team: Option<String>,
    /// Those that this user starts, by number; root for docker
    #[arg(long, value_name = "UID")]
    pub user: Option<u32>,
}
