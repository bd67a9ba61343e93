//! Learning from finished bursts what launches cost.
//!
//! A burst of one function only says what that function costs. A mixed one says how far the estimates are off
//! together, which corrects the credit handed out; where they stay far off, every function is measured alone again.

use crate::estimates::{Estimates, LATELY, LEAST_NS, Work};

/// What a first launch is taken to cost before any has been measured.
pub(crate) const UNKNOWN_NS: u32 = 1_000_000;
/// First launches under way at once, at most.
const FIRST_MOST: u64 = 8;
/// Real cost over expected cost of a burst, in permille, is believed within these. Less than half would only make
/// bursts longer, and deep the queue of whatever is estimated well among them.
const RATIO_LEAST: u64 = 500;
const RATIO_MOST: u64 = 8000;
/// A burst that took more than so many times what was expected, and no more than so much longer, may have stood still for turns of
/// others on the device, of about 2 ms each, which its events enclose: it is believed if another one of the same work has said so
/// lately. A longer one is believed at once, or as much again would be issued.
const FAR_LONGER: u64 = 2;
const OTHERS_TURNS_NS: u64 = 6_000_000;
/// Beyond these a mixed burst's estimates are wrong: by two thirds and by three halves.
const RATIO_LOW: u64 = 667;
const RATIO_HIGH: u64 = 1500;
/// So many wrong bursts in a row make all estimates doubtful.
const WRONG_BURSTS: u32 = 8;
/// Measuring all anew costs a burst for each function, and does not help where functions cost less together than
/// each alone: not before so long, and twice as long each time until a burst is right.
const DOUBT_PAUSE_LEAST_NS: u64 = 1_000_000_000;
const DOUBT_PAUSE_MOST_NS: u64 = 64_000_000_000;

/// What a launch is expected to cost.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Expectation {
    /// GPU time.
    pub cost_ns: u32,
    /// Whether it has been measured; if not, the launch runs in a burst of its own and is measured.
    pub is_measured: bool,
}

/// A burst that has ended and whose events enclose its launches closely.
#[derive(Debug, Clone, Copy)]
pub struct Outcome {
    /// Its only work, or its first.
    pub work: Work,
    /// Whether there was other work in it.
    pub is_mixed: bool,
    /// Launches that happened; at least one.
    pub launches: u32,
    /// What they were expected to cost.
    pub expected_ns: u64,
    /// What they did cost.
    pub length_ns: u64,
}

/// What one process has learnt besides the table.
pub struct Learning {
    /// What first launches cost lately: the longest, forgotten by a quarter with each shorter one. 0 before any.
    first_ns: u32,
    /// EWMA of real over expected cost less 1000, in permille.
    excess_permille: i64,
    /// Of how many further mixed bursts one that took far longer than expected is believed.
    believed: u32,
    wrong_bursts: u32,
    doubt_after_ns: u64,
    doubt_pause_ns: u64,
}

impl Learning {
    /// Nothing learnt. All zero.
    pub const fn new() -> Self {
        Self { first_ns: 0, excess_permille: 0, believed: 0, wrong_bursts: 0, doubt_after_ns: 0, doubt_pause_ns: 0 }
    }

    fn unknown_ns(&self) -> u32 {
        if self.first_ns == 0 { UNKNOWN_NS } else { self.first_ns }
    }

    /// What a launch of `work` is expected to cost.
    pub fn expect(&self, estimates: &Estimates, work: Work) -> Expectation {
        match estimates.get(work) {
            Some(known) => Expectation { cost_ns: known.cost_ns, is_measured: !known.is_stale },
            None => Expectation { cost_ns: self.unknown_ns(), is_measured: false },
        }
    }

    /// First launches that may be under way at once. One until one has been measured, and while they are long; many
    /// when they are short, so that a program with thousands of short functions does not wait for each.
    pub fn first_limit(&self, depth_ns: u64) -> usize {
        depth_ns.checked_div(self.first_ns.into()).map_or(1, |launches| launches.clamp(1, FIRST_MOST) as usize)
    }

    fn ratio_permille(&self) -> u64 {
        (1000 + self.excess_permille).max(1) as u64
    }

    /// Expected cost that fits into `room_ns` of real time.
    pub fn credit_ns(&self, room_ns: u64) -> u32 {
        (room_ns.saturating_mul(1000) / self.ratio_permille()).min(i32::MAX as u64) as u32
    }

    /// Real time that launches with an expected cost of `expected_ns` take.
    pub fn real_ns(&self, expected_ns: u64) -> u64 {
        expected_ns.saturating_mul(self.ratio_permille()) / 1000
    }

