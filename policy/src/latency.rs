//! Whether the requests of a container take as long as was promised, and what follows where they do not.
//!
//! The promise is a 99th percentile: of a hundred requests ninety-nine take no longer. It is held against the requests of the last
//! 10 s at least, and of as much longer as it takes until there are a hundred, within bounds. A program that has just begun compiles,
//! tries out and loads on its first requests; of those that are late by its own doing nothing is concluded.

mod watch;

pub use watch::{Hold, HoldStep, News, Watch};

use crate::lengths::Lengths;
use crate::request::Timing;

/// Requests of which a 99th percentile is told, and by which a promise is judged, at least.
pub const ENOUGH: u64 = 100;
/// Figures are of the last one to two periods. One lasts so long, and until there are [`ENOUGH`] requests in it.
const PERIOD_NS: u64 = 10_000_000_000;
/// A period lasts no longer, however few there are.
const LONGEST_PERIOD_NS: u64 = 600_000_000_000;
/// So long after its first request a program may be warming up.
const WARM_UP_NS: u64 = 10_000_000_000;
/// Nothing is known of a promise when the latest request is older: those that are enough in two such periods come more often.
const STALE_NS: u64 = 30_000_000_000;

/// Whose doing it is that a promise is missed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Cause {
    /// Its own: alone on its GPUs, within its own ceiling, it would miss it, too.
    Itself,
    /// Its share is too small: it wants more than that, and waits while others have theirs.
    Share,
    /// Others are in its way within its share.
    Others,
}

/// What became of a promise.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// It is kept.
    Kept,
    /// It is not.
    Missed(Cause),
}

/// Requests that took longer than promised.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Late {
    all: u64,
    without_others: u64,
    alone: u64,
}

/// The requests of one period.
#[derive(Clone, Debug, Default)]
struct Period {
    lengths: Lengths,
    alone: Lengths,
    late: Late,
}

/// How long the requests of one container take.
#[derive(Clone, Debug)]
pub struct Latency {
    promise_ns: Option<u64>,
    now: Period,
    before: Period,
    began_ns: u64,
    /// When the latest was noted.
    latest_ns: u64,
    /// Until when it may be warming up; none before the first.
    warm_ns: Option<u64>,
    /// All so far.
    count: u64,
    late: u64,
}

/// How long requests took.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Figures {
    /// What is promised, by which the rest is.
    pub promise_ns: Option<u64>,
    /// All requests so far.
    pub all: u64,
    /// Those of them that took longer than was promised then, but for what a program did to warm up.
    pub all_late: u64,
    /// Recent ones, of which the rest is.
    pub count: u64,
    /// The middle one; none where there is none. Nanoseconds, as all lengths.
    pub p50_ns: Option<u64>,
    /// The 99th percentile; none of fewer than [`ENOUGH`].
    pub p99_ns: Option<u64>,
    /// What that would be if the container had its GPUs to itself.
    pub p99_alone_ns: Option<u64>,
    /// Recent ones that took longer than is promised.
    pub late: u64,
    /// What became of the promise; none without one, while there are fewer than [`ENOUGH`], and when none has come for a while.
    pub verdict: Option<Verdict>,
}

impl Latency {
    /// None measured yet; `promise_ns` is what 99 of 100 are to take at most.
    #[must_use]
    pub fn new(now_ns: u64, promise_ns: Option<u64>) -> Self {
        let (now, before) = (Period::default(), Period::default());
        Self { promise_ns, now, before, began_ns: now_ns, latest_ns: now_ns, warm_ns: None, count: 0, late: 0 }
    }

    /// Something else is promised from now on. What was measured is no measure of that.
    pub fn promise(&mut self, now_ns: u64, promise_ns: Option<u64>) {
        if promise_ns != self.promise_ns {
            self.promise_ns = promise_ns;
            self.begin_anew(now_ns);
        }
    }

    /// Others are beside it, or are not any more: what was measured is no measure of that.
    pub fn begin_anew(&mut self, now_ns: u64) {
        let Self { warm_ns, count, late, .. } = *self;
        *self = Self { warm_ns, count, late, ..Self::new(now_ns, self.promise_ns) };
    }

    /// A request has been measured.
    pub fn note(&mut self, now_ns: u64, timing: Timing) {
        self.advance(now_ns);
        let warm_ns = *self.warm_ns.get_or_insert(now_ns.saturating_add(WARM_UP_NS));
        let late = |length_ns: u64| u64::from(self.promise_ns.is_some_and(|promise_ns| length_ns > promise_ns));
        self.count += 1;
        self.latest_ns = now_ns;
        if now_ns < warm_ns && late(timing.alone_ns()) > 0 {
            return;
        }
        self.late += late(timing.length_ns);
        self.now.lengths.add(timing.length_ns);
        self.now.alone.add(timing.alone_ns());
        let its = &mut self.now.late;
        its.all += late(timing.length_ns);
        its.without_others += late(timing.without_others_ns());
        its.alone += late(timing.alone_ns());
    }

