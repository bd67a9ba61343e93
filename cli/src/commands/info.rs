//! `gpool info`

use crate::arguments::Format;
use crate::exit::Failure;
use crate::output;
use crate::table::format_duration;
use gpool_protocol::{Client, SupervisorInfo, version};
use serde_json::{Value, json};

/// Shows the supervisor's version and settings, and this program's version beside it.
pub fn run(client: &Client, format: Format) -> Result<(), Failure> {
    let info: SupervisorInfo = client.get("/v1/info")?;
    match format {
        Format::Table | Format::Wide => {
            output::print(&facts(&info).map(|(name, value)| format!("{:20}{value}\n", format!("{name}:"))).concat())
        }
        Format::Json => output::print_json_of([("client", own()), ("supervisor", output::to_value(&info))]),
        Format::Csv => output::print(&render_csv(&info)),
    }
}

/// This program, beside the supervisor.
fn own() -> Value {
    json!({"version": version()})
}

/// The same as in JSON: the supervisor's names, and integers. Nothing where there was no hand-off.
fn render_csv(info: &SupervisorInfo) -> String {
    let optional = |value: Option<u64>| value.map(|value| value.to_string()).unwrap_or_default();
    let rows = [
        ("client_version", version().to_owned()),
        ("version", info.version.clone()),
        ("pid", info.pid.to_string()),
        ("started_unix_ms", info.started_unix_ms.to_string()),
        ("region_version", info.region_version.to_string()),
        ("handoff_ns", info.handoff_ns.to_string()),
        ("slice_ns", info.slice_ns.to_string()),
        ("handoff_count", optional(info.handoff_count)),
        ("handoff_p50_ns", optional(info.handoff_p50_ns)),
        ("handoff_p99_ns", optional(info.handoff_p99_ns)),
    ];
    output::csv(&["name", "value"], rows.map(|(name, value)| vec![name.to_owned(), value]))
}

fn facts(info: &SupervisorInfo) -> [(&'static str, String); 8] {
    [
        ("client version", version().to_owned()),
        ("supervisor version", info.version.clone()),
        ("supervisor pid", info.pid.to_string()),
        ("region version", info.region_version.to_string()),
        ("hand-off", format_duration(info.handoff_ns)),
        ("hand-off p50", recent(info.handoff_p50_ns)),
        ("hand-off p99", recent(info.handoff_p99_ns)),
        ("slice", format_duration(info.slice_ns)),
    ]
}

/// There may have been no hand-off in the last seconds.
fn recent(handoff_ns: Option<u64>) -> String {
    handoff_ns.map_or_else(|| "-".to_owned(), format_duration)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn csv_has_what_json_has_as_integers() {
        let text = r#"{"version":"0.1.0","pid":81,"started_unix_ms":1,"region_version":1,"handoff_ns":100000,
            "slice_ns":12800000,"handoff_count":3,"handoff_p50_ns":98304}"#;
        let info: SupervisorInfo = serde_json::from_str(text).unwrap();
        let csv = render_csv(&info);
        for line in ["handoff_ns,100000", "slice_ns,12800000", "handoff_p50_ns,98304", "handoff_p99_ns,"] {
            assert!(csv.lines().any(|its| its == line), "{csv} lacks {line}");
        }
        let fields = output::to_value(&info);
        let names: Vec<&str> = csv.lines().skip(1).filter_map(|line| line.split(',').next()).collect();
        assert!(fields.as_object().unwrap().keys().all(|field| names.contains(&field.as_str())), "{names:?}");
        assert!(csv.contains(&format!("client_version,{}", version())) && own()["version"] == version());
    }
}
