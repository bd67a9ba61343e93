//! One supervisor for each run directory: who serves holds the lock of a file, and says in it who that is.
//!
//! A process that is killed while one of its threads stands in a call of the driver keeps its locks until that call comes
//! back, which may be never. Its first task has ended then, and nothing of it serves anybody. Or its last task is at its end
//! and closes what it had open, where a tenant may keep it waiting for as long as it likes (see `region::aside`).

use crate::procfs::{self, ProcessName};
use gpool_protocol::HostPid;
use rustix::fs::{FlockOperation, flock};
use std::fs::{self, File, OpenOptions};
use std::io;
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

/// Held by the supervisor that serves.
const LOCK: &str = "supervisor.lock";
/// Held for moments, by who looks at the other and may replace it.
const TURN: &str = "supervisor.turn";

/// One that is at its end has closed what it had open within milliseconds, unless it is kept waiting.
const END_PATIENCE: Duration = Duration::from_secs(1);
const PAUSE: Duration = Duration::from_millis(5);

/// Why this one does not serve; the text names the file.
#[derive(Debug, thiserror::Error)]
pub enum SoleError {
    /// Another one does.
    #[error("another supervisor holds {0}; stop it first")]
    Taken(PathBuf),
    /// The file cannot be used.
    #[error("{path} cannot be used: {cause}; look at the rights and the space of its directory")]
    Unusable {
        /// Which one.
        path: PathBuf,
        /// The kernel's words.
        cause: io::Error,
    },
}

/// That this one serves, for as long as it is kept.
#[derive(Debug)]
pub struct Sole {
    _lock: File,
    /// Whether one before it has ended and cannot be rid of: its socket may still be open.
    pub has_replaced: bool,
}

impl Sole {
    /// Takes the lock in `run_dir`.
    ///
    /// # Errors
    /// [`SoleError`].
    pub fn take(run_dir: &Path) -> Result<Self, SoleError> {
        let (path, turn_path) = (run_dir.join(LOCK), run_dir.join(TURN));
        let turn = open(&turn_path)?;
        flock(&turn, FlockOperation::LockExclusive).map_err(|cause| unusable(&turn_path, cause.into()))?;
        let mut lock = open(&path)?;
        let mut has_replaced = false;
        if !is_locked_within(&lock, END_PATIENCE) {
            if !has_dead_holder(&lock) {
                return Err(SoleError::Taken(path));
            }
            log!(
                "the supervisor before has ended and keeps {}, as a call of the driver's, or one that a container keeps waiting, \
                 does not come back; this one takes its place",
                path.display()
            );
            fs::remove_file(&path).map_err(|cause| unusable(&path, cause))?;
            lock = open(&path)?;
            flock(&lock, FlockOperation::NonBlockingLockExclusive).map_err(|_| SoleError::Taken(path.clone()))?;
            has_replaced = true;
        }
        // What keeps others out is the lock. Who cannot be read of counts as alive.
        if let Err(cause) = write_holder(&lock) {
            log!("{} does not say who holds it: {cause}", path.display());
        }
        Ok(Self { _lock: lock, has_replaced })
    }
}

fn unusable(path: &Path, cause: io::Error) -> SoleError {
    SoleError::Unusable { path: path.to_owned(), cause }
}

fn open(path: &Path) -> Result<File, SoleError> {
    let opened = OpenOptions::new().read(true).write(true).create(true).truncate(false).mode(0o600).open(path);
    opened.map_err(|cause| unusable(path, cause))
}

/// Over what the one before has written, which takes no room on a full disk, and then no more than that.
fn write_holder(lock: &File) -> io::Result<()> {
    let pid = HostPid(std::process::id());
    let start_ticks = procfs::start_ticks(pid).ok_or(io::ErrorKind::NotFound)?;
    let text = format!("{pid} {start_ticks}\n");
    let written = lock.write_all_at(text.as_bytes(), 0);
    // Half of it would name somebody else.
    lock.set_len(if written.is_ok() { text.len() as u64 } else { 0 })?;
    written
}

/// Whether the lock can be had, at once or from one that is at its end.
fn is_locked_within(lock: &File, patience: Duration) -> bool {
    let deadline = Instant::now() + patience;
    while flock(lock, FlockOperation::NonBlockingLockExclusive).is_err() {
        let is_ending = holder(lock).is_some_and(|name| is_at_its_end(&name) && !procfs::is_dead(&name));
        if !is_ending || Instant::now() >= deadline {
            return false;
        }
        std::thread::sleep(PAUSE);
    }
    true
}

/// Whether the file names a process whose first task has ended, or ends. Of one that is not there any more nothing is known: a
/// supervisor of an older version does not write itself down.
fn has_dead_holder(lock: &File) -> bool {
    holder(lock).is_some_and(|name| procfs::is_dead(&name) || is_at_its_end(&name))
}

/// Whether its first task ends, as all of it does then: nobody is served any more.
fn is_at_its_end(name: &ProcessName) -> bool {
    procfs::start_ticks(name.pid) == Some(name.start_ticks) && !procfs::goes_on(name.pid, Some(name.start_ticks))
}

