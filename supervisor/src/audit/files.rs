//! The files of the audit on the disk: which there are, and which go.

use gpool_policy::chain::{first_of, opened};
use gpool_protocol::Beginning;
use std::fs::{self, File};
use std::io::{self, BufRead, BufReader, Read};
use std::path::{Path, PathBuf};

/// A day, in milliseconds.
pub const DAY_MS: u64 = 86_400_000;
/// No beginning of a file is longer.
const BEGINNING_BYTES: u64 = 4096;

/// All of them in a directory, in their order, with the number that each begins with.
pub fn files(directory: &Path) -> io::Result<Vec<(u64, PathBuf)>> {
    let mut found = Vec::new();
    for entry in fs::read_dir(directory).map_err(|cause| named(directory, &cause))? {
        let entry = entry?;
        found.extend(entry.file_name().to_str().and_then(first_of).map(|first| (first, entry.path())));
    }
    found.sort();
    Ok(found)
}

/// How a file begins; none if not as those of the audit do.
pub fn beginning_of(path: &Path) -> io::Result<Option<Beginning>> {
    let mut line = Vec::new();
    let file = File::open(path).map_err(|cause| named(path, &cause))?;
    BufReader::new(file.take(BEGINNING_BYTES)).read_until(b'\n', &mut line).map_err(|cause| named(path, &cause))?;
    let object = std::str::from_utf8(&line).ok().and_then(|line| opened(line.trim_end_matches('\n')));
    Ok(object.and_then(|(object, _)| serde_json::from_str(&object).ok()))
}

/// Takes out whole files, the oldest first, as long as `is_gone` says of one with when the next one begins and how many bytes there
/// are of all; never the last, which is written. Gives those that went.
fn take_out(directory: &Path, is_gone: impl Fn(u64, u64) -> bool) -> io::Result<Vec<PathBuf>> {
    let all = files(directory)?;
    let size = |path: &Path| fs::metadata(path).map(|found| found.len()).map_err(|cause| named(path, &cause));
    let mut bytes: u64 = 0;
    for (_, path) in &all {
        bytes += size(path)?;
    }
    let mut gone = Vec::new();
    for (place, (_, path)) in all.iter().enumerate().take(all.len().saturating_sub(1)) {
        // The next one begins when this one ends; of one that cannot be read, or is somebody else's, the one behind it tells.
        let mut later = all[place + 1..].iter().filter_map(|(_, next)| beginning_of(next).ok().flatten());
        let ends_ms = later.next().map_or(u64::MAX, |next| next.unix_ms);
        if !is_gone(ends_ms, bytes) {
            break;
        }
        bytes -= size(path)?.min(bytes);
        fs::remove_file(path).map_err(|cause| named(path, &cause))?;
        gone.push(path.clone());
    }
    Ok(gone)
}

/// Takes out files whose events are all older than so many days.
pub fn forget_old(directory: &Path, keep_days: u32, now_unix_ms: u64) -> io::Result<Vec<PathBuf>> {
    let edge_ms = now_unix_ms.saturating_sub(u64::from(keep_days) * DAY_MS);
    take_out(directory, |ends_ms, _| ends_ms < edge_ms)
}

/// Takes out the oldest files as long as all of them have more than so many bytes.
pub fn forget_beyond(directory: &Path, most_bytes: u64) -> io::Result<Vec<PathBuf>> {
    take_out(directory, |_, bytes| bytes > most_bytes)
}

/// Puts the path before the cause.
pub fn named(path: &Path, cause: &io::Error) -> io::Error {
    io::Error::new(cause.kind(), format!("{}: {cause}", path.display()))
}

#[cfg(test)]
mod tests {
    use super::super::remark;
    use super::super::trail::Trail;
    use super::*;
    use crate::clock;
    use std::sync::Arc;

    #[test]
    fn a_file_that_cannot_be_read_keeps_none_before_it() {
        let folder = tempfile::tempdir().unwrap();
        let directory = folder.path();
        let write = || {
            let mut trail = Trail::open(directory).unwrap();
            trail.write(&[Arc::new(remark("x".to_owned()))]).1.unwrap();
        };
        write();
        // Behind a last file without a line of the audit a new one follows.
        let newest = || files(directory).unwrap().pop().unwrap().1;
        let mut text = fs::read(newest()).unwrap();
        text.push(b'\n');
        fs::write(newest(), text).unwrap();
        write();
        let broken = newest();
        fs::write(&broken, "something else\n").unwrap();
        write();
        let all = files(directory).unwrap();
        assert!(all.len() == 3 && all[1].1 == broken, "{all:?}");
        let later_ms = clock::unix_ms() + 99 * DAY_MS;
        assert_eq!(forget_old(directory, 100, later_ms).unwrap(), <[PathBuf; 0]>::default());
        assert_eq!(forget_old(directory, 1, later_ms).unwrap(), [all[0].1.clone(), broken]);
    }
}
