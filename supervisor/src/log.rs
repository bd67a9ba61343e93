//! The log: stderr, which the journal takes.

use std::fmt::Arguments;
use std::io::Write;

/// Says a line of the log.
macro_rules! log {
    ($($words:tt)*) => {
        $crate::log::line(format_args!($($words)*))
    };
}

/// Writes one line, at once. Where it cannot be written, on a full disk or into a pipe that nobody reads, it is lost:
/// containers must not lose their supervisor for that, as they would with eprintln, which panics.
pub fn line(words: Arguments<'_>) {
    let _ = std::io::stderr().write_all(format!("gpool-supervisor: {words}\n").as_bytes());
}

#[cfg(test)]
mod tests {
    use crate::events::{About, Events};
    use gpool_protocol::EventKind;
    use std::fs::File;
    use std::process::{Command, Stdio};

    /// Says which of the two processes of the test below this one is.
    const CHILD: &str = "GPOOL_TEST_LOG_IS_FULL";

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
        let own = std::thread::current().name().unwrap().to_owned();
        let mut child = Command::new(std::env::current_exe().unwrap());
        child.args(["--exact", &own, "--nocapture", "--test-threads=1"]).env(CHILD, "1");
        let output = child.stdout(Stdio::piped()).stderr(full).output().unwrap();
        let said = String::from_utf8_lossy(&output.stdout).into_owned();
        assert!(output.status.success() && said.contains("1 passed"), "{said}");
    }
}