fn holder(lock: &File) -> Option<ProcessName> {
    let mut bytes = [0u8; 64];
    let length = lock.read_at(&mut bytes, 0).ok()?;
    let text = str::from_utf8(&bytes[..length]).ok()?;
    let (pid, start_ticks) = text.trim().split_once(' ')?;
    Some(ProcessName { pid: HostPid(pid.parse().ok()?), start_ticks: start_ticks.parse().ok()? })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::region::Holder;
    use rustix::fs::{CWD, FileType, Mode, mknodat};
    use std::io::{BufRead, BufReader, Write};
    use std::process::{Command, Stdio};

    /// Takes the lock, waits for a line, and ends its first thread while another one lives: as a killed process one of
    /// whose threads does not come back from the kernel.
    const HOLDER: &str = "#include <pthread.h>\n#include <fcntl.h>\n#include <stdio.h>\n#include <sys/file.h>\n\
        #include <unistd.h>\n\
        static void *stay(void *unused) { for (;;) pause(); return unused; }\n\
        int main(int count, char **words) { pthread_t thread; (void)count;\n\
        flock(open(words[1], O_RDWR), LOCK_EX); pthread_create(&thread, 0, stay, 0);\n\
        puts(\"holds\"); fflush(stdout); getchar(); pthread_exit(0); }\n";

    #[test]
    fn one_that_serves_keeps_others_out_and_one_that_cannot_end_does_not() {
        let directory = tempfile::tempdir().unwrap();
        let (source, program) = (directory.path().join("holder.c"), directory.path().join("holder"));
        fs::write(&source, HOLDER).unwrap();
        assert!(Command::new("cc").arg("-pthread").arg("-o").args([&program, &source]).status().unwrap().success());
        let path = directory.path().join(LOCK);
        fs::write(&path, "").unwrap();
        let mut child = Command::new(program);
        let mut child = child.arg(&path).stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
        let mut said = String::new();
        BufReader::new(child.stdout.take().unwrap()).read_line(&mut said).unwrap();
        let refused = || matches!(Sole::take(directory.path()), Err(SoleError::Taken(_)));
        assert!(refused(), "who does not say who it is counts as alive");
        let pid = HostPid(child.id());
        fs::write(&path, format!("{pid} {}\n", procfs::start_ticks(pid).unwrap())).unwrap();
        assert!(refused());

        writeln!(child.stdin.take().unwrap()).unwrap();
        let taken = (0..2000).find_map(|_| {
            std::thread::sleep(std::time::Duration::from_millis(5));
            Sole::take(directory.path()).ok()
        });
        assert!(taken.as_ref().is_some_and(|sole| sole.has_replaced));
        assert!(refused(), "there is one again");
        drop(taken);
        assert!(!Sole::take(directory.path()).unwrap().has_replaced);
        child.kill().unwrap();
        child.wait().unwrap();
    }

    #[test]
    fn one_that_cannot_close_what_it_had_open_keeps_nobody_out() {
        let directory = tempfile::tempdir().unwrap();
        let (path, bell) = (directory.path().join(LOCK), directory.path().join("bell"));
        mknodat(CWD, &bell, FileType::Fifo, Mode::from_raw_mode(0o600), 0).unwrap();
        let open =
            |path: &Path| OpenOptions::new().read(true).write(true).create(true).truncate(false).open(path).unwrap();
        // The kernel closes what it has from one end or the other.
        let (lock, bells) = (open(&path), [open(&bell), open(&bell)]);
        flock(&lock, FlockOperation::LockExclusive).unwrap();
        let [first, last] = bells;
        let mut child = Command::new("sleep").arg("600").stdin(first).stdout(lock).stderr(last).spawn().unwrap();
        let pid = HostPid(child.id());
        fs::write(&path, format!("{pid} {}\n", procfs::start_ticks(pid).unwrap())).unwrap();
        let Some(holder) = Holder::of_pipe(&bell) else {
            return child.kill().and_then(|()| child.wait()).map(drop).unwrap();
        };
        assert!(matches!(Sole::take(directory.path()), Err(SoleError::Taken(_))));
        child.kill().unwrap();
        // It is at its end as soon as it has had the signal.
        let taken = (0..2000).find_map(|_| {
            std::thread::sleep(std::time::Duration::from_millis(5));
            Sole::take(directory.path()).ok()
        });
        assert!(taken.is_some_and(|sole| sole.has_replaced));
        assert!(child.try_wait().unwrap().is_none(), "it has ended after all");
        drop(holder);
        child.wait().unwrap();
    }

    #[test]
    fn who_holds_it_is_written_over_what_stands_there_and_a_full_disk_keeps_nobody_from_serving() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join(LOCK);
        fs::write(&path, "1 2 and more than will be written now, by far\n").unwrap();
        let sole = Sole::take(directory.path()).unwrap();
        let me = HostPid(std::process::id());
        let text = fs::read_to_string(&path).unwrap();
        assert_eq!(text, format!("{me} {}\n", procfs::start_ticks(me).unwrap()));
        drop(sole);
        fs::remove_file(&path).unwrap();
        std::os::unix::fs::symlink("/dev/full", &path).unwrap();
        assert!(!Sole::take(directory.path()).unwrap().has_replaced);
    }
}
