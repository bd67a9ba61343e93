//! The device's times as times of day, which is how NVML dates its samples.

use gpool_device_model::ProcessSample;
use rustix::time::{ClockId, clock_gettime};

/// The offset between the two clocks is read anew each time, so that the same sample is dated a little differently.
/// Samples lie 250 ms apart.
const JITTER_US: u64 = 1_000;

/// What CLOCK_REALTIME is ahead of CLOCK_MONOTONIC now, in nanoseconds.
pub fn wall_clock_offset_ns() -> u64 {
    let wall = clock_gettime(ClockId::Realtime);
    let wall_ns = wall.tv_sec as u64 * 1_000_000_000 + wall.tv_nsec as u64;
    wall_ns.saturating_sub(crate::now_ns())
}

/// The samples that are newer than `last_seen_us`, each with its time in microseconds of a clock that is `offset_ns`
/// ahead of the device's.
pub fn samples_after(samples: &[ProcessSample], offset_ns: u64, last_seen_us: u64) -> Vec<(ProcessSample, u64)> {
    let dated = samples.iter().map(|sample| (*sample, (sample.end_ns + offset_ns) / 1000));
    dated.filter(|(_, time_us)| *time_us > last_seen_us.saturating_add(JITTER_US)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_sample_is_told_once_although_the_clocks_are_read_again() {
        let sample = |end_ns| ProcessSample { process: 1, end_ns, percent: 50 };
        let samples = [sample(250_000_000), sample(500_000_000), sample(750_000_000)];
        let all = samples_after(&samples, 7_000_000_300, 0);
        assert_eq!(all.len(), 3);
        assert_eq!(all[1], (samples[1], 7_500_000));
        let later = samples_after(&samples, 7_000_000_900, all[1].1);
        assert_eq!(later, [(samples[2], 7_750_000)]);
        let earlier = samples_after(&samples, 6_999_400_000, all[2].1);
        assert!(earlier.is_empty());
        assert!(samples_after(&samples, 7_000_700_000, all[2].1).is_empty());
    }
}
