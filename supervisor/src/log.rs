//! The log: stderr, which the journal takes.

use std::ffi::OsStr;
use std::fmt::Arguments;
use std::io::Write;
use std::sync::OnceLock;

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

/// Writes one line, at once. Where it cannot be written, on a full disk or into a pipe that nobody reads, it is lost:
/// containers must not lose their supervisor for that, as they would with eprintln, which panics.
pub fn line(priority: Priority, words: Arguments<'_>) {
    let line = match goes_to_the_journal() {
        true => format!("<{}>gpool-supervisor: {words}\n", priority as u8),
        false => format!("gpool-supervisor: {words}\n"),
    };
    let _ = std::io::stderr().write_all(line.as_bytes());
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
    use crate::events::{About, Events};
    use gpool_protocol::EventKind;
    use std::fs::File;
    use std::os::unix::fs::MetadataExt;
    use std::path::Path;
    use std::process::{Command, Stdio};

    /// Says which of the two processes of the tests below this one is.
    const CHILD: &str = "GPOOL_TEST_LOG_CHILD";

    /// The test that calls this again, alone, in a process whose stderr is `stderr`.
    fn alone(stderr: File, stream: &str) -> std::process::Output {
        let own = std::thread::current().name().unwrap().to_owned();
        let mut child = Command::new(std::env::current_exe().unwrap());
        child.args(["--exact", &own, "--nocapture", "--test-threads=1"]).env(CHILD, "1").env("JOURNAL_STREAM", stream);
        child.stdout(Stdio::piped()).stderr(stderr).output().unwrap()
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
            assert!(alone(file, &stream(&path)).status.success());
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
        let output = alone(full, "");
        let said = String::from_utf8_lossy(&output.stdout).into_owned();
        assert!(output.status.success() && said.contains("1 passed"), "{said}");
    }
}
