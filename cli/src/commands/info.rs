//! `gpool info`

use crate::arguments::Format;
use crate::exit::Failure;
use crate::output;
use crate::table::format_duration;
use gpool_protocol::{Client, SupervisorInfo};

/// Shows the supervisor's version and settings, and this program's version beside it.
pub fn run(client: &Client, format: Format) -> Result<(), Failure> {
    let info: SupervisorInfo = client.get("/v1/info")?;
    match format {
        Format::Table | Format::Wide => {
            output::print(&facts(&info).map(|(name, value)| format!("{:20}{value}\n", format!("{name}:"))).concat())
        }
        Format::Json => output::print_json("supervisor", &info),
        Format::Csv => {
            output::print(&output::csv(&["name", "value"], facts(&info).map(|(name, value)| vec![name.into(), value])))
        }
    }
}

fn facts(info: &SupervisorInfo) -> [(&'static str, String); 8] {
    [
        ("client version", env!("CARGO_PKG_VERSION").to_owned()),
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
