//! How both halves of `gpool-run` hear of signals. What becomes of them: see [`super::handing_on`].

use nix::sys::signal::{SigSet, Signal};
use nix::sys::signalfd::{SfdFlags, SignalFd};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use std::os::fd::{AsFd, BorrowedFd};
use std::time::Duration;

/// Ends, interrupts, going on and whatever a program may use for itself. SIGCHLD besides, to be waited for like these.
const HEARD: [Signal; 10] = [
    Signal::SIGTERM,
    Signal::SIGINT,
    Signal::SIGHUP,
    Signal::SIGQUIT,
    Signal::SIGUSR1,
    Signal::SIGUSR2,
    Signal::SIGWINCH,
    Signal::SIGALRM,
    Signal::SIGCONT,
    Signal::SIGCHLD,
];

fn heard() -> SigSet {
    HEARD.into_iter().collect()
}

/// Undoes for this process what it inherited of [`Signals::catch`], so that the command does not.
///
/// # Errors
/// None that a kernel has.
pub fn release() -> nix::Result<()> {
    heard().thread_unblock()
}

/// Where signals arrive.
pub struct Signals(SignalFd);

impl Signals {
    /// Blocks them, so that they queue up here. Called before there is a second thread; what is started from now on
    /// inherits it.
    ///
    /// # Errors
    /// The kernel refuses the descriptor.
    pub fn catch() -> nix::Result<Self> {
        let set = heard();
        set.thread_block()?;
        SignalFd::with_flags(&set, SfdFlags::SFD_CLOEXEC | SfdFlags::SFD_NONBLOCK).map(Self)
    }

    /// Waits until a signal is there, `also` has something to read or has been closed, or `patience` is over.
    ///
    /// # Errors
    /// The kernel has no memory for it.
    pub fn wait(&self, also: Option<BorrowedFd<'_>>, patience: Option<Duration>) -> nix::Result<()> {
        let own = PollFd::from_borrowed_fd(self.0.as_fd(), PollFlags::IN);
        let mut all: Vec<PollFd<'_>> =
            [own].into_iter().chain(also.map(|fd| PollFd::from_borrowed_fd(fd, PollFlags::IN))).collect();
        let patience = patience.and_then(|patience| Timespec::try_from(patience).ok());
        match poll(&mut all, patience.as_ref()) {
            Ok(_) | Err(rustix::io::Errno::INTR) => Ok(()),
            Err(error) => Err(nix::Error::from_raw(error.raw_os_error())),
        }
    }

    /// The next one that is there and means the command; the end of a child is only waited for. Of what has been sent
    /// several times meanwhile the kernel keeps one.
    pub fn next(&self) -> Option<Signal> {
        loop {
            let heard = self.0.read_signal().ok()??;
            let signal = Signal::try_from(heard.ssi_signo.cast_signed()).ok();
            if signal != Some(Signal::SIGCHLD) {
                return signal;
            }
        }
    }
}
