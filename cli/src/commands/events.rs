//! `gpool events`

use crate::arguments::{EventsOptions, Format};
use crate::container_names::nobody_has;
use crate::exit::Failure;
use crate::follower::{PAUSE, say};
use crate::output;
use gpool_protocol::{Client, ErrorBody, ErrorCode, Event, EventKind, EventPriority};
use jiff::Timestamp;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use std::cell::Cell;
use std::collections::VecDeque;
use std::os::fd::AsFd;

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
    let mut place = Place::default();
    let Some(tail) = tail else {
        stream(client, &mut place, options, &chosen)?;
        return chosen.nobody(client)?.map_or(Ok(()), |refusal| Err(refusal.into()));
    };
    // How many there are is only known at their end.
    let mut newest = VecDeque::new();
    client.stream("/v1/events?after=0", |line| {
        place.note(line);
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
    if options.follow { stream(client, &mut place, options, &chosen) } else { Ok(()) }
}

/// Prints events as they come, beginning behind the last one that was read. Those that are followed go on when the supervisor is back after
/// a restart, with what the next one tells.
fn stream(client: &Client, place: &mut Place, options: &EventsOptions, chosen: &Chosen<'_>) -> Result<(), Failure> {
    let (mut ended, mut is_away) = (Ok(()), false);
    loop {
        let follow = if options.follow { "&follow=1" } else { "" };
        let outcome = client.stream(&format!("/v1/events?{}{follow}", place.query()), |line| {
            if std::mem::take(&mut is_away) {
                say("gpool: the supervisor is back");
            }
            place.note(line);
            if chosen.has(line) {
                ended = output::print(&(present(line, options.format) + "\n"));
            }
            ended.is_ok()
        });
        ended?;
        ended = Ok(());
        let error = match outcome {
            Ok(()) if !options.follow => return Ok(()),
            // What was followed has no end of its own.
            Ok(()) => ErrorBody::new(ErrorCode::SupervisorAbsent, "the supervisor says no more", "look at its log"),
            Err(error) if place.is_known() && options.follow && is_absence(&error) => error,
            Err(error) => return Err(error.into()),
        };
        if !std::mem::replace(&mut is_away, true) {
            say(&format!("gpool: {}; events go on when it answers", error.message));
        }
        // Nothing is written while nobody answers, and so nothing says that nobody reads any more.
        if is_unread(&std::io::stdout()) {
            return Ok(());
        }
        std::thread::sleep(PAUSE);
    }
}

/// Whether nobody is at the other end of a pipe or a socket that is written to.
fn is_unread(output: &impl AsFd) -> bool {
    let mut polled = [PollFd::new(output, PollFlags::empty())];
    poll(&mut polled, Some(&Timespec::default())).is_ok() && polled[0].revents().contains(PollFlags::ERR)
}

/// Whether it is said by nobody, or by a supervisor that has no connection left: one that answers refuses with another code.
pub fn is_absence(error: &ErrorBody) -> bool {
    matches!(error.code, ErrorCode::SupervisorAbsent | ErrorCode::SupervisorFailed)
}

/// How far the events were read.
#[derive(Debug, Default)]
struct Place {
    sequence: u64,
    /// Of which supervisor: when it started. An older one does not say it.
    life: Option<u64>,
}

impl Place {
    fn note(&mut self, line: &str) {
        let Ok(event) = serde_json::from_str::<serde_json::Value>(line) else { return };
        self.sequence = event["sequence"].as_u64().unwrap_or(self.sequence);
        self.life = event["started_unix_ms"].as_u64().or(self.life);
    }

    fn is_known(&self) -> bool {
        self.sequence > 0
    }

    fn query(&self) -> String {
        let life = self.life.map_or_else(String::new, |life| format!("&life={life}"));
        format!("after={}{life}", self.sequence)
    }
}

/// Which events are wanted.
struct Chosen<'a> {
    id: Option<&'a str>,
    priority: Option<EventPriority>,
    since_unix_ms: u64,
    /// Whether there was one about that id, at any time.
    is_known: Cell<bool>,
}

impl<'a> Chosen<'a> {
    fn of(options: &'a EventsOptions) -> Self {
        let now_s = u64::try_from(Timestamp::now().as_second()).unwrap_or(0);
        let since_s = options.since.map_or(0, |when| when.unix_s(now_s));
        let (id, priority) = (options.id.as_deref(), options.priority.map(EventPriority::from));
        Self { id, priority, since_unix_ms: since_s.saturating_mul(1000), is_known: Cell::new(false) }
    }

