//! `--lock FILE`: one command at a time.
//!
//! The outer half alone holds the lock, until it ends: the kernel closes the file at `exec`, so neither the inner half nor the command has it.
//! What a person sends by the terminal goes on to the command, so nobody but root takes the lock away while that lives.

use super::unprepared;
use gpool_protocol::{ErrorBody, ErrorCode};
use nix::libc::{O_NOCTTY, O_NOFOLLOW, O_NONBLOCK};
use rustix::fs::{FlockOperation, flock};
use rustix::io::Errno;
use std::fs::File;
use std::io::ErrorKind;
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;

/// Takes the lock of `file`, which is made if it is not there and stays. It is free again when what is returned is closed.
///
/// # Errors
/// Somebody has it, or the file cannot be made, is a symbolic link, or is none.
pub fn take(file: &Path) -> Result<File, ErrorBody> {
    let refused = |error| unprepared(format!("--lock: {} cannot be opened", file.display()), error);
    // Neither waits for whoever might open a pipe, nor takes a terminal for its own.
    let flags = O_NOFOLLOW | O_NONBLOCK | O_NOCTTY;
    let mut options = File::options();
    options.read(true).write(true).create(true).truncate(false).mode(0o600).custom_flags(flags);
    let opened = options.open(file).map_err(refused)?;
    if !opened.metadata().map_err(refused)?.is_file() {
        return Err(refused(ErrorKind::InvalidInput.into()));
    }
    match flock(&opened, FlockOperation::NonBlockingLockExclusive) {
        Ok(()) => Ok(opened),
        Err(Errno::WOULDBLOCK) => Err(ErrorBody::new(
            ErrorCode::CommandNotPrepared,
            format!("the command was not started: another one has the lock {}", file.display()),
            "wait until that has ended; lslocks shows whose it is",
        )),
        Err(error) => Err(unprepared(format!("--lock: {} cannot be locked", file.display()), error)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::report::assert_presentable;
    use std::os::unix::fs::{MetadataExt, PermissionsExt, symlink};
    use std::time::{Duration, Instant};

    /// What another test starts just now has its own descriptor of the file, until its `exec`.
    fn take_soon(file: &Path) -> File {
        let deadline = Instant::now() + Duration::from_secs(10);
        loop {
            match take(file) {
                Ok(held) => return held,
                Err(refusal) if Instant::now() > deadline => panic!("{refusal}"),
                Err(_) => std::thread::yield_now(),
            }
        }
    }

    #[test]
    fn one_has_it_until_it_is_closed() {
        let directory = tempfile::tempdir().unwrap();
        let file = directory.path().join("lock");
        let first = take(&file).unwrap();
        assert_eq!(first.metadata().unwrap().mode() & 0o777, 0o600);
        let refusal = take(&file).unwrap_err();
        assert_presentable(&refusal);
        assert!(refusal.message.contains("another one has the lock") && refusal.message.contains("/lock"), "{refusal}");
        // A file that is there is taken as it is.
        drop(first);
        std::fs::write(&file, "x").unwrap();
        std::fs::set_permissions(&file, PermissionsExt::from_mode(0o644)).unwrap();
        let again = take_soon(&file);
        assert_eq!((std::fs::read(&file).unwrap(), again.metadata().unwrap().mode() & 0o777), (b"x".to_vec(), 0o644));
    }

    #[test]
    fn what_is_started_meanwhile_does_not_have_it() {
        let directory = tempfile::tempdir().unwrap();
        let file = directory.path().join("lock");
        let held = take(&file).unwrap();
        let mut child = std::process::Command::new("cat").stdin(std::process::Stdio::piped()).spawn().unwrap();
        drop(held);
        take_soon(&file);
        drop(child.stdin.take());
        child.wait().unwrap();
    }

    #[test]
    fn a_link_a_folder_and_a_pipe_are_no_locks() {
        let directory = tempfile::tempdir().unwrap();
        let place = |name: &str| directory.path().join(name);
        symlink(place("elsewhere"), place("link")).unwrap();
        nix::unistd::mkfifo(&place("pipe"), nix::sys::stat::Mode::from_bits_truncate(0o600)).unwrap();
        for wrong in [place("link"), directory.path().to_owned(), place("pipe"), place("none/lock")] {
            let refusal = take(&wrong).unwrap_err();
            assert_presentable(&refusal);
            assert!(refusal.message.contains("--lock"), "{refusal}");
        }
        assert!(!place("elsewhere").exists());
    }
}
