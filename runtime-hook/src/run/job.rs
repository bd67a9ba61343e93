//! Whether `gpool run` stops because its command has.
//!
//! Ctrl-Z stops both. A command may also stop itself, as editors do that read Ctrl-Z as a key, and under another user it
//! cannot stop root's `gpool run` along with it: the shell would go on waiting for a job that does nothing. Where no shell
//! waits, because `gpool run` does not have the terminal, whoever has stopped the command alone continues it alone.

use super::handing_on::APART;
use super::pipes;
use nix::sys::signal::Signal;
use std::time::{Duration, Instant};

/// Whether a shell waits for this process's group: it has the foreground of its terminal.
pub fn has_the_terminal() -> bool {
    std::fs::read_to_string("/proc/self/stat").is_ok_and(|status| is_in_front(&status))
}

/// Whether /proc/PID/stat has the same process group for the process, which is field 5, and for the foreground of its
/// terminal, field 8; that is -1 without a terminal (proc(5)).
fn is_in_front(status: &str) -> bool {
    // The name in parentheses may hold anything, so count from its end.
    let mut fields = status.rsplit_once(')').map_or("", |(_, rest)| rest).split_whitespace().skip(2);
    let group = fields.next();
    group.is_some() && group == fields.nth(2)
}

/// What is known of the command.
#[derive(Default)]
pub struct Job {
    /// When to stop, unless it goes on before.
    stop_at: Option<Instant>,
    /// The number of the signal that has ended it; nix knows no real-time ones.
    pub ended: Option<i32>,
    /// With which status it has ended by itself.
    pub status: Option<u8>,
    /// Whether that is what comes next.
    status_follows: bool,
}

impl Job {
    /// The inner half tells that the command has stopped, gone on or ended by these signals, or with a status.
    pub fn told(&mut self, signals: Vec<i32>, now: Instant) {
        for signal in signals {
            if std::mem::take(&mut self.status_follows) {
                self.status = u8::try_from(signal).ok();
                continue;
            }
            if signal == pipes::STATUS_FOLLOWS {
                self.status_follows = true;
                continue;
            }
            match Signal::try_from(signal) {
                Ok(Signal::SIGTSTP | Signal::SIGTTIN | Signal::SIGTTOU | Signal::SIGSTOP) => {
                    self.stop_at = Some(now + APART);
                }
                Ok(Signal::SIGCONT) => self.stop_at = None,
                _ => self.ended = Some(signal),
            }
        }
    }

    /// This process has had `signal`. SIGCONT is for both: what was told before is over.
    pub fn had(&mut self, signal: Signal) {
        if signal == Signal::SIGCONT {
            self.stop_at = None;
        }
    }

    /// Whether to stop now; asked again, no longer.
    pub fn is_to_stop(&mut self, now: Instant) -> bool {
        self.stop_at.take_if(|at| *at <= now).is_some()
    }

    /// When to ask again.
    pub fn patience(&self, now: Instant) -> Option<Duration> {
        self.stop_at.map(|at| at.saturating_duration_since(now))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_stops_when_its_command_stays_stopped() {
        for signal in [Signal::SIGTSTP, Signal::SIGTTIN, Signal::SIGTTOU, Signal::SIGSTOP] {
            let (mut job, begun) = (Job::default(), Instant::now());
            job.told(vec![signal as i32], begun);
            assert_eq!(job.patience(begun), Some(APART), "{signal}");
            assert!(!job.is_to_stop(begun));
            assert!(job.is_to_stop(begun + APART) && !job.is_to_stop(begun + APART), "{signal}");
            assert_eq!((job.patience(begun), job.ended), (None, None));
        }
    }

    #[test]
    fn a_shell_waits_for_the_group_that_has_the_terminal() {
        let stat = |front: i32| format!("12 (gpool-run) 4) S 11 10 9 34816 {front} 4194560 119");
        assert!(is_in_front(&stat(10)));
        assert!(!is_in_front(&stat(9)) && !is_in_front(&stat(-1)) && !is_in_front(""));
    }

    #[test]
    fn a_status_is_no_signal_also_where_it_is_told_in_parts() {
        let begun = Instant::now();
        for parts in [vec![vec![20, 0, 15]], vec![vec![20, 0], vec![15]]] {
            let mut job = Job::default();
            parts.into_iter().for_each(|part| job.told(part, begun));
            assert_eq!((job.status, job.ended, job.patience(begun)), (Some(15), None, Some(APART)));
        }
        let mut job = Job::default();
        job.told(vec![0, 0], begun);
        assert_eq!((job.status, job.ended), (Some(0), None));
    }

    #[test]
    fn what_has_been_continued_meanwhile_does_not_stop_again() {
        let begun = Instant::now();
        let ways: [fn(&mut Job); 2] =
            [|job| job.told(vec![Signal::SIGCONT as i32], Instant::now()), |job| job.had(Signal::SIGCONT)];
        for continued in ways {
            let mut job = Job::default();
            job.told(vec![Signal::SIGTSTP as i32], begun);
            job.had(Signal::SIGINT);
            continued(&mut job);
            assert!(!job.is_to_stop(begun + 2 * APART));
        }
        let mut job = Job::default();
        for signal in [Signal::SIGKILL as i32, 34] {
            job.told(vec![signal], begun);
            assert_eq!(job.ended, Some(signal));
        }
    }
}
