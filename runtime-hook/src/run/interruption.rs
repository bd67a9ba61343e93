//! What `gpool run` does before there is a command it does in a thread, while this one listens: a signal ends it.

use super::signals::{self, Signals};
use super::unprepared;
use gpool_protocol::ErrorBody;
use nix::sys::signal::Signal;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use std::io::PipeReader;
use std::os::fd::AsFd;
use std::thread::JoinHandle;
use std::time::Duration;

/// Work that has begun.
pub struct Work<T> {
    thread: JoinHandle<T>,
    /// Closed when the work is done.
    done: PipeReader,
}

/// What came first.
pub enum Outcome<T> {
    /// The end of the work.
    Done(T),
    /// A signal; the work goes on.
    Interrupted(Signal, Work<T>),
}

impl<T: Send + 'static> Work<T> {
    /// Begins it.
    ///
    /// # Errors
    /// The kernel gives no thread or no descriptor.
    pub fn begin(work: impl FnOnce() -> T + Send + 'static) -> Result<Self, ErrorBody> {
        let refused = |error| unprepared("no thread can be started", error);
        let (done, end) = std::io::pipe().map_err(refused)?;
        let thread = std::thread::Builder::new().name("prepare".into()).spawn(move || {
            let outcome = work();
            drop(end);
            outcome
        });
        Ok(Self { thread: thread.map_err(refused)?, done })
    }

    /// Waits until it is done, or until a signal comes that ends a program.
    ///
    /// # Errors
    /// Signals cannot be waited for.
    pub fn unless_interrupted(self, signals: &Signals) -> Result<Outcome<T>, ErrorBody> {
        let failed = |error: nix::Error| unprepared("signals cannot be waited for", error);
        loop {
            let is_done = signals.wait(Some(self.done.as_fd()), None).map_err(failed)?;
            while let Some(signal) = signals.next() {
                if signals::ends(signal) {
                    return Ok(Outcome::Interrupted(signal, self));
                }
            }
            if is_done {
                return self.outcome().map(Outcome::Done).ok_or_else(|| failed(nix::Error::ECHILD));
            }
        }
    }

    /// What comes of it within `patience`.
    pub fn within(self, patience: Duration) -> Option<T> {
        let mut done = [PollFd::from_borrowed_fd(self.done.as_fd(), PollFlags::IN)];
        let patience = Timespec::try_from(patience).ok()?;
        let ready = poll(&mut done, Some(&patience)).ok()?;
        if ready == 0 { None } else { self.outcome() }
    }

    fn outcome(self) -> Option<T> {
        self.thread.join().ok()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use nix::sys::signal::raise;
    use std::sync::mpsc::channel;

    #[test]
    fn a_signal_comes_first_or_the_end_does() {
        let signals = Signals::catch().unwrap();
        let long = Duration::from_secs(10);
        let begin = || {
            let (go, wait) = channel();
            (go, Work::begin(move || wait.recv_timeout(long).unwrap()).unwrap())
        };
        let (go, work) = begin();
        // To this thread alone; the harness has others.
        raise(Signal::SIGWINCH).unwrap();
        raise(Signal::SIGTERM).unwrap();
        let Ok(Outcome::Interrupted(Signal::SIGTERM, work)) = work.unless_interrupted(&signals) else {
            panic!("SIGTERM came first");
        };
        go.send(7).unwrap();
        assert_eq!(work.within(long), Some(7));
        let (go, work) = begin();
        go.send(8).unwrap();
        assert!(matches!(work.unless_interrupted(&signals), Ok(Outcome::Done(8))));
        let (_go, work) = begin();
        assert_eq!(work.within(Duration::from_millis(1)), None);
    }
}
