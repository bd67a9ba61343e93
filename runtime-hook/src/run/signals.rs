//! Signals that are meant for the command: both halves of `gpool-run` hand them on.

use nix::sys::signal::{SigSet, Signal, kill};
use nix::sys::signalfd::{SfdFlags, SignalFd};
use nix::unistd::Pid;

/// Ends, interrupts and whatever a program may use for itself. SIGCHLD besides, to be waited for like these.
const HEARD: [Signal; 9] = [
    Signal::SIGTERM,
    Signal::SIGINT,
    Signal::SIGHUP,
    Signal::SIGQUIT,
    Signal::SIGUSR1,
    Signal::SIGUSR2,
    Signal::SIGWINCH,
    Signal::SIGALRM,
    Signal::SIGCHLD,
];
/// `si_code` of what the kernel sends by itself (`SI_KERNEL` in the kernel's asm-generic/siginfo.h).
const SENT_BY_KERNEL: i32 = 0x80;
/// What a terminal sends to every process of the foreground, the command included. Its hangup goes to the session's
/// leader alone, and an alarm to who has set it.
const SENT_TO_ALL: [Signal; 3] = [Signal::SIGINT, Signal::SIGQUIT, Signal::SIGWINCH];

/// Whether the command has had this signal from the kernel.
fn has_had(signal: Signal, code: i32) -> bool {
    code == SENT_BY_KERNEL && SENT_TO_ALL.contains(&signal)
}

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
        SignalFd::with_flags(&set, SfdFlags::SFD_CLOEXEC).map(Self)
    }

    /// Waits for the next one and hands it to `to`, unless it has had it. True if a child may have ended.
    ///
    /// # Errors
    /// The descriptor fails, which no kernel does.
    pub fn hand_on(&self, to: Pid) -> nix::Result<bool> {
        let Some(heard) = self.0.read_signal()? else { return Ok(false) };
        let Ok(signal) = Signal::try_from(heard.ssi_signo as i32) else { return Ok(false) };
        if signal == Signal::SIGCHLD {
            return Ok(true);
        }
        if !has_had(signal, heard.ssi_code) {
            // It may have ended meanwhile; then its end is next.
            let _ = kill(to, signal);
        }
        Ok(false)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_what_a_terminal_sends_to_all_is_not_handed_on() {
        let kept_back = |code| HEARD.into_iter().filter(move |signal| has_had(*signal, code)).collect::<Vec<_>>();
        assert_eq!(kept_back(SENT_BY_KERNEL), [Signal::SIGINT, Signal::SIGQUIT, Signal::SIGWINCH]);
        // What kill(2) sends, it sends to one process.
        assert_eq!(kept_back(0), []);
    }
}
