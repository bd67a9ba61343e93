//! How long recent hand-offs took: from the opening of a gate that was closed to the first launch behind it.
//!
//! Counted in buckets of fixed bounds, so that the thread that opens gates neither allocates nor locks for it.

/// Buckets that each power of two is divided into: a figure is at most a sixteenth above what was measured.
const PARTS: u64 = 16;
const PARTS_BITS: u32 = PARTS.trailing_zeros();
/// What takes less than `2^FIRST_BITS` ns (1 us) is counted as that, what takes more than `2^LAST_BITS` ns (4.3 s) too.
const FIRST_BITS: u32 = 10;
const LAST_BITS: u32 = 32;
const BUCKETS: usize = ((LAST_BITS - FIRST_BITS) as u64 * PARTS) as usize;
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
    now: [u32; BUCKETS],
    before: [u32; BUCKETS],
    began_ns: u64,
}

impl Handoffs {
    /// None yet.
    pub fn new(now_ns: u64) -> Self {
        Self { now: [0; BUCKETS], before: [0; BUCKETS], began_ns: now_ns }
    }

    /// Counts one that took `length_ns` and was heard of at `now_ns`.
    pub fn add(&mut self, now_ns: u64, length_ns: u64) {
        self.advance(now_ns);
        let counted = &mut self.now[bucket_of(length_ns)];
        *counted = counted.saturating_add(1);
    }

    /// Those of the last 5 to 10 s; none when there was none. Percentiles are by nearest rank.
    pub fn figures(&self, now_ns: u64) -> Option<HandoffFigures> {
        let of_bucket = |bucket: usize| match self.periods_until(now_ns) {
            0 => u64::from(self.now[bucket]) + u64::from(self.before[bucket]),
            1 => u64::from(self.now[bucket]),
            _ => 0,
        };
        let count: u64 = (0..BUCKETS).map(of_bucket).sum();
        let percentile = |percent: u64| {
            let rank = (count * percent).div_ceil(100);
            let mut reached = 0;
            (0..BUCKETS).find(|bucket| {
                reached += of_bucket(*bucket);
                reached >= rank
            })
        };
        let (p50, p99) = (percentile(50)?, percentile(99)?);
        (count > 0).then(|| HandoffFigures { count, p50_ns: end_of(p50), p99_ns: end_of(p99) })
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
        self.before = if periods == 1 { self.now } else { [0; BUCKETS] };
        self.now = [0; BUCKETS];
        self.began_ns += periods * PERIOD_NS;
    }
}

fn bucket_of(length_ns: u64) -> usize {
    let length_ns = length_ns.clamp(1 << FIRST_BITS, (1 << LAST_BITS) - 1);
    let bits = length_ns.ilog2();
    let part = (length_ns >> (bits - PARTS_BITS)) - PARTS;
    (u64::from(bits - FIRST_BITS) * PARTS + part) as usize
}

/// The first length that is too long for the bucket.
fn end_of(bucket: usize) -> u64 {
    let (bits, part) = (FIRST_BITS + bucket as u32 / PARTS as u32, bucket as u64 % PARTS);
    (PARTS + part + 1) << (bits - PARTS_BITS)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn buckets_hold_every_length_within_a_sixteenth() {
        for length_ns in (0..2_000_u64).map(|n| 1_024 + n * n * 1_000).chain([(1 << LAST_BITS) - 1]) {
            let end_ns = end_of(bucket_of(length_ns));
            assert!(end_ns > length_ns && end_ns <= length_ns + length_ns / PARTS + 1, "{length_ns} in {end_ns}");
        }
        assert_eq!((bucket_of(0), bucket_of(u64::MAX)), (0, BUCKETS - 1));
        assert_eq!(end_of(BUCKETS - 1), 1 << LAST_BITS);
    }

    #[test]
    fn percentiles_are_of_what_was_counted() {
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
    fn one_percent_of_late_ones_does_not_reach_the_99th_percentile() {
        let mut handoffs = Handoffs::new(0);
        (0..99).for_each(|_| handoffs.add(1, 50_000));
        handoffs.add(1, 4_000_000);
        assert!(handoffs.figures(2).unwrap().p99_ns <= 53_125);
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
