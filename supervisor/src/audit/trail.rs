//! The files of the audit: one is written until it is large, then the next one begins.

use gpool_policy::chain::{Link, file_name, first_of, opened, sealed};
use gpool_protocol::Event;
use serde::{Deserialize, Serialize};
use std::fs::{self, File, OpenOptions};
use std::io::{self, Read, Seek, SeekFrom, Write};
use std::os::unix::fs::{DirBuilderExt, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// A file is not made longer than about this.
const FILE_BYTES: u64 = 16 << 20;
/// A day, in milliseconds.
const DAY_MS: u64 = 86_400_000;

/// The first line of a file.
#[derive(Debug, Serialize, Deserialize)]
struct Beginning {
    /// Of this form.
    audit: u32,
    /// The number of the first event in it.
    begins: u64,
    /// When it was begun, Unix milliseconds.
    unix_ms: u64,
    /// The link before it, of the last line of the file before.
    previous: String,
}

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
    remarks: Vec<String>,
}

impl Trail {
    /// Opens the trail in a directory, made where it is not, and goes on behind its last whole line. What it had to put right is
    /// among its remarks.
    ///
    /// # Errors
    /// It cannot be made, read or written, or its last file is something else. All is left as it is then.
    pub fn open(directory: &Path) -> io::Result<Self> {
        fs::DirBuilder::new()
            .recursive(true)
            .mode(0o700)
            .create(directory)
            .map_err(|cause| named(directory, &cause))?;
        match files(directory)?.last() {
            Some((_, path)) => Self::go_on(directory, path),
            None => Self::begin(directory, 1, Link::FIRST, 0),
        }
    }

    fn begin(directory: &Path, number: u64, previous: Link, unix_ms: u64) -> io::Result<Self> {
        let path = directory.join(file_name(number));
        let opened = OpenOptions::new().append(true).read(true).create_new(true).mode(0o600).open(&path);
        let mut file = opened.map_err(|cause| named(&path, &cause))?;
        let beginning = Beginning { audit: 1, begins: number, unix_ms, previous: previous.to_string() };
        let (line, link) = sealed(previous, &serde_json::to_string(&beginning)?);
        let whole = line + "\n";
        let written = file.write_all(whole.as_bytes()).and_then(|()| file.sync_all());
        if let Err(cause) = written {
            // A file without a beginning is nobody's.
            let _ = fs::remove_file(&path);
            return Err(named(&path, &cause));
        }
        // That it is there outlives a loss of power, too.
        File::open(directory)?.sync_all()?;
        let bytes = whole.len() as u64;
        Ok(Self { directory: directory.to_owned(), file, path, bytes, link, number: number - 1, remarks: Vec::new() })
    }

    fn go_on(directory: &Path, path: &Path) -> io::Result<Self> {
        let opened_file = OpenOptions::new().append(true).read(true).open(path);
        let mut file = opened_file.map_err(|cause| named(path, &cause))?;
        let mut text = Vec::new();
        file.read_to_end(&mut text).map_err(|cause| named(path, &cause))?;
        let newline = |text: &[u8]| text.iter().rposition(|byte| *byte == b'\n');
        let Some(end) = newline(&text).filter(|_| text.len() as u64 <= 2 * FILE_BYTES) else {
            return Self::open_without(directory, path, &text);
        };
        let start = newline(&text[..end]).map_or(0, |before| before + 1);
        let Some((object, link)) = std::str::from_utf8(&text[start..end]).ok().and_then(opened) else {
            return Err(not_ours(path));
        };
        let whole = end + 1;
        let mut remarks = Vec::new();
        if whole < text.len() {
            let cut = text.len() - whole;
            file.set_len(whole as u64).map_err(|cause| named(path, &cause))?;
            file.seek(SeekFrom::End(0))?;
            remarks
                .push(format!("cut off {cut} bytes of a line that was never written whole, as after a loss of power"));
        }
        // A file in which there is nothing but its beginning follows the one before.
        let begins = || serde_json::from_str::<Beginning>(&object).ok().map(|it| it.begins.saturating_sub(1));
        let number = number_of(&object).or_else(begins).ok_or_else(|| not_ours(path))?;
        Ok(Self {
            directory: directory.to_owned(),
            file,
            path: path.to_owned(),
            bytes: whole as u64,
            link,
            number,
            remarks,
        })
    }

