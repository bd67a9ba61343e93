//! `gpool audit`: the events that were written down for good, read from their files, which works without a supervisor too.

mod verify;

use crate::arguments::{AuditPlace, AuditVerb, Format, ShowOptions};
use crate::commands::events;
use crate::container_names;
use crate::exit::{ExitStatus, Failure, unusable};
use crate::output;
use gpool_policy::chain::{first_of, opened};
use gpool_protocol::{Client, ErrorBody, ErrorCode, Event};
use jiff::Timestamp;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::time::Duration;

/// How long the supervisor is asked about an id; the audit is read without it, too.
const PATIENCE: Duration = Duration::from_secs(4);
/// How often it is begun anew where files are taken out meanwhile.
const TRIES: u32 = 3;

/// Shows or checks it. Only who names somebody asks the supervisor, at most who that is.
pub fn run(verb: &AuditVerb, client: impl FnOnce() -> Client) -> Result<(), Failure> {
    match verb {
        AuditVerb::Show(options) if options.id.is_some() => {
            let (client, mut options) = (client().with_timeout(PATIENCE), options.clone());
            // What nobody answers about is looked for as it is written.
            let _ = container_names::replace(&client, options.id.iter_mut());
            let is_known = show(&options)?;
            options.id.filter(|_| !is_known).map_or(Ok(()), |id| tell_of_nobody(&client, &id))
        }
        AuditVerb::Show(options) => show(options).map(drop),
        AuditVerb::Verify(options) => verify::run(options),
    }
}

/// Of an id that is in no event.
fn tell_of_nobody(client: &Client, id: &str) -> Result<(), Failure> {
    match container_names::nobody_has(client, id) {
        Ok(Some(refusal)) => return Err(refusal.into()),
        Ok(None) => {}
        Err(_) => {
            let message =
                format!("the audit has no event about {id:?}, and no supervisor says whether anybody has that id");
            return Err(
                ErrorBody::new(ErrorCode::LeaseUnknown, message, "see gpool audit show for all there are").into()
            );
        }
    }
    Ok(())
}

/// Its directory.
fn directory(place: &AuditPlace) -> Result<PathBuf, Failure> {
    if let Some(directory) = &place.directory {
        return Ok(directory.clone());
    }
    let configured = gpool_configuration::load(&place.files.config).map_err(|error| unusable(&error))?.audit;
    match configured.is_kept() {
        true => Ok(configured.directory),
        false => Err(failed(
            "this host keeps no audit; name a directory in [audit] of config.toml and restart the supervisor",
        )),
    }
}

fn failed(sentence: &str) -> Failure {
    Failure::Refused(ExitStatus::Failed, format!("gpool: {sentence}"))
}

/// What a file or directory is not read for.
fn unread(path: &Path, cause: &io::Error) -> Failure {
    let path = path.display();
    match cause.kind() {
        io::ErrorKind::PermissionDenied => {
            Failure::Refused(ExitStatus::NotPermitted, format!("gpool: {path} is for root to read; ask as root"))
        }
        io::ErrorKind::NotFound => {
            failed(&format!("there is no {path}; the supervisor makes the directory that [audit] names when it starts"))
        }
        _ => failed(&format!("{path} cannot be read: {cause}")),
    }
}

/// The files of the audit, in their order, with the number that each begins with.
fn files(directory: &Path) -> Result<Vec<(u64, PathBuf)>, Failure> {
    let entries = fs::read_dir(directory).map_err(|cause| unread(directory, &cause))?;
    let mut found = Vec::new();
    for entry in entries {
        let entry = entry.map_err(|cause| unread(directory, &cause))?;
        found.extend(entry.file_name().to_str().and_then(first_of).map(|first| (first, entry.path())));
    }
    found.sort();
    Ok(found)
}

/// The whole lines of a file, and whether there is another that is not whole behind them.
fn lines(path: &Path) -> Result<(Vec<Vec<u8>>, bool), Failure> {
    let bytes = fs::read(path).map_err(|cause| unread(path, &cause))?;
    let Some(whole) = bytes.iter().rposition(|byte| *byte == b'\n') else { return Ok((Vec::new(), !bytes.is_empty())) };
    let lines = bytes[..whole].split(|byte| *byte == b'\n').map(<[u8]>::to_vec).collect();
    Ok((lines, whole + 1 < bytes.len()))
}

