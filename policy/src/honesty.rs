//! Whether a tenant reports all of the GPU time that the device has given it.
//!
//! The device's own figures are coarse and late: good for policing, useless for pacing. So a report that falls short
//! has a whole further period to come in before it counts as missing; a kernel that runs across the end of a period is
//! reported in the next one. What comes in says when the device was used, so it makes up for the right period; of a
//! kernel that runs for even longer, what was missing meanwhile has been booked as a debt, and is redeemed by its report
//! and not judged again.

use std::collections::BTreeMap;

/// How busy a process kept the device on average from the time after which samples were asked for, or from its sample before in the
/// same answer, until `at_us`.
///
/// NVML answers so (nvmlDeviceGetProcessUtilization): one entry for each process, the mean of its newer samples, not the last of
/// them (driver 580.159.04 on an H200, 2026-11-29, with samples 200 ms apart).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Sample {
    /// The process.
    pub process: u32,
    /// Until when, in microseconds of wall time.
    pub at_us: u64,
    /// 0 to 100.
    pub busy_percent: u32,
}

/// A device is asked of no more than the last so long, after a restart, say. It remembers 10 to 15 s, and would tell the mean of
/// what it remembers as that of all the time.
const LOOK_BACK_US: u64 = 8_000_000;
/// The longest that any device remembers.
const REMEMBERED_US: u64 = 15_000_000;
/// What was done is told so late at most.
const LATE_US: u64 = 2_000_000;
/// What wall time may gain or lose on the other clock between two looks without having been set.
const DRIFT_US: u64 = 50_000;

/// Adds up the samples of one device, which are dated by wall time.
///
/// When that is set forward, what was asked about is dated anew. When it is set back, means are of what is dated by both times, and
/// nothing counts until what is dated later than now has been forgotten.
#[derive(Clone, Debug, Default)]
pub struct DeviceUse {
    /// Until when all that was done has been counted, or is nobody's; 0 before the first look.
    counted_until_us: u64,
    /// Wall time of this look, and the time of a clock that nobody sets.
    wall_us: u64,
    now_us: u64,
    /// By how much wall time was ahead of the other clock at the last look.
    ahead_us: Option<i64>,
    /// Until when nothing counts, of the clock that nobody sets.
    blind_until_us: u64,
}

impl DeviceUse {
    /// A look begins at this wall time, and at this time of a clock that nobody sets. Whose what was before the first one is nobody
    /// knows, but for what lies behind `counted_until_us`, until when somebody else has counted; 0 for nobody.
    pub fn begin(&mut self, wall_us: u64, monotonic_us: u64, counted_until_us: u64) {
        (self.wall_us, self.now_us) = (wall_us, monotonic_us);
        let ahead_us = wall_us.cast_signed().saturating_sub(monotonic_us.cast_signed());
        let set_by_us = self.ahead_us.replace(ahead_us).map_or(0, |before_us| ahead_us.saturating_sub(before_us));
        if self.counted_until_us == 0 {
            // Of another boot, or of a time before the clock was set, it says nothing.
            let is_known = (wall_us.saturating_sub(monotonic_us)..=wall_us).contains(&counted_until_us);
            self.counted_until_us = if is_known { counted_until_us } else { wall_us };
        } else if set_by_us.unsigned_abs() > DRIFT_US {
            self.counted_until_us = self.counted_until_us.saturating_add_signed(set_by_us);
            if set_by_us < 0 {
                let until_us = monotonic_us + set_by_us.unsigned_abs().min(REMEMBERED_US) + LATE_US;
                self.blind_until_us = self.blind_until_us.max(until_us);
            }
        }
        if self.is_blind() {
            self.counted_until_us = wall_us;
        }
        // What it does not remember is lost.
        self.counted_until_us = self.counted_until_us.max(wall_us.saturating_sub(LOOK_BACK_US));
    }

    /// After which wall time samples are wanted, until which all that was done has been counted.
    #[must_use]
    pub fn since_us(&self) -> u64 {
        self.counted_until_us
    }

    /// Whether nothing counts in this look.
    #[must_use]
    pub fn is_blind(&self) -> bool {
        self.now_us < self.blind_until_us
    }

