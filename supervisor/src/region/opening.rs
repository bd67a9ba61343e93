//! Opening a region that is there, which its container must not delay.
//!
//! Whoever holds the lock of its bell's pipe keeps an open of it waiting for as long as it likes (see [`aside`](super::aside)): that is a
//! thread's of its own, and the lease goes on without being heard meanwhile. Standing still without a supervisor, it might run
//! unpaced.
//!
//! Root of the container has the owner's user id, by which it may lease the files (F_SETLEASE of fcntl(2)) while nobody has
//! them open for writing, as between two lives of the supervisor. An ordinary open waits then until the kernel breaks the
//! lease, after /proc/sys/fs/lease-break-time, 45 seconds, for each file anew, and nobody's gate would open meanwhile. Who
//! waits in it counts as a writer from its beginning, so that there is no second lease: that is a thread's of its own.

use super::aside::Owner;
use super::bell::LeaseBell;
use std::collections::BTreeMap;
use std::fs::{File, OpenOptions};
use std::io::{self, ErrorKind};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{RecvTimeoutError, channel};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

/// What has become of an open that waits: nothing yet, or what it gave.
static WAITING: Mutex<BTreeMap<PathBuf, Option<io::Result<File>>>> = Mutex::new(BTreeMap::new());

/// Bells that are being opened.
static BELLS: Mutex<BTreeMap<PathBuf, Arc<LeaseBell>>> = Mutex::new(BTreeMap::new());

/// The name of threads that wait, of which the kernel shows fifteen letters.
const THREAD: &str = "opens-leased";
/// Of those that open a bell.
const BELL_THREAD: &str = "opens-bell";
/// How long is waited for a bell, which takes microseconds unless somebody holds it.
const BELL_PATIENCE: Duration = Duration::from_millis(500);
/// The same once all bells together have taken as long as they may: the tenants stand still without a supervisor.
const LEAST_PATIENCE: Duration = Duration::from_millis(10);
/// What they still may.
static LEFT_MS: AtomicU64 = AtomicU64::new(1000);

fn waiting() -> MutexGuard<'static, BTreeMap<PathBuf, Option<io::Result<File>>>> {
    WAITING.lock().unwrap_or_else(PoisonError::into_inner)
}

fn bells() -> MutexGuard<'static, BTreeMap<PathBuf, Arc<LeaseBell>>> {
    BELLS.lock().unwrap_or_else(PoisonError::into_inner)
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