/// Prints what is wanted; whether there is an event, wanted or not, about whom it is asked.
fn show(options: &ShowOptions) -> Result<bool, Failure> {
    let directory = directory(&options.place)?;
    let now_s = u64::try_from(Timestamp::now().as_second()).unwrap_or(0);
    let chosen = Chosen::of(options, now_s);
    if options.format == Format::Csv {
        output::print(&output::csv(&events::CSV_HEADER, []))?;
    }
    let (mut unreadable, mut is_known) = (0_u64, false);
    for (_, path) in files(&directory)? {
        // What is old goes, also while it is read.
        if !path.exists() {
            continue;
        }
        for line in lines(&path)?.0.iter().skip(1) {
            let object = std::str::from_utf8(line).ok().and_then(opened).map(|(object, _)| object);
            match object.as_deref().map(|object| (object, serde_json::from_str::<Event>(object))) {
                Some((object, Ok(event))) => {
                    is_known |= chosen.is_about(&event);
                    if chosen.has(&event) {
                        output::print(&(events::present(object, options.format) + "\n"))?;
                    }
                }
                // One of a newer version is passed on as it is where nothing is chosen.
                Some((object, Err(_))) if chosen.is_all() => output::print(&format!("{object}\n"))?,
                _ => unreadable += 1,
            }
        }
    }
    match unreadable {
        0 => Ok(is_known),
        count => Err(failed(&format!(
            "{count} lines are no events that this version can read; gpool audit verify says whether they were changed"
        ))),
    }
}

/// Which events are wanted.
struct Chosen<'a> {
    options: &'a ShowOptions,
    since_unix_ms: u64,
    until_unix_ms: u64,
}

impl<'a> Chosen<'a> {
    fn of(options: &'a ShowOptions, now_s: u64) -> Self {
        let ms = |unix_s: u64| unix_s.saturating_mul(1000);
        Self {
            options,
            since_unix_ms: options.since.map_or(0, |since| ms(since.unix_s(now_s))),
            until_unix_ms: options.until.map_or(u64::MAX, |until| ms(until.unix_s(now_s))),
        }
    }

    /// Whether nothing is left out.
    fn is_all(&self) -> bool {
        let options = self.options;
        let is_of_all = options.id.is_none() && options.user.is_none() && options.kinds.is_empty();
        is_of_all && options.since.is_none() && options.until.is_none()
    }

    fn is_about(&self, event: &Event) -> bool {
        let ids = [event.lease_id.as_ref().map(|id| &id.0), event.container_id.as_ref().map(|id| &id.0)];
        let is_meant = |id: &String| ids.into_iter().flatten().any(|whole| whole.starts_with(id.as_str()));
        self.options.id.as_ref().is_none_or(is_meant)
    }

    fn has(&self, event: &Event) -> bool {
        let options = self.options;
        (self.since_unix_ms..self.until_unix_ms).contains(&event.unix_ms)
            && self.is_about(event)
            && options.user.is_none_or(|uid| event.uid == Some(uid))
            && (options.kinds.is_empty() || options.kinds.contains(&event.kind))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::arguments::{Verb, parse};
    use std::ffi::OsString;

    fn options(line: &str) -> ShowOptions {
        let Ok(arguments) = parse(line.split(' ').map(OsString::from)) else { panic!("{line}") };
        let Verb::Audit { verb: AuditVerb::Show(options) } = arguments.verb else { panic!("{line}") };
        options
    }

    #[test]
    fn events_are_chosen_by_all_that_is_asked_for() {
        let event: Event = serde_json::from_str(
            r#"{"sequence":7,"unix_ms":1700000000123,"kind":"lease-updated","lease_id":"01J","container_id":"3f9a","uid":1000,"message":"x"}"#,
        )
        .unwrap();
        for (line, is_wanted) in [
            ("gpool audit show", true),
            ("gpool audit show 3f --user 1000 --kind lease-updated --kind lease-ended", true),
            ("gpool audit show 01", true),
            ("gpool audit show 9a", false),
            ("gpool audit show --user 0", false),
            ("gpool audit show --kind lease-ended", false),
            ("gpool audit show --since 2023-11-14T22:13:20", true),
            ("gpool audit show --since 2023-11-14T22:13:21", false),
            ("gpool audit show --until 2023-11-14T22:13:20", false),
        ] {
            let options = options(line);
            assert_eq!(Chosen::of(&options, 1_700_000_100).has(&event), is_wanted, "{line}");
        }
        for (line, is_known) in [("gpool audit show 3f --user 0", true), ("gpool audit show 9a", false)] {
            assert_eq!(Chosen::of(&options(line), 1_700_000_100).is_about(&event), is_known, "{line}");
        }
        assert!(parse("gpool audit show --kind lease-update".split(' ').map(OsString::from)).is_err());
    }
}
