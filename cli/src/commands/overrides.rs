//! `gpool override`

use super::usage::moment;
use crate::arguments::{Format, OverrideVerb, OverrideWhom};
use crate::exit::Failure;
use crate::output::{self, Column, borderless, csv, figure, text};
use gpool_protocol::{Client, Override, OverrideOf, OverrideRequest, format_seconds};

const COLUMNS: [Column; 5] = [text("WHO"), text("UNTIL"), figure("LEFT"), text("BY"), text("REASON")];
const HEADER: [&str; 6] = ["team", "user", "since_unix_ms", "until_unix_ms", "uid", "reason"];

/// Runs a verb of `gpool override`.
///
/// # Errors
/// It is refused, or nobody answers.
pub fn run(client: &Client, verb: &OverrideVerb) -> Result<(), Failure> {
    match verb {
        OverrideVerb::Ls { format } => list(client, *format),
        OverrideVerb::Begin { whom, seconds, reason } => {
            let asked = OverrideRequest { of: of(whom), seconds: *seconds, reason: reason.clone() };
            let made: Override = client.post("/v1/overrides", &asked)?;
            output::print(&format!("{}\n", begun(&made)))
        }
        OverrideVerb::End { whom } => {
            let ended: Override = client.post("/v1/overrides/end", &of(whom))?;
            output::print(&format!("the quota of {} holds again\n", ended.of.text()))
        }
    }
}

fn of(whom: &OverrideWhom) -> OverrideOf {
    OverrideOf { team: whom.team.clone(), user: whom.user }
}

fn begun(made: &Override) -> String {
    let until = moment(made.until_unix_ms / 1000);
    format!("no quota holds for {} until {until}, and it stands first in the queue", made.of.text())
}

fn list(client: &Client, format: Format) -> Result<(), Failure> {
    let all: Vec<Override> = client.get("/v1/overrides")?;
    let now_ms = u64::try_from(jiff::Timestamp::now().as_millisecond()).unwrap_or(0);
    match format {
        Format::Table | Format::Wide => output::print(&borderless(&COLUMNS, all.iter().map(|its| cells(its, now_ms)))),
        Format::Json => output::print_json("overrides", &all),
        Format::Csv => output::print(&csv(&HEADER, all.iter().map(csv_cells))),
    }
}

fn cells(its: &Override, now_ms: u64) -> Vec<String> {
    vec![
        its.of.text(),
        moment(its.until_unix_ms / 1000),
        format_seconds(its.until_unix_ms.saturating_sub(now_ms).div_ceil(1000)),
        format!("user {}", its.uid),
        its.reason.clone(),
    ]
}

fn csv_cells(its: &Override) -> Vec<String> {
    vec![
        its.of.team.clone().unwrap_or_default(),
        its.of.user.map(|user| user.to_string()).unwrap_or_default(),
        its.since_unix_ms.to_string(),
        its.until_unix_ms.to_string(),
        its.uid.to_string(),
        its.reason.clone(),
    ]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_says_for_whom_until_when_and_why() {
        let text = r#"{"team":"vision","since_unix_ms":1,"until_unix_ms":90000,"uid":7,"reason":"incident, 4711"}"#;
        let its: Override = serde_json::from_str(text).unwrap();
        let want = ["team vision", "1970-01-01T00:01:30Z", "1m", "user 7", "incident, 4711"];
        assert_eq!(cells(&its, 30_000), want);
        assert_eq!(csv_cells(&its).len(), HEADER.len());
        assert!(begun(&its).starts_with("no quota holds for team vision until 1970-01-01T00:01:30Z, and"));
    }
}
