//! Logs of daemons and servers, which grow without end: the daemon writes down each question that it is asked, and with it
//! what it answers. They lie in the tmpfs that is also the `/dev/shm` of the clients.

use super::group::folder_of;
use std::fs::{self, OpenOptions};
use std::io;
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::Path;

/// What the daemon writes for itself and for its server.
const LOGS: [&str; 2] = ["control.log", "server.log"];
/// A log that takes more is emptied: a few hours of questions.
const MOST_BYTES: u64 = 16 << 20;
/// Unit of `st_blocks`, see stat(2).
const BLOCK_BYTES: u64 = 512;

/// Empties what has grown too long of the logs of the group `id`. The folder is root's, and containers have it read-only.
///
/// # Errors
/// Names the log.
pub fn cut(run_dir: &Path, id: &str) -> Result<(), String> {
    let folder = folder_of(run_dir, id, "log");
    LOGS.iter().try_for_each(|name| {
        let path = folder.join(name);
        cut_one(&path).map_err(|cause| format!("{} grows without end: {cause}", path.display()))
    })
}

fn cut_one(path: &Path) -> io::Result<()> {
    // What it takes, and not how long it is: who does not append goes on where it was, behind a hole.
    let is_long = |metadata: &fs::Metadata| metadata.is_file() && metadata.blocks() * BLOCK_BYTES > MOST_BYTES;
    match path.symlink_metadata() {
        Ok(metadata) if is_long(&metadata) => {}
        Ok(_) => return Ok(()),
        Err(cause) if cause.kind() == io::ErrorKind::NotFound => return Ok(()),
        Err(cause) => return Err(cause),
    }
    let flags = rustix::fs::OFlags::NOFOLLOW | rustix::fs::OFlags::NONBLOCK;
    let file = OpenOptions::new().write(true).custom_flags(flags.bits() as i32).open(path)?;
    if is_long(&file.metadata()?) { file.set_len(0) } else { Ok(()) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::FileExt;

    #[test]
    fn a_log_that_has_grown_too_long_is_emptied_and_nothing_else() {
        let run_dir = tempfile::tempdir().unwrap();
        let folder = folder_of(run_dir.path(), "a", "log");
        cut(run_dir.path(), "a").unwrap();
        fs::create_dir_all(&folder).unwrap();
        let (control, server, other) = (folder.join("control.log"), folder.join("server.log"), folder.join("other"));
        let length = |path: &Path| path.symlink_metadata().unwrap().len();
        let long = vec![b'x'; MOST_BYTES as usize + 4096];
        for path in [&control, &other] {
            fs::write(path, &long).unwrap();
        }
        std::os::unix::fs::symlink(&other, &server).unwrap();
        let daemon = OpenOptions::new().write(true).open(&control).unwrap();
        cut(run_dir.path(), "a").unwrap();
        assert_eq!((length(&control), length(&other)), (0, long.len() as u64), "a link is not followed");
        // A daemon that does not append leaves a hole, which takes nothing.
        daemon.write_all_at(b"more", MOST_BYTES * 2).unwrap();
        cut(run_dir.path(), "a").unwrap();
        assert_eq!(length(&control), MOST_BYTES * 2 + 4);
        daemon.write_all_at(&long, MOST_BYTES * 2).unwrap();
        cut(run_dir.path(), "a").unwrap();
        assert_eq!(length(&control), 0);
    }
}
