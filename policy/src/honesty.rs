//! Whether a tenant reports all of the GPU time that the device has given it.
//!
//! The device's own figures are coarse and late: good for policing, useless for pacing. So a report that falls short
//! has a whole further period to come in before it counts as missing; a kernel that runs across the end of a period is
//! reported in the next one. What comes in says when the device was used, so it makes up for the right period; of a
//! kernel that runs for even longer, what was missing meanwhile has been booked as a debt, and is redeemed by its report
//! and not judged again.

use std::collections::{BTreeMap, BTreeSet, VecDeque};

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

/// Over so long the sampling period is learnt anew.
const WINDOW_US: u64 = 300_000_000;
/// What wall time may gain or lose on the other clock between two looks without having been set.
const DRIFT_US: u64 = 50_000;
/// Samples that are known again when wall time is set back.
const REMEMBERED: usize = 4096;

/// Adds up the samples of one device.
///
/// The device does not tell its sampling period: it is learnt as the least distance between two samples of one process, in
/// the last five to ten minutes in which there were any. A process that was idle has no samples, so a sample never stands
/// for more than that.
///
/// Its clock may be wall time, which may be set: then nothing is learnt across that, and the device is asked again for what
/// it has seen since, of which what has been counted is left out.
#[derive(Clone, Debug, Default)]
pub struct DeviceUse {
    /// The least distances in this window, and in the one before that had any.
    apart_us: [Option<u64>; 2],
    /// When this window began, of the clock that nobody sets.
    window_us: u64,
    last_us: BTreeMap<u32, u64>,
    newest_us: u64,
    /// What is not newer was counted before this began.
    counted_until_us: Option<u64>,
    /// By how much wall time was ahead of the other clock at the last look.
    ahead_us: Option<i64>,
    /// Whether wall time was set since the look before: samples of both times come together in this one.
    was_set: bool,
    /// What was counted last, and in which order.
    counted: BTreeSet<(u32, u64)>,
    order: VecDeque<(u32, u64)>,
}

impl DeviceUse {
    /// The newest time seen: samples from here on are wanted next.
    #[must_use]
    pub fn newest_us(&self) -> u64 {
        self.newest_us
    }

    /// Goes on from somebody else, who has counted what the device saw until `counted_until_us`, if nothing was counted yet. What
    /// lies behind `wall_us`, which it is now, is of a time before the clock was set back.
    pub fn go_on_from(&mut self, counted_until_us: u64, wall_us: u64) {
        if self.newest_us == 0 && counted_until_us > 0 {
            self.newest_us = counted_until_us.min(wall_us);
            self.counted_until_us = Some(self.newest_us);
        }
    }

    /// A look begins at this wall time, and at this time of a clock that nobody sets.
    pub fn begin(&mut self, wall_us: u64, monotonic_us: u64) {
        let ahead_us = wall_us.cast_signed().saturating_sub(monotonic_us.cast_signed());
        let set_by_us = ahead_us.saturating_sub(self.ahead_us.replace(ahead_us).unwrap_or(ahead_us));
        self.was_set = set_by_us.unsigned_abs() > DRIFT_US;
        if self.was_set {
            self.last_us.clear();
            self.newest_us = self.newest_us.saturating_add_signed(set_by_us.min(0));
            self.counted_until_us =
                self.counted_until_us.map(|until_us| until_us.saturating_add_signed(set_by_us.min(0)));
        }
        if monotonic_us.saturating_sub(self.window_us) >= WINDOW_US && self.apart_us[0].is_some() {
            self.apart_us = [None, self.apart_us[0]];
            self.window_us = monotonic_us;
        }
    }

    /// Takes what is new in `samples`: the busy time of each process in nanoseconds.
    pub fn add(&mut self, samples: &[Sample]) -> BTreeMap<u32, u64> {
        let mut new: Vec<Sample> = samples.iter().copied().filter(|sample| self.is_new(sample)).collect();
        new.sort_by_key(|sample| sample.at_us);
        new.iter().for_each(|sample| self.remember(sample));
        for sample in new.iter().filter(|_| !self.was_set) {
            if let Some(last_us) = self.last_us.insert(sample.process, sample.at_us) {
                let apart_us = sample.at_us.saturating_sub(last_us);
                if apart_us > 0 {
                    let known_us = self.apart_us[0].unwrap_or(PERIOD_MAX_US);
                    self.apart_us[0] = Some(apart_us.min(known_us));
                }
            }
            self.newest_us = self.newest_us.max(sample.at_us);
        }
        // Processes that have not been seen for long are gone.
        let horizon_us = self.newest_us.saturating_sub(60 * PERIOD_MAX_US);
        self.last_us.retain(|_, at_us| *at_us >= horizon_us);
        let mut busy = BTreeMap::new();
        let Some(period_us) = self.apart_us.iter().flatten().min().copied() else { return busy };
        for sample in new {
            let ns = period_us * 1000 / 100 * u64::from(sample.busy_percent.min(100));
            *busy.entry(sample.process).or_insert(0) += ns;
        }
        busy
    }

