//! `gpool events`

use crate::arguments::Format;
use crate::exit::Failure;
use crate::output;
use gpool_protocol::{Client, Event, EventKind};
use jiff::Timestamp;

const CSV_HEADER: [&str; 8] =
    ["sequence", "unix_ms", "kind", "lease_id", "container_id", "uid", "message", "charged_gpu_ns"];

/// Prints what happened, and with `follow` what happens from now on.
pub fn run(client: &Client, follow: bool, format: Format) -> Result<(), Failure> {
    let path = if follow { "/v1/events?after=0&follow=1" } else { "/v1/events?after=0" };
    if format == Format::Csv {
        output::print(&output::csv(&CSV_HEADER, []))?;
    }
    let mut ended = Ok(());
    client.stream(path, |line| {
        ended = output::print(&(present(line, format) + "\n"));
        ended.is_ok()
    })?;
    ended
}

/// One event as one line. An event of a newer supervisor that this version cannot read is passed on as it came.
fn present(line: &str, format: Format) -> String {
    let Ok(event) = serde_json::from_str::<Event>(line) else { return line.to_owned() };
    let kind = event.kind.word();
    match format {
        Format::Json => line.to_owned(),
        Format::Table | Format::Wide => {
            let container = event.container_id.as_ref().map_or("-", |id| id.short());
            format!("{}  {kind:width$}  {container:12}  {}", time(event.unix_ms), event.message, width = kind_width())
        }
        Format::Csv => {
            let row = vec![
                event.sequence.to_string(),
                event.unix_ms.to_string(),
                kind,
                event.lease_id.map(|id| id.0).unwrap_or_default(),
                event.container_id.map(|id| id.0).unwrap_or_default(),
                event.uid.map(|uid| uid.to_string()).unwrap_or_default(),
                event.message,
                match event.charged.as_slice() {
                    [] => String::new(),
                    gpus => gpus.iter().fold(0_u64, |sum, gpu| sum.saturating_add(gpu.charged_gpu_ns)).to_string(),
                },
            ];
            // The header has been printed already.
            output::csv(&[], [row]).trim().to_owned()
        }
    }
}

/// As wide as the longest kind.
fn kind_width() -> usize {
    EventKind::ALL.iter().map(|kind| kind.word().len()).max().unwrap_or_default()
}

/// RFC 3339 in UTC with milliseconds.
fn time(unix_ms: u64) -> String {
    let at = i64::try_from(unix_ms).ok().and_then(|ms| Timestamp::from_millisecond(ms).ok()).unwrap_or(Timestamp::MAX);
    format!("{at:.3}")
}

#[cfg(test)]
mod tests {
    use super::*;

    const LINE: &str = r#"{"sequence":7,"unix_ms":1700000000123,"kind":"lease-granted","container_id":"3f9a3f9a3f9a3f9a","message":"30 %, 4GiB"}"#;

    #[test]
    fn an_event_is_one_line() {
        assert_eq!(
            present(LINE, Format::Table),
            "2023-11-14T22:13:20.123Z  lease-granted           3f9a3f9a3f9a  30 %, 4GiB"
        );
        for kind in EventKind::ALL {
            let line = present(&LINE.replace("lease-granted", &kind.word()), Format::Table);
            assert_eq!(line.find("3f9a"), present(LINE, Format::Table).find("3f9a"), "{line}");
        }
        assert_eq!(present(LINE, Format::Json), LINE);
        assert_eq!(present(LINE, Format::Csv), "7,1700000000123,lease-granted,,3f9a3f9a3f9a3f9a,,\"30 %, 4GiB\",");
        let ended = LINE.replace(
            "\"message\"",
            r#""charged":[{"gpu_uuid":"GPU-1","charged_gpu_ns":5},{"gpu_uuid":"GPU-2","charged_gpu_ns":6}],"message""#,
        );
        assert_eq!(present(&ended, Format::Csv), "7,1700000000123,lease-granted,,3f9a3f9a3f9a3f9a,,\"30 %, 4GiB\",11");
    }

    #[test]
    fn an_unknown_kind_is_passed_on() {
        let newer = r#"{"sequence":8,"unix_ms":1,"kind":"gpu-drained","message":"x"}"#;
        assert_eq!(present(newer, Format::Table), newer);
    }
}
