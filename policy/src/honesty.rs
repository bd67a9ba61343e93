//! Whether a tenant reports all of the GPU time that the device has given it.
//!
//! The device's own figures are coarse and late: good for policing, useless for pacing. So a report that falls short
//! has a whole further period to come in before it counts as missing; a kernel that runs across the end of a period is
//! reported in the next one. What comes in says when the device was used, so it makes up for the right period; of a
//! kernel that runs for even longer, what was missing meanwhile has been booked as a debt, and is redeemed by its report
//! and not judged again.

use std::collections::BTreeMap;

/// One sample of the device: how busy a process kept it over the sampling period that ended at `at_us`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Sample {
    /// The process.
    pub process: u32,
    /// End of the sampling period, microseconds of whatever clock the device uses.
    pub at_us: u64,
    /// 0 to 100.
    pub busy_percent: u32,
}

/// The longest sampling period that is believed; NVML's lies between 1/6 s and 1 s.
const PERIOD_MAX_US: u64 = 1_000_000;

/// Adds up the samples of one device.
///
/// The device does not tell its sampling period: it is learnt as the least distance between two samples of one process.
/// A process that was idle has no samples, so a sample never stands for more than that.
#[derive(Clone, Debug, Default)]
pub struct DeviceUse {
    period_us: Option<u64>,
    last_us: BTreeMap<u32, u64>,
    newest_us: u64,
}

impl DeviceUse {
    /// The newest time seen: samples from here on are wanted next.
    #[must_use]
    pub fn newest_us(&self) -> u64 {
        self.newest_us
    }

    /// Takes what is new in `samples`: the busy time of each process in nanoseconds.
    pub fn add(&mut self, samples: &[Sample]) -> BTreeMap<u32, u64> {
        let mut new: Vec<Sample> = samples.iter().copied().filter(|sample| self.is_new(sample)).collect();
        new.sort_by_key(|sample| sample.at_us);
        for sample in &new {
            if let Some(last_us) = self.last_us.insert(sample.process, sample.at_us) {
                let apart_us = sample.at_us.saturating_sub(last_us);
                if apart_us > 0 {
                    let known_us = self.period_us.unwrap_or(PERIOD_MAX_US);
                    self.period_us = Some(apart_us.min(known_us));
                }
            }
            self.newest_us = self.newest_us.max(sample.at_us);
        }
        // Processes that have not been seen for long are gone.
        let horizon_us = self.newest_us.saturating_sub(60 * PERIOD_MAX_US);
        self.last_us.retain(|_, at_us| *at_us >= horizon_us);
        let mut busy = BTreeMap::new();
        let Some(period_us) = self.period_us else { return busy };
        for sample in new {
            let ns = period_us * 1000 / 100 * u64::from(sample.busy_percent.min(100));
            *busy.entry(sample.process).or_insert(0) += ns;
        }
        busy
    }

    fn is_new(&self, sample: &Sample) -> bool {
        self.last_us.get(&sample.process).is_none_or(|last_us| sample.at_us > *last_us)
    }
}

/// A report that fell short.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Shortfall {
    /// What the device saw in the period that fell short.
    pub seen_ns: u64,
    /// What was reported for it, in time or late.
    pub reported_ns: u64,
}

impl Shortfall {
    /// What was not reported.
    #[must_use]
    pub fn missing_ns(&self) -> u64 {
        self.seen_ns.saturating_sub(self.reported_ns)
    }
}

/// Compares one tenant's reports on one device with what the device saw, period by period.
#[derive(Clone, Copy, Debug, Default)]
pub struct Honesty {
    /// The last period, while what it lacks may still come in.
    pending: Option<Shortfall>,
}

