//! Programs past the shims that ended before the guard had seen them twice. One of these is no finding: it may have tried out what there is.
//! One after the other they are what a single one would be.

use crate::repetition::Repetition;
use std::collections::VecDeque;

/// They are counted together over so long.
const WINDOW_NS: u64 = 60_000_000_000;
/// In a window they may be there for so long together, as a single one may until it has been seen twice.
const ALLOWED_NS: u64 = 2_000_000_000;
/// So many stretches are kept; of more the oldest are forgotten.
const STRETCHES: usize = 1024;

/// What the guard has seen of such programs of one container. Times are nanoseconds of any one clock.
#[derive(Clone, Debug, Default)]
pub struct BriefPrograms {
    /// From when until when there was one, and how many: none overlaps the next.
    stretches: VecDeque<(u64, u64, u64)>,
    /// How many there were in all windows that were too much.
    all: u64,
    told: u64,
    repetition: Repetition,
}

/// What is to be told of such programs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BriefFinding {
    /// How many there were in the last minute, and without a break before it.
    count: u64,
    /// For how long there was one of them or more, nanoseconds.
    together_ns: u64,
    /// Whether it is to be told, as it has not been for long.
    is_news: bool,
}

impl BriefFinding {
    /// Whether it is to be told, as it has not been for long.
    #[must_use]
    pub fn is_news(&self) -> bool {
        self.is_news
    }

    /// The same as one that is to be told.
    #[must_use]
    pub fn as_news(self) -> Self {
        Self { is_news: true, ..self }
    }

    /// How many there were in the last minute, and without a break before it.
    #[must_use]
    pub fn count(&self) -> u64 {
        self.count
    }

    /// For how long there was one of them or more, nanoseconds.
    #[must_use]
    pub fn together_ns(&self) -> u64 {
        self.together_ns
    }
}

impl BriefPrograms {
    /// One has ended at `now_ns` that has been there since `from_ns`. What was found, if there was too much of them in the last minute.
    pub fn note(&mut self, from_ns: u64, now_ns: u64) -> Option<BriefFinding> {
        let (mut from_ns, mut count) = (from_ns.min(now_ns), 1);
        // They are noted in the order of their ends, so whoever overlaps it is last.
        while let Some((begun_ns, _, its)) =
            self.stretches.back().copied().filter(|(_, ended_ns, _)| *ended_ns >= from_ns)
        {
            (from_ns, count) = (from_ns.min(begun_ns), count + its);
            self.stretches.pop_back();
        }
        self.stretches.push_back((from_ns, now_ns, count));
        let since_ns = now_ns.saturating_sub(WINDOW_NS);
        self.stretches.retain(|(_, ended_ns, _)| *ended_ns > since_ns);
        if self.stretches.len() > STRETCHES {
            self.stretches.pop_front();
        }
        let mut found = self.found(since_ns);
        if found.together_ns <= ALLOWED_NS {
            return None;
        }
        self.all += 1;
        found.is_news = self.repetition.look(now_ns, self.all, self.told);
        self.told = if found.is_news { self.all } else { self.told };
        Some(found)
    }

    /// Whether there was too much of them in the minute before `now_ns`.
    #[must_use]
    pub fn is_too_much(&self, now_ns: u64) -> bool {
        self.found(now_ns.saturating_sub(WINDOW_NS)).together_ns > ALLOWED_NS
    }

    /// Whether nothing is known any more that could be too much at `now_ns`, nor was told lately.
    #[must_use]
    pub fn is_over(&self, now_ns: u64) -> bool {
        self.stretches.back().is_none_or(|(_, ended_ns, _)| now_ns.saturating_sub(*ended_ns) > 10 * WINDOW_NS)
    }

    fn found(&self, since_ns: u64) -> BriefFinding {
        let of = |(from_ns, ended_ns, _): &(u64, u64, u64)| ended_ns.saturating_sub((*from_ns).max(since_ns));
        let recent = || self.stretches.iter().filter(|(_, ended_ns, _)| *ended_ns > since_ns);
        let (count, together_ns) = (recent().map(|(_, _, count)| count).sum(), recent().map(of).sum());
        BriefFinding { count, together_ns, is_news: false }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MS: u64 = 1_000_000;
    const S: u64 = 1_000_000_000;

    #[test]
    fn one_after_the_other_they_are_what_a_single_one_would_be() {
        let mut brief = BriefPrograms::default();
        // Of 400 ms, one in each second.
        let mut ends = (1..=60).map(|second| (second, brief.note(second * S - 400 * MS, second * S)));
        let (at, found) = ends.find_map(|(second, found)| Some((second, found?))).unwrap();
        assert_eq!((at, found.count(), found.together_ns()), (6, 6, 2400 * MS));
        let again: Vec<u64> = ends.filter_map(|(second, found)| found?.is_news().then_some(second)).collect();
        assert_eq!(again, [7, 9, 13, 21, 37], "ever more rarely");
        assert!(brief.is_too_much(60 * S) && !brief.is_too_much(118 * S));
        assert!(!brief.is_over(600 * S) && brief.is_over(700 * S));
    }

    #[test]
    fn few_ones_are_no_finding_and_what_is_long_ago_counts_no_more() {
        let mut brief = BriefPrograms::default();
        assert!(brief.is_over(0));
        assert!((1..1000).all(|turn| brief.note(20 * turn * S - 600 * MS, 20 * turn * S).is_none()));
        assert!(brief.stretches.len() <= 4, "{brief:?}");
    }

    #[test]
    fn many_at_once_are_there_once() {
        let mut brief = BriefPrograms::default();
        for process in 0..100 {
            assert_eq!(brief.note(S + process * MS, 2 * S + process * MS), None);
        }
        assert_eq!(brief.stretches, [(S, 2 * S + 99 * MS, 100)]);
        let found = brief.note(3 * S, 4 * S).unwrap();
        assert_eq!((found.count(), found.together_ns()), (101, 2099 * MS));
        assert_eq!(brief.note(5 * S, S), None, "the clock does not go back, and if it did");
        for process in 0..3000 {
            brief.note(10 * S + process * MS, 10 * S + process * MS);
        }
        assert!(brief.stretches.len() <= STRETCHES);
    }
}