    /// Learns from a finished burst.
    pub fn learn(&mut self, estimates: &Estimates, outcome: &Outcome, now_ns: u64) {
        // One function's own estimate takes up what it can; the correction is for the rest.
        let expected_ns = match outcome.is_mixed {
            true => Some(outcome.expected_ns).filter(|_| self.is_believed(outcome)),
            false => self.learn_one(estimates, outcome).map(|cost_ns| cost_ns.saturating_mul(outcome.launches.into())),
        };
        let Some(expected_ns) = expected_ns.filter(|_| outcome.launches > 1) else { return };
        let ratio = (outcome.length_ns.saturating_mul(1000) / expected_ns.max(1)).clamp(RATIO_LEAST, RATIO_MOST);
        self.excess_permille = (self.excess_permille * 3 + (ratio as i64 - 1000)) / 4;
        if outcome.is_mixed {
            self.judge(estimates, ratio, now_ns);
        }
    }

    /// Whether a mixed burst is, as one is that did not take far longer than it should.
    fn is_believed(&mut self, outcome: &Outcome) -> bool {
        if may_enclose_others(outcome.length_ns, self.real_ns(outcome.expected_ns)) {
            return core::mem::replace(&mut self.believed, LATELY) > 0;
        }
        self.believed = self.believed.saturating_sub(1);
        true
    }

    /// A burst of one function: what a launch of it is now taken to cost; none if it is not believed.
    fn learn_one(&mut self, estimates: &Estimates, outcome: &Outcome) -> Option<u64> {
        let cost_ns = (outcome.length_ns / u64::from(outcome.launches)).max(LEAST_NS.into());
        let usual_ns = |known_ns: u32| u64::from(known_ns).saturating_mul(outcome.launches.into());
        let is_longer = |known_ns: u32| may_enclose_others(outcome.length_ns, usual_ns(known_ns));
        let measured = match estimates.get(outcome.work).filter(|known| !known.is_stale) {
            Some(known) if is_longer(known.cost_ns) && !estimates.was_longer_lately(outcome.work) => return None,
            Some(known) if (cost_ns / 2..=cost_ns * 2).contains(&known.cost_ns.into()) => {
                (u64::from(known.cost_ns) * 3 + cost_ns) / 4
            }
            // Off by more than twice: the function does something else now.
            Some(_) => cost_ns,
            None => {
                let first_ns = cost_ns.min(u32::MAX.into()) as u32;
                self.first_ns = first_ns.max(self.unknown_ns() / 4 * 3);
                cost_ns
            }
        };
        estimates.put(outcome.work, measured);
        Some(measured)
    }

    /// Whether mixed bursts agree with their estimates.
    fn judge(&mut self, estimates: &Estimates, ratio: u64, now_ns: u64) {
        if (RATIO_LOW..=RATIO_HIGH).contains(&ratio) {
            (self.wrong_bursts, self.doubt_pause_ns) = (0, 0);
            return;
        }
        self.wrong_bursts += 1;
        if self.wrong_bursts < WRONG_BURSTS || now_ns < self.doubt_after_ns {
            return;
        }
        estimates.doubt_all();
        self.doubt_pause_ns = (self.doubt_pause_ns * 2).clamp(DOUBT_PAUSE_LEAST_NS, DOUBT_PAUSE_MOST_NS);
        self.doubt_after_ns = now_ns + self.doubt_pause_ns;
        (self.wrong_bursts, self.excess_permille) = (0, 0);
    }
}

/// Whether others' turns may be in `length_ns` where `usual_ns` was expected.
fn may_enclose_others(length_ns: u64, usual_ns: u64) -> bool {
    length_ns > usual_ns.saturating_mul(FAR_LONGER) && length_ns - usual_ns <= OTHERS_TURNS_NS
}

