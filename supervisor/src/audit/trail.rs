//! The trail that is written: one file until it is large, then the next one.

use super::files::{files, named};
use crate::clock;
use gpool_policy::chain::{Link, file_name, follows, opened, sealed};
use gpool_protocol::{AUDIT_FORM, Beginning, Event, Numbered};
use rustix::fs::{FlockOperation, flock};
use std::fs::{self, File, OpenOptions};
use std::io::{self, Read, Write};
use std::os::unix::fs::{DirBuilderExt, FileExt, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// A file is not made longer than about this.
const FILE_BYTES: u64 = 16 << 20;
/// So much is written at once, or one event.
const PIECE_BYTES: usize = 1 << 20;
/// A file that was begun in the moment of a loss of power has no more in it.
const UNBEGUN_BYTES: usize = 4096;

/// The open trail.
#[derive(Debug)]
pub struct Trail {
    directory: PathBuf,
    file: File,
    path: PathBuf,
    bytes: u64,
    link: Link,
    /// The number of the last event; 0 before the first.
    number: u64,
    /// When the last one was that was there when it was opened; none where there was none.
    found_unix_ms: Option<u64>,
    remarks: Vec<String>,
}

impl Trail {
    /// Opens the trail in a directory, made where it is not, and goes on behind its last whole line. What it found to be wrong is
    /// among its remarks, and a new file is begun then, so that what is wrong stays as it is.
    ///
    /// # Errors
    /// It cannot be made, read or written. All is left as it is then.
    pub fn open(directory: &Path) -> io::Result<Self> {
        // Who was asked for what is for root to read; what lies beside it may be for others.
        let beside = directory
            .parent()
            .map_or(Ok(()), |beside| fs::DirBuilder::new().recursive(true).mode(0o755).create(beside));
        let made = beside.and_then(|()| fs::DirBuilder::new().recursive(true).mode(0o700).create(directory));
        made.map_err(|cause| named(directory, &cause))?;
        match files(directory)?.last() {
            Some((_, path)) => Self::go_on(directory, path),
            None => Self::begin(directory, 1, Link::FIRST, 0),
        }
    }

    fn begin(directory: &Path, number: u64, previous: Link, unix_ms: u64) -> io::Result<Self> {
        let path = directory.join(file_name(number));
        let opened = OpenOptions::new().append(true).read(true).create_new(true).mode(0o600).open(&path);
        let mut file = opened.map_err(|cause| named(&path, &cause))?;
        let beginning = Beginning { audit: AUDIT_FORM, begins: number, unix_ms, previous: previous.to_string() };
        let (line, link) = sealed(previous, &serde_json::to_string(&beginning)?);
        let whole = line + "\n";
        let written = file.write_all(whole.as_bytes()).and_then(|()| file.sync_all());
        if let Err(cause) = written {
            // A file without a beginning is nobody's.
            let _ = fs::remove_file(&path);
            return Err(named(&path, &cause));
        }
        // Who finds it held begins another one.
        let _ = flock(&file, FlockOperation::NonBlockingLockExclusive);
        // That it is there outlives a loss of power, too.
        File::open(directory)?.sync_all()?;
        let bytes = whole.len() as u64;
        let (directory, number) = (directory.to_owned(), number - 1);
        Ok(Self { directory, file, path, bytes, link, number, found_unix_ms: None, remarks: Vec::new() })
    }

    fn go_on(directory: &Path, path: &Path) -> io::Result<Self> {
        let opened_file = OpenOptions::new().append(true).read(true).open(path);
        let mut file = opened_file.map_err(|cause| named(path, &cause))?;
        let mut text = Vec::new();
        // A disk that gives part of it gives no more of it tomorrow.
        if let Err(cause) = file.read_to_end(&mut text) {
            return Self::begin_behind(directory, path, &format!("cannot be read ({cause})"));
        }
        let Some(end) = text.iter().rposition(|byte| *byte == b'\n') else {
            return Self::open_without(directory, path, &text);
        };
        let (whole, mut remarks) = (end + 1, Vec::new());
        let Some(last) = last_of(&text[..whole]) else {
            return Self::begin_behind(directory, path, "has no line of the audit");
        };
        let Last { number, link, unix_ms: found_unix_ms } = last;
        let broken = first_break(&text[..whole]);
        let is_held = flock(&file, FlockOperation::NonBlockingLockExclusive).is_err();
        if broken.is_none() && !is_held {
            if whole < text.len() {
                let cut = text.len() - whole;
                file.set_len(whole as u64).map_err(|cause| named(path, &cause))?;
                remarks.push(format!(
                    "cut off {cut} bytes of a line that was never written whole, as after a loss of power"
                ));
            }
            let (directory, path, bytes) = (directory.to_owned(), path.to_owned(), whole as u64);
            return Ok(Self { directory, file, path, bytes, link, number, found_unix_ms, remarks });
        }
        let next = Self::begin_after(directory, last)?;
        remarks.push(match broken {
            Some(line) => format!(
                "line {line} of {} does not follow the one before it; gpool audit verify says more",
                path.display()
            ),
            None => format!("{} is held by another supervisor; two may not write one audit", path.display()),
        });
        Ok(Self { found_unix_ms, remarks, ..next })
    }

    /// Begins a file behind the last line that is there, with a name behind all others.
    fn begin_after(directory: &Path, last: Last) -> io::Result<Self> {
        let newest = files(directory)?.last().map_or(0, |(first, _)| *first);
        let next = Self::begin(
            directory,
            last.number.max(newest) + 1,
            last.link,
            last.unix_ms.unwrap_or_else(clock::unix_ms),
        )?;
        Ok(Self { found_unix_ms: last.unix_ms, ..next })
    }

    /// Begins a file behind the last one, of which no line can be read: behind the last line of those before it.
    fn begin_behind(directory: &Path, path: &Path, why: &str) -> io::Result<Self> {
        let all = files(directory)?;
        let older = all.iter().rev().filter(|(_, its)| its != path);
        let last = older.map(|(_, its)| fs::read(its)).find_map(|text| last_of(&text.ok()?));
        let none = Last { number: 0, link: Link::FIRST, unix_ms: None };
        let mut next = Self::begin_after(directory, last.unwrap_or(none))?;
        next.remarks.push(format!("{} {why}; it stays as it is, and a new file follows", path.display()));
        Ok(next)
    }

    /// Goes on without the last file, which has no whole line: it was begun in the moment of a loss of power.
    fn open_without(directory: &Path, path: &Path, text: &[u8]) -> io::Result<Self> {
        if text.len() > UNBEGUN_BYTES {
            return Self::begin_behind(directory, path, "has no line of the audit");
        }
        fs::remove_file(path).map_err(|cause| named(path, &cause))?;
        let mut trail = Self::open(directory)?;
        trail.remarks.push(format!("took out {}, of which no line was ever written whole", path.display()));
        Ok(trail)
    }

    /// What is to be said of how it was found.
    pub fn take_remarks(&mut self) -> Vec<String> {
        std::mem::take(&mut self.remarks)
    }

    /// Whether the file is still where it was, and ends where it did: what is written to one that was moved away is lost.
    pub fn is_in_place(&self) -> bool {
        let name = |found: fs::Metadata| (found.dev(), found.ino(), found.len());
        let (there, ours) = (fs::metadata(&self.path).map(name), self.file.metadata().map(name));
        let ours = ours.map(|(device, inode, _)| (device, inode, self.bytes));
        matches!((there, ours), (Ok(there), Ok(ours)) if there == ours)
    }

    /// The number and the link of the last line; none before the first event.
    pub fn end(&self) -> Option<(u64, Link)> {
        (self.number > 0).then_some((self.number, self.link))
    }

    /// When the last event was that was there when it was opened.
    pub fn found_unix_ms(&self) -> Option<u64> {
        self.found_unix_ms
    }

    /// Writes events behind each other with numbers of the trail's own, and has them on the disk. How many: all but those from the
    /// first that could not be written on, after which the trail must be opened anew.
    pub fn write(&mut self, events: &[Arc<Event>]) -> (usize, io::Result<()>) {
        let mut done = 0;
        while let Some(first) = events.get(done) {
            if self.bytes >= FILE_BYTES {
                match Self::begin(&self.directory, self.number + 1, self.link, first.unix_ms) {
                    Ok(next) => *self = Self { remarks: std::mem::take(&mut self.remarks), ..next },
                    Err(cause) => return (done, Err(cause)),
                }
            }
            let (more, outcome) = self.write_piece(&events[done..]);
            done += more;
            if let Err(cause) = outcome {
                return (done, Err(named(&self.path, &cause)));
            }
        }
        (done, Ok(()))
    }

    /// The first of them, as many as a piece has room for.
    fn write_piece(&mut self, events: &[Arc<Event>]) -> (usize, io::Result<()>) {
        let (mut text, mut link, mut count) = (String::new(), self.link, 0);
        for event in events {
            let numbered = Event { sequence: self.number + count as u64 + 1, ..Event::clone(event) };
            let object = match serde_json::to_string(&numbered) {
                Ok(object) => object,
                Err(cause) => return (0, Err(cause.into())),
            };
            let (line, its) = sealed(link, &object);
            text += &line;
            text.push('\n');
            (link, count) = (its, count + 1);
            if text.len() >= PIECE_BYTES {
                break;
            }
        }
        let written = self.file.write_all(text.as_bytes()).and_then(|()| self.file.sync_data());
        if let Err(cause) = written {
            // What of it is there would be there twice.
            let there = self.file.set_len(self.bytes).err().map(|_| self.whole_lines_behind());
            return (there.unwrap_or(0), Err(cause));
        }
        self.bytes += text.len() as u64;
        (self.link, self.number) = (link, self.number + count as u64);
        (count, Ok(()))
    }

    /// Lines that are whole behind what is known to be written, on a disk that takes nothing back.
    fn whole_lines_behind(&self) -> usize {
        let length = self.file.metadata().map_or(self.bytes, |found| found.len());
        let mut text = vec![0; usize::try_from(length.saturating_sub(self.bytes)).unwrap_or(0)];
        match self.file.read_exact_at(&mut text, self.bytes) {
            Ok(()) => text.iter().filter(|byte| **byte == b'\n').count(),
            Err(_) => 0,
        }
    }
}

/// The first line of a file, from 1 on, that is not the one that was written behind those before it.
fn first_break(text: &[u8]) -> Option<usize> {
    let lines = text.strip_suffix(b"\n").unwrap_or(text).split(|byte| *byte == b'\n');
    let mut at: Option<Link> = None;
    for (place, line) in lines.enumerate() {
        let line = std::str::from_utf8(line).ok();
        let beginning = || serde_json::from_str::<Beginning>(&opened(line?)?.0).ok();
        let previous = at.or_else(|| Link::parse(&beginning()?.previous));
        match previous.zip(line).and_then(|(previous, line)| follows(previous, line)) {
            Some((_, link)) => at = Some(link),
            None => return Some(place + 1),
        }
    }
    None
}

/// The last line of a file that is one of the audit.
#[derive(Debug, Clone, Copy)]
struct Last {
    /// Of its event, or of the one before a file in which there is nothing but its beginning.
    number: u64,
    link: Link,
    /// When its event was, if it is one.
    unix_ms: Option<u64>,
}

/// The last of the lines that are the audit's: others may stand behind it, which somebody else has written.
fn last_of(text: &[u8]) -> Option<Last> {
    text.rsplit(|byte| *byte == b'\n').find_map(|line| {
        let (object, link) = opened(std::str::from_utf8(line).ok()?)?;
        if let Ok(event) = serde_json::from_str::<Numbered>(&object) {
            return Some(Last { number: event.sequence, link, unix_ms: Some(event.unix_ms) });
        }
        let beginning = serde_json::from_str::<Beginning>(&object).ok()?;
        Some(Last { number: beginning.begins.saturating_sub(1), link, unix_ms: None })
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::audit::files::{DAY_MS, beginning_of, forget_beyond, forget_old};
    use gpool_protocol::EventKind;
    use std::os::unix::fs::PermissionsExt;

    fn event(message: &str, unix_ms: u64) -> Arc<Event> {
        let kind = EventKind::LeaseGranted;
        let message = message.to_owned();
        Arc::new(Event {
            sequence: 99,
            unix_ms,
            started_unix_ms: None,
            kind,
            priority: None,
            lease_id: None,
            container_id: None,
            uid: Some(0),
            charged: Vec::new(),
            message,
        })
    }

    fn write(trail: &mut Trail, events: &[Arc<Event>]) {
        let (count, outcome) = trail.write(events);
        assert!(outcome.is_ok() && count == events.len(), "{count}: {outcome:?}");
    }

    /// All messages with their numbers, if the chain is whole.
    fn read(directory: &Path) -> Vec<(u64, String)> {
        let (mut link, mut all) = (None, Vec::new());
        for (first, path) in files(directory).unwrap() {
            let text = fs::read_to_string(&path).unwrap();
            let begun = beginning_of(&path).unwrap().unwrap();
            let previous = Link::parse(&begun.previous).unwrap();
            assert!(begun.begins == first && link.is_none_or(|link| link == previous), "{path:?}");
            let mut at = previous;
            for line in text.lines() {
                let (object, its) = follows(at, line).unwrap_or_else(|| panic!("{path:?}: {line}"));
                at = its;
                all.extend(serde_json::from_str::<Event>(&object).ok().map(|event| (event.sequence, event.message)));
            }
            link = Some(at);
        }
        all
    }

    fn numbers(directory: &Path) -> Vec<u64> {
        read(directory).into_iter().map(|(number, _)| number).collect()
    }

    #[test]
    fn it_goes_on_under_the_next_supervisor_and_only_root_reads_it() {
        let folder = tempfile::tempdir().unwrap();
        let directory = folder.path().join("lib/audit");
        let mut trail = Trail::open(&directory).unwrap();
        assert!(trail.end().is_none());
        write(&mut trail, &[event("a", 1), event("b", 2)]);
        write(&mut trail, &[]);
        drop(trail);
        let mut trail = Trail::open(&directory).unwrap();
        assert!(trail.take_remarks().is_empty() && trail.is_in_place());
        write(&mut trail, &[event("c", 3)]);
        assert_eq!(read(&directory), [(1, "a".into()), (2, "b".into()), (3, "c".into())]);
        assert_eq!(trail.end().map(|(number, _)| number), Some(3));
        let mode = |path: &Path| fs::metadata(path).unwrap().permissions().mode() & 0o777;
        let beside = mode(directory.parent().unwrap()) & 0o755;
        assert_eq!((mode(&directory), mode(&trail.path), beside & 0o700), (0o700, 0o600, 0o700));
        fs::rename(&trail.path, directory.join("elsewhere")).unwrap();
        assert!(!trail.is_in_place());
    }

    #[test]
    fn a_loss_of_power_leaves_a_trail_that_goes_on() {
        let folder = tempfile::tempdir().unwrap();
        let directory = folder.path();
        let mut trail = Trail::open(directory).unwrap();
        write(&mut trail, &[event("a", 1), event("b", 2)]);
        let path = trail.path.clone();
        let whole = fs::metadata(&path).unwrap().len();
        write(&mut trail, &[event("c", 3)]);
        drop(trail);
        OpenOptions::new().write(true).open(&path).unwrap().set_len(whole + 20).unwrap();
        let mut trail = Trail::open(directory).unwrap();
        assert!(trail.take_remarks()[0].starts_with("cut off 20 bytes"));
        write(&mut trail, &[event("d", 4)]);
        assert_eq!(read(directory), [(1, "a".into()), (2, "b".into()), (3, "d".into())]);
        // The next file had just been begun.
        drop(trail);
        fs::write(directory.join(file_name(4)), "{\"audit\":1,").unwrap();
        let mut trail = Trail::open(directory).unwrap();
        assert!(trail.take_remarks()[0].contains("no line was ever written whole"));
        write(&mut trail, &[event("e", 5)]);
        assert_eq!(numbers(directory), [1, 2, 3, 4]);
    }

    #[test]
    fn what_somebody_else_has_written_stays_and_the_audit_goes_on_behind_it() {
        let folder = tempfile::tempdir().unwrap();
        let directory = folder.path();
        let mut trail = Trail::open(directory).unwrap();
        write(&mut trail, &[event("a", 1), event("b", 2)]);
        let path = trail.path.clone();
        let whole = fs::read_to_string(&path).unwrap();
        drop(trail);
        let again = |tail: &str, number: u64, remark: &str| {
            let mut trail = Trail::open(directory).unwrap();
            let (told, begun) = (trail.take_remarks(), trail.path.clone());
            assert!(told.len() == 1 && told[0].contains(remark), "{told:?}");
            assert_eq!((trail.end().unwrap().0, fs::read_to_string(&path).unwrap().as_str()), (number, tail));
            write(&mut trail, &[event("c", 3)]);
            drop(trail);
            assert!(Trail::open(directory).unwrap().take_remarks().is_empty(), "it is told once");
            begun
        };
        // A line behind its own, as of echo >>: the chain hangs together over the two files.
        let stray = format!("{whole}\n");
        fs::write(&path, &stray).unwrap();
        let begun = again(&stray, 2, "line 4 of ");
        assert_eq!(begun, directory.join(file_name(3)));
        let text = fs::read_to_string(&begun).unwrap();
        let first: Beginning = serde_json::from_str(&opened(text.lines().next().unwrap()).unwrap().0).unwrap();
        assert_eq!(first.previous, last_of(whole.as_bytes()).unwrap().link.to_string());
        assert_eq!(last_of(text.as_bytes()).unwrap().number, 3);
        // Nothing but a beginning and a line behind it.
        let only = text.lines().next().unwrap().to_owned() + "\nx\n";
        fs::write(&begun, only).unwrap();
        assert_eq!(again(&stray, 3, "line 2 of "), directory.join(file_name(4)));
        // No line of the audit at all: behind the last of the file before.
        for other in ["something else\n".repeat(10), "x".repeat(UNBEGUN_BYTES + 1)] {
            let newest = files(directory).unwrap().pop().unwrap();
            fs::write(&newest.1, &other).unwrap();
            let begun = again(&stray, newest.0, "has no line of the audit");
            assert!(begun > newest.1 && fs::read_to_string(&newest.1).unwrap() == other);
        }
    }

    #[test]
    fn files_follow_each_other_and_the_oldest_go() {
        let folder = tempfile::tempdir().unwrap();
        let directory = folder.path();
        let mut trail = Trail::open(directory).unwrap();
        let long = "x".repeat(4 << 20);
        for day in 1..=12 {
            write(&mut trail, &[event(&long, day * DAY_MS)]);
        }
        let firsts = || files(directory).unwrap().into_iter().map(|(first, _)| first).collect::<Vec<_>>();
        assert_eq!((firsts(), numbers(directory)), (vec![1, 5, 9], (1..=12).collect::<Vec<_>>()));
        // A file that was begun and has nothing yet is gone on with.
        drop(trail);
        let mut trail = Trail::open(directory).unwrap();
        write(&mut trail, &[event("new", 13 * DAY_MS)]);
        assert_eq!(firsts(), [1, 5, 9, 13]);
        forget_old(directory, 7, 13 * DAY_MS).unwrap();
        assert_eq!(firsts(), [5, 9, 13], "the next one begins before the edge, on the fifth day");
        forget_old(directory, 7000, 13 * DAY_MS).unwrap();
        forget_beyond(directory, 64 << 20).unwrap();
        assert_eq!(firsts(), [5, 9, 13]);
        forget_beyond(directory, 20 << 20).unwrap();
        assert_eq!((firsts(), numbers(directory)), (vec![9, 13], (9..=13).collect::<Vec<_>>()));
        assert_eq!(forget_beyond(directory, 1).unwrap(), [directory.join(file_name(9))]);
        forget_old(directory, 1, 99 * DAY_MS).unwrap();
        assert_eq!(firsts(), [13], "never the one that is written");
        write(&mut trail, &[event("more", 99 * DAY_MS)]);
        assert_eq!(numbers(directory), [13, 14]);
    }

    #[test]
    fn a_large_batch_is_several_files_and_the_next_supervisor_goes_on_behind_them() {
        let folder = tempfile::tempdir().unwrap();
        let directory = folder.path();
        let mut trail = Trail::open(directory).unwrap();
        // Of umlauts: where a file's beginning is read no letter is cut in two.
        let long: Vec<Arc<Event>> = (0..20).map(|_| event(&"\u{e9}".repeat(1 << 20), DAY_MS)).collect();
        write(&mut trail, &long);
        let all = files(directory).unwrap();
        assert!(
            all.len() == 3 && all.iter().all(|(_, path)| fs::metadata(path).unwrap().len() < FILE_BYTES + (3 << 20))
        );
        drop(trail);
        let mut trail = Trail::open(directory).unwrap();
        write(&mut trail, &[event("last", DAY_MS)]);
        assert_eq!((numbers(directory), trail.found_unix_ms()), ((1..=21).collect::<Vec<_>>(), Some(DAY_MS)));
        forget_old(directory, 1, 99 * DAY_MS).unwrap();
        assert_eq!(files(directory).unwrap().len(), 1);
    }

    #[test]
    fn what_is_broken_stays_as_it_is_and_a_new_file_follows() {
        let folder = tempfile::tempdir().unwrap();
        let directory = folder.path();
        let mut trail = Trail::open(directory).unwrap();
        write(&mut trail, &[event("a", 1), event("b", 2), event("c", 3)]);
        let path = trail.path.clone();
        // Another supervisor, which has another run directory, does not write into the same file.
        let mut other = Trail::open(directory).unwrap();
        assert!(other.path != path && other.take_remarks()[0].contains("another supervisor"));
        drop((trail, other));
        fs::remove_file(directory.join(file_name(4))).unwrap();
        let changed = fs::read_to_string(&path).unwrap().replace("\"b\"", "\"B\"");
        fs::write(&path, &changed).unwrap();
        let mut trail = Trail::open(directory).unwrap();
        assert!(trail.take_remarks()[0].starts_with("line 3 of "));
        write(&mut trail, &[event("d", 4)]);
        assert_eq!((fs::read_to_string(&path).unwrap(), files(directory).unwrap().len()), (changed, 2));
        // An event of a newer version is gone on from, whatever it is.
        fs::remove_file(&path).unwrap();
        let newer = r#"{"sequence":5,"unix_ms":9,"kind":"of-tomorrow","message":"m","more":1}"#;
        let (line, _) = sealed(trail.link, newer);
        fs::write(&trail.path, fs::read_to_string(&trail.path).unwrap() + &line + "\n").unwrap();
        drop(trail);
        let mut trail = Trail::open(directory).unwrap();
        assert!(trail.take_remarks().is_empty() && trail.end().unwrap().0 == 5);
        write(&mut trail, &[event("e", 6)]);
        assert_eq!(numbers(directory), [4, 6]);
    }
}