impl Honesty {
    /// Takes the figures of a period of `period_ns`: what the device saw in it, what was reported for it, and what was
    /// reported in it of the time before. A shortfall is told one period later, if it is more than 10 points of the
    /// period and has not been made up for. What was reported beyond what was seen makes up for it too, as the device's
    /// samples are late.
    pub fn judge(&mut self, period_ns: u64, seen_ns: u64, reported_ns: u64, late_ns: u64) -> Option<Shortfall> {
        let tolerance_ns = period_ns / 10;
        let late_ns = late_ns.saturating_add(reported_ns.saturating_sub(seen_ns));
        let before = self
            .pending
            .take()
            .map(|pending| Shortfall { reported_ns: pending.reported_ns.saturating_add(late_ns), ..pending });
        let now = Shortfall { seen_ns, reported_ns };
        self.pending = (now.missing_ns() > tolerance_ns).then_some(now);
        before.filter(|shortfall| shortfall.missing_ns() > tolerance_ns)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const S: u64 = 1_000_000_000;
    const MS: u64 = 1_000_000;

    fn sample(process: u32, at_ms: u64, busy_percent: u32) -> Sample {
        Sample { process, at_us: at_ms * 1000, busy_percent }
    }

    #[test]
    fn samples_add_up_to_busy_time_once_the_period_is_known() {
        let mut device = DeviceUse::default();
        assert!(device.add(&[sample(7, 250, 100)]).is_empty(), "the period is not known yet");
        let busy = device.add(&[sample(7, 500, 100), sample(7, 750, 40), sample(8, 750, 60)]);
        assert_eq!((busy[&7], busy[&8]), (350 * MS, 150 * MS));
        assert!(device.add(&[sample(7, 750, 40)]).is_empty(), "nothing counts twice");
        let after_a_pause = device.add(&[sample(8, 9_000, 100)]);
        assert_eq!(after_a_pause[&8], 250 * MS, "idle time has no samples and is not counted");
        assert_eq!(device.newest_us(), 9_000_000);
    }

    #[test]
    fn a_period_is_never_taken_to_be_longer_than_a_second() {
        let mut device = DeviceUse::default();
        device.add(&[sample(7, 0, 100)]);
        assert_eq!(device.add(&[sample(7, 5_000, 900)])[&7], S, "nor a device busier than it can be");
    }

    #[test]
    fn who_reports_half_is_told_one_period_later() {
        let mut honesty = Honesty::default();
        assert_eq!(honesty.judge(5 * S, 4 * S, 2 * S, 0), None, "the rest may come in");
        let told = honesty.judge(5 * S, 4 * S, 2 * S, 0).unwrap();
        assert_eq!((told.seen_ns, told.reported_ns, told.missing_ns()), (4 * S, 2 * S, 2 * S));
        assert_eq!(honesty.judge(5 * S, 0, 0, 0).map(|told| told.missing_ns()), Some(2 * S), "each period by itself");
        assert_eq!(honesty.judge(5 * S, 0, 0, 0), None);
    }

    #[test]
    fn a_kernel_across_the_end_of_a_period_is_no_lie() {
        let mut honesty = Honesty::default();
        assert_eq!(honesty.judge(5 * S, 4 * S, S, 0), None);
        assert_eq!(honesty.judge(5 * S, S, 4 * S, 0), None, "it came late and in full");
        assert_eq!(honesty.judge(5 * S, S, S, 0), None);
        assert_eq!(honesty.judge(5 * S, 5 * S, 0, 0), None);
        assert_eq!(honesty.judge(5 * S, 5 * S, 2 * S, 5 * S), None, "late, and the next one runs already");
        let told = honesty.judge(5 * S, 0, 0, S).unwrap();
        assert_eq!((told.reported_ns, told.missing_ns()), (3 * S, 2 * S));
    }

    #[test]
    fn ten_points_are_forgiven_and_more_is_not() {
        let mut honesty = Honesty::default();
        for _ in 0..100 {
            assert_eq!(honesty.judge(5 * S, 5 * S, 4 * S + 500 * MS, 0), None);
        }
        honesty.judge(5 * S, 5 * S, 4 * S + 499 * MS, 0);
        assert_eq!(honesty.judge(5 * S, 0, 0, 0).map(|told| told.missing_ns()), Some(501 * MS));
    }

    #[test]
    fn who_reports_more_than_was_seen_banks_nothing() {
        let mut honesty = Honesty::default();
        assert_eq!(honesty.judge(5 * S, 0, 5 * S, 0), None);
        assert_eq!(honesty.judge(5 * S, 5 * S, 0, 0), None);
        assert_eq!(honesty.judge(5 * S, 0, 0, 0).map(|told| told.missing_ns()), Some(5 * S));
    }
}
