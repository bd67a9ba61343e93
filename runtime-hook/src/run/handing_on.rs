//! Which signals the command is handed.
//!
//! A signal for the process group (a terminal's Ctrl-C, `timeout`), or for every process of a unit or a job, one after the
//! other (systemd, Slurm), reaches the command by itself. It reaches both halves of `gpool-run`, too: the outer one in the
//! caller's process group and cgroup, the inner one in the command's. What is sent to `gpool run` alone reaches the outer
//! half alone. A signal does not say which of these it is: kill(2) leaves the same sender behind. So the outer half tells
//! the inner one of each, and the inner one hands on what it has not had as well. Whoever finds processes by their names, as
//! pkill does, finds the inner one where it finds the command.

use nix::sys::signal::Signal;
use std::time::{Duration, Instant};

/// How long after one another the halves may get what was sent to all.
pub const APART: Duration = Duration::from_millis(100);

/// What the inner half knows of signals that are on their way.
#[derive(Default)]
pub struct HandingOn {
    /// Those of the last moment that this process has had.
    had: Vec<(Signal, Instant)>,
    /// Those of which the outer half told, each with the time at which it is the command's.
    waiting: Vec<(Signal, Instant)>,
}

impl HandingOn {
    /// This process has had `signal`; so has the command, which is in the same process group and cgroup.
    pub fn had(&mut self, signal: Signal, now: Instant) {
        self.waiting.retain(|(other, _)| *other != signal);
        self.had.retain(|(other, _)| *other != signal);
        self.had.push((signal, now));
    }

    /// The outer half has had `signal`.
    pub fn told(&mut self, signal: Signal, now: Instant) {
        let is_it = |(other, at): &(Signal, Instant)| *other == signal && now.duration_since(*at) < APART;
        if !self.had.iter().any(is_it) {
            self.waiting.push((signal, now + APART));
        }
    }

    /// Takes what was sent to `gpool run` alone, as it is by now.
    pub fn due(&mut self, now: Instant) -> Vec<Signal> {
        let (due, waiting) = self.waiting.drain(..).partition(|(_, at)| *at <= now);
        self.waiting = waiting;
        due.into_iter().map(|(signal, _): (Signal, Instant)| signal).collect()
    }

    /// When the next one may be due.
    pub fn patience(&self, now: Instant) -> Option<Duration> {
        self.waiting.iter().map(|(_, at)| at.saturating_duration_since(now)).min()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use Signal::{SIGINT, SIGTERM};

    const MS: Duration = Duration::from_millis(1);

    #[test]
    fn what_was_sent_to_gpool_run_alone_is_handed_on_as_often_as_it_was_sent() {
        let (mut handing_on, begun) = (HandingOn::default(), Instant::now());
        assert_eq!(handing_on.patience(begun), None);
        handing_on.told(SIGINT, begun);
        handing_on.told(SIGINT, begun + 10 * MS);
        handing_on.told(SIGTERM, begun + 20 * MS);
        assert_eq!(handing_on.patience(begun + 30 * MS), Some(70 * MS));
        assert_eq!(handing_on.due(begun + 99 * MS), []);
        assert_eq!(handing_on.due(begun + 110 * MS), [SIGINT, SIGINT]);
        assert_eq!(handing_on.due(begun + 500 * MS), [SIGTERM]);
        assert_eq!(handing_on.due(begun + 900 * MS), []);
    }

    #[test]
    fn what_was_sent_to_all_is_not_whoever_had_it_first() {
        let begun = Instant::now();
        for (told, had) in [(0, 0), (0, 90), (90, 0)] {
            let mut handing_on = HandingOn::default();
            let (told, had) = (begun + told * MS, begun + had * MS);
            if told < had {
                handing_on.told(SIGTERM, told);
                handing_on.had(SIGTERM, had);
            } else {
                handing_on.had(SIGTERM, had);
                handing_on.told(SIGTERM, told);
            }
            assert_eq!(handing_on.due(begun + 900 * MS), [], "told {told:?}, had {had:?}");
        }
    }

    /// `timeout` sends it to its child, and then to the group.
    #[test]
    fn what_the_outer_half_had_twice_and_this_one_once_was_sent_to_all() {
        let (mut handing_on, begun) = (HandingOn::default(), Instant::now());
        handing_on.told(SIGTERM, begun);
        handing_on.had(SIGTERM, begun + MS);
        handing_on.told(SIGTERM, begun + 2 * MS);
        assert_eq!(handing_on.due(begun + 900 * MS), []);
    }

    #[test]
    fn another_signal_or_another_time_is_another_matter() {
        let (mut handing_on, begun) = (HandingOn::default(), Instant::now());
        handing_on.had(SIGINT, begun);
        handing_on.told(SIGTERM, begun);
        handing_on.told(SIGINT, begun + 150 * MS);
        assert_eq!(handing_on.due(begun + 900 * MS), [SIGTERM, SIGINT]);
    }
}
