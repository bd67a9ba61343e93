//! Opening a region that is there, which its container must not delay.
//!
//! Root of the container has the owner's user id, by which it may lease the files (F_SETLEASE of fcntl(2)) while nobody has
//! them open for writing, as between two lives of the supervisor. An ordinary open waits then until the kernel breaks the
//! lease, after /proc/sys/fs/lease-break-time, 45 seconds, for each file anew, and nobody's gate would open meanwhile. Who
//! waits in it counts as a writer from its beginning, so that there is no second lease: that is a thread's of its own.

use std::collections::BTreeMap;
use std::fs::{File, OpenOptions};
use std::io::{self, ErrorKind};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, MutexGuard, PoisonError};

/// What has become of an open that waits: nothing yet, or what it gave.
static WAITING: Mutex<BTreeMap<PathBuf, Option<io::Result<File>>>> = Mutex::new(BTreeMap::new());

/// The name of threads that wait, of which the kernel shows fifteen letters.
const THREAD: &str = "opens-leased";

fn waiting() -> MutexGuard<'static, BTreeMap<PathBuf, Option<io::Result<File>>>> {
    WAITING.lock().unwrap_or_else(PoisonError::into_inner)
}

fn options() -> OpenOptions {
    let mut options = OpenOptions::new();
    options.read(true).write(true);
    options
}

/// Opens `path` for reading and writing. Where somebody has a lease on it, a later call succeeds.
///
/// # Errors
/// As open(2); [`ErrorKind::ResourceBusy`] where it would have to wait.
pub fn open(path: &Path) -> io::Result<File> {
    let wait = |path: PathBuf| std::thread::Builder::new().name(THREAD.to_owned()).spawn(move || wait_for(&path));
    open_with(path, |path| wait(path).map(drop))
}

/// [`open`], with what makes the thread that waits.
fn open_with(path: &Path, wait: impl FnOnce(PathBuf) -> io::Result<()>) -> io::Result<File> {
    let mut all = waiting();
    match all.remove(path) {
        Some(Some(opened)) => return opened,
        Some(None) => {
            all.insert(path.to_owned(), None);
            return Err(is_leased());
        }
        None => {}
    }
    // On a file of this kind the flag has no other effect, and none later.
    match options().custom_flags(nix::libc::O_NONBLOCK).open(path) {
        Err(error) if error.kind() == ErrorKind::WouldBlock => {
            // Only a thread that was made ends the waiting: without one the next call has to try again.
            wait(path.to_owned())?;
            all.insert(path.to_owned(), None);
            Err(is_leased())
        }
        opened => opened,
    }
}

fn wait_for(path: &Path) {
    let opened = options().open(path);
    // Unless nobody wants it any more.
    if let Some(place) = waiting().get_mut(path) {
        *place = Some(opened);
    }
}

fn is_leased() -> io::Error {
    let words = "a process of the container has a lease on it (F_SETLEASE), which the kernel ends in a minute";
    io::Error::new(ErrorKind::ResourceBusy, words)
}

/// The files in `dir` are not wanted any more.
pub fn forget(dir: &Path) {
    waiting().retain(|path, _| !path.starts_with(dir));
}

#[cfg(test)]
mod tests {
    use super::*;
    use nix::libc;
    use std::os::fd::AsRawFd;
    use std::time::{Duration, Instant};

    /// Source: asm-generic/fcntl.h.
    const F_SETSIG: libc::c_int = 10;

    /// Leases a file for reading, or gives that up. Who opens it for writing is told by a signal that is ignored.
    fn lease(file: &File, kind: libc::c_int) -> libc::c_int {
        // SAFETY: an open descriptor, and numbers.
        unsafe {
            libc::fcntl(file.as_raw_fd(), F_SETSIG, libc::SIGURG);
            libc::fcntl(file.as_raw_fd(), libc::F_SETLEASE, kind)
        }
    }

    /// Whether the thread that waits in the kernel does so by now: it has no other reason to sleep.
    fn one_waits() -> bool {
        let threads = std::fs::read_dir("/proc/self/task").unwrap().flatten();
        let stats = threads.filter_map(|thread| std::fs::read_to_string(thread.path().join("stat")).ok());
        stats.into_iter().any(|stat| ["S", "D"].iter().any(|state| stat.contains(&format!("({THREAD}) {state} "))))
    }

    #[test]
    fn a_lease_of_somebody_holds_nobody_up_and_there_is_no_second_one() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("control");
        std::fs::write(&path, "page").unwrap();
        assert!(open(&path).is_ok(), "nobody has a lease");
        let tenant = File::open(&path).unwrap();
        assert_eq!(lease(&tenant, libc::F_RDLCK), 0, "{}", io::Error::last_os_error());
        let no_thread = open_with(&path, |_| Err(ErrorKind::OutOfMemory.into()));
        assert_eq!(no_thread.unwrap_err().kind(), ErrorKind::OutOfMemory);
        assert!(!waiting().contains_key(&path), "nobody waits, and it is tried again");
        // An open that waited would do so for 45 seconds.
        for _ in 0..3 {
            assert_eq!(open(&path).unwrap_err().kind(), ErrorKind::ResourceBusy);
        }
        while !one_waits() {
            std::thread::yield_now();
        }
        assert_eq!(lease(&tenant, libc::F_UNLCK), 0);
        let patience = Instant::now() + Duration::from_secs(30);
        let opened = loop {
            match open(&path) {
                Err(error) if error.kind() == ErrorKind::ResourceBusy && Instant::now() < patience => {
                    assert_eq!(lease(&tenant, libc::F_RDLCK), -1, "somebody waits to write");
                    std::thread::yield_now();
                }
                other => break other,
            }
        };
        assert_eq!(opened.unwrap().metadata().unwrap().len(), 4);
        assert!(waiting().get(&path).is_none());
        assert!(open(&dir.path().join("nonesuch")).is_err_and(|error| error.kind() == ErrorKind::NotFound));
    }
}
