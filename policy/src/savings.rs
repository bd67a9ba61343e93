//! How many GPUs would have been enough for what was asked for: if each container had whole ones, if each owner had GPUs of its
//! own, and shared by all.
//!
//! For some part of the time, say 95 % of it, so many are enough as were needed at most in that part; who has no more waits in
//! the rest. The same formula on both sides is what makes them comparable: owners' own GPUs are rounded up for each owner, those
//! that all share once.

use std::collections::BTreeMap;

/// A whole GPU, in the unit of all figures here.
pub const GPU_PERMILLE: u64 = 1000;
/// What a demand may be above whole GPUs without being one more: it comes from sums that were rounded.
const TOLERANCE_PERMILLE: u64 = 5;

/// What an owner, or all of them together, asked for in one stretch of time, in thousandths of a GPU, as means over it.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Demand {
    /// Places on GPUs that containers had: as many whole GPUs, if each had them.
    pub places: u64,
    /// GPU time promised.
    pub reserved: u64,
    /// GPU time had.
    pub used: u64,
    /// Memory that may be held, of a GPU's.
    pub memory: u64,
}

impl Demand {
    /// GPU time: what was promised, or had where that is more.
    #[must_use]
    pub fn share(self) -> u64 {
        self.reserved.max(self.used)
    }

    /// GPUs that have to be there for it: neither time nor memory can be had twice.
    #[must_use]
    pub fn needed(self) -> u64 {
        self.share().max(self.memory)
    }

    /// Adds another owner's.
    pub fn add(&mut self, other: Self) {
        let pairs = [
            (&mut self.places, other.places),
            (&mut self.reserved, other.reserved),
            (&mut self.used, other.used),
            (&mut self.memory, other.memory),
        ];
        pairs.into_iter().for_each(|(sum, more)| *sum = sum.saturating_add(more));
    }
}

/// For how long which level of something was there, nanoseconds by thousandths of a GPU.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Levels(BTreeMap<u64, u64>);

impl Levels {
    fn note(&mut self, permille: u64, for_ns: u64) {
        let noted = self.0.entry(permille).or_default();
        *noted = noted.saturating_add(for_ns);
    }

    /// The least that was enough for `percent` of `watched_ns`; in all time that is not noted, nothing was asked for.
    #[must_use]
    pub fn enough(&self, watched_ns: u64, percent: u8) -> u64 {
        let beyond = u128::from(100 - percent.min(100)) * u128::from(watched_ns) / 100;
        let mut above_ns = 0u128;
        for (permille, for_ns) in self.0.iter().rev() {
            above_ns += u128::from(*for_ns);
            if above_ns > beyond {
                return *permille;
            }
        }
        0
    }
}

/// All that somebody asked for, over time.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Course {
    /// [`Demand::places`].
    pub places: Levels,
    /// [`Demand::share`].
    pub share: Levels,
    /// [`Demand::memory`].
    pub memory: Levels,
    /// [`Demand::needed`].
    pub needed: Levels,
}

impl Course {
    /// Notes what was asked for in a stretch of time.
    pub fn note(&mut self, demand: Demand, for_ns: u64) {
        self.places.note(demand.places, for_ns);
        self.share.note(demand.share(), for_ns);
        self.memory.note(demand.memory, for_ns);
        self.needed.note(demand.needed(), for_ns);
    }
}

/// Whole GPUs for a demand of somebody who has one at all.
#[must_use]
pub fn whole_gpus(permille: u64) -> u64 {
    permille.saturating_sub(TOLERANCE_PERMILLE).div_ceil(GPU_PERMILLE).max(1)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Ten minutes: nothing in four of them, then rising.
    fn rising() -> Levels {
        let mut levels = Levels::default();
        for (minute, permille) in [300, 300, 900, 1200, 2500, 2500].into_iter().enumerate() {
            levels.note(permille, 60 + u64::from(minute == 5));
        }
        levels
    }

    #[test]
    fn so_much_is_enough_for_that_part_of_the_time() {
        let enough = |percent| rising().enough(601, percent);
        assert_eq!(
            [100, 90, 80, 79, 70, 69, 60, 59, 50, 40, 39, 0].map(enough),
            [2500, 2500, 2500, 1200, 1200, 900, 900, 300, 300, 300, 0, 0]
        );
        assert_eq!(Levels::default().enough(601, 100), 0);
    }

    #[test]
    fn what_is_needed_is_time_or_memory_and_whole_gpus_are_not_more_for_a_rounding() {
        let demand = Demand { places: 3000, reserved: 300, used: 450, memory: 400 };
        assert_eq!((demand.share(), demand.needed()), (450, 450));
        assert_eq!(Demand { memory: 700, ..demand }.needed(), 700);
        assert_eq!([0, 1, 1000, 1005, 1006, 2000, 7100].map(whole_gpus), [1, 1, 1, 1, 2, 2, 8]);
        let mut sum = demand;
        sum.add(Demand { places: 1000, reserved: 700, used: 0, memory: 1 });
        assert_eq!(sum, Demand { places: 4000, reserved: 1000, used: 450, memory: 401 });
    }

    #[test]
    fn all_the_time_no_owner_needs_less_alone_than_in_the_sum() {
        // Two owners that need a GPU by turns need one together, and two of their own.
        let (mut red, mut blue, mut both) = (Course::default(), Course::default(), Course::default());
        for minute in 0..10u64 {
            let demand = |on| Demand { places: on * 1000, reserved: on * 800, used: 0, memory: 0 };
            let [of_red, of_blue] = [minute % 2, 1 - minute % 2].map(demand);
            let mut sum = of_red;
            sum.add(of_blue);
            [(&mut red, of_red), (&mut blue, of_blue), (&mut both, sum)]
                .into_iter()
                .for_each(|(course, its)| course.note(its, 60));
        }
        let gpus = |course: &Course| whole_gpus(course.needed.enough(600, 100));
        assert_eq!((gpus(&red) + gpus(&blue), gpus(&both)), (2, 1));
    }
}
