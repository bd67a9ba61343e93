//! Reads the build ids of files that containers may have made, on a thread of its own.
//!
//! Opening a file asks its file system, and behind a tenant's file there may be a server that never answers. So nobody
//! but this thread opens such files, one at a time. While it hangs nothing else does; other files remain unread
//! for as long.

use super::process::FileId;
use crate::elf;
use gpool_protocol::BuildId;
use std::fs::File;
use std::path::PathBuf;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::time::{Duration, Instant};

/// What all files of one look may take together. A disk that is not broken takes a thousandth of it.
const PATIENCE: Duration = Duration::from_secs(1);

/// What is known of a file.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Reading {
    /// It could be read, or cannot be by anybody: which build it says it is.
    Build(Option<BuildId>),
    /// Its file system does not answer.
    Silent,
    /// The thread waits for another file.
    Unread,
}

/// The thread, as seen by who asks.
#[derive(Debug)]
pub struct Reader {
    questions: Sender<PathBuf>,
    answers: Receiver<Option<BuildId>>,
    /// The file that has not been answered for.
    waits_for: Option<FileId>,
    deadline: Instant,
}

impl Reader {
    /// Starts the thread.
    ///
    /// # Errors
    /// No thread can be started.
    pub fn start() -> std::io::Result<Self> {
        let (questions, asked) = channel::<PathBuf>();
        let (tell, answers) = channel();
        let read = move || {
            for path in asked {
                let build_id = File::open(path).and_then(|file| elf::build_id(&file)).ok().flatten();
                if tell.send(build_id).is_err() {
                    return;
                }
            }
        };
        std::thread::Builder::new().name("reader".into()).spawn(read)?;
        Ok(Self { questions, answers, waits_for: None, deadline: Instant::now() })
    }

    /// A look begins: time is to be had again.
    pub fn begin(&mut self) {
        self.deadline = Instant::now() + PATIENCE;
    }

    /// Which build the file is that can be opened at `path`.
    pub fn read(&mut self, file: FileId, path: PathBuf) -> Reading {
        if let Some(other) = self.waits_for {
            let Ok(answer) = self.answers.try_recv() else {
                return if other == file { Reading::Silent } else { Reading::Unread };
            };
            self.waits_for = None;
            if other == file {
                return Reading::Build(answer);
            }
        }
        let left = self.deadline.saturating_duration_since(Instant::now());
        // Too little for a fair answer.
        if left < PATIENCE / 2 || self.questions.send(path).is_err() {
            return Reading::Unread;
        }
        match self.answers.recv_timeout(left) {
            Ok(answer) => Reading::Build(answer),
            Err(_) => {
                self.waits_for = Some(file);
                Reading::Silent
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use rustix::fs::{CWD, FileType, Mode, mknodat};

    fn file(inode: u64) -> FileId {
        FileId { device: (0, 7), inode }
    }

    /// Opening a pipe waits until somebody opens its other end, as opening a file waits for a dead server.
    #[test]
    fn a_file_that_does_not_answer_holds_nobody_up_but_the_thread() {
        let directory = tempfile::tempdir().unwrap();
        let (pipe, plain) = (directory.path().join("pipe"), directory.path().join("plain"));
        mknodat(CWD, &pipe, FileType::Fifo, Mode::from_raw_mode(0o600), 0).unwrap();
        std::fs::write(&plain, "no library").unwrap();
        let mut reader = Reader::start().unwrap();
        reader.begin();
        assert_eq!(reader.read(file(2), plain.clone()), Reading::Build(None));
        let begun = Instant::now();
        assert_eq!(reader.read(file(1), pipe.clone()), Reading::Silent);
        assert!(begun.elapsed() < 20 * PATIENCE);
        // From now on nothing is waited for.
        for _ in 0..1000 {
            reader.begin();
            assert_eq!(reader.read(file(2), plain.clone()), Reading::Unread);
            assert_eq!(reader.read(file(1), pipe.clone()), Reading::Silent);
        }
        // The server is back.
        drop(File::options().write(true).open(&pipe).unwrap());
        let back = (0..2000).any(|_| {
            std::thread::sleep(Duration::from_millis(5));
            reader.begin();
            reader.read(file(2), plain.clone()) == Reading::Build(None)
        });
        assert!(back);
    }

    #[test]
    fn who_has_no_time_left_is_not_blamed() {
        let directory = tempfile::tempdir().unwrap();
        let plain = directory.path().join("plain");
        std::fs::write(&plain, "no library").unwrap();
        let mut reader = Reader::start().unwrap();
        assert_eq!(reader.read(file(2), plain), Reading::Unread, "no look has begun");
    }
}