    /// How long the recent ones took.
    #[must_use]
    pub fn figures(&self, now_ns: u64) -> Figures {
        let age_ns = now_ns.saturating_sub(self.began_ns);
        let of: &[&Period] = match age_ns {
            0..LONGEST_PERIOD_NS => &[&self.now, &self.before],
            _ if age_ns < 2 * LONGEST_PERIOD_NS => &[&self.now],
            _ => &[],
        };
        let lengths: Vec<&Lengths> = of.iter().map(|period| &period.lengths).collect();
        let alone: Vec<&Lengths> = of.iter().map(|period| &period.alone).collect();
        let count = Lengths::count(&lengths);
        let sum = |late: fn(&Late) -> u64| of.iter().map(|period| late(&period.late)).sum::<u64>();
        let p99 = |of: &[&Lengths]| Lengths::percentile(of, 99).filter(|_| count >= ENOUGH);
        // By nearest rank: the 99th percentile of n is too long where more than a hundredth of them are, rounded down.
        let is_missed = |late: u64| late > count / 100;
        let late = sum(|late| late.all);
        let verdict = || match is_missed(late) {
            false => Verdict::Kept,
            true if is_missed(sum(|late| late.alone)) => Verdict::Missed(Cause::Itself),
            true if is_missed(sum(|late| late.without_others)) => Verdict::Missed(Cause::Share),
            true => Verdict::Missed(Cause::Others),
        };
        let is_known = self.promise_ns.is_some() && count >= ENOUGH && now_ns.saturating_sub(self.latest_ns) < STALE_NS;
        let promise_ns = self.promise_ns.unwrap_or(u64::MAX);
        // A length is rounded up in a bucket, and whether that is too long was counted exactly.
        let exact = |late: u64, ns: u64| if is_missed(late) { ns } else { ns.min(promise_ns) };
        Figures {
            promise_ns: self.promise_ns,
            all: self.count,
            all_late: self.late,
            count,
            p50_ns: Lengths::percentile(&lengths, 50),
            p99_ns: p99(&lengths).map(|ns| exact(late, ns)),
            p99_alone_ns: p99(&alone).map(|ns| exact(sum(|late| late.alone), ns)),
            late,
            verdict: is_known.then(verdict),
        }
    }

