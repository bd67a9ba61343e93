//! `gpool audit`

use super::Format;
use super::config::ConfigFiles;
use super::when::{When, parse_when};
use clap::{Args, Subcommand};
use gpool_policy::chain::Link;
use gpool_protocol::EventKind;
use std::path::PathBuf;

/// Verbs of `gpool audit`.
#[derive(Debug, Clone, Subcommand)]
pub enum AuditVerb {
    /// Print what happened, under earlier supervisors and boots too
    Show(ShowOptions),
    /// Check that no event was changed, taken out or put in, and say what the audit ends with
    Verify(VerifyOptions),
}

/// Where the audit is.
#[derive(Debug, Clone, Args)]
pub struct AuditPlace {
    /// Its directory, or a copy of it [default: that of the configuration]
    #[arg(long, value_name = "DIR")]
    pub directory: Option<PathBuf>,
    /// Which files
    #[command(flatten)]
    pub files: ConfigFiles,
}

/// Which events.
#[derive(Debug, Clone, Args)]
pub struct ShowOptions {
    /// Those of leases and containers alone whose ids begin with this, or of the container with this name
    pub id: Option<String>,
    /// From when on: 90s, 10m, 24h or 7d ago, or a moment of UTC, 2026-11-01 or 2026-11-01T08:30 [default: all of it]
    #[arg(long, value_name = "WHEN", value_parser = parse_when)]
    pub since: Option<When>,
    /// Until when [default: now]
    #[arg(long, value_name = "WHEN", value_parser = parse_when)]
    pub until: Option<When>,
    /// Of this kind alone, for example lease-updated; may be repeated
    #[arg(long = "kind", value_name = "KIND", value_parser = parse_kind)]
    pub kinds: Vec<EventKind>,
    /// What this user asked for alone, by number; 0 is root
    #[arg(long, value_name = "UID")]
    pub user: Option<u32>,
    /// How to print; json is one object a line
    #[arg(long, value_enum, default_value_t)]
    pub format: Format,
    /// Where.
    #[command(flatten)]
    pub place: AuditPlace,
}

/// What is known of it.
#[derive(Debug, Clone, Args)]
pub struct VerifyOptions {
    /// That the event of this number had this chain, as the journal or an earlier look has it; may be repeated
    #[arg(long = "known", value_name = "NUMBER:CHAIN", value_parser = parse_known)]
    pub known: Vec<(u64, Link)>,
    /// How to print
    #[arg(long, value_enum, default_value_t)]
    pub format: Format,
    /// Where.
    #[command(flatten)]
    pub place: AuditPlace,
}

fn parse_kind(text: &str) -> Result<EventKind, String> {
    let kind = EventKind::ALL.into_iter().find(|kind| kind.word() == text);
    kind.ok_or_else(|| format!("the kinds are {}", EventKind::ALL.map(EventKind::word).join(", ")))
}

fn parse_known(text: &str) -> Result<(u64, Link), String> {
    let known = text.split_once(':').and_then(|(number, link)| Some((number.parse().ok()?, Link::parse(link)?)));
    known.ok_or_else(|| {
        "write the number of an event, a colon and 64 hexadecimal digits, as gpool audit verify prints them".to_owned()
    })
}
