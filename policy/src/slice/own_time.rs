//! The time of one priority: in which any of its tenants is at work, which is to say active and not above its ceiling, without what higher
//! priorities have had of it.

/// Weighted time is kept in this part of a nanosecond for each permille of weight.
const SCALE: u128 = 1 << 20;

/// A moment in it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Moment {
    /// What has passed of it.
    pub(super) time_ns: u64,
    /// The same, each part divided by the weights of those who were at work.
    per_weight: u128,
}

impl Moment {
    /// The later one of two, of which one is known from before it was known what higher priorities had.
    pub(super) fn later(self, other: Self) -> Self {
        Self { time_ns: self.time_ns.max(other.time_ns), per_weight: self.per_weight.max(other.per_weight) }
    }

    /// What those who have `weight_permille` were entitled to since an earlier moment, if they were at work all the time; or, if they had no
    /// work, what they would have been, at most: that is exact where the others were the same all the time.
    pub(super) fn entitled_ns(self, since: Self, weight_permille: u16, is_at_work: bool) -> u64 {
        let apart = self.per_weight.saturating_sub(since.per_weight);
        // Up, as each part of it has been rounded down.
        let its_ns = u64::try_from(apart.saturating_mul(weight_permille.into()).div_ceil(SCALE)).unwrap_or(u64::MAX);
        if is_at_work || its_ns == 0 {
            return its_ns;
        }
        // Beside others of the weight W it is `time * w / W` of which this is the part `W / (W + w)`.
        let time_ns = self.time_ns.saturating_sub(since.time_ns);
        let (its_ns, time_ns) = (u128::from(its_ns), u128::from(time_ns));
        u64::try_from(its_ns * time_ns / (its_ns + time_ns)).unwrap_or(u64::MAX)
    }
}

/// The clock that goes on in such time.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct OwnTime {
    moment: Moment,
    /// Until when that is.
    until_ns: u64,
    /// Of those who are at work since then.
    weight_permille: u64,
    /// Since when any are.
    since_ns: u64,
    /// What higher priorities have had since then and has not been taken off yet. Less than nothing where they had less after all.
    taken_ns: i64,
}

impl OwnTime {
    /// From `now_ns` on those are at work who have `weight_permille` together.
    pub(super) fn set_weight(&mut self, weight_permille: u64, now_ns: u64) {
        self.pass(now_ns);
        match (self.weight_permille, weight_permille) {
            (0, 1..) => self.since_ns = now_ns,
            // What has not been taken off by then was another time's.
            (1.., 0) => self.taken_ns = 0,
            _ => {}
        }
        self.weight_permille = weight_permille;
    }

    /// A higher priority has had `ns` from `began_ns` to `now_ns`: what of that was before anybody was at work is nobody's.
    pub(super) fn take(&mut self, ns: i64, (began_ns, now_ns): (u64, u64)) {
        let (length_ns, within_ns) =
            (now_ns.saturating_sub(began_ns), now_ns.saturating_sub(began_ns.max(self.since_ns)));
        if self.weight_permille > 0 && length_ns > 0 {
            let its_ns = i128::from(ns) * i128::from(within_ns) / i128::from(length_ns);
            self.taken_ns = self.taken_ns.saturating_add(i64::try_from(its_ns).unwrap_or(ns));
        }
    }

    /// The moment at `now_ns`.
    pub(super) fn at(mut self, now_ns: u64) -> Moment {
        self.pass(now_ns);
        self.moment
    }

    fn pass(&mut self, now_ns: u64) {
        let passed_ns = now_ns.saturating_sub(self.until_ns);
        self.until_ns = self.until_ns.max(now_ns);
        if self.weight_permille == 0 {
            return;
        }
        let left_ns = i64::try_from(passed_ns).unwrap_or(i64::MAX).saturating_sub(self.taken_ns);
        self.taken_ns = left_ns.min(0).saturating_neg();
        let own_ns = u64::try_from(left_ns).unwrap_or(0);
        self.moment.time_ns = self.moment.time_ns.saturating_add(own_ns);
        let scaled = u128::from(own_ns) * SCALE;
        // A 64-bit division is several times as fast, and every sensible length fits.
        self.moment.per_weight += match u64::try_from(scaled) {
            Ok(scaled) => u128::from(scaled / self.weight_permille),
            Err(_) => scaled / u128::from(self.weight_permille),
        };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_goes_on_while_somebody_works_and_nobody_above() {
        let mut time = OwnTime::default();
        time.take(5, (90, 100));
        assert_eq!(time.at(100), Moment::default());
        time.set_weight(500, 100);
        time.take(40, (80, 120));
        assert_eq!((time.at(110).time_ns, time.at(200).time_ns), (0, 80), "half of it was before");
        time.take(-5, (100, 120));
        time.set_weight(0, 300);
        assert_eq!((time.at(300).time_ns, time.at(900).time_ns), (185, 185));
        time.set_weight(200, 1000);
        time.set_weight(200, 990);
        assert_eq!(time.at(1010).time_ns, 195);
    }

    #[test]
    fn it_is_divided_by_weight() {
        let mut time = OwnTime::default();
        time.set_weight(500, 0);
        let begin = time.at(0);
        time.set_weight(1000, 100_000);
        let end = time.at(300_000);
        let entitled_ns = |weight, is_at_work| end.entitled_ns(begin, weight, is_at_work);
        // All of the first part, half of the second one.
        assert!(entitled_ns(500, true).abs_diff(200_000) < 10);
        assert!(entitled_ns(250, true).abs_diff(100_000) < 10);
        // Beside those it would be 500 of 1000 and then of 1500: 50 and 67, by the mean of their weights 60 and 60.
        assert!(entitled_ns(500, false).abs_diff(120_000) < 10);
        assert_eq!((begin.entitled_ns(end, 500, true), end.entitled_ns(end, 500, false)), (0, 0));
    }
}
