//! Budgets: how much GPU time may be promised to one team or user in a day, a week or a month. A budget is about what is promised, as
//! a quota is: what is left idle by others is no part of it.

/// How far a budget is spent.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Level {
    /// Less than four fifths of it.
    Fine,
    /// Four fifths of it or more.
    Nearly,
    /// All of it: nothing more is promised until the next period begins.
    Spent,
}

/// A budget, and what of it has been promised since its period began.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Budget {
    /// Nanoseconds of a whole GPU.
    pub allowed_ns: u64,
    /// Nanoseconds of a whole GPU.
    pub spent_ns: u64,
}

impl Budget {
    /// How far it is spent.
    #[must_use]
    pub fn level(&self) -> Level {
        let (spent, allowed) = (u128::from(self.spent_ns), u128::from(self.allowed_ns));
        if spent >= allowed {
            return Level::Spent;
        }
        if spent * 5 >= allowed * 4 { Level::Nearly } else { Level::Fine }
    }

    /// For how long it lasts if `share_permille` thousandths of a GPU stay promised, nanoseconds; none where nothing is, and it lasts
    /// for ever.
    #[must_use]
    pub fn lasts_ns(&self, share_permille: u64) -> Option<u64> {
        let left_ns = u128::from(self.allowed_ns.saturating_sub(self.spent_ns));
        let lasts_ns = (left_ns * 1000).checked_div(u128::from(share_permille))?;
        Some(u64::try_from(lasts_ns).unwrap_or(u64::MAX))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_budget_is_spent_to_the_last_nanosecond() {
        let level = |allowed_ns, spent_ns| Budget { allowed_ns, spent_ns }.level();
        assert_eq!([0, 799, 800, 999, 1000, u64::MAX].map(|spent| level(1000, spent)), {
            use Level::{Fine, Nearly, Spent};
            [Fine, Fine, Nearly, Nearly, Spent, Spent]
        });
        assert_eq!(level(0, 0), Level::Spent, "nothing is promised by a budget of nothing");
        assert_eq!(level(u64::MAX, u64::MAX - 1), Level::Nearly, "products do not wrap");
    }

    #[test]
    fn what_is_promised_now_says_how_long_it_lasts() {
        let lasts = |allowed_ns, spent_ns, share| Budget { allowed_ns, spent_ns }.lasts_ns(share);
        assert_eq!(lasts(1000, 400, 1000), Some(600));
        assert_eq!(lasts(1000, 400, 250), Some(2400), "a quarter of a GPU takes four times as long");
        assert_eq!((lasts(1000, 2000, 250), lasts(1000, 400, 0)), (Some(0), None));
        assert_eq!(lasts(u64::MAX, 0, 1), Some(u64::MAX));
    }
}
