//! How many GPUs would have been enough for what was asked for: if each container had whole ones, if each owner had GPUs of its
//! own, and shared by all.
//!
//! For some part of the time, say 95 % of it, so many are enough as were needed at most in that part; who has no more waits in
//! the rest. The same formula on both sides is what makes them comparable: owners' own GPUs are rounded up for each owner, those
//! that all share once.

use crate::levels::Levels;

/// A whole GPU, in the unit of levels.
const GPU_PERMILLE: u64 = 1000;
/// What a demand may be above whole GPUs without being one more: it comes from sums that were rounded.
const TOLERANCE_PERMILLE: u64 = 5;

/// A stretch of time, such as a minute.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Stretch {
    /// How much of it is known, nanoseconds.
    pub known_ns: u64,
    /// All time of the GPUs in it.
    pub gpu_ns: u64,
}

impl Stretch {
    /// So much GPU time in thousandths of a GPU, as a mean over what is known; 0 where nothing is.
    #[must_use]
    pub fn permille_of(self, ns: u64) -> u64 {
        let known_ns = u128::from(self.known_ns);
        let permille = (u128::from(ns) * u128::from(GPU_PERMILLE) + known_ns / 2).checked_div(known_ns);
        permille.map_or(0, |permille| u64::try_from(permille).unwrap_or(u64::MAX))
    }
}

/// What an owner, or all of them together, asked for in one stretch of time, in nanoseconds of whole GPUs.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Demand {
    /// Places on GPUs that containers had: as many whole GPUs, if each had them.
    pub places_ns: u64,
    /// GPU time promised.
    pub reserved_ns: u64,
    /// GPU time had.
    pub used_ns: u64,
    /// Memory that may be held, of a GPU's.
    pub memory_ns: u64,
}

impl Demand {
    /// GPU time: what was promised, or had where that is more.
    #[must_use]
    pub fn share_ns(self) -> u64 {
        self.reserved_ns.max(self.used_ns)
    }

    /// GPUs that have to be there for it: neither time nor memory can be had twice.
    #[must_use]
    pub fn needed_ns(self) -> u64 {
        self.share_ns().max(self.memory_ns)
    }

    /// Adds another one's.
    pub fn add(&mut self, other: Self) {
        let pairs = [
            (&mut self.places_ns, other.places_ns),
            (&mut self.reserved_ns, other.reserved_ns),
            (&mut self.used_ns, other.used_ns),
            (&mut self.memory_ns, other.memory_ns),
        ];
        pairs.into_iter().for_each(|(sum, more)| *sum = sum.saturating_add(more));
    }
}

/// All that somebody asked for, over time.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Course {
    /// Of [`Demand::places_ns`].
    pub places: Levels,
    /// Of [`Demand::share_ns`].
    pub share: Levels,
    /// Of [`Demand::memory_ns`].
    pub memory: Levels,
    /// Of [`Demand::needed_ns`].
    pub needed: Levels,
}

impl Course {
    /// Notes what was asked for in a stretch of time; nothing where nothing of it is known. Nobody had more than all of the GPUs,
    /// also where work of before was charged in it.
    pub fn note(&mut self, demand: Demand, stretch: Stretch) {
        if stretch.known_ns == 0 {
            return;
        }
        let demand = Demand { used_ns: demand.used_ns.min(stretch.gpu_ns), ..demand };
        let levels = [
            (&mut self.places, demand.places_ns),
            (&mut self.share, demand.share_ns()),
            (&mut self.memory, demand.memory_ns),
            (&mut self.needed, demand.needed_ns()),
        ];
        levels.into_iter().for_each(|(levels, ns)| levels.note(stretch.permille_of(ns), stretch.known_ns));
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

    #[test]
    fn what_is_needed_is_time_or_memory_and_whole_gpus_are_not_more_for_a_rounding() {
        let demand = Demand { places_ns: 3000, reserved_ns: 300, used_ns: 450, memory_ns: 400 };
        assert_eq!((demand.share_ns(), demand.needed_ns()), (450, 450));
        assert_eq!(Demand { memory_ns: 700, ..demand }.needed_ns(), 700);
        assert_eq!([0, 1, 1000, 1005, 1006, 2000, 7100].map(whole_gpus), [1, 1, 1, 1, 2, 2, 8]);
        let mut sum = demand;
        sum.add(Demand { places_ns: 1000, reserved_ns: 700, used_ns: 0, memory_ns: 1 });
        assert_eq!(sum, Demand { places_ns: 4000, reserved_ns: 1000, used_ns: 450, memory_ns: 401 });
        let stretch = Stretch { known_ns: 60, gpu_ns: 60 };
        assert_eq!([18, 60, 61].map(|ns| stretch.permille_of(ns)), [300, 1000, 1017]);
        let mut course = Course::default();
        course.note(demand, Stretch::default());
        assert_eq!(course, Course::default(), "of which nothing is known");
        course.note(Demand { used_ns: 180, ..Demand::default() }, stretch);
        assert_eq!(course.share.enough(60, 100), 1000, "nobody had more than there was");
    }

    #[test]
    fn all_the_time_no_owner_needs_less_alone_than_in_the_sum() {
        // Two owners that need a GPU by turns need one together, and two of their own.
        let (mut red, mut blue, mut both) = (Course::default(), Course::default(), Course::default());
        for minute in 0..10u64 {
            let demand = |on| Demand { places_ns: on * 60, reserved_ns: on * 48, ..Demand::default() };
            let [of_red, of_blue] = [minute % 2, 1 - minute % 2].map(demand);
            let mut sum = of_red;
            sum.add(of_blue);
            [(&mut red, of_red), (&mut blue, of_blue), (&mut both, sum)]
                .into_iter()
                .for_each(|(course, its)| course.note(its, Stretch { known_ns: 60, gpu_ns: 60 }));
        }
        let gpus = |course: &Course| whole_gpus(course.needed.enough(600, 100));
        assert_eq!((gpus(&red) + gpus(&blue), gpus(&both)), (2, 1));
    }
}