    /// Takes the answer to [`DeviceUse::since_us`], which came at this time of the clock that nobody sets: the busy time of each process
    /// in nanoseconds.
    pub fn add(&mut self, samples: &[Sample], answered_us: u64) -> BTreeMap<u32, u64> {
        let took_us = answered_us.saturating_sub(self.now_us);
        let (since_us, now_us) = (self.counted_until_us, self.wall_us.saturating_add(took_us + DRIFT_US));
        // Dated by a clock that was set meanwhile, or back while nobody looked.
        if self.is_blind() || samples.iter().any(|sample| sample.at_us > now_us) {
            return BTreeMap::new();
        }
        let mut new: Vec<Sample> = samples.iter().filter(|sample| sample.at_us > since_us).copied().collect();
        new.sort_by_key(|sample| (sample.process, sample.at_us));
        let mut busy = BTreeMap::new();
        for its in new.chunk_by(|one, next| one.process == next.process) {
            // With an entry for each sample there is none of idle time, and none stands for more than the others.
            let apart_us = its.windows(2).map(|pair| pair[1].at_us - pair[0].at_us).filter(|us| *us > 0).min();
            let mut from_us = since_us;
            for sample in its {
                let us = (sample.at_us - from_us).min(apart_us.unwrap_or(u64::MAX));
                *busy.entry(sample.process).or_insert(0) += us * 10 * u64::from(sample.busy_percent.min(100));
                from_us = sample.at_us;
            }
        }
        // Where nobody is told of nobody has done anything until shortly before. Means count in whole percent: the shorter what is
        // asked about next, the less is lost.
        let idle_until_us = self.wall_us.saturating_sub(LATE_US);
        let newest_us = new.iter().map(|sample| sample.at_us).max().unwrap_or(idle_until_us);
        self.counted_until_us = since_us.max(newest_us);
        busy
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

    /// Samples are so far apart, and the device keeps so many.
    const APART_MS: u64 = 200;
    const KEPT: u64 = 72;

    fn sample(process: u32, at_ms: u64, busy_percent: u32) -> Sample {
        Sample { process, at_us: at_ms * 1000, busy_percent }
    }

    /// What a device answers at `now_ms` that dates its samples by `dated_ms` and on which process 7 is busy at a sample if `is_busy`.
    fn answer(now_ms: u64, since_us: u64, dated_ms: impl Fn(u64) -> u64, is_busy: impl Fn(u64) -> bool) -> Vec<Sample> {
        let ends = (1..=now_ms / APART_MS).rev().take(KEPT as usize).map(|number| number * APART_MS);
        let newer: Vec<u64> = ends.filter(|end_ms| dated_ms(*end_ms) * 1000 > since_us).collect();
        let busy = newer.iter().filter(|end_ms| is_busy(**end_ms)).count();
        let mean = |newest_ms: &u64| sample(7, dated_ms(*newest_ms), (busy * 100 / newer.len()) as u32);
        // Who did nothing is left out.
        newer.first().filter(|_| busy > 0).map(mean).into_iter().collect()
    }

    /// What is seen of each second by who looks once in each, if wall time is `wall_ms` at a millisecond and dates the samples.
    fn seen_each_second(seconds: u64, wall_ms: impl Fn(u64) -> u64, is_busy: impl Fn(u64) -> bool) -> Vec<u64> {
        let mut device = DeviceUse::default();
        let mut see = |second: u64| {
            let now_ms = second * 1000;
            device.begin(wall_ms(now_ms) * 1000, now_ms * 1000, 0);
            let samples = answer(now_ms, device.since_us(), &wall_ms, &is_busy);
            device.add(&samples, now_ms * 1000).get(&7).copied().unwrap_or(0) / MS
        };
        (1..=seconds).map(&mut see).collect()
    }

    const DAY_MS: u64 = 86_400_000;

    #[test]
    fn a_mean_stands_for_all_the_time_that_was_asked_about() {
        let mut device = DeviceUse::default();
        let begin = |device: &mut DeviceUse, ms: u64| device.begin((DAY_MS + ms) * 1000, 1_000_000 + ms * 1000, 0);
        begin(&mut device, 0);
        assert!(device.add(&[sample(7, DAY_MS - 100, 50)], 1_000_000).is_empty(), "of before the first look");
        begin(&mut device, 1000);
        let busy = device.add(
            &[sample(7, DAY_MS + 900, 35), sample(8, DAY_MS + 900, 900), sample(9, DAY_MS, 99)],
            (DAY_MS + 1000) * 1000,
        );
        assert_eq!((busy[&7], busy[&8]), (315 * MS, 900 * MS), "nor is a device busier than it can be");
        assert_eq!(busy.len(), 2, "one that did something last at an earlier time");
        assert!(device.add(&[sample(7, DAY_MS + 900, 35)], 2_000_000).is_empty(), "nothing counts twice");
        // A device that has an entry for each sample in which somebody was busy.
        begin(&mut device, 5000);
        let busy = device.add(&[4900, 2700, 4700].map(|ms| sample(7, DAY_MS + ms, 100)), 6_000_000);
        assert_eq!(busy[&7], 600 * MS);
    }

    #[test]
    fn all_that_was_done_is_seen_however_seldom() {
        let seen = |is_busy: &dyn Fn(u64) -> bool| seen_each_second(300, |ms| DAY_MS + ms, is_busy);
        assert_eq!(seen(&|_| true)[1..], [1000; 299]);
        for period_ms in [400, 1000, 3000, 30_000, 100_000] {
            // A fifth of a second in each.
            let sum: u64 = seen(&|end_ms| end_ms > 1000 && end_ms % period_ms == 0).iter().sum();
            let did = (300_000 / period_ms - 1000 / period_ms) * APART_MS;
            assert!(sum.abs_diff(did) <= did / 8, "of {did} ms {sum}, each {period_ms} ms");
        }
    }

    #[test]
    fn what_was_counted_before_a_restart_is_not_counted_again() {
        let (mut first, mut all_ms, mut until_us) = (DeviceUse::default(), 0, 0);
        let mut see = |device: &mut DeviceUse, second: u64| {
            device.begin((DAY_MS + second * 1000) * 1000, second * 1_000_000, until_us);
            let samples = answer(second * 1000, device.since_us(), |ms| DAY_MS + ms, |_| true);
            all_ms += device.add(&samples, second * 1_000_000).get(&7).copied().unwrap_or(0) / MS;
            until_us = device.since_us();
        };
        (1..=20).for_each(|second| see(&mut first, second));
        let mut second_life = DeviceUse::default();
        (25..=40).for_each(|second| see(&mut second_life, second));
        assert_eq!(all_ms, 39_000, "of the five seconds between, too");
        // Of another boot, of a time that has not come, of so long ago that the device has forgotten it.
        for (counted_us, since_us) in [(1, 50_000_000), (100_000_000, 50_000_000), (41_000_000, 42_000_000)] {
            let mut other = DeviceUse::default();
            other.begin(50_000_000, 10_000_000, counted_us);
            assert_eq!(other.since_us(), since_us, "{counted_us}");
        }
    }

    #[test]
    fn wall_time_that_is_set_forward_hides_nothing_and_back_nothing_for_longer_than_the_device_remembers() {
        for by_ms in [310, 7_200_030, 86_400_000 * 365] {
            let wall_ms = |ms: u64| DAY_MS + ms + if ms > 20_600 { by_ms } else { 0 };
            assert_eq!(seen_each_second(60, wall_ms, |_| true)[1..], [1000; 59], "by {by_ms} ms");
        }
        for (by_ms, at_ms) in
            [7_200_030, 30_030, 1_130, 310].map(|by_ms| [(by_ms, 20_010), (by_ms, 20_600)]).as_flattened()
        {
            let wall_ms = |ms: u64| DAY_MS + ms - if ms > *at_ms { *by_ms } else { 0 };
            let seen = seen_each_second(60, wall_ms, |_| true);
            let blind = 20 + 1 + 2 + 1 + (*by_ms).min(15_000) as usize / 1000;
            assert!(seen[1..20].iter().chain(&seen[blind..]).all(|ms| *ms == 1000), "by {by_ms} at {at_ms}: {seen:?}");
            // Who has stopped when it is set has done nothing since.
            let seen = seen_each_second(60, wall_ms, |end_ms| end_ms <= 20_000);
            assert_eq!(seen.iter().sum::<u64>(), 19_000, "by {by_ms} at {at_ms}: {seen:?}");
        }
    }

    #[test]
    fn an_answer_that_takes_long_counts_and_a_second_step_back_ends_nothing() {
        let mut device = DeviceUse::default();
        let mut see = |second: u64| {
            device.begin((DAY_MS + second * 1000) * 1000, second * 1_000_000, 0);
            // The device answers after 0.4 s.
            let samples = answer(second * 1000 + 400, device.since_us(), |ms| DAY_MS + ms, |_| true);
            device.add(&samples, second * 1_000_000 + 400_000).get(&7).copied().unwrap_or(0)
        };
        assert_eq!((1..=60).map(&mut see).sum::<u64>(), 59 * S + 400 * MS);
        let back_ms = |ms: u64| {
            if ms > 24_010 {
                20_060
            } else if ms > 20_010 {
                20_000
            } else {
                0
            }
        };
        let seen = seen_each_second(60, |ms| DAY_MS + ms - back_ms(ms), |end_ms| end_ms <= 20_000);
        assert_eq!(seen.iter().sum::<u64>(), 19_000, "{seen:?}");
    }

    #[test]
    fn a_device_that_says_nothing_for_long_tells_of_what_it_remembers() {
        let mut device = DeviceUse::default();
        let mut see = |second: u64| {
            device.begin((DAY_MS + second * 1000) * 1000, second * 1_000_000, 0);
            let samples = answer(second * 1000, device.since_us(), |ms| DAY_MS + ms, |_| true);
            device.add(&samples, second * 1_000_000).get(&7).copied().unwrap_or(0)
        };
        assert_eq!([1, 2, 6, 36].map(&mut see), [0, S, 4 * S, 8 * S]);
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
