//! `gpool overflow`

mod program;
mod told;
mod watch;

use super::usage::moment;
use crate::arguments::{Format, OverflowVerb};
use crate::exit::Failure;
use crate::output;
use gpool_protocol::{Client, OverflowView};

/// Where the supervisor says how the host stands.
const PATH: &str = "/v1/overflow";
/// By this name commands print it.
const NAME: &str = "overflow";

const HEADER: [&str; 8] = [
    "is_short",
    "since_unix_ms",
    "after_seconds",
    "clear_seconds",
    "longest_wait_ms",
    "waiting",
    "wanted_permille",
    "wanted_memory_bytes",
];

/// Runs a verb of `gpool overflow`.
///
/// # Errors
/// Nobody answers, or there is no such program.
pub fn run(client: &Client, verb: &OverflowVerb) -> Result<(), Failure> {
    match verb {
        OverflowVerb::Show { format } => {
            let its: OverflowView = client.get(PATH)?;
            match format {
                Format::Table | Format::Wide => output::print(&text(&its)),
                Format::Json => output::print_json(NAME, &its),
                Format::Csv => output::print(&output::csv(&HEADER, [csv_cells(&its)])),
            }
        }
        OverflowVerb::Watch(options) => watch::run(client, options),
    }
}

/// As people read it.
fn text(its: &OverflowView) -> String {
    let since = its.since_unix_ms.map(|unix_ms| format!(" since {}", moment(unix_ms / 1000))).unwrap_or_default();
    let state = match (its.after_seconds, its.is_short) {
        (0, _) => "nobody watches whether this host is short of room: [overflow] after_seconds is 0".to_owned(),
        (_, true) => format!("this host is short of room{since}"),
        (_, false) => format!("this host is not short of room{since}"),
    };
    format!("{state}\n{}\n", its.text())
}

fn csv_cells(its: &OverflowView) -> Vec<String> {
    vec![
        its.is_short.to_string(),
        its.since_unix_ms.map(|unix_ms| unix_ms.to_string()).unwrap_or_default(),
        its.after_seconds.to_string(),
        its.clear_seconds.to_string(),
        its.longest_wait_ms.to_string(),
        its.waiting.len().to_string(),
        its.wanted_permille.to_string(),
        its.wanted_memory_bytes.to_string(),
    ]
}

/// A host of the kind that tests want.
#[cfg(test)]
fn sample(is_short: bool) -> OverflowView {
    let waiting = r#"{"container_id":"c","place":1,"request":{"fraction_permille":300},"owner_uid":0,"since_unix_ms":1,"waited_ms":9,"cause":"x"}"#;
    OverflowView {
        is_short,
        since_unix_ms: Some(60_000),
        after_seconds: 600,
        clear_seconds: 600,
        longest_wait_ms: if is_short { 601_000 } else { 0 },
        wanted_permille: if is_short { 1500 } else { 0 },
        wanted_memory_bytes: if is_short { 3 << 30 } else { 0 },
        waiting: if is_short { vec![serde_json::from_str(waiting).unwrap(); 2] } else { Vec::new() },
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_is_told_in_two_lines() {
        let want = "this host is short of room since 1970-01-01T00:01:00Z\n\
                    2 containers wait for room, for 10m1s at most so far, and would have 1.5 GPUs' time and 3GiB of memory\n";
        assert_eq!(text(&sample(true)), want);
        let never = OverflowView { since_unix_ms: None, ..sample(false) };
        assert_eq!(text(&never), "this host is not short of room\nnobody waits for room\n");
        let off = OverflowView { after_seconds: 0, ..sample(false) };
        assert!(text(&off).starts_with("nobody watches"), "{}", text(&off));
        assert_eq!(csv_cells(&never).len(), HEADER.len());
    }
}