/// Opens all of these for reading and writing, or none of them. Where somebody has a lease on one, a later call succeeds: what could be
/// opened is kept until then. Whoever may lease a file that was let go would be at one while the other is waited for, in turn and for
/// ever.
///
/// # Errors
/// As [`open`], with the place of the file that could not be opened.
pub fn open_all<const FILES: usize>(paths: [&Path; FILES]) -> Result<[File; FILES], (usize, io::Error)> {
    // All begin to wait at once, if they must.
    let (mut files, mut failed) = (Vec::new(), None);
    for (place, path) in paths.iter().enumerate() {
        match open(path) {
            Ok(file) => files.push((place, file)),
            Err(error) => failed = failed.or(Some((place, error))),
        }
    }
    let Some(failed) = failed else {
        let mut files = files.into_iter().map(|(_, file)| file);
        return Ok(paths.map(|_| files.next().expect("each was opened")));
    };
    waiting().extend(files.into_iter().map(|(place, file)| (paths[place].to_owned(), Some(Ok(file)))));
    Err(failed)
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

/// Opens the bell `path` of a lease of `owner`. Where somebody keeps that waiting it is opened later, and the bell is one that cannot be heard until then.
///
/// # Errors
/// As open(2), if that answers in time; or there is no thread.
pub fn open_bell(path: &Path, owner: Owner) -> io::Result<Arc<LeaseBell>> {
    let mut all = bells();
    if let Some(bell) = all.get(path) {
        return Ok(bell.clone());
    }
    let bell = Arc::new(LeaseBell::unopened(owner));
    let (tell, told) = channel();
    let (its, of) = (path.to_owned(), bell.clone());
    let open = move || {
        let opened = options().custom_flags(nix::libc::O_NONBLOCK).open(&its);
        bells().retain(|_, bell| !Arc::ptr_eq(bell, &of));
        // Nobody may wait for it any more.
        let _ = tell.send(opened.map(|pipe| of.set(pipe.into())));
    };
    std::thread::Builder::new().name(BELL_THREAD.to_owned()).spawn(open)?;
    all.insert(path.to_owned(), bell.clone());
    drop(all);
    let (begun, left_ms) = (Instant::now(), LEFT_MS.load(Ordering::Relaxed));
    let opened = told.recv_timeout(BELL_PATIENCE.min(Duration::from_millis(left_ms)).max(LEAST_PATIENCE));
    LEFT_MS.store(left_ms.saturating_sub(begun.elapsed().as_millis() as u64), Ordering::Relaxed);
    match opened {
        Ok(opened) => opened.map(|()| bell),
        Err(RecvTimeoutError::Timeout | RecvTimeoutError::Disconnected) => Ok(bell),
    }
}

/// The files in `dir` are not wanted any more.
pub fn forget(dir: &Path) {
    bells().retain(|path, _| !path.starts_with(dir));
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

    /// Held by a test that counts threads.
    static COUNTING: Mutex<()> = Mutex::new(());

    /// How many of the threads that wait in the kernel do so by now: they have no other reason to sleep.
    fn waiting_threads() -> usize {
        let threads = std::fs::read_dir("/proc/self/task").unwrap().flatten();
        let stats = threads.filter_map(|thread| std::fs::read_to_string(thread.path().join("stat")).ok());
        let waits = |stat: &String| ["S", "D"].iter().any(|state| stat.contains(&format!("({THREAD}) {state} ")));
        stats.filter(waits).count()
    }

    fn wait_until(is_so: impl Fn() -> bool) {
        let patience = Instant::now() + Duration::from_secs(30);
        while !is_so() {
            assert!(Instant::now() < patience, "it does not come to that");
            std::thread::yield_now();
        }
    }

    #[test]
    fn a_lease_of_somebody_holds_nobody_up_and_there_is_no_second_one() {
        let _turn = COUNTING.lock().unwrap_or_else(PoisonError::into_inner);
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
        wait_until(|| waiting_threads() == 1);
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

    #[test]
    fn of_two_leased_files_the_one_that_was_opened_is_not_leased_again_while_the_other_is_waited_for() {
        let _turn = COUNTING.lock().unwrap_or_else(PoisonError::into_inner);
        let dir = tempfile::tempdir().unwrap();
        let paths = ["control", "report"].map(|name| dir.path().join(name));
        paths.iter().for_each(|path| std::fs::write(path, "page").unwrap());
        let open_both = || open_all([&paths[0], &paths[1]]);
        assert!(open_both().is_ok(), "nobody has a lease");
        let tenants = [0, 1].map(|place| File::open(&paths[place]).unwrap());
        tenants.iter().for_each(|tenant| assert_eq!(lease(tenant, libc::F_RDLCK), 0));
        assert_eq!(open_both().unwrap_err().1.kind(), ErrorKind::ResourceBusy);
        wait_until(|| waiting_threads() == 2);
        for (left, place) in [(1, 0), (0, 1)] {
            assert_eq!(lease(&tenants[place], libc::F_UNLCK), 0);
            wait_until(|| waiting_threads() == left && matches!(waiting().get(&paths[place]), Some(Some(Ok(_)))));
            if left > 0 {
                for _ in 0..3 {
                    let (of, error) = open_both().unwrap_err();
                    assert_eq!((of, error.kind()), (1, ErrorKind::ResourceBusy));
                    assert_eq!(lease(&tenants[place], libc::F_RDLCK), -1, "it is open for writing");
                }
            }
        }
        assert!(open_both().is_ok_and(|files| files.iter().all(|file| file.metadata().unwrap().len() == 4)));
        assert!(paths.iter().all(|path| !waiting().contains_key(path)));
    }
}
