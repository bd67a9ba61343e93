//! The log: stderr, which the journal takes.
//!
//! Whoever reads it may stand still, and a full pipe keeps its writer waiting. Lines are said with the book of leases held, and by
//! the watchdog: so a thread of its own writes them, and what it has no room for is lost and counted.

use std::ffi::OsStr;
use std::fmt::Arguments;
use std::io::{self, Write};
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::mpsc::{Receiver, Sender, SyncSender, TrySendError, channel, sync_channel};
use std::time::{Duration, Instant};

/// Lines that wait to be written. A line has at most some kilobytes, and most a hundred bytes.
const LINES: usize = 1024;
/// The last of these are for what somebody should look at: what happens on an ordinary day has no part in them.
const LINES_FOR_WARNINGS: usize = LINES / 4;
/// What is left to be written at the end is waited for no longer.
const PATIENCE: Duration = Duration::from_secs(2);

/// The way to the thread that writes, if it has been started.
static WRITER: OnceLock<SyncSender<Said>> = OnceLock::new();
/// Lines for which there was no room, or that could not be written.
static LOST: AtomicU64 = AtomicU64::new(0);

/// Lines that wait to be written now.
static WAITING: AtomicUsize = AtomicUsize::new(0);

/// What the thread is to do.
enum Said {
    /// Write this.
    Line(String),
    /// Say that all before it is written.
    End(Sender<()>),
}

/// How grave a line is, numbered as in syslog(3).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u8)]
pub enum Priority {
    /// The supervisor does not serve.
    Error = 3,
    /// Somebody should look.
    Warning = 4,
    /// What happens on an ordinary day.
    Information = 6,
}

/// Says a line of the log that somebody should look at. What happens on an ordinary day is an event, see
/// [`crate::events`].
macro_rules! log {
    ($($words:tt)*) => {
        $crate::log::line($crate::log::Priority::Warning, format_args!($($words)*))
    };
}

/// Says one line: at once, or through the thread that [`start`] has started, and then nobody waits for whoever reads the log.
/// Where it cannot be written, on a full disk or into a pipe that nobody reads, it is lost: containers must not lose their
/// supervisor for that, as they would with eprintln, which panics.
pub fn line(priority: Priority, words: Arguments<'_>) {
    let line = match goes_to_the_journal() {
        true => format!("<{}>gpool-supervisor: {words}\n", priority as u8),
        false => format!("gpool-supervisor: {words}\n"),
    };
    let is_said = match WRITER.get() {
        None => write(&line),
        Some(writer) => has_room_for(priority, WAITING.load(Ordering::Relaxed)) && hand_over(writer, priority, line),
    };
    LOST.fetch_add(u64::from(!is_said), Ordering::Relaxed);
}

/// Gives a line to the thread that writes; whether it has taken it.
fn hand_over(writer: &SyncSender<Said>, priority: Priority, line: String) -> bool {
    WAITING.fetch_add(1, Ordering::Relaxed);
    let is_taken = match priority {
        // It is among the last, and worth a wait.
        Priority::Error => send(writer, Said::Line(line)),
        Priority::Warning | Priority::Information => writer.try_send(Said::Line(line)).is_ok(),
    };
    WAITING.fetch_sub(usize::from(!is_taken), Ordering::Relaxed);
    is_taken
}

/// Whether a line may be added to so many that wait.
fn has_room_for(priority: Priority, waiting: usize) -> bool {
    priority != Priority::Information || waiting < LINES - LINES_FOR_WARNINGS
}

fn write(line: &str) -> bool {
    io::stderr().write_all(line.as_bytes()).is_ok()
}

/// Waits a while for room; whether there was any.
fn send(writer: &SyncSender<Said>, mut what: Said) -> bool {
    let end = Instant::now() + PATIENCE;
    loop {
        what = match writer.try_send(what) {
            Err(TrySendError::Full(what)) if Instant::now() < end => what,
            sent => return sent.is_ok(),
        };
        std::thread::sleep(Duration::from_millis(10));
    }
}

/// From now on nobody who says a line waits.
///
/// # Errors
/// No thread can be started.
pub fn start() -> io::Result<()> {
    let (writer, said) = sync_channel(LINES);
    std::thread::Builder::new().name("log".into()).spawn(move || write_all(&said))?;
    // A second thread ends at once, as nobody can say anything to it.
    let _ = WRITER.set(writer);
    Ok(())
}

fn write_all(said: &Receiver<Said>) {
    let mut told = 0;
    for what in said {
        match what {
            Said::Line(line) => {
                LOST.fetch_add(u64::from(!write(&line)), Ordering::Relaxed);
                WAITING.fetch_sub(1, Ordering::Relaxed);
            }
            Said::End(done) => drop(done.send(())),
        }
        let lost = lost();
        let words = format!("gpool-supervisor: {} lines of the log are lost here\n", lost - told);
        if lost > told && write(&words) {
            told = lost;
        }
    }
}

/// Waits a while until everything is written: the process is about to end.
pub fn finish() {
    let (done, is_done) = channel();
    if let Some(writer) = WRITER.get()
        && send(writer, Said::End(done))
    {
        let _ = is_done.recv_timeout(PATIENCE);
    }
}

/// How many lines were lost, because nobody took those before them or because they could not be written.
pub fn lost() -> u64 {
    LOST.load(Ordering::Relaxed)
}

/// Whether the journal reads stderr, and with it the priorities of sd-daemon(3) in front of lines.
fn goes_to_the_journal() -> bool {
    static IT_DOES: OnceLock<bool> = OnceLock::new();
    *IT_DOES.get_or_init(|| {
        let stream = std::env::var_os("JOURNAL_STREAM");
        let stderr = rustix::fs::fstat(std::io::stderr());
        stream.zip(stderr.ok()).is_some_and(|(stream, stderr)| names(&stream, stderr.st_dev, stderr.st_ino))
    })
}

