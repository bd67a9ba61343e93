//! What a daemon says of its server's clients, and what its silence means.

use gpool_protocol::HostPid;
use std::collections::BTreeSet;
use std::time::{Duration, Instant};

/// How long a daemon may be silent before it is taken for one that will not answer any more. Ending it ends the work of all
/// its clients, which a host that is short of processors or reads slowly from its disk for a while must not do.
pub const SILENCE_LIMIT: Duration = Duration::from_secs(15);
/// How many questions it has left unanswered by then at least: each alone may have met a moment without a processor.
const QUESTIONS: u32 = 3;

/// Since when a daemon has not answered.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Silence {
    since: Option<Instant>,
    questions: u32,
}

impl Silence {
    /// A question was asked at `asked_at`, and answered or not.
    pub fn note(&mut self, asked_at: Instant, is_answered: bool) {
        *self = match is_answered {
            true => Self::default(),
            false => Self { since: self.since.or(Some(asked_at)), questions: self.questions.saturating_add(1) },
        };
    }

    /// Whether that has been for too long at `now`.
    pub fn is_too_long(&self, now: Instant) -> bool {
        let is_over = |since| now.saturating_duration_since(since) >= SILENCE_LIMIT;
        self.questions >= QUESTIONS && self.since.is_some_and(is_over)
    }
}

/// The clients of a server.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Clients {
    /// When the daemon was asked; none if it never was.
    asked_at: Option<Instant>,
    /// What it said.
    pids: BTreeSet<HostPid>,
    /// When it was seen to have ended, and whether it had been silent.
    ended: Option<(Instant, bool)>,
}

impl Clients {
    /// As a daemon has them that was asked at `asked_at`.
    pub fn of_answer(asked_at: Instant, pids: impl IntoIterator<Item = HostPid>) -> Self {
        Self { asked_at: Some(asked_at), pids: pids.into_iter().collect(), ended: None }
    }

    /// Of a daemon that has ended by `at`, with what it said last. One that `was_silent` took nobody in after that.
    pub fn of_ended(last: Option<Self>, at: Instant, was_silent: bool) -> Self {
        let last = last.unwrap_or(Self { asked_at: None, pids: BTreeSet::new(), ended: None });
        Self { ended: Some((at, was_silent)), ..last }
    }

    /// Whether it said that there are none, and may say so still.
    pub fn are_none(&self) -> bool {
        self.asked_at.is_some() && self.pids.is_empty() && self.ended.is_none()
    }

    /// How many it said that there are.
    pub fn count(&self) -> usize {
        self.pids.len()
    }

    /// When the daemon was asked last.
    pub fn asked_at(&self) -> Option<Instant> {
        self.asked_at
    }

    /// Whether a process that has had a context since `since` is past the server. Who came after the daemon was asked may
    /// be a client of which it has not told; after its end nobody is.
    pub fn leave_out(&self, pid: HostPid, since: Instant) -> bool {
        let is_after_the_end = self.ended.is_some_and(|(at, _)| since > at);
        // Of one that never answered nobody knows whom it had before.
        let took_nobody_in = self.asked_at.is_some() && self.ended.is_some_and(|(_, was_silent)| was_silent);
        let was_asked_about = self.asked_at.is_some_and(|asked_at| since < asked_at);
        is_after_the_end || (!self.pids.contains(&pid) && (was_asked_about || took_nobody_in))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: Duration = Duration::from_secs(1);

    #[test]
    fn a_daemon_is_silent_when_it_leaves_three_questions_unanswered_for_fifteen_seconds() {
        let start = Instant::now();
        let at = |seconds| start + SECOND * seconds;
        let mut silence = Silence::default();
        silence.note(at(0), false);
        silence.note(at(4), false);
        assert!(!silence.is_too_long(at(60)), "two questions");
        silence.note(at(8), false);
        assert!(!silence.is_too_long(at(14)) && silence.is_too_long(at(15)));
        silence.note(at(15), true);
        (16..19).for_each(|seconds| silence.note(at(seconds), false));
        assert!(!silence.is_too_long(at(30)) && silence.is_too_long(at(31)), "it begins anew");
    }

    #[test]
    fn who_is_no_client_is_past_the_server_and_after_its_end_everybody_who_comes() {
        let start = Instant::now();
        let at = |seconds| start + SECOND * seconds;
        let (client, other) = (HostPid(7), HostPid(8));
        let answered = Clients::of_answer(at(10), [client]);
        let are_past = |clients: &Clients, seconds| [client, other].map(|pid| clients.leave_out(pid, at(seconds)));
        assert_eq!(are_past(&answered, 9), [false, true]);
        assert_eq!(are_past(&answered, 11), [false, false], "it may have come since");
        let died = Clients::of_ended(Some(answered.clone()), at(20), false);
        assert_eq!([9, 15, 21].map(|seconds| are_past(&died, seconds)), [[false, true], [false, false], [true, true]]);
        let silent = Clients::of_ended(Some(answered), at(20), true);
        assert_eq!([9, 15, 21].map(|seconds| are_past(&silent, seconds)), [[false, true], [false, true], [true, true]]);
        let never_asked = Clients::of_ended(None, at(20), false);
        assert_eq!([15, 21].map(|seconds| are_past(&never_asked, seconds)), [[false, false], [true, true]]);
        let never_answered = Clients::of_ended(None, at(20), true);
        assert_eq!([15, 21].map(|seconds| are_past(&never_answered, seconds)), [[false, false], [true, true]]);
    }

    #[test]
    fn a_server_serves_nobody_when_its_daemon_says_so_and_lives() {
        let now = Instant::now();
        let none = Clients::of_answer(now, []);
        assert!(none.are_none() && !Clients::of_answer(now, [HostPid(7)]).are_none());
        assert!(!Clients::of_ended(Some(none), now, false).are_none());
        assert!(!Clients::of_ended(None, now, false).are_none());
    }
}
