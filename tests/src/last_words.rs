//! What a scenario said last on its standard error: passed on as it is said, and said again where a long run ends, since the
//! end of a log is what people are shown of it.

use std::collections::VecDeque;
use std::io::{BufRead, BufReader, PipeReader, Write};
use std::process::Stdio;
use std::sync::mpsc::{Receiver, channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

/// Lines that are kept.
const LINES: usize = 8;
/// How long the last words of who has ended are waited for: a process that was left behind may hold the pipe for longer.
const PATIENCE: Duration = Duration::from_millis(500);

/// The last lines of somebody's standard error.
pub struct LastWords {
    lines: Arc<Mutex<VecDeque<String>>>,
    ended: Receiver<()>,
}

impl LastWords {
    /// A standard error for a process, and what will have been said there.
    ///
    /// # Errors
    /// When no pipe can be had.
    pub fn listen() -> std::io::Result<(Stdio, Self)> {
        Self::pass_on_to(std::io::stderr())
    }

    fn pass_on_to(listener: impl Write + Send + 'static) -> std::io::Result<(Stdio, Self)> {
        let (reader, writer) = std::io::pipe()?;
        let lines = Arc::new(Mutex::new(VecDeque::new()));
        let (end, ended) = channel();
        let kept = Arc::clone(&lines);
        std::thread::spawn(move || {
            pass_on(reader, listener, &kept);
            let _ = end.send(());
        });
        Ok((writer.into(), Self { lines, ended }))
    }

    /// The lines, oldest first, once the process has ended.
    pub fn said(self) -> Vec<String> {
        let _ = self.ended.recv_timeout(PATIENCE);
        self.lines.lock().unwrap_or_else(PoisonError::into_inner).iter().cloned().collect()
    }
}

fn pass_on(reader: PipeReader, mut listener: impl Write, kept: &Mutex<VecDeque<String>>) {
    let mut reader = BufReader::new(reader);
    let mut line = Vec::new();
    // What ends in no newline is passed on as well; programs may write anything.
    while reader.read_until(b'\n', &mut line).is_ok_and(|read| read > 0) {
        let _ = listener.write_all(&line);
        let text = String::from_utf8_lossy(&line).trim_end().to_owned();
        line.clear();
        if text.is_empty() {
            continue;
        }
        let mut kept = kept.lock().unwrap_or_else(PoisonError::into_inner);
        if kept.len() == LINES {
            kept.pop_front();
        }
        kept.push_back(text);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::process::Command;

    fn said_by(script: &str) -> Vec<String> {
        let (errors, words) = LastWords::pass_on_to(std::io::sink()).unwrap();
        assert!(Command::new("sh").args(["-c", script]).stderr(errors).status().unwrap().success());
        words.said()
    }

    #[test]
    fn last_lines_are_kept_in_order() {
        let said = said_by("for i in 1 2 3 4 5 6 7 8 9 10 11; do echo line $i >&2; echo >&2; done; printf half >&2");
        let expected: Vec<String> = (5..=11).map(|i| format!("line {i}")).chain(["half".to_owned()]).collect();
        assert_eq!(said, expected);
    }

    #[test]
    fn somebody_left_behind_is_not_waited_for() {
        assert_eq!(said_by("echo why >&2; sleep 30 > /dev/null < /dev/null &"), ["why"]);
    }
}