    /// The supervisor's refusal, where all events were looked at and neither they nor a lease nor the queue have that id.
    fn nobody(&self, client: &Client) -> Result<Option<ErrorBody>, ErrorBody> {
        self.id.filter(|_| !self.is_known.get()).map_or(Ok(None), |id| nobody_has(client, id))
    }

    /// What is of a kind that only a newer supervisor knows is nobody's, and wanted by what it says of itself.
    fn has_unread(&self, line: &str) -> bool {
        let event: serde_json::Value = serde_json::from_str(line).unwrap_or_default();
        let is_recent = event["unix_ms"].as_u64().is_none_or(|unix_ms| unix_ms >= self.since_unix_ms);
        let gravity = || serde_json::from_value::<EventPriority>(event["priority"].clone()).ok();
        self.id.is_none() && is_recent && self.priority.is_none_or(|priority| gravity() == Some(priority))
    }

    fn has(&self, line: &str) -> bool {
        let Ok(event) = serde_json::from_str::<Event>(line) else { return self.has_unread(line) };
        let is_grave_enough = self.priority.is_none_or(|priority| event.gravity() == priority);
        let ids = [event.lease_id.as_ref().map(|id| &id.0), event.container_id.as_ref().map(|id| &id.0)];
        let is_about = |id: &str| ids.into_iter().flatten().any(|whole| whole.starts_with(id));
        let is_wanted = self.id.is_none_or(is_about);
        self.is_known.set(self.is_known.get() || is_wanted);
        event.unix_ms >= self.since_unix_ms && is_wanted && is_grave_enough
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
    use std::io::{Read, Write};
    use std::os::unix::net::UnixListener;

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
        let chosen = |id, since_unix_ms| Chosen { id, priority: None, since_unix_ms, is_known: Cell::new(false) };
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
        let warnings = Chosen { priority: Some(EventPriority::Warning), ..chosen(None, 0) };
        let failed = LINE.replace("\"kind\"", "\"priority\":\"warning\",\"kind\"");
        assert!(!warnings.has(LINE) && warnings.has(&failed), "as it says of itself");
        assert!(warnings.has(&LINE.replace("lease-granted", "bypass")), "or as its kind is, of an older supervisor");
        for (chosen, is_known) in [(chosen(Some("3f9a"), u64::MAX), true), (chosen(Some("9a"), 0), false)] {
            assert!(!chosen.has(LINE) && chosen.is_known.get() == is_known, "whenever it was");
        }
    }

    #[test]
    fn who_follows_goes_on_with_what_the_next_supervisor_tells() {
        let directory = tempfile::tempdir().unwrap();
        let socket = directory.path().join("s");
        let listener = UnixListener::bind(&socket).unwrap();
        let client = Client::new(&socket);
        let follows = std::thread::spawn(move || {
            let options =
                EventsOptions { id: None, since: None, priority: None, tail: None, follow: true, format: Format::Json };
            stream(&client, &mut Place::default(), &options, &Chosen::of(&options)).is_err()
        });
        let asked = |answer: &str| {
            let mut stream = listener.accept().unwrap().0;
            let mut request = [0; 512];
            let length = stream.read(&mut request).unwrap();
            stream.write_all(answer.as_bytes()).unwrap();
            String::from_utf8_lossy(&request[..length]).split(' ').nth(1).unwrap().to_owned()
        };
        // Its last, empty chunk does not come: the supervisor was killed.
        let told = |sequence: u64, life: u64| {
            let line = format!(
                "{{\"sequence\":{sequence},\"unix_ms\":1,\"started_unix_ms\":{life},\"kind\":\"budget\",\"message\":\"m\"}}\n"
            );
            format!("HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n{:x}\r\n{line}\r\n", line.len())
        };
        assert_eq!(asked(&told(7, 100)), "/v1/events?after=0&follow=1");
        assert_eq!(asked(""), "/v1/events?after=7&life=100&follow=1");
        assert_eq!(asked(&told(1, 200)), "/v1/events?after=7&life=100&follow=1");
        let refusal = r#"{"code":"GPOOL-E401","message":"m","remedy":"r"}"#;
        let refused = format!("HTTP/1.1 403 Forbidden\r\nContent-Length: {}\r\n\r\n{refusal}", refusal.len());
        assert_eq!(asked(&refused), "/v1/events?after=1&life=200&follow=1");
        assert!(follows.join().unwrap(), "a refusal ends it");
    }

    #[test]
    fn an_unknown_kind_is_passed_on() {
        let newer = r#"{"sequence":8,"unix_ms":1,"kind":"gpu-melted","message":"x"}"#;
        assert_eq!(present(newer, Format::Table), newer);
    }
}