    /// Goes on without the last file, which has no whole line: it was begun in the moment of a loss of power.
    fn open_without(directory: &Path, path: &Path, text: &[u8]) -> io::Result<Self> {
        if text.len() > 4096 {
            return Err(not_ours(path));
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

    /// Writes events behind each other with numbers of the trail's own, and has them on the disk.
    ///
    /// # Errors
    /// They cannot all be written; none of them counts as written then, and the trail must be opened anew.
    pub fn write(&mut self, events: &[Arc<Event>]) -> io::Result<()> {
        let Some(first) = events.first() else { return Ok(()) };
        if self.bytes >= FILE_BYTES {
            let next = Self::begin(&self.directory, self.number + 1, self.link, first.unix_ms)?;
            *self = Self { remarks: std::mem::take(&mut self.remarks), ..next };
        }
        let (mut text, mut link, mut number) = (String::new(), self.link, self.number);
        for event in events {
            number += 1;
            let numbered = Event { sequence: number, ..Event::clone(event) };
            let (line, its) = sealed(link, &serde_json::to_string(&numbered)?);
            text += &line;
            text.push('\n');
            link = its;
        }
        let written = self.file.write_all(text.as_bytes()).and_then(|()| self.file.sync_data());
        if let Err(cause) = written {
            // What of it is there would be there twice.
            let _ = self.file.set_len(self.bytes);
            return Err(named(&self.path, &cause));
        }
        self.bytes += text.len() as u64;
        (self.link, self.number) = (link, number);
        Ok(())
    }

    /// Takes out whole files, the oldest first, whose events are all older than so many days, and those that are beyond so many bytes;
    /// never the one that is written.
    ///
    /// # Errors
    /// One cannot be taken out.
    pub fn forget(&mut self, keep_days: u32, most_bytes: u64, now_unix_ms: u64) -> io::Result<()> {
        let all = files(&self.directory)?;
        let sizes = all.iter().map(|(_, path)| fs::metadata(path).map(|found| found.len()));
        let mut bytes: u64 = sizes.collect::<io::Result<Vec<u64>>>()?.into_iter().sum();
        let edge_ms = now_unix_ms.saturating_sub(u64::from(keep_days) * DAY_MS);
        for pair in all.windows(2) {
            let (path, next) = (&pair[0].1, &pair[1].1);
            // The next one begins when this one ends.
            let is_old = beginning_of(next)?.is_some_and(|next| next.unix_ms < edge_ms);
            if !is_old && bytes <= most_bytes {
                break;
            }
            let size = fs::metadata(path)?.len();
            fs::remove_file(path).map_err(|cause| named(path, &cause))?;
            bytes -= size.min(bytes);
            let why = if is_old { "is older than [audit] keep_days" } else { "is beyond [audit] most_mib" };
            self.remarks.push(format!("took out {}, which {why}", path.display()));
        }
        Ok(())
    }
}

/// The files of the trail, in their order, with the number that each begins with.
fn files(directory: &Path) -> io::Result<Vec<(u64, PathBuf)>> {
    let mut found = Vec::new();
    for entry in fs::read_dir(directory).map_err(|cause| named(directory, &cause))? {
        let entry = entry?;
        found.extend(entry.file_name().to_str().and_then(first_of).map(|first| (first, entry.path())));
    }
    found.sort();
    Ok(found)
}

fn beginning_of(path: &Path) -> io::Result<Option<Beginning>> {
    let mut start = String::new();
    File::open(path)?.take(1024).read_to_string(&mut start).map_err(|cause| named(path, &cause))?;
    let object = start.lines().next().and_then(opened).map(|(object, _)| object);
    Ok(object.and_then(|object| serde_json::from_str(&object).ok()))
}

fn number_of(object: &str) -> Option<u64> {
    serde_json::from_str::<Event>(object).ok().map(|event| event.sequence)
}

fn not_ours(path: &Path) -> io::Error {
    let cause = "does not end with a line of the audit; move it away, and a new file is begun";
    io::Error::new(io::ErrorKind::InvalidData, format!("{} {cause}", path.display()))
}

fn named(path: &Path, cause: &io::Error) -> io::Error {
    io::Error::new(cause.kind(), format!("{}: {cause}", path.display()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use gpool_policy::chain::follows;
    use gpool_protocol::EventKind;
    use std::os::unix::fs::PermissionsExt;

    fn event(message: &str, unix_ms: u64) -> Arc<Event> {
        let kind = EventKind::LeaseGranted;
        let message = message.to_owned();
        Arc::new(Event {
            sequence: 99,
            unix_ms,
            kind,
            lease_id: None,
            container_id: None,
            uid: Some(0),
            charged: Vec::new(),
            message,
        })
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
        trail.write(&[event("a", 1), event("b", 2)]).unwrap();
        trail.write(&[]).unwrap();
        drop(trail);
        let mut trail = Trail::open(&directory).unwrap();
        assert!(trail.take_remarks().is_empty() && trail.is_in_place());
        trail.write(&[event("c", 3)]).unwrap();
        assert_eq!(read(&directory), [(1, "a".into()), (2, "b".into()), (3, "c".into())]);
        assert_eq!(trail.end().map(|(number, _)| number), Some(3));
        let mode = |path: &Path| fs::metadata(path).unwrap().permissions().mode() & 0o777;
        assert_eq!((mode(&directory), mode(&trail.path)), (0o700, 0o600));
        fs::rename(&trail.path, directory.join("elsewhere")).unwrap();
        assert!(!trail.is_in_place());
    }

    #[test]
    fn a_loss_of_power_leaves_a_trail_that_goes_on() {
        let folder = tempfile::tempdir().unwrap();
        let directory = folder.path();
        let mut trail = Trail::open(directory).unwrap();
        trail.write(&[event("a", 1), event("b", 2)]).unwrap();
        let path = trail.path.clone();
        let whole = fs::metadata(&path).unwrap().len();
        trail.write(&[event("c", 3)]).unwrap();
        drop(trail);
        OpenOptions::new().write(true).open(&path).unwrap().set_len(whole + 20).unwrap();
        let mut trail = Trail::open(directory).unwrap();
        assert!(trail.take_remarks()[0].starts_with("cut off 20 bytes"));
        trail.write(&[event("d", 4)]).unwrap();
        assert_eq!(read(directory), [(1, "a".into()), (2, "b".into()), (3, "d".into())]);
        // The next file had just been begun.
        fs::write(directory.join(file_name(4)), "{\"audit\":1,").unwrap();
        let mut trail = Trail::open(directory).unwrap();
        assert!(trail.take_remarks()[0].contains("no line was ever written whole"));
        trail.write(&[event("e", 5)]).unwrap();
        assert_eq!(numbers(directory), [1, 2, 3, 4]);
        // What somebody else has written is not gone on from.
        let other = "something else\n".repeat(10);
        fs::write(&path, &other).unwrap();
        let refused = Trail::open(directory).unwrap_err().to_string();
        assert!(refused.contains("move it away") && fs::read_to_string(&path).unwrap() == other, "{refused}");
    }

    #[test]
    fn files_follow_each_other_and_the_oldest_go() {
        let folder = tempfile::tempdir().unwrap();
        let directory = folder.path();
        let mut trail = Trail::open(directory).unwrap();
        let long = "x".repeat(4 << 20);
        for day in 1..=12 {
            trail.write(&[event(&long, day * DAY_MS)]).unwrap();
        }
        let firsts = || files(directory).unwrap().into_iter().map(|(first, _)| first).collect::<Vec<_>>();
        assert_eq!((firsts(), numbers(directory)), (vec![1, 5, 9], (1..=12).collect::<Vec<_>>()));
        // A file that was begun and has nothing yet is gone on with.
        drop(trail);
        let mut trail = Trail::open(directory).unwrap();
        trail.write(&[event("new", 13 * DAY_MS)]).unwrap();
        assert_eq!(firsts(), [1, 5, 9, 13]);
        trail.forget(7, u64::MAX, 13 * DAY_MS).unwrap();
        assert_eq!(firsts(), [5, 9, 13], "the next one begins before the edge, on the fifth day");
        assert!(trail.take_remarks()[0].contains("keep_days"));
        trail.forget(7000, 20 << 20, 13 * DAY_MS).unwrap();
        assert_eq!((firsts(), numbers(directory)), (vec![9, 13], (9..=13).collect::<Vec<_>>()));
        trail.forget(1, 1, 99 * DAY_MS).unwrap();
        assert_eq!(firsts(), [13], "never the one that is written");
        trail.write(&[event("more", 99 * DAY_MS)]).unwrap();
        assert_eq!(numbers(directory), [13, 14]);
    }
}