impl Default for Learning {
    fn default() -> Self {
        Self::new()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const A: Work = Work::numbered(1);
    const B: Work = Work::numbered(2);

    fn burst(work: Work, launches: u32, expected_ns: u64, length_ns: u64) -> Outcome {
        Outcome { work, is_mixed: false, launches, expected_ns, length_ns }
    }

    fn mixed(expected_ns: u64, length_ns: u64) -> Outcome {
        Outcome { is_mixed: true, ..burst(A, 10, expected_ns, length_ns) }
    }

    #[test]
    fn a_first_launch_is_entered_and_a_burst_of_one_function_refines_it() {
        let (table, mut learning) = (Box::new(Estimates::new()), Learning::new());
        assert!(!learning.expect(&table, A).is_measured);
        learning.learn(&table, &burst(A, 1, 1_000_000, 8000), 1);
        assert_eq!(learning.expect(&table, A), Expectation { cost_ns: 8000, is_measured: true });
        learning.learn(&table, &burst(A, 100, 800_000, 400_000), 2);
        assert_eq!(table.cost_ns(A), 7000, "a quarter of the way from 8000 to 4000");
        learning.learn(&table, &burst(A, 10, 70_000, 1000), 3);
        assert_eq!(table.cost_ns(A), 250, "far less: believed at once");
    }

    #[test]
    fn a_burst_that_is_far_longer_once_is_another_process_turn() {
        let (table, mut learning) = (Box::new(Estimates::new()), Learning::new());
        let mut learn = |launches: u32, length_ns: u64| {
            learning.learn(&table, &burst(A, launches, 1_000_000, length_ns), 1);
            (table.cost_ns(A), learning.credit_ns(1_000_000))
        };
        learn(1, 300_000);
        for slice in 0..10 {
            assert_eq!(learn(3, 3_050_000), (300_000, 1_000_000), "slice {slice}");
            (0..=LATELY).for_each(|_| _ = learn(3, 900_000));
        }
        assert_eq!(learn(3, 6_000_000).0, 300_000);
        assert_eq!(learn(3, 6_000_000).0, 2_000_000, "twice in a row: it does something else now");
        assert_eq!([learn(3, 900_000).0, learn(3, 6_000_000).0], [300_000, 2_000_000], "or one or the other");
        (0..=LATELY).for_each(|_| _ = learn(3, 900_000));
        assert_eq!(learn(3, 30_000_000).0, 10_000_000, "longer than anybody's turn");
    }

    #[test]
    fn functions_that_became_longer_are_learnt_whatever_lies_between() {
        let (table, mut learning) = (Box::new(Estimates::new()), Learning::new());
        let works = [A, B, Work::numbered(3)];
        works.iter().for_each(|work| learning.learn(&table, &burst(*work, 1, 1_000_000, 300_000), 1));
        for _ in 0..2 {
            for (work, length_ns) in works.into_iter().zip([3_000_000, 4_500_000, 900_000]) {
                learning.learn(&table, &burst(work, 3, 900_000, length_ns), 1);
            }
        }
        assert_eq!(works.map(|work| table.cost_ns(work)), [1_000_000, 1_500_000, 300_000]);
    }

    #[test]
    fn a_mixed_burst_that_is_far_longer_once_corrects_nothing() {
        let (table, mut learning) = (Box::new(Estimates::new()), Learning::new());
        let mut credit_ns = |length_ns: u64| {
            learning.learn(&table, &mixed(900_000, length_ns), 1);
            learning.credit_ns(1_000_000)
        };
        assert_eq!([credit_ns(900_000), credit_ns(3_050_000), credit_ns(900_000)], [1_000_000; 3]);
        assert!(credit_ns(3_050_000) < 700_000, "again, and soon");
    }

    #[test]
    fn first_launches_go_one_by_one_until_they_prove_short() {
        let (table, mut learning) = (Box::new(Estimates::new()), Learning::new());
        assert_eq!(learning.first_limit(3_000_000), 1);
        learning.learn(&table, &burst(A, 1, 1, 5_000_000), 1);
        assert_eq!(learning.first_limit(3_000_000), 1);
        (10..40).for_each(|number| learning.learn(&table, &burst(Work::numbered(number), 1, 1, 10_000), 2));
        assert_eq!(learning.first_limit(3_000_000), 8);
        assert_eq!(learning.expect(&table, B).cost_ns, 10_000);
        learning.learn(&table, &burst(B, 1, 1, 5_000_000), 3);
        assert_eq!(learning.first_limit(3_000_000), 1, "one long one is enough");
    }

    #[test]
    fn mixed_bursts_correct_the_credit_within_bounds() {
        let (table, mut learning) = (Box::new(Estimates::new()), Learning::new());
        assert_eq!(learning.credit_ns(1_000_000), 1_000_000);
        (0..40).for_each(|_| learning.learn(&table, &mixed(1_000_000, 1_400_000), 1));
        assert!((700_000..730_000).contains(&learning.credit_ns(1_000_000)), "{}", learning.credit_ns(1_000_000));
        assert!((1_380_000..=1_400_000).contains(&learning.real_ns(1_000_000)));
        (0..40).for_each(|_| learning.learn(&table, &mixed(1, u64::MAX / 2000), 1));
        assert!(learning.credit_ns(1_000_000) >= 125_000, "an absurd burst is believed eightfold");
    }

    #[test]
    fn estimates_that_stay_wrong_are_doubted_ever_more_rarely() {
        let (table, mut learning) = (Box::new(Estimates::new()), Learning::new());
        let mut doubts = Vec::new();
        for second in 0..200 {
            for burst in 0..20 {
                table.put(A, 10_000);
                learning.learn(&table, &mixed(1_000_000, 3_000_000), second * 1_000_000_000 + burst);
                doubts.extend(table.get(A).filter(|known| known.is_stale).map(|_| second));
            }
        }
        assert!(doubts.len() >= 5 && doubts.len() <= 10, "{doubts:?}");
        let pauses: Vec<u64> = doubts.windows(2).map(|pair| pair[1] - pair[0]).collect();
        assert!(pauses.is_sorted(), "{pauses:?}");
        learning.learn(&table, &mixed(1_000_000, 1_000_000), 300_000_000_000);
        assert_eq!(learning.doubt_pause_ns, 0, "one right burst, and the next doubt comes soon");
    }
}
