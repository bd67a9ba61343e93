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
    /// Until when, in microseconds of whatever clock the device uses.
    pub at_us: u64,
    /// 0 to 100.
    pub busy_percent: u32,
}

/// A device is asked of no more than the last so long, after a restart, say. It remembers 10 to 14 s, and would tell the mean of
/// what it remembers as that of all the time.
const LOOK_BACK_US: u64 = 8_000_000;
/// A sample is seen so late at most; NVML's are up to a second apart.
const LATE_US: u64 = 1_000_000;
/// What wall time may gain or lose on the other clock between two looks without having been set.
const DRIFT_US: u64 = 50_000;

/// Adds up the samples of one device.
///
/// Its clock may be wall time, which may be set: what was seen last is dated anew then, and what is dated later than now is from
/// before that.
#[derive(Clone, Debug, Default)]
pub struct DeviceUse {
    /// Of the device's clock; 0 before any sample.
    newest_us: u64,
    /// When that was first told, of a clock that nobody sets.
    newest_told_us: u64,
    /// When the device answered last, of that clock.
    answered_us: u64,
    /// By how much wall time was ahead of the other clock at the last look.
    ahead_us: Option<i64>,
    /// Wall time and the other one's at this look.
    wall_us: u64,
    now_us: u64,
    /// Whether the device's clock has shown wall time.
    shows_wall_time: bool,
}

impl DeviceUse {
    /// The newest time seen, 0 before any.
    #[must_use]
    pub fn newest_us(&self) -> u64 {
        self.newest_us
    }

    /// After which time samples are wanted next, 0 for all.
    #[must_use]
    pub fn since_us(&self) -> u64 {
        if self.newest_us == 0 {
            return 0;
        }
        // Nobody did anything until shortly before the last answer, or that would have said so. Means count in whole percent: the
        // shorter what is asked about, the less is lost.
        let idle_us = self.answered_us.saturating_sub(self.newest_told_us).saturating_sub(LATE_US);
        let long_ago_us = self.now_us.saturating_sub(self.newest_told_us).saturating_sub(LOOK_BACK_US);
        self.newest_us + idle_us.max(long_ago_us)
    }

    /// Goes on from somebody else, who has counted what the device saw until `counted_until_us`, if nothing was counted yet. What
    /// lies behind now is of a time before the clock was set back. To be called once a look has begun.
    pub fn go_on_from(&mut self, counted_until_us: u64) {
        if self.newest_us == 0 && counted_until_us > 0 {
            self.newest_us = counted_until_us.min(self.wall_us);
            self.newest_told_us = self.now_us.saturating_sub(self.wall_us - self.newest_us);
        }
    }

    /// A look begins at this wall time, and at this time of a clock that nobody sets.
    pub fn begin(&mut self, wall_us: u64, monotonic_us: u64) {
        let ahead_us = wall_us.cast_signed().saturating_sub(monotonic_us.cast_signed());
        let set_by_us = ahead_us.saturating_sub(self.ahead_us.replace(ahead_us).unwrap_or(ahead_us));
        (self.wall_us, self.now_us) = (wall_us, monotonic_us);
        if set_by_us.unsigned_abs() > DRIFT_US && self.shows_wall_time {
            self.newest_us = self.newest_us.saturating_add_signed(set_by_us);
        }
    }