/// Whether `JOURNAL_STREAM`, device and inode in decimal digits (systemd.exec(5)), names this file. The variable is inherited by
/// programs whose stderr goes elsewhere.
fn names(stream: &OsStr, device: u64, inode: u64) -> bool {
    stream.to_str().is_some_and(|stream| *stream == format!("{device}:{inode}"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::events::{About, Events};
    use gpool_protocol::EventKind;
    use std::fs::File;
    use std::io::Read;
    use std::io::{BufRead, BufReader};
    use std::os::unix::fs::MetadataExt;
    use std::path::Path;
    use std::process::{Command, Stdio};

    /// Says which of the two processes of the tests below this one is.
    const CHILD: &str = "GPOOL_TEST_LOG_CHILD";

    /// The test that calls this again, alone, in a process whose stderr is `stderr`.
    fn alone(stderr: impl Into<Stdio>, stream: &str) -> Command {
        let own = std::thread::current().name().unwrap().to_owned();
        let mut child = Command::new(std::env::current_exe().unwrap());
        child.args(["--exact", &own, "--nocapture", "--test-threads=1"]).env(CHILD, "1").env("JOURNAL_STREAM", stream);
        child.stdout(Stdio::piped()).stderr(stderr);
        child
    }

    /// In a process of its own, whose stderr is a file that the variable names, as the journal's socket is.
    #[test]
    fn the_journal_is_told_how_grave_a_line_is_and_nobody_else() {
        if std::env::var_os(CHILD).is_some() {
            let events = Events::default();
            events.note(EventKind::LeaseGranted, About::default(), "granted".to_owned());
            events.note(EventKind::Bypass, About::default(), "went past the shims".to_owned());
            log!("cannot be killed");
            return;
        }
        let directory = tempfile::tempdir().unwrap();
        let said = |name: &str, stream: &dyn Fn(&Path) -> String| {
            let path = directory.path().join(name);
            let file = File::create(&path).unwrap();
            assert!(alone(file, &stream(&path)).output().unwrap().status.success());
            std::fs::read_to_string(path).unwrap()
        };
        let journal = said("journal", &|path| {
            let its = path.metadata().unwrap();
            format!("{}:{}", its.dev(), its.ino())
        });
        let want = "<6>gpool-supervisor: granted\n<4>gpool-supervisor: went past the shims\n\
                    <4>gpool-supervisor: cannot be killed\n";
        assert_eq!(journal, want);
        let inherited = said("elsewhere", &|_| "8:12345".to_owned());
        assert_eq!(inherited, want.replace("<6>", "").replace("<4>", ""));
    }

    /// In a process of its own, whose stderr takes nothing: what is granted is told all the same.
    #[test]
    fn a_log_that_cannot_be_written_ends_nothing() {
        if std::env::var_os(CHILD).is_some() {
            let events = Events::default();
            events.note(EventKind::LeaseGranted, About::default(), "granted 30 %".to_owned());
            log!("a lease cannot be taken over yet");
            assert_eq!(events.after(0, None).len(), 1);
            return;
        }
        let full = File::options().write(true).open("/dev/full").unwrap();
        let output = alone(full, "").output().unwrap();
        let said = String::from_utf8_lossy(&output.stdout).into_owned();
        assert!(output.status.success() && said.contains("1 passed"), "{said}");
    }

    /// In a process of its own, whose stderr is a pipe that nobody reads for a while.
    #[test]
    fn a_log_that_nobody_reads_holds_nobody_up_and_says_later_what_is_lost() {
        const SAID: usize = 20_000;
        if std::env::var_os(CHILD).is_some() {
            start().unwrap();
            let events = Events::default();
            (0..SAID).for_each(|_| events.note(EventKind::LeaseGranted, About::default(), "granted 30 %".to_owned()));
            log!("the watchdog complains");
            println!("has said it all, of which {} lines are lost", lost());
            // Whoever reads comes back.
            while lost_of(&mut std::io::stdin().lock()).is_none() {}
            finish();
            return;
        }
        let (mut log, theirs) = std::io::pipe().unwrap();
        let mut child = alone(theirs, "").stdin(Stdio::piped()).spawn().unwrap();
        let mut stdout = BufReader::new(child.stdout.take().unwrap());
        let lost = std::iter::repeat_with(|| lost_of(&mut stdout)).find_map(|lost| lost).unwrap();
        assert!(lost > 0 && lost < SAID, "{lost}");
        writeln!(child.stdin.take().unwrap(), "of which 0 lines are read").unwrap();
        let mut said = String::new();
        log.read_to_string(&mut said).unwrap();
        assert!(child.wait().unwrap().success());
        assert_eq!(said.lines().filter(|line| line.contains("granted 30 %")).count(), SAID - lost, "{lost} are lost");
        assert!(said.contains("the watchdog complains"), "there is room left for what somebody should look at");
        let told = said
            .lines()
            .filter(|line| line.contains("are lost here"))
            .filter_map(|line| line.split(' ').nth(1)?.parse::<usize>().ok());
        assert_eq!(told.sum::<usize>(), lost, "{lost} are lost");
    }

    /// The number in the next line, if it is the one that says how many lines are lost.
    fn lost_of(lines: &mut impl BufRead) -> Option<usize> {
        let mut line = String::new();
        assert!(lines.read_line(&mut line).unwrap() > 0, "it ended without a word");
        line.split_once("of which ")?.1.split(' ').next()?.parse().ok()
    }
}
