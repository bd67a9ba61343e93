//! `gpool events`

use crate::arguments::{EventsOptions, Format};
use crate::container_names::nobody_has;
use crate::exit::Failure;
use crate::output;
use gpool_protocol::{Client, ErrorBody, Event, EventKind};
use jiff::Timestamp;
use std::cell::Cell;
use std::collections::VecDeque;

/// What each of the fields of [`present`] is, as CSV.
pub const CSV_HEADER: [&str; 8] =
    ["sequence", "unix_ms", "kind", "lease_id", "container_id", "uid", "message", "charged_gpu_ns"];

/// Prints what happened, as far as it is wanted, and with `follow` what happens from now on.
pub fn run(client: &Client, options: &EventsOptions) -> Result<(), Failure> {
    if options.format == Format::Csv {
        output::print(&output::csv(&CSV_HEADER, []))?;
    }
    let chosen = Chosen::of(options);
    // Of somebody whom nobody knows that is told before it is waited for what happens to him.
    let tail = options.tail.or((options.follow && options.id.is_some()).then_some(usize::MAX));
    let Some(tail) = tail else {
        stream(client, 0, options, &chosen)?;
        return chosen.nobody(client)?.map_or(Ok(()), |refusal| Err(refusal.into()));
    };
    // How many there are is only known at their end.
    let (mut newest, mut last) = (VecDeque::new(), 0);
    client.stream("/v1/events?after=0", |line| {
        last = sequence(line).unwrap_or(last);
        if chosen.has(line) {
            newest.push_back(line.to_owned());
            newest.drain(..newest.len().saturating_sub(tail));
        }
        true
    })?;
    newest.iter().try_for_each(|line| output::print(&(present(line, options.format) + "\n")))?;
    match (chosen.nobody(client)?, options.follow) {
        (Some(refusal), false) => return Err(refusal.into()),
        (Some(refusal), true) => eprintln!("{refusal}"),
        (None, _) => {}
    }
    if options.follow { stream(client, last, options, &chosen) } else { Ok(()) }
}

/// Prints events as they come, beginning behind the one with the number `after`.
fn stream(client: &Client, after: u64, options: &EventsOptions, chosen: &Chosen<'_>) -> Result<(), Failure> {
    let follow = if options.follow { "&follow=1" } else { "" };
    let mut ended = Ok(());
    client.stream(&format!("/v1/events?after={after}{follow}"), |line| {
        if chosen.has(line) {
            ended = output::print(&(present(line, options.format) + "\n"));
        }
        ended.is_ok()
    })?;
    ended
}

fn sequence(line: &str) -> Option<u64> {
    serde_json::from_str::<serde_json::Value>(line).ok()?["sequence"].as_u64()
}

/// Which events are wanted.
struct Chosen<'a> {
    id: Option<&'a str>,
    since_unix_ms: u64,
    /// Whether there was one about that id, at any time.
    is_known: Cell<bool>,
}

impl<'a> Chosen<'a> {
    fn of(options: &'a EventsOptions) -> Self {
        let now_s = u64::try_from(Timestamp::now().as_second()).unwrap_or(0);
        let since_s = options.since.map_or(0, |when| when.unix_s(now_s));
        Self { id: options.id.as_deref(), since_unix_ms: since_s.saturating_mul(1000), is_known: Cell::new(false) }
    }

    /// The supervisor's refusal, where all events were looked at and neither they nor a lease nor the queue have that id.
    fn nobody(&self, client: &Client) -> Result<Option<ErrorBody>, ErrorBody> {
        self.id.filter(|_| !self.is_known.get()).map_or(Ok(None), |id| nobody_has(client, id))
    }

    /// What cannot be read is nobody's and of no time: it is wanted where nothing is chosen.
    fn has(&self, line: &str) -> bool {
        let Ok(event) = serde_json::from_str::<Event>(line) else { return self.id.is_none() };
        let ids = [event.lease_id.as_ref().map(|id| &id.0), event.container_id.as_ref().map(|id| &id.0)];
        let is_about = |id: &str| ids.into_iter().flatten().any(|whole| whole.starts_with(id));
        let is_wanted = self.id.is_none_or(is_about);
        self.is_known.set(self.is_known.get() || is_wanted);
        event.unix_ms >= self.since_unix_ms && is_wanted
    }
}

/// One event as one line. An event of a newer supervisor that this version cannot read is passed on as it came.
pub fn present(line: &str, format: Format) -> String {
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
            output::csv_rows([row]).trim_end().to_owned()
        }
    }
}

/// As wide as the longest kind.
fn kind_width() -> usize {
    EventKind::ALL.iter().map(|kind| kind.word().len()).max().unwrap_or_default()
}

/// RFC 3339 in UTC with milliseconds.
pub fn time(unix_ms: u64) -> String {
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
    fn events_are_chosen_by_whom_they_are_about_and_when_they_were() {
        let chosen = |id, since_unix_ms| Chosen { id, since_unix_ms, is_known: Cell::new(false) };
        let of_lease = LINE.replace("\"container_id\":\"3f9a3f9a3f9a3f9a\"", "\"lease_id\":\"01J7\"");
        for (chosen, line, is_wanted) in [
            (chosen(None, 0), LINE, true),
            (chosen(Some("3f9a"), 0), LINE, true),
            (chosen(Some("9a"), 0), LINE, false),
            (chosen(Some("01J7"), 0), of_lease.as_str(), true),
            (chosen(Some("3f9a"), 0), of_lease.as_str(), false),
            (chosen(None, 1_700_000_000_123), LINE, true),
            (chosen(None, 1_700_000_000_124), LINE, false),
            (chosen(Some("3f9a"), 0), "{}", false),
            (chosen(None, 5), "{}", true),
        ] {
            assert_eq!(chosen.has(line), is_wanted, "{line}");
        }
        assert_eq!((sequence(LINE), sequence("{}")), (Some(7), None));
        for (chosen, is_known) in [(chosen(Some("3f9a"), u64::MAX), true), (chosen(Some("9a"), 0), false)] {
            assert!(!chosen.has(LINE) && chosen.is_known.get() == is_known, "whenever it was");
        }
    }

    #[test]
    fn an_unknown_kind_is_passed_on() {
        let newer = r#"{"sequence":8,"unix_ms":1,"kind":"gpu-melted","message":"x"}"#;
        assert_eq!(present(newer, Format::Table), newer);
    }
}
