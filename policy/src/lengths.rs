//! How long things took: counted in buckets of fixed bounds, so that who counts neither allocates nor sorts for it.

/// Buckets that each power of two is divided into: a figure is at most a sixteenth above what was measured.
const PARTS: u64 = 16;
const PARTS_BITS: u32 = PARTS.trailing_zeros();
/// What takes less than `2^FIRST_BITS` ns (1 us) is counted as that, what takes more than [`LONGEST_NS`] too.
const FIRST_BITS: u32 = 10;
const LAST_BITS: u32 = 32;
const BUCKETS: usize = ((LAST_BITS - FIRST_BITS) as u64 * PARTS) as usize;
/// The longest that is told apart from longer ones, in nanoseconds: 4.3 s.
pub const LONGEST_NS: u64 = 1 << LAST_BITS;

/// How many there were of each length.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Lengths([u32; BUCKETS]);

impl Default for Lengths {
    fn default() -> Self {
        Self([0; BUCKETS])
    }
}

impl Lengths {
    /// Counts one.
    pub fn add(&mut self, length_ns: u64) {
        let counted = &mut self.0[bucket_of(length_ns)];
        *counted = counted.saturating_add(1);
    }

    /// How many were counted in all of these.
    #[must_use]
    pub fn count(of: &[&Self]) -> u64 {
        of.iter().flat_map(|its| its.0.iter()).map(|count| u64::from(*count)).sum()
    }

    /// The length that `percent` of all of these did not exceed, by nearest rank and rounded up by a sixteenth at most; none where
    /// nothing was counted. Nanoseconds.
    #[must_use]
    pub fn percentile(of: &[&Self], percent: u64) -> Option<u64> {
        let count = Self::count(of);
        let rank = (count * percent).div_ceil(100).max(1);
        let mut reached = 0;
        let found = (0..BUCKETS).find(|bucket| {
            reached += of.iter().map(|its| u64::from(its.0[*bucket])).sum::<u64>();
            reached >= rank
        });
        found.map(end_of)
    }
}

fn bucket_of(length_ns: u64) -> usize {
    let length_ns = length_ns.clamp(1 << FIRST_BITS, LONGEST_NS - 1);
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
        for length_ns in (0..2_000_u64).map(|n| 1_024 + n * n * 1_000).chain([LONGEST_NS - 1]) {
            let end_ns = end_of(bucket_of(length_ns));
            assert!(end_ns > length_ns && end_ns <= length_ns + length_ns / PARTS + 1, "{length_ns} in {end_ns}");
        }
        assert_eq!((bucket_of(0), bucket_of(u64::MAX)), (0, BUCKETS - 1));
        assert_eq!(end_of(BUCKETS - 1), LONGEST_NS);
    }

    #[test]
    fn percentiles_are_of_what_was_counted_in_all() {
        let (mut one, mut other) = (Lengths::default(), Lengths::default());
        assert_eq!(Lengths::percentile(&[&one, &other], 50), None);
        (0..980).for_each(|_| one.add(50_000));
        (0..20).for_each(|_| other.add(4_000_000));
        let at = |percent| Lengths::percentile(&[&one, &other], percent).unwrap();
        assert_eq!(Lengths::count(&[&one, &other]), 1000);
        assert!((50_000..=53_125).contains(&at(50)) && (50_000..=53_125).contains(&at(98)));
        assert!((4_000_000..=4_250_000).contains(&at(99)));
    }

    #[test]
    fn one_percent_of_late_ones_does_not_reach_the_99th_percentile() {
        let mut lengths = Lengths::default();
        (0..99).for_each(|_| lengths.add(50_000));
        lengths.add(4_000_000);
        assert!(Lengths::percentile(&[&lengths], 99).unwrap() <= 53_125);
    }
}
