//! The device's times as times of day, which is how NVML dates its samples.

use gpool_device_model::{Meter, ProcessSample, SAMPLE_PERIOD_NS, SAMPLES_KEPT};
use rustix::time::{ClockId, clock_gettime};
use std::collections::BTreeMap;

/// The offset between the two clocks is read anew each time, so that the same sample is dated a little differently.
/// Samples lie 250 ms apart.
const JITTER_US: u64 = 1_000;

/// What CLOCK_REALTIME is ahead of CLOCK_MONOTONIC now, in nanoseconds.
pub fn wall_clock_offset_ns() -> u64 {
    let wall = clock_gettime(ClockId::Realtime);
    let wall_ns = wall.tv_sec as u64 * 1_000_000_000 + wall.tv_nsec as u64;
    wall_ns.saturating_sub(crate::now_ns())
}

/// How busy each process has kept the device since `last_seen_us`, in percent of all that time, and until when; of a clock that is
/// `offset_ns` ahead of the device's, in microseconds. Who has done nothing since is left out, and so all are that did something
/// longer ago than samples are kept.
///
/// So NVML answers nvmlDeviceGetProcessUtilization: one entry for each process, the mean of the samples that are newer (seen with
/// driver 580.159.04 on an H200, 2026-11-29, whose samples are 200 ms apart).
pub fn means_since(meter: &Meter, offset_ns: u64, last_seen_us: u64) -> Vec<(ProcessSample, u64)> {
    let at_us = |end_ns: u64| (end_ns + offset_ns) / 1000;
    let is_newer = |end_ns: u64| at_us(end_ns) > last_seen_us.saturating_add(JITTER_US);
    let last_ns = meter.now_ns / SAMPLE_PERIOD_NS * SAMPLE_PERIOD_NS;
    let ends =
        (0..SAMPLES_KEPT).map_while(|ago| last_ns.checked_sub(ago * SAMPLE_PERIOD_NS).filter(|end_ns| *end_ns > 0));
    let newer = ends.filter(|end_ns| is_newer(*end_ns)).count() as u64;
    let mut sums: BTreeMap<u32, u64> = BTreeMap::new();
    for sample in meter.process_samples().iter().filter(|sample| is_newer(sample.end_ns)) {
        *sums.entry(sample.process).or_default() += u64::from(sample.percent);
    }
    let mean = |sum: u64| ((sum + newer / 2) / newer.max(1)) as u32;
    let entry = |(process, sum)| ProcessSample { process, end_ns: last_ns, percent: mean(sum) };
    sums.into_iter().map(entry).map(|sample| (sample, at_us(last_ns))).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use gpool_device_model::{Device, DeviceParameters};

    const MS: u64 = 1_000_000;
    const AHEAD_NS: u64 = 7_000_000_300;

    /// A device on which process 1 works from 0.5 s to 1.5 s.
    fn device() -> Device {
        let mut device = Device::new(DeviceParameters::standard(0), 0);
        let context = device.create_context(0, 1, "/a").unwrap();
        device.submit_kernel(500 * MS, context, 1000 * MS);
        device
    }

    fn told(device: &Device, offset_ns: u64, last_seen_us: u64) -> Vec<(u32, u32, u64)> {
        let all = means_since(device.meter(), offset_ns, last_seen_us);
        all.into_iter().map(|(sample, at_us)| (sample.process, sample.percent, at_us)).collect()
    }

    #[test]
    fn each_process_has_the_mean_of_what_is_newer() {
        let mut device = device();
        device.advance(1010 * MS);
        assert_eq!(told(&device, AHEAD_NS, 0), [(1, 50, 8_000_000)], "half of a second");
        assert_eq!(told(&device, AHEAD_NS, 7_500_000), [(1, 100, 8_000_000)]);
        let other = device.create_context(1600 * MS, 2, "/b").unwrap();
        device.submit_kernel(1600 * MS, other, 100 * MS);
        device.advance(2010 * MS);
        assert_eq!(told(&device, AHEAD_NS, 8_000_000), [(1, 50, 9_000_000), (2, 10, 9_000_000)]);
        assert_eq!(told(&device, AHEAD_NS, 8_500_000), [(2, 20, 9_000_000)], "the other one has done nothing since");
        device.advance(10_900 * MS);
        assert_eq!(told(&device, AHEAD_NS, 0), [(1, 8, 17_750_000), (2, 1, 17_750_000)], "of ten seconds");
        device.advance(20_000 * MS);
        assert_eq!(told(&device, AHEAD_NS, 0), []);
    }

    #[test]
    fn a_sample_is_told_once_although_the_clocks_are_read_again() {
        let mut device = device();
        device.advance(1010 * MS);
        let [(.., at_us)] = told(&device, AHEAD_NS, 0)[..] else { panic!() };
        for offset_ns in [AHEAD_NS, AHEAD_NS + 600_000, AHEAD_NS - 600_000] {
            assert_eq!(told(&device, offset_ns, at_us), []);
        }
    }
}
