//! For how long which level of something was there.

use std::collections::BTreeMap;

/// Nanoseconds by thousandths of a GPU.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Levels(BTreeMap<u64, u64>);

impl Levels {
    /// It was there for so long.
    pub(crate) fn note(&mut self, permille: u64, for_ns: u64) {
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
}
