//! When requests come.

use std::time::Duration;

/// A Poisson process: the times between arrivals are independent and exponentially distributed.
#[derive(Debug)]
pub(super) struct Arrivals {
    rate_per_s: f64,
    state: u64,
}

impl Arrivals {
    pub(super) fn new(rate_per_s: f64, seed: u64) -> Self {
        Self { rate_per_s, state: seed }
    }

    /// The time from one arrival to the next, by inversion of the distribution.
    pub(super) fn next_interval(&mut self) -> Duration {
        // At most 53 bits fit a float, and 1 - [0, 1) is never 0.
        let uniform = 1.0 - (self.random() >> 11) as f64 / (1_u64 << 53) as f64;
        Duration::from_secs_f64(-uniform.ln() / self.rate_per_s)
    }

    /// SplitMix64. Source: Steele, Lea and Flood, "Fast Splittable Pseudorandom Number Generators", OOPSLA 2014.
    fn random(&mut self) -> u64 {
        self.state = self.state.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mixed = (self.state ^ (self.state >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ (mixed >> 31)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn intervals(rate_per_s: f64, seed: u64, count: usize) -> Vec<f64> {
        let mut arrivals = Arrivals::new(rate_per_s, seed);
        (0..count).map(|_| arrivals.next_interval().as_secs_f64()).collect()
    }

    #[test]
    fn intervals_have_the_mean_and_the_spread_of_a_poisson_process() {
        let drawn = intervals(50.0, 7, 100_000);
        let mean = drawn.iter().sum::<f64>() / drawn.len() as f64;
        let variance = drawn.iter().map(|interval| (interval - mean).powi(2)).sum::<f64>() / drawn.len() as f64;
        assert!((mean * 50.0 - 1.0).abs() < 0.02, "mean {mean}");
        // An exponential distribution's standard deviation is its mean.
        assert!((variance.sqrt() / mean - 1.0).abs() < 0.02, "standard deviation {}", variance.sqrt());
        let above_mean = drawn.iter().filter(|interval| **interval > mean).count() as f64 / drawn.len() as f64;
        assert!((above_mean - (-1.0_f64).exp()).abs() < 0.01, "{above_mean} are above the mean");
    }

    #[test]
    fn a_seed_decides_the_arrivals() {
        assert_eq!(intervals(10.0, 3, 50), intervals(10.0, 3, 50));
        assert_ne!(intervals(10.0, 3, 50), intervals(10.0, 4, 50));
    }
}
