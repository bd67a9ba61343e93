//! The line for one that need not wait any more.

use super::targets::{Outcome, Target};
use crate::arguments::Format;
use crate::commands::events::time;
use crate::output::{self, csv, csv_rows};
use gpool_protocol::Event;
use serde::Serialize;

/// For programs. What is not known is null.
#[derive(Debug, Serialize)]
struct Line<'a> {
    #[serde(rename = "schemaVersion")]
    schema_version: u32,
    time: Option<String>,
    container_id: &'a str,
    lease_id: Option<&'a str>,
    outcome: &'static str,
    message: Option<&'a str>,
    charged_gpu_ns: Option<u64>,
}

/// How it came out, with what the supervisor said of it, if it has said something.
pub fn line(target: &Target, outcome: Outcome, event: Option<&Event>, format: Format) -> String {
    let lease_id = target.lease_id.as_ref().or_else(|| event?.lease_id.as_ref());
    let line = Line {
        schema_version: output::SCHEMA_VERSION,
        time: event.map(|event| time(event.unix_ms)),
        container_id: &target.container_id.0,
        lease_id: lease_id.map(|id| id.0.as_str()),
        outcome: match outcome {
            Outcome::Ended => "ended",
            Outcome::Granted => "granted",
            Outcome::Left => "left",
        },
        message: event.map(|event| event.message.as_str()),
        charged_gpu_ns: event
            .filter(|event| !event.charged.is_empty())
            .map(|event| event.charged.iter().fold(0, |sum: u64, gpu| sum.saturating_add(gpu.charged_gpu_ns))),
    };
    match format {
        Format::Json => serde_json::to_string(&line).unwrap_or_default() + "\n",
        Format::Csv => csv_rows([vec![
            line.time.unwrap_or_default(),
            line.container_id.to_owned(),
            line.lease_id.unwrap_or_default().to_owned(),
            line.outcome.to_owned(),
            line.message.unwrap_or_default().to_owned(),
            line.charged_gpu_ns.map(|ns| ns.to_string()).unwrap_or_default(),
        ]]),
        Format::Table | Format::Wide => line.message.map_or_else(|| untold(target, outcome), str::to_owned) + "\n",
    }
}

/// What is said where the supervisor has said nothing, or does not keep it any more.
fn untold(target: &Target, outcome: Outcome) -> String {
    let container = target.container_id.short();
    match outcome {
        Outcome::Ended => format!("ended {container}: the supervisor does not say how"),
        Outcome::Granted => format!("{container} has a lease"),
        Outcome::Left => format!("{container} has left the queue without a lease"),
    }
}

/// The line above all lines of CSV.
pub fn csv_header() -> String {
    csv(&["time", "container_id", "lease_id", "outcome", "message", "charged_gpu_ns"], [])
}

#[cfg(test)]
mod tests {
    use super::*;
    use gpool_protocol::{ContainerId, LeaseId};

    fn target(lease_id: Option<&str>) -> Target {
        Target {
            container_id: ContainerId("3f9a".repeat(16)),
            owner_uid: 0,
            lease_id: lease_id.map(|id| LeaseId(id.into())),
            since_unix_ms: 0,
        }
    }

    fn ended() -> Event {
        let text = r#"{"sequence":7,"unix_ms":1700000000123,"kind":"lease-ended","lease_id":"01",
            "charged":[{"gpu_uuid":"GPU-1","charged_gpu_ns":5},{"gpu_uuid":"GPU-2","charged_gpu_ns":6}],
            "message":"ended 3f9a3f9a3f9a: its container has ended"}"#;
        serde_json::from_str(text).unwrap()
    }

    #[test]
    fn a_line_is_what_the_supervisor_says_of_it() {
        let event = ended();
        let table = line(&target(Some("01")), Outcome::Ended, Some(&event), Format::Table);
        assert_eq!(table, "ended 3f9a3f9a3f9a: its container has ended\n");
        for (outcome, want) in [
            (Outcome::Ended, "ended 3f9a3f9a3f9a: the supervisor does not say how\n"),
            (Outcome::Granted, "3f9a3f9a3f9a has a lease\n"),
            (Outcome::Left, "3f9a3f9a3f9a has left the queue without a lease\n"),
        ] {
            assert_eq!(line(&target(None), outcome, None, Format::Table), want);
        }
    }

    #[test]
    fn programs_get_the_ids_in_full_and_null_for_what_is_not_known() {
        let (event, whole) = (ended(), "3f9a".repeat(16));
        let json = |target: &Target, event| -> serde_json::Value {
            serde_json::from_str(&line(target, Outcome::Ended, event, Format::Json)).unwrap()
        };
        let told = json(&target(None), Some(&event));
        assert_eq!((&told["container_id"], &told["lease_id"]), (&whole.into(), &"01".into()), "as the event says");
        assert_eq!((&told["charged_gpu_ns"], &told["time"]), (&11.into(), &"2023-11-14T22:13:20.123Z".into()));
        let untold = json(&target(None), None);
        assert!(
            ["time", "lease_id", "message", "charged_gpu_ns"].iter().all(|name| untold[name].is_null()),
            "{untold}"
        );
        let csv = line(&target(Some("01")), Outcome::Ended, Some(&event), Format::Csv);
        assert_eq!(csv.trim_end().split(',').count(), csv_header().trim_end().split(',').count());
    }
}
