//! How long recent hand-offs took: from the opening of a gate that was closed to the first launch behind it.

use gpool_policy::lengths::Lengths;

/// Figures are of the last one to two of these.
const PERIOD_NS: u64 = 5_000_000_000;

/// What recent hand-offs took.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct HandoffFigures {
    /// Hand-offs that the figures are of; at least one.
    pub count: u64,
    /// The middle one, in nanoseconds.
    pub p50_ns: u64,
    /// The 99th percentile, in nanoseconds.
    pub p99_ns: u64,
}

/// The hand-offs of this period and of the one before.
pub struct Handoffs {
    now: Lengths,
    before: Lengths,
    began_ns: u64,
}

impl Handoffs {
    /// None yet.
    pub fn new(now_ns: u64) -> Self {
        Self { now: Lengths::default(), before: Lengths::default(), began_ns: now_ns }
    }

    /// Counts one that took `length_ns` and was heard of at `now_ns`.
    pub fn add(&mut self, now_ns: u64, length_ns: u64) {
        self.advance(now_ns);
        self.now.add(length_ns);
    }

    /// Those of the last 5 to 10 s; none when there was none. Percentiles are by nearest rank.
    pub fn figures(&self, now_ns: u64) -> Option<HandoffFigures> {
        let of: &[&Lengths] = match self.periods_until(now_ns) {
            0 => &[&self.now, &self.before],
            1 => &[&self.now],
            _ => &[],
        };
        let percentile = |percent| Lengths::percentile(of, percent);
        let (p50_ns, p99_ns) = (percentile(50)?, percentile(99)?);
        Some(HandoffFigures { count: Lengths::count(of), p50_ns, p99_ns })
    }

    fn periods_until(&self, now_ns: u64) -> u64 {
        now_ns.saturating_sub(self.began_ns) / PERIOD_NS
    }

    /// Forgets what is too old.
    fn advance(&mut self, now_ns: u64) {
        let periods = self.periods_until(now_ns);
        if periods == 0 {
            return;
        }
        let last = std::mem::take(&mut self.now);
        self.before = if periods == 1 { last } else { Lengths::default() };
        self.began_ns += periods * PERIOD_NS;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn figures_are_of_what_was_counted() {
        let mut handoffs = Handoffs::new(0);
        assert_eq!(handoffs.figures(0), None);
        (0..980).for_each(|_| handoffs.add(1, 50_000));
        (0..20).for_each(|_| handoffs.add(1, 4_000_000));
        let figures = handoffs.figures(2).unwrap();
        assert_eq!(figures.count, 1000);
        assert!((50_000..=53_125).contains(&figures.p50_ns), "{figures:?}");
        assert!((4_000_000..=4_250_000).contains(&figures.p99_ns), "{figures:?}");
    }

    #[test]
    fn what_is_old_is_forgotten() {
        let mut handoffs = Handoffs::new(7);
        handoffs.add(7, 50_000);
        handoffs.add(7 + PERIOD_NS, 50_000);
        let count_at = |periods: u64| handoffs.figures(6 + periods * PERIOD_NS).map(|figures| figures.count);
        assert_eq!([count_at(2), count_at(3), count_at(4)], [Some(2), Some(1), None]);
    }

    #[test]
    fn a_long_silence_forgets_everything() {
        let mut handoffs = Handoffs::new(0);
        handoffs.add(0, 50_000);
        assert_eq!(handoffs.figures(9 * PERIOD_NS), None);
        handoffs.add(9 * PERIOD_NS, 50_000);
        assert_eq!(handoffs.figures(9 * PERIOD_NS).unwrap().count, 1);
    }
}