    /// Begins a new period where the present one has lasted.
    fn advance(&mut self, now_ns: u64) {
        let age_ns = now_ns.saturating_sub(self.began_ns);
        let has_enough = Lengths::count(&[&self.now.lengths]) >= ENOUGH;
        if age_ns >= LONGEST_PERIOD_NS || age_ns >= PERIOD_NS && has_enough {
            let last = std::mem::take(&mut self.now);
            self.before = if age_ns < 2 * LONGEST_PERIOD_NS { last } else { Period::default() };
            self.began_ns = now_ns;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MS: u64 = 1_000_000;
    const S: u64 = 1_000_000_000;

    fn took(length_ns: u64, others_ns: u64, share_ns: u64) -> Timing {
        Timing { length_ns, others_ns, share_ns }
    }

    /// One whose program has begun long ago.
    fn warm(promise_ms: u64) -> Latency {
        Latency { warm_ns: Some(0), ..Latency::new(0, Some(promise_ms * MS)) }
    }

    /// `count` requests of 5 ms, then `late` such ones, with 20 ms promised; what becomes of that.
    fn verdict(count: u64, late: u64, timing: Timing) -> Option<Verdict> {
        let mut latency = warm(20);
        (0..count).for_each(|_| latency.note(S, took(5 * MS, MS, 0)));
        (0..late).for_each(|_| latency.note(S, timing));
        latency.figures(S).verdict
    }

    #[test]
    fn one_in_a_hundred_may_be_late_and_a_hundred_are_needed_to_say_so() {
        let late = took(25 * MS, 10 * MS, 0);
        assert_eq!(verdict(99, 1, late), Some(Verdict::Kept));
        assert_eq!(verdict(98, 2, late), Some(Verdict::Missed(Cause::Others)));
        assert_eq!(verdict(198, 2, late), Some(Verdict::Kept));
        assert_eq!(verdict(197, 3, late), Some(Verdict::Missed(Cause::Others)));
        assert_eq!(verdict(50, 49, late), None, "too few");
        assert_eq!(verdict(100, 0, late), Some(Verdict::Kept));
    }

    #[test]
    fn whose_doing_it_is_is_told() {
        let of = |timing| verdict(98, 2, timing);
        assert_eq!(of(took(25 * MS, 5 * MS, 0)), Some(Verdict::Missed(Cause::Others)), "20 without them are in time");
        assert_eq!(of(took(25 * MS, 4 * MS, 0)), Some(Verdict::Missed(Cause::Itself)));
        assert_eq!(of(took(40 * MS, 4 * MS, 20 * MS)), Some(Verdict::Missed(Cause::Share)));
        assert_eq!(of(took(40 * MS, 4 * MS, 15 * MS)), Some(Verdict::Missed(Cause::Itself)));
    }

    #[test]
    fn figures_are_of_recent_ones_and_without_a_promise_nothing_is_late() {
        let mut latency = Latency::new(0, None);
        assert_eq!((latency.figures(0).count, latency.figures(0).p50_ns), (0, None));
        (0..200).for_each(|_| latency.note(S, took(5 * MS, MS, MS)));
        let figures = latency.figures(2 * S);
        assert_eq!((figures.all, figures.count, figures.late, figures.verdict), (200, 200, 0, None));
        let about = |ns: Option<u64>, ms: u64| ns.is_some_and(|ns| (ms * MS..=ms * MS * 17 / 16).contains(&ns));
        assert!(about(figures.p50_ns, 5) && about(figures.p99_ns, 5) && about(figures.p99_alone_ns, 3));
        // Enough of other ones push them out: a period of theirs, and one more.
        (0..100).for_each(|_| latency.note(11 * S, took(50 * MS, 0, 0)));
        assert_eq!(latency.figures(11 * S).count, 300);
        (0..50).for_each(|_| latency.note(22 * S, took(50 * MS, 0, 0)));
        let figures = latency.figures(22 * S);
        assert!(figures.count == 150 && about(figures.p50_ns, 50) && figures.all == 350, "{figures:?}");
    }

    #[test]
    fn few_ones_count_for_longer_and_not_for_ever() {
        let mut latency = warm(20);
        (0..150).for_each(|second| latency.note(4 * second * S, took(5 * MS, 0, 0)));
        let count = |latency: &Latency, at: u64| latency.figures(at).count;
        // The first hundred have come by 400 s, in the second period there are fewer.
        assert_eq!(count(&latency, 600 * S), 150);
        let known = |at: u64| latency.figures(at).verdict.is_some();
        assert!(known(625 * S) && !known(626 * S), "none has come for a while");
        assert_eq!(count(&latency, 999 * S), 150);
        assert_eq!(count(&latency, 1001 * S), 50);
        assert_eq!(count(&latency, 1601 * S), 0);
        latency.note(1700 * S, took(5 * MS, 0, 0));
        assert_eq!(count(&latency, 1700 * S), 1);
        assert_eq!(latency.figures(1700 * S).p99_ns, None, "of one there is none");
    }

    #[test]
    fn what_is_kept_is_not_shown_as_longer_than_promised() {
        let p99_ns = |late: u64| {
            let mut latency = warm(20);
            (0..200 - late).for_each(|_| latency.note(S, took(20 * MS - 1, 0, 0)));
            (0..late).for_each(|_| latency.note(S, took(20 * MS + 1, MS, 0)));
            latency.figures(S)
        };
        assert_eq!((p99_ns(2).p99_ns, p99_ns(2).verdict), (Some(20 * MS), Some(Verdict::Kept)));
        assert!(p99_ns(3).p99_ns.is_some_and(|ns| ns > 20 * MS) && p99_ns(3).p99_alone_ns == Some(20 * MS));
    }

    #[test]
    fn what_was_measured_is_no_measure_of_another_promise() {
        let mut latency = warm(20);
        (0..100).for_each(|_| latency.note(S, took(25 * MS, 0, 0)));
        latency.promise(2 * S, Some(20 * MS));
        assert_eq!(latency.figures(2 * S).verdict, Some(Verdict::Missed(Cause::Itself)));
        latency.promise(2 * S, Some(30 * MS));
        assert_eq!((latency.figures(2 * S).count, latency.figures(2 * S).all_late), (0, 100));
        latency.note(3 * S, took(25 * MS, 0, 0));
        let figures = latency.figures(3 * S);
        assert_eq!((figures.all, figures.all_late, figures.late), (101, 100, 0));
    }

    #[test]
    fn what_a_program_does_to_warm_up_is_no_measure_of_what_it_promises() {
        let mut latency = Latency::new(0, Some(20 * MS));
        let note = |latency: &mut Latency, at, of, count: u64| (0..count).for_each(|_| latency.note(at, of));
        note(&mut latency, 5 * S, took(500 * MS, 0, 0), 50);
        let figures = latency.figures(5 * S);
        assert_eq!(
            (figures.all, figures.all_late, figures.count, figures.late),
            (50, 0, 0, 0),
            "counted, and not judged"
        );
        // What others do to it is theirs also then.
        note(&mut latency, 6 * S, took(5 * MS, 0, 0), 98);
        note(&mut latency, 6 * S, took(500 * MS, 490 * MS, 0), 2);
        assert_eq!(latency.figures(6 * S).verdict, Some(Verdict::Missed(Cause::Others)));
        // It may be measured anew, and does not begin anew by that.
        latency.begin_anew(14 * S);
        note(&mut latency, 14 * S, took(5 * MS, 0, 0), 98);
        note(&mut latency, 14 * S, took(500 * MS, 0, 0), 2);
        assert_eq!(latency.figures(14 * S).verdict, None, "10 s from its first request on");
        note(&mut latency, 15 * S, took(500 * MS, 0, 0), 2);
        assert_eq!(latency.figures(15 * S).verdict, Some(Verdict::Missed(Cause::Itself)));
    }
}
