//! Which leases give way to one of a higher priority that waits for room, and when.
//!
//! Time on a GPU needs none of this: the gate gives it to the higher priority within a slice, and nobody ends. Memory stays with
//! who has it until he goes, so a lease of a lower priority is told that it has to, is left a grace in which its programs can
//! write down what they have, and loses its GPUs then if the room is still wanted.

use crate::slice::Priority;
use std::cmp::Reverse;

/// Who may have to go, and after what.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Rule {
    /// Nanoseconds from the notice until the GPUs are taken.
    pub grace_ns: u64,
    /// Nanoseconds after its begin in which nobody has to go.
    pub least_run_ns: u64,
}

/// One that may have to go.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Candidate {
    /// Before whom it is served.
    pub priority: Priority,
    /// For how long it has had its GPUs, nanoseconds.
    pub ran_ns: u64,
    /// What it was told.
    pub notice: Notice,
}

impl Candidate {
    /// Whether it may have to go for one of this priority that waits for `left_ns` more at most: a lower one alone gives way,
    /// and nobody is told whose grace is over when nobody waits any more.
    #[must_use]
    pub fn gives_way_to(&self, waits: Priority, left_ns: u64, rule: Rule) -> bool {
        let has_time = left_ns > rule.grace_ns && self.ran_ns >= rule.least_run_ns;
        waits < self.priority && !self.notice.is_given_up && (has_time || self.notice.until_ns.is_some())
    }

    /// By this those are sorted that may have to go, the first first: who was told already, so that the others are left in peace;
    /// the lowest priority; who came last and so loses least.
    #[must_use]
    pub fn order(&self) -> impl Ord + use<> {
        (self.notice.until_ns.is_none(), Reverse(self.priority), self.ran_ns)
    }
}

/// What is to be done now.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Step {
    /// Nothing.
    Rest,
    /// It is told that it has to go.
    Tell,
    /// It is told that it may stay.
    Withdraw,
    /// Its GPUs are taken.
    Take,
}

/// What one lease was told. Times are nanoseconds of any one clock.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Notice {
    until_ns: Option<u64>,
    is_given_up: bool,
}

impl Notice {
    /// Until when it may stay, if it was told to go.
    #[must_use]
    pub fn until_ns(&self) -> Option<u64> {
        self.until_ns
    }

    /// Its GPUs cannot be taken from it: nobody is helped by asking it again.
    pub fn give_up(&mut self) {
        *self = Self { until_ns: None, is_given_up: true };
    }

    /// What is to be done at `now_ns`, where `is_needed` says whether somebody waits for its room. It has all of the grace that
    /// it was told of, whatever the rule says since.
    pub fn step(&mut self, is_needed: bool, now_ns: u64, rule: Rule) -> Step {
        match self.until_ns {
            None if is_needed => {
                self.until_ns = Some(now_ns.saturating_add(rule.grace_ns));
                Step::Tell
            }
            Some(_) if !is_needed => {
                self.until_ns = None;
                Step::Withdraw
            }
            Some(until_ns) if now_ns >= until_ns => Step::Take,
            None | Some(_) => Step::Rest,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const RULE: Rule = Rule { grace_ns: 30, least_run_ns: 600 };

    fn candidate(priority: Priority, ran_ns: u64) -> Candidate {
        Candidate { priority, ran_ns, notice: Notice::default() }
    }

    fn told(candidate: Candidate) -> Candidate {
        let mut told = candidate;
        assert_eq!(told.notice.step(true, 100, RULE), Step::Tell);
        told
    }

    #[test]
    fn a_lower_priority_alone_gives_way() {
        let all = [Priority::Guaranteed, Priority::Burst, Priority::Scavenger];
        let gives = |its, waits| candidate(its, 600).gives_way_to(waits, 31, RULE);
        let found: Vec<Vec<bool>> =
            all.iter().map(|its| all.iter().map(|waits| gives(*its, *waits)).collect()).collect();
        assert_eq!(found, [[false, false, false], [true, false, false], [true, true, false]]);
    }

    #[test]
    fn nobody_goes_soon_after_its_begin_nor_for_one_that_will_not_wait_for_it() {
        let of = |ran_ns, left_ns| candidate(Priority::Burst, ran_ns).gives_way_to(Priority::Guaranteed, left_ns, RULE);
        assert_eq!([of(599, 99), of(600, 99), of(600, 31), of(600, 30)], [false, true, true, false]);
        // Who was told goes on being the one.
        let told = told(candidate(Priority::Burst, 0));
        assert!(told.gives_way_to(Priority::Guaranteed, 1, RULE) && !told.gives_way_to(Priority::Burst, 99, RULE));
        let mut given_up = candidate(Priority::Burst, 600);
        given_up.notice.give_up();
        assert!(!given_up.gives_way_to(Priority::Guaranteed, 99, RULE));
    }

    #[test]
    fn those_stand_first_who_were_told_then_the_lowest_then_who_came_last() {
        let mut all = [
            candidate(Priority::Burst, 900),
            candidate(Priority::Burst, 700),
            candidate(Priority::Scavenger, 800),
            told(candidate(Priority::Burst, 5000)),
        ];
        all.sort_by_key(Candidate::order);
        assert_eq!(all.map(|its| its.ran_ns), [5000, 800, 700, 900]);
    }

    #[test]
    fn it_is_told_once_and_goes_after_the_grace_if_it_is_needed_still() {
        let mut notice = Notice::default();
        let mut step = |is_needed, now_ns, grace_ns| notice.step(is_needed, now_ns, Rule { grace_ns, ..RULE });
        assert_eq!([step(false, 1, 30), step(true, 2, 30), step(true, 31, 5)], [Step::Rest, Step::Tell, Step::Rest]);
        assert_eq!([step(true, 32, 30), step(true, 33, 30)], [Step::Take; 2], "until it is done");
        assert_eq!([step(false, 34, 30), step(false, 35, 30)], [Step::Withdraw, Step::Rest]);
        assert_eq!([step(true, 40, 0), step(true, 40, 0)], [Step::Tell, Step::Take], "told first, always");
        assert_eq!(notice.until_ns(), Some(40));
    }
}
