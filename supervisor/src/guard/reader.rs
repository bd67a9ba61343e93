//! Reads what containers may keep from answering, on threads of its own: files that they have made, and their mappings.
//!
//! Opening a file asks its file system, and behind a tenant's file there may be a server that never answers. The mappings of
//! a process that waits for such a server within mmap(2) cannot be read for as long, before Linux 6.17. So nobody but
//! these threads asks for either, one question at a time. A thread that hangs is replaced, so many times; beyond that
//! everything else remains unread for as long.

use std::collections::BTreeMap;
use std::io;
use std::sync::mpsc::{Receiver, Sender, TryRecvError, channel};
use std::time::{Duration, Instant};

/// What all questions of one look may take together. A disk that is not broken takes a thousandth of it.
const PATIENCE: Duration = Duration::from_secs(1);

/// What is known of what was asked for.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Reading<A> {
    /// It could be read, or cannot be by anybody.
    Answer(A),
    /// It does not answer.
    Silent,
    /// The threads wait for others.
    Unread,
}

type Question<A> = Box<dyn FnOnce() -> A + Send>;

/// The threads, as seen by who asks: for things named `K`, to be answered with `A`.
#[derive(Debug)]
pub struct Reader<K, A> {
    thread: Option<Thread<A>>,
    /// What has not been answered, each with where the answer comes in.
    stuck: BTreeMap<K, Receiver<A>>,
    /// What was answered between two looks.
    late: BTreeMap<K, A>,
    /// The most threads that hang.
    most_stuck: usize,
    deadline: Instant,
}

/// A thread that waits for questions. It ends when nobody can ask it any more.
#[derive(Debug)]
struct Thread<A> {
    questions: Sender<Question<A>>,
    answers: Receiver<A>,
}

impl<A: Send + 'static> Thread<A> {
    fn start() -> io::Result<Self> {
        let (questions, asked) = channel::<Question<A>>();
        let (tell, answers) = channel();
        let read = move || {
            for question in asked {
                if tell.send(question()).is_err() {
                    return;
                }
            }
        };
        std::thread::Builder::new().name("reader".into()).spawn(read)?;
        Ok(Self { questions, answers })
    }
}