    fn is_new(&self, sample: &Sample) -> bool {
        self.counted_until_us.is_none_or(|until_us| sample.at_us > until_us)
            && self.last_us.get(&sample.process).is_none_or(|last_us| sample.at_us > *last_us)
            && !self.counted.contains(&(sample.process, sample.at_us))
    }

    fn remember(&mut self, sample: &Sample) {
        let key = (sample.process, sample.at_us);
        if self.counted.insert(key) {
            self.order.push_back(key);
        }
        if self.order.len() > REMEMBERED
            && let Some(oldest) = self.order.pop_front()
        {
            self.counted.remove(&oldest);
        }
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
    fn what_was_counted_before_a_restart_is_not_counted_again() {
        let ring = |until_ms: u64| -> Vec<Sample> {
            (1..=until_ms / 250).rev().take(40).map(|number| sample(7, number * 250, 100)).collect()
        };
        let (mut first, mut all_ms, mut until_us) = (DeviceUse::default(), 0, 0);
        let mut see = |device: &mut DeviceUse, second: u64| {
            device.begin(second * S / 1000, second * S / 1000);
            device.go_on_from(until_us, second * S / 1000);
            all_ms += device.add(&ring(second * 1000)).get(&7).copied().unwrap_or(0) / MS;
            until_us = device.newest_us();
        };
        (1..=20).for_each(|second| see(&mut first, second));
        let mut second_life = DeviceUse::default();
        (25..=40).for_each(|second| see(&mut second_life, second));
        assert_eq!(all_ms, 40_000, "of the five seconds between, too");
        let mut set_back = DeviceUse::default();
        set_back.go_on_from(100_000_000, 50_000_000);
        assert_eq!(set_back.newest_us(), 50_000_000, "nobody waits until the clock shows that again");
    }

    #[test]
    fn a_period_is_never_taken_to_be_longer_than_a_second() {
        let mut device = DeviceUse::default();
        device.add(&[sample(7, 0, 100)]);
        assert_eq!(device.add(&[sample(7, 5_000, 900)])[&7], S, "nor a device busier than it can be");
    }

    /// A device that is asked once a second, has a sample of process 7 each 250 ms, and keeps the last 40. What is seen of
    /// each second by whom `wall_ms` says what the clock on the wall shows at a millisecond.
    fn seen_each_second(seconds: u64, wall_ms: impl Fn(u64) -> u64) -> Vec<u64> {
        let mut device = DeviceUse::default();
        let mut see = |second: u64| {
            let now_ms = second * 1000;
            device.begin(wall_ms(now_ms) * 1000, now_ms * 1000);
            let since_us = device.newest_us();
            let taken = (1..=now_ms / 250).rev().take(40).map(|number| sample(7, wall_ms(number * 250), 100));
            let samples: Vec<Sample> = taken.filter(|sample| sample.at_us > since_us).collect();
            device.add(&samples).get(&7).copied().unwrap_or(0) / MS
        };
        (1..=seconds).map(&mut see).collect()
    }

    #[test]
    fn wall_time_that_is_set_makes_nobody_blind_and_nothing_count_twice() {
        const DAY_MS: u64 = 86_400_000;
        assert_eq!(seen_each_second(60, |ms| DAY_MS + ms), [1000; 60]);
        for (by_ms, at_ms) in [-7_200_030, -30_030, -1_130, -310, 310, 7_200_030]
            .map(|by_ms| [(by_ms, 20_010), (by_ms, 20_600)])
            .as_flattened()
        {
            let wall_ms = |ms: u64| (DAY_MS + ms).saturating_add_signed(if ms > *at_ms { *by_ms } else { 0 });
            let seen = seen_each_second(60, wall_ms);
            assert!(seen.iter().all(|ms| *ms == 1000), "set by {by_ms} ms at {at_ms}: {seen:?}");
        }
        // The device's own clock need not be that on the wall.
        let mut device = DeviceUse::default();
        for second in 1..=60 {
            let wall_us = (7_200 + second - if second > 20 { 3_600 } else { 0 }) * 1_000_000;
            device.begin(wall_us, second * 1_000_000);
            let samples: Vec<Sample> = (1..=second * 4).map(|number| sample(7, number * 250, 100)).collect();
            assert_eq!(device.add(&samples)[&7], S, "in second {second}");
        }
    }

    #[test]
    fn a_period_that_was_taken_to_be_too_short_is_learnt_anew() {
        let mut device = DeviceUse::default();
        let mut busy_ms = |second: u64, odd_ms: u64| {
            device.begin(second * 1_000_000, second * 1_000_000);
            let samples = [0, 250, 500, 750].map(|ms| sample(7, second * 1000 + ms + odd_ms * u64::from(ms == 0), 100));
            device.add(&samples)[&7] / MS
        };
        assert_eq!((busy_ms(1, 0), busy_ms(2, 240)), (1000, 40), "a sample that came late makes all count for less");
        let seen: Vec<u64> = (3..1000).map(|second| busy_ms(second, 0)).collect();
        assert_eq!((seen[0], seen[996]), (40, 1000));
        let healed = seen.iter().position(|ms| *ms == 1000).unwrap();
        assert!(healed < 610 && seen[healed..].iter().all(|ms| *ms == 1000), "after {healed} s");
        assert_eq!(busy_ms(90_000, 0), 1000, "a pause forgets nothing");
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
