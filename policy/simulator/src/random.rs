//! Seeded numbers, and the distributions that workloads are drawn from.
//!
//! Floating point is used for workloads only, never for a decision. Its logarithm and cosine come from the host's
//! mathematics library: one seed gives the same run on one machine, and on others with the same library.

/// SplitMix64 (Steele, Lea & Flood 2014): any seed is a good one, and neighbouring seeds are unrelated.
#[derive(Clone, Debug)]
pub struct Random(u64);

impl Random {
    /// A sequence.
    #[must_use]
    pub fn new(seed: u64) -> Self {
        Self(seed)
    }

    /// The `index`th of several unrelated sequences of one seed, so that one does not depend on how often another one
    /// was asked.
    #[must_use]
    pub fn stream(seed: u64, index: u64) -> Self {
        let mut mixer = Self(seed);
        let mut start = Self(mixer.bits() ^ index.wrapping_mul(0xd134_2543_de82_ef95));
        Self(start.bits())
    }

    /// The next 64 bits.
    pub fn bits(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mixed = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ (mixed >> 31)
    }

    /// From `low` to `high`, both included. The remainder's bias is below 1e-6 for ranges below hours in nanoseconds.
    pub fn within(&mut self, low: u64, high: u64) -> u64 {
        low + self.bits() % (high - low + 1)
    }

    /// In (0, 1], never 0, so that it has a logarithm.
    fn unit(&mut self) -> f64 {
        ((self.bits() >> 11) + 1) as f64 / (1_u64 << 53) as f64
    }

    /// The time to the next of events that come `rate_per_second` times a second on average and know nothing of each
    /// other (a Poisson process), in nanoseconds.
    pub fn interval_ns(&mut self, rate_per_second: f64) -> u64 {
        (-self.unit().ln() / rate_per_second * 1e9) as u64
    }

    /// Normally distributed with mean 0 and deviation 1 (Box & Muller 1958).
    fn normal(&mut self) -> f64 {
        let radius = (-2.0 * self.unit().ln()).sqrt();
        radius * (std::f64::consts::TAU * self.unit()).cos()
    }
}

/// How long kernels take on the device.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Lengths {
    /// All the same.
    Fixed {
        /// GPU time.
        ns: u64,
    },
    /// Equally likely between both, included.
    Uniform {
        /// GPU time.
        least_ns: u64,
        /// GPU time.
        most_ns: u64,
    },
    /// `median * exp(sigma * N(0, 1))`, drawn anew while it is outside the cut-offs.
    Lognormal {
        /// GPU time.
        median_ns: u64,
        /// Deviation of the logarithm.
        sigma: f64,
        /// Cut-off, at most the median.
        least_ns: u64,
        /// Cut-off, at least the median.
        most_ns: u64,
    },
}

impl Lengths {
    /// The length of one kernel, at least 1 ns.
    pub fn draw(&self, random: &mut Random) -> u64 {
        let drawn = match *self {
            Self::Fixed { ns } => ns,
            Self::Uniform { least_ns, most_ns } => random.within(least_ns, most_ns),
            // As the median lies within the cut-offs, a few attempts are enough.
            Self::Lognormal { median_ns, sigma, least_ns, most_ns } => loop {
                let ns = (median_ns as f64 * (sigma * random.normal()).exp()) as u64;
                if (least_ns..=most_ns).contains(&ns) {
                    break ns;
                }
            },
        };
        drawn.max(1)
    }

    /// The length that half of the kernels stay below, cut-offs left aside.
    #[must_use]
    pub fn typical_ns(&self) -> u64 {
        match *self {
            Self::Fixed { ns } => ns,
            Self::Uniform { least_ns, most_ns } => least_ns.midpoint(most_ns),
            Self::Lognormal { median_ns, .. } => median_ns,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn intervals_have_the_rate_that_was_asked_for() {
        let mut random = Random::new(1);
        let sum: u64 = (0..100_000).map(|_| random.interval_ns(20.0)).sum();
        assert!((49_000_000..51_000_000).contains(&(sum / 100_000)), "{}", sum / 100_000);
    }

    #[test]
    fn half_of_the_lengths_are_below_the_median_and_none_beyond_the_cut_offs() {
        let lengths = Lengths::Lognormal { median_ns: 1_000_000, sigma: 1.5, least_ns: 10_000, most_ns: 100_000_000 };
        let mut random = Random::stream(7, 3);
        let drawn: Vec<u64> = (0..20_000).map(|_| lengths.draw(&mut random)).collect();
        let below = drawn.iter().filter(|&&ns| ns < 1_000_000).count();
        assert!((9_700..10_300).contains(&below), "{below}");
        assert!(drawn.iter().all(|ns| (10_000..=100_000_000).contains(ns)));
        assert!(drawn.iter().any(|&ns| ns > 20_000_000), "the tail is heavy");
    }

    #[test]
    fn streams_of_a_seed_differ() {
        let first: Vec<u64> = (0..4).map(|index| Random::stream(5, index).bits()).collect();
        let other: Vec<u64> = (0..4).map(|index| Random::stream(6, index).bits()).collect();
        assert!(first.iter().all(|number| !other.contains(number)));
        assert!(first[0] != first[1] && first[1] != first[2]);
    }
}