    /// Takes what is new in `samples`, the answer to [`DeviceUse::since_us`]: the busy time of each process in nanoseconds. Of the
    /// first answer ever it is not known since when it holds, and nothing counts.
    pub fn add(&mut self, samples: &[Sample]) -> BTreeMap<u32, u64> {
        let since_us = self.since_us();
        self.answered_us = self.now_us;
        // No sample stands for more time than has passed since the newest one before.
        let passed_us = self.now_us.saturating_sub(self.newest_told_us).saturating_add(LATE_US);
        let is_future = |at_us: u64| self.shows_wall_time && at_us > self.wall_us.saturating_add(DRIFT_US);
        let is_new = |sample: &&Sample| sample.at_us > since_us && !is_future(sample.at_us);
        let mut new: Vec<Sample> = samples.iter().filter(is_new).copied().collect();
        new.sort_by_key(|sample| (sample.process, sample.at_us));
        let (mut busy, mut last) = (BTreeMap::new(), None);
        for sample in new.iter().filter(|_| since_us > 0) {
            let of_it = last.replace((sample.process, sample.at_us)).filter(|(process, _)| *process == sample.process);
            let from_us = of_it.map_or(since_us, |(_, at_us)| at_us);
            let ns = sample.at_us.saturating_sub(from_us).min(passed_us).saturating_mul(1000);
            *busy.entry(sample.process).or_insert(0) += ns / 100 * u64::from(sample.busy_percent.min(100));
        }
        if let Some(newest_us) = new.iter().map(|sample| sample.at_us).max() {
            (self.newest_us, self.newest_told_us) = (newest_us, self.now_us);
            self.shows_wall_time |= newest_us.abs_diff(self.wall_us) < LOOK_BACK_US;
        }
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
            device.begin(wall_ms(now_ms) * 1000, now_ms * 1000);
            let samples = answer(now_ms, device.since_us(), &wall_ms, &is_busy);
            device.add(&samples).get(&7).copied().unwrap_or(0) / MS
        };
        (1..=seconds).map(&mut see).collect()
    }

    const DAY_MS: u64 = 86_400_000;

    #[test]
    fn a_mean_stands_for_all_the_time_that_was_asked_about() {
        let mut device = DeviceUse::default();
        device.begin(DAY_MS * 1000, 1_000_000);
        assert!(device.add(&[sample(7, DAY_MS - 100, 50)]).is_empty(), "nobody knows of how long");
        device.begin((DAY_MS + 1000) * 1000, 2_000_000);
        assert_eq!(device.since_us(), (DAY_MS - 100) * 1000);
        let busy = device.add(&[sample(7, DAY_MS + 900, 35), sample(8, DAY_MS + 900, 900)]);
        assert_eq!((busy[&7], busy[&8]), (350 * MS, S), "nor is a device busier than it can be");
        assert!(device.add(&[sample(7, DAY_MS + 900, 35)]).is_empty(), "nothing counts twice");
        // A device that has an entry for each sample.
        device.begin((DAY_MS + 2000) * 1000, 3_000_000);
        let busy = device.add(&[sample(7, DAY_MS + 1900, 20), sample(7, DAY_MS + 1100, 100)]);
        assert_eq!(busy[&7], 360 * MS);
    }

    #[test]
    fn all_that_was_done_is_seen_however_seldom() {
        let seen = |is_busy: &dyn Fn(u64) -> bool| seen_each_second(300, |ms| DAY_MS + ms, is_busy);
        assert_eq!(seen(&|_| true)[1..], [1000; 299]);
        for period_ms in [400, 1000, 3000, 30_000, 100_000] {
            // A fifth of a second in each.
            let sum: u64 = seen(&|end_ms| end_ms == 200 || end_ms % period_ms == 0).iter().sum();
            let did = (300_000 / period_ms - 1000 / period_ms) * APART_MS;
            assert!(sum.abs_diff(did) <= did / 8, "of {did} ms {sum}, each {period_ms} ms");
        }
    }

    #[test]
    fn what_was_counted_before_a_restart_is_not_counted_again() {
        let (mut first, mut all_ms, mut until_us) = (DeviceUse::default(), 0, 0);
        let mut see = |device: &mut DeviceUse, second: u64| {
            device.begin((DAY_MS + second * 1000) * 1000, second * 1_000_000);
            device.go_on_from(until_us);
            let samples = answer(second * 1000, device.since_us(), |ms| DAY_MS + ms, |_| true);
            all_ms += device.add(&samples).get(&7).copied().unwrap_or(0) / MS;
            until_us = device.newest_us();
        };
        (1..=20).for_each(|second| see(&mut first, second));
        let mut second_life = DeviceUse::default();
        (25..=40).for_each(|second| see(&mut second_life, second));
        assert_eq!(all_ms, 39_000, "of the five seconds between, too");
        let mut set_back = DeviceUse::default();
        set_back.begin(50_000_000, 1_000_000);
        set_back.go_on_from(100_000_000);
        assert_eq!(set_back.newest_us(), 50_000_000, "nobody waits until the clock shows that again");
    }

    #[test]
    fn wall_time_that_is_set_makes_nobody_blind_and_nothing_count_twice() {
        for (by_ms, at_ms) in [-7_200_030, -30_030, -1_130, -310, 310, 7_200_030]
            .map(|by_ms| [(by_ms, 20_010), (by_ms, 20_600)])
            .as_flattened()
        {
            let wall_ms = |ms: u64| (DAY_MS + ms).saturating_add_signed(if ms > *at_ms { *by_ms } else { 0 });
            let seen = seen_each_second(60, wall_ms, |_| true);
            assert!(seen[1..].iter().all(|ms| *ms == 1000), "set by {by_ms} ms at {at_ms}: {seen:?}");
        }
        // The device's own clock need not be that on the wall.
        let mut device = DeviceUse::default();
        for second in 1..=60 {
            let wall_us = (7_200 + second - if second > 20 { 3_600 } else { 0 }) * 1_000_000;
            device.begin(wall_us, second * 1_000_000);
            let samples = answer(second * 1000, device.since_us(), |ms| ms, |_| true);
            assert_eq!(device.add(&samples).get(&7), (second > 1).then_some(&S), "in second {second}");
        }
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
