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

/// The signals that are kept back from this process, without those of [`Signals::catch`]: as [`release`] would leave it.
///
/// # Errors
/// None that a kernel has.
pub fn kept_back_by_the_caller() -> nix::Result<SigSet> {
    let mut mask = SigSet::thread_get_mask()?;
    HEARD.into_iter().for_each(|signal| mask.remove(signal));
    Ok(mask)
}

/// Whether `signal` ends a program that has prepared itself for none, under the caller of this one: what that ignores, as
/// `nohup` does with SIGHUP, what it executes ignores as well.
pub fn ends(signal: Signal) -> bool {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    ![Signal::SIGWINCH, Signal::SIGCONT].contains(&signal) && !is_ignored(signal, &status)
}

/// What /proc/self/status says of `signal`; the lowest bit is the first one's.
fn is_ignored(signal: Signal, status: &str) -> bool {
    let mask = status.lines().find_map(|line| line.strip_prefix("SigIgn:"));
    let mask = mask.and_then(|mask| u64::from_str_radix(mask.trim(), 16).ok());
    mask.is_some_and(|mask| mask >> (signal as i32 - 1) & 1 == 1)
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

    /// Waits until a signal is there, `also` has something to read or has been closed, or `patience` is over. Whether it
    /// was `also`, perhaps among others.
    ///
    /// # Errors
    /// The kernel has no memory for it.
    pub fn wait(&self, also: Option<BorrowedFd<'_>>, patience: Option<Duration>) -> nix::Result<bool> {
        let own = PollFd::from_borrowed_fd(self.0.as_fd(), PollFlags::IN);
        let mut all: Vec<PollFd<'_>> =
            [own].into_iter().chain(also.map(|fd| PollFd::from_borrowed_fd(fd, PollFlags::IN))).collect();
        let patience = patience.and_then(|patience| Timespec::try_from(patience).ok());
        match poll(&mut all, patience.as_ref()) {
            Ok(_) => Ok(all.get(1).is_some_and(|also| !also.revents().is_empty())),
            Err(rustix::io::Errno::INTR) => Ok(false),
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_caught_here_is_not_kept_back_by_the_caller() {
        let before = kept_back_by_the_caller().unwrap();
        let _signals = Signals::catch().unwrap();
        assert!(SigSet::thread_get_mask().unwrap().contains(Signal::SIGTERM));
        let its = kept_back_by_the_caller().unwrap();
        assert!(!its.contains(Signal::SIGTERM) && its.contains(Signal::SIGTSTP) == before.contains(Signal::SIGTSTP));
    }

    #[test]
    fn what_the_caller_ignores_is_told_by_its_mask() {
        let status =
            "Name:\tgpool-run\nSigBlk:\t0000000000000003\nSigIgn:\t0000000000001001\nSigCgt:\t0000000000000006\n";
        let ignored = |signal| is_ignored(signal, status);
        assert!(ignored(Signal::SIGHUP) && !ignored(Signal::SIGINT) && !ignored(Signal::SIGTERM));
        assert!(!is_ignored(Signal::SIGHUP, ""));
        assert!(ends(Signal::SIGTERM) && !ends(Signal::SIGWINCH) && !ends(Signal::SIGCONT));
    }
}