impl<K: Ord, A: Send + 'static> Reader<K, A> {
    /// Starts the first thread; so many may hang before nothing else is read.
    ///
    /// # Errors
    /// No thread can be started.
    pub fn start(most_stuck: usize) -> io::Result<Self> {
        let thread = Some(Thread::start()?);
        Ok(Self { thread, stuck: BTreeMap::new(), late: BTreeMap::new(), most_stuck, deadline: Instant::now() })
    }

    /// A look begins: time is to be had again.
    pub fn begin(&mut self) {
        self.deadline = Instant::now() + PATIENCE;
        // What nobody asks for in this look may never be asked for again, as its process may have ended.
        self.late.clear();
        for (key, answers) in std::mem::take(&mut self.stuck) {
            match answers.try_recv() {
                Ok(answer) => drop(self.late.insert(key, answer)),
                Err(TryRecvError::Empty) => drop(self.stuck.insert(key, answers)),
                Err(TryRecvError::Disconnected) => {}
            }
        }
    }

    /// The answers of this look did not take so long of its time.
    pub fn forgive(&mut self, time: Duration) {
        self.deadline += time;
    }

    /// What `question` answers, which asks for `key`. As long as it has not, it is not asked again.
    pub fn read(&mut self, key: K, question: impl FnOnce() -> A + Send + 'static) -> Reading<A> {
        if let Some(answer) = self.late.remove(&key) {
            return Reading::Answer(answer);
        }
        if self.stuck.contains_key(&key) {
            return Reading::Silent;
        }
        let left = self.deadline.saturating_duration_since(Instant::now());
        // Too little for a fair answer.
        if self.stuck.len() >= self.most_stuck || left < PATIENCE / 2 {
            return Reading::Unread;
        }
        let Some(thread) = self.thread.take().or_else(|| Thread::start().ok()) else { return Reading::Unread };
        if thread.questions.send(Box::new(question)).is_err() {
            return Reading::Unread;
        }
        match thread.answers.recv_timeout(left) {
            Ok(answer) => {
                self.thread = Some(thread);
                Reading::Answer(answer)
            }
            Err(_) => {
                self.stuck.insert(key, thread.answers);
                Reading::Silent
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use rustix::fs::{CWD, FileType, Mode, mknodat};
    use std::fs::File;
    use std::path::{Path, PathBuf};

    fn ask(reader: &mut Reader<u8, bool>, key: u8, path: &Path) -> Reading<bool> {
        let path = PathBuf::from(path);
        reader.read(key, move || File::open(path).is_ok())
    }

    /// Opening a pipe waits until somebody opens its other end, as opening a file waits for a dead server.
    fn pipe(directory: &Path, name: &str) -> PathBuf {
        let pipe = directory.join(name);
        mknodat(CWD, &pipe, FileType::Fifo, Mode::from_raw_mode(0o600), 0).unwrap();
        pipe
    }

    #[test]
    fn a_file_that_does_not_answer_holds_nobody_up_but_the_thread() {
        let directory = tempfile::tempdir().unwrap();
        let (pipe, plain) = (pipe(directory.path(), "pipe"), directory.path().join("plain"));
        std::fs::write(&plain, "no library").unwrap();
        let mut reader = Reader::start(1).unwrap();
        reader.begin();
        assert_eq!(ask(&mut reader, 2, &plain), Reading::Answer(true));
        let begun = Instant::now();
        assert_eq!(ask(&mut reader, 1, &pipe), Reading::Silent);
        assert!(begun.elapsed() < 20 * PATIENCE);
        // From now on nothing is waited for.
        for _ in 0..1000 {
            reader.begin();
            assert_eq!(ask(&mut reader, 2, &plain), Reading::Unread);
            assert_eq!(ask(&mut reader, 1, &pipe), Reading::Silent);
        }
        // The server is back.
        drop(File::options().write(true).open(&pipe).unwrap());
        let back = (0..2000).any(|_| {
            std::thread::sleep(Duration::from_millis(5));
            reader.begin();
            ask(&mut reader, 2, &plain) == Reading::Answer(true)
        });
        assert!(back);
    }

    #[test]
    fn a_thread_that_hangs_is_replaced_so_many_times_and_no_more() {
        let directory = tempfile::tempdir().unwrap();
        let (one, other) = (pipe(directory.path(), "one"), pipe(directory.path(), "other"));
        let plain = directory.path().join("plain");
        std::fs::write(&plain, "no library").unwrap();
        let mut reader = Reader::start(2).unwrap();
        for (key, path, then) in [(1, &one, Reading::Answer(true)), (2, &other, Reading::Unread)] {
            reader.begin();
            assert_eq!(ask(&mut reader, key, path), Reading::Silent);
            reader.begin();
            assert_eq!(ask(&mut reader, 3, &plain), then);
        }
        // An answer that came late is one.
        drop(File::options().write(true).open(&one).unwrap());
        let answered = (0..2000).find_map(|_| {
            std::thread::sleep(Duration::from_millis(5));
            reader.begin();
            assert_eq!(ask(&mut reader, 2, &other), Reading::Silent);
            Some(ask(&mut reader, 1, &one)).filter(|answer| *answer != Reading::Silent)
        });
        assert_eq!(answered, Some(Reading::Answer(true)));
        assert_eq!(ask(&mut reader, 3, &plain), Reading::Answer(true));
        drop(File::options().write(true).open(&other).unwrap());
    }

    #[test]
    fn who_has_no_time_left_is_not_blamed() {
        let directory = tempfile::tempdir().unwrap();
        let plain = directory.path().join("plain");
        std::fs::write(&plain, "no library").unwrap();
        let mut reader = Reader::start(1).unwrap();
        assert_eq!(ask(&mut reader, 2, &plain), Reading::Unread, "no look has begun");
    }
}
