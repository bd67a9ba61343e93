//! How much of the GPUs will be asked for in the hours of coming weeks, from how much was.
//!
//! Demand is a value for each hour, of whole weeks, the oldest first. A week's sum goes on along a line through those of the last
//! four weeks, whose slope is the median of the slopes between any two of them (Theil 1950, Sen 1968); and each hour of the week has the
//! part of that sum that it had in the middle one of those weeks. Of six slopes an odd week spoils three, so of the two in the middle the one
//! that is nearer to none is taken: one such week bends neither line nor hours.
//!
//! Where jobs come at other hours each week the middle ones do not add up to a week. What they lack is what comes when it likes, and goes
//! to the hours that had more on the average than in the middle, by how much more: none is expected to have more than both say.
//!
//! How far such a forecast would have been off is found out on the weeks that are known, beside the simplest one: that a week is as the
//! last one was.

/// Hours of a week.
pub const WEEK_HOURS: usize = 168;
/// So many of the last weeks say what is to come; of fewer there is no trend.
pub const WEEKS: usize = 4;
/// Fewer say nothing.
pub const LEAST_WEEKS: usize = 2;
/// Slopes are differences over 1 to 3 weeks, and a median may be half-way between two values: all of that is whole in this unit.
const SCALE: i128 = 24;
/// All of a week, in the unit of its hours' parts.
const WHOLE: i128 = 1_000_000_000_000;

/// By what a forecast was made.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Method {
    /// The trend, and the part that each hour has of a week.
    Trend,
    /// As the last week was.
    LastWeek,
}

/// How far forecasts would have been off: sums of the differences over sums of what came, in thousandths.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Tried {
    /// Of the trend's.
    pub trend_permille: u64,
    /// If weeks were as the one was from which they were foretold.
    pub last_week_permille: u64,
    /// Weeks that could be compared.
    pub weeks: usize,
}

/// What is expected of one week.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Forecast {
    /// Each of its hours, in the unit of what is known.
    pub hours: Vec<u64>,
    /// By what that is.
    pub method: Method,
    /// What was found out on the weeks that are known; none where there are too few.
    pub tried: Option<Tried>,
}

/// What is expected of the week that comes `ahead` weeks after the last known one, 1 for the next: by the trend, unless there is none yet,
/// or that was further off than the last week on the weeks that are known; for so far ahead, or where that cannot be said for less. None
/// where fewer than [`LEAST_WEEKS`] are known, or for no week.
#[must_use]
pub fn forecast(hours: &[u64], ahead: usize) -> Option<Forecast> {
    let last = weeks(hours).last().filter(|_| weeks(hours).len() >= LEAST_WEEKS && ahead > 0)?;
    let is_nearer = |its: Tried| its.trend_permille <= its.last_week_permille;
    let is_better = (1..=ahead).rev().find_map(|ahead| tried(hours, ahead)).is_none_or(is_nearer);
    let by_trend = by_trend(hours, ahead).filter(|_| is_better).map(|hours| (hours, Method::Trend));
    let (expected, method) = by_trend.unwrap_or_else(|| (last.to_vec(), Method::LastWeek));
    Some(Forecast { hours: expected, method, tried: tried(hours, ahead) })
}

/// The whole weeks up to the last hour.
fn weeks(hours: &[u64]) -> std::slice::ChunksExact<'_, u64> {
    hours[hours.len() % WEEK_HOURS..].chunks_exact(WEEK_HOURS)
}

fn by_trend(hours: &[u64], ahead: usize) -> Option<Vec<u64>> {
    let all: Vec<&[u64]> = weeks(hours).collect();
    let known = &all[all.len().checked_sub(WEEKS)?..];
    let sums: Vec<i128> = known.iter().map(|week| week.iter().map(|hour| i128::from(*hour)).sum()).collect();
    let expected = continued(&sums, ahead);
    let parts = parts(known, &sums);
    // A whole week but for rounding; more where the middle ones are more, which are then made less.
    let whole: i128 = parts.iter().sum();
    let of_hour = |part: &i128| {
        let value = (part * expected + SCALE * whole / 2).checked_div(SCALE * whole);
        value.map_or(0, |value| u64::try_from(value).unwrap_or(u64::MAX))
    };
    Some(parts.iter().map(of_hour).collect())
}

/// The part of a week that each hour has: what it had in the middle one of these, and of what all of those lack its part. Weeks in which
/// nothing was asked for say nothing.
fn parts(known: &[&[u64]], sums: &[i128]) -> Vec<i128> {
    let all: i128 = sums.iter().sum();
    let part_of_all = |asked: i128| (asked * WHOLE).checked_div(all).unwrap_or(0);
    let weeks = sums.iter().filter(|sum| **sum > 0).count() as i128;
    let largest = known.iter().flat_map(|week| week.iter()).max().map_or(0, |hour| i128::from(*hour));
    // In a week with next to nothing one hour can have had all of it: none gets more than the largest hour was of a usual week.
    let most = part_of_all(largest * weeks);
    let middle: Vec<i128> = (0..WEEK_HOURS).map(|hour| part(known, sums, hour).min(most)).collect();
    let of_all = |hour: usize| part_of_all(known.iter().map(|week| i128::from(week[hour])).sum());
    let above: Vec<i128> = middle.iter().enumerate().map(|(hour, part)| (of_all(hour) - part).max(0)).collect();
    let (lacks, all_above) = ((WHOLE - middle.iter().sum::<i128>()).max(0), above.iter().sum::<i128>());
    let share = |above: &i128| (lacks * above).checked_div(all_above).unwrap_or(0);
    middle.iter().zip(&above).map(|(part, above)| part + share(above)).collect()
}

/// The part that an hour had of its week in the middle one of these.
fn part(known: &[&[u64]], sums: &[i128], hour: usize) -> i128 {
    let of_week = |(week, sum): (&&[u64], &i128)| (i128::from(week[hour]) * WHOLE).checked_div(*sum);
    median(known.iter().zip(sums).filter_map(of_week).collect())
}

/// The sum that comes `ahead` after the last, times [`SCALE`]; never below zero.
fn continued(sums: &[i128], ahead: usize) -> i128 {
    let pairs = (0..sums.len()).flat_map(|from| (from + 1..sums.len()).map(move |to| (from, to)));
    let slope = median_slope(pairs.map(|(from, to)| (sums[to] - sums[from]) * SCALE / (to - from) as i128).collect());
    let begin = median(sums.iter().enumerate().map(|(week, sum)| sum * SCALE - slope * week as i128).collect());
    (begin + slope * (sums.len().saturating_sub(1) + ahead) as i128).max(0)
}

/// The two in the middle, one and the same of an odd number; none of none.
fn middle(mut values: Vec<i128>) -> Option<(i128, i128)> {
    values.sort_unstable();
    let upper = values.len() / 2;
    let lower = if values.len().is_multiple_of(2) { upper.checked_sub(1)? } else { upper };
    Some((values[lower], values[upper]))
}

/// Of an even number half-way between the two in the middle; 0 of none.
fn median(values: Vec<i128>) -> i128 {
    middle(values).map_or(0, |(lower, upper)| (lower + upper) / 2)
}

/// Of an even number the one in the middle that is nearer to 0, and that where they have different signs.
fn median_slope(values: Vec<i128>) -> i128 {
    match middle(values) {
        Some((lower, upper)) if lower.signum() == upper.signum() => {
            if lower > 0 {
                lower
            } else {
                upper
            }
        }
        Some(_) | None => 0,
    }
}

/// What forecasts of each known week would have been, `ahead` weeks before it; none where there is no such week, or none in which
/// anything was asked for.
#[must_use]
pub fn tried(hours: &[u64], ahead: usize) -> Option<Tried> {
    let known: Vec<&[u64]> = weeks(hours).collect();
    let (mut trend, mut last_week, mut all, mut count) = (0u128, 0u128, 0u128, 0);
    for before in WEEKS..known.len().saturating_sub(ahead.saturating_sub(1)) {
        let came = known[before + ahead - 1];
        let Some(told) = by_trend(&known[..before].concat(), ahead) else { continue };
        trend += differences(&told, came);
        last_week += differences(known[before - 1], came);
        all += came.iter().map(|hour| u128::from(*hour)).sum::<u128>();
        count += 1;
    }
    let permille = |sum: u128| Some(u64::try_from((sum * 1000).checked_div(all)?).unwrap_or(u64::MAX));
    Some(Tried { trend_permille: permille(trend)?, last_week_permille: permille(last_week)?, weeks: count })
}

fn differences(one: &[u64], other: &[u64]) -> u128 {
    one.iter().zip(other).map(|(one, other)| u128::from(one.abs_diff(*other))).sum()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A week with so much by day and so little by night.
    fn week(day: u64, night: u64) -> Vec<u64> {
        (0..WEEK_HOURS).map(|hour| if (8..18).contains(&(hour % 24)) { day } else { night }).collect()
    }

    fn of_weeks(days: &[u64]) -> Vec<u64> {
        days.iter().flat_map(|day| week(*day, day / 10)).collect()
    }

    #[test]
    fn what_grows_by_as_much_each_week_goes_on_so_and_keeps_its_hours() {
        let hours = of_weeks(&[1000, 1200, 1400, 1600]);
        for (ahead, day) in [(1, 1800), (2, 2000), (4, 2400)] {
            let told = forecast(&hours, ahead).unwrap();
            assert_eq!((told.method, told.hours.len()), (Method::Trend, WEEK_HOURS));
            assert_eq!((told.hours[9], told.hours[3], told.hours[24 * 6 + 17]), (day, day / 10, day), "{ahead}");
        }
        let shrinks = of_weeks(&[4000, 3000, 2000, 1000]);
        assert!(forecast(&shrinks, 4).unwrap().hours.iter().all(|hour| *hour == 0), "there is no less than nothing");
    }

    #[test]
    fn one_odd_week_bends_nothing_wherever_it_stands() {
        for odd in [0, 100, 9000] {
            for place in 0..WEEKS {
                let mut days = [1000; WEEKS];
                days[place] = odd;
                for ahead in 1..=4 {
                    let told = forecast(&of_weeks(&days), ahead).unwrap();
                    assert_eq!((told.hours[9], told.hours[3]), (1000, 100), "{odd} in week {place}, {ahead} ahead");
                }
            }
        }
        assert_eq!(continued(&[1000, 1300, 1600, 1900], 1), 2200 * SCALE);
        assert_eq!(
            continued(&[1000, 2000, 1500, 1800], 1),
            2025 * SCALE,
            "between the two in the middle the flatter one"
        );
    }

    #[test]
    fn one_odd_hour_is_not_expected_again_and_weeks_end_with_the_last_hour() {
        let mut hours = of_weeks(&[1000; 4]);
        hours[WEEK_HOURS + 130] += 50_000;
        let told = forecast(&[vec![7; 50], hours].concat(), 1).unwrap();
        assert_eq!((told.hours[9], told.hours[130]), (1000, 1000));
    }

    /// Weeks in which one GPU was in use from an hour on for so long, 0 on Monday's first.
    fn jobs(weeks: &[(usize, usize)]) -> Vec<u64> {
        let week = |&(from, long): &(usize, usize)| {
            (0..WEEK_HOURS).map(move |hour| 1000 * u64::from((from..from + long).contains(&hour)))
        };
        weeks.iter().flat_map(week).collect()
    }

    #[test]
    fn what_comes_at_other_hours_each_week_is_spread_over_them() {
        let sum = |told: &Forecast| told.hours.iter().sum::<u64>();
        let disjoint = forecast(&jobs(&[(0, 10), (24, 10), (48, 10), (72, 10)]), 1).unwrap();
        assert_eq!((disjoint.method, sum(&disjoint)), (Method::Trend, 10_000), "a week's demand is not lost");
        assert_eq!([0, 33, 57, 72, 100].map(|hour| disjoint.hours[hour]), [250, 250, 250, 250, 0]);
        // Wednesday from 9 to 10 is in two of these.
        let overlapping = forecast(&jobs(&[(0, 10), (24, 10), (48, 10), (57, 10)]), 1).unwrap();
        assert_eq!(sum(&overlapping), 10_000);
        assert_eq!([57, 0, 24, 48, 66].map(|hour| overlapping.hours[hour]), [500, 250, 250, 250, 250]);
        // Each Monday morning, and another time that is never the same.
        let mut both = jobs(&[(24, 10), (48, 10), (72, 10), (96, 10)]);
        (0..WEEKS).for_each(|week| both[week * WEEK_HOURS + 8..][..4].fill(1000));
        let both = forecast(&both, 1).unwrap();
        assert_eq!([8, 11, 24, 105, 12].map(|hour| both.hours[hour]), [1000, 1000, 250, 250, 0]);
    }

    #[test]
    fn no_hour_gets_more_than_one_ever_had_but_for_the_trend() {
        // In two weeks there was one GPU hour, and six GPUs were busy in the others.
        for (first, second) in [(5, 90), (5, 5)] {
            let few = |hour| jobs(&[(hour, 1)]);
            let hours = [few(first), vec![6000; WEEK_HOURS], few(second), vec![6000; WEEK_HOURS]].concat();
            let told = forecast(&hours, 1).unwrap();
            assert!(told.hours.iter().all(|hour| *hour <= 6000), "{:?}", told.hours.iter().max());
        }
        let grows: Vec<u64> =
            (1..=4).flat_map(|week| jobs(&[(9, 2)]).into_iter().map(move |hour| hour * week)).collect();
        assert_eq!(forecast(&grows, 2).unwrap().hours[9], 6000, "what grows goes on");
    }

    #[test]
    fn too_few_weeks_say_nothing_and_nothing_goes_on_as_nothing() {
        assert_eq!(forecast(&of_weeks(&[1000]), 1), None);
        assert_eq!(forecast(&vec![1; 2 * WEEK_HOURS - 1], 1), None);
        assert_eq!(forecast(&of_weeks(&[1000, 1000]), 0), None);
        let three = forecast(&of_weeks(&[1000, 1100, 1200]), 3).unwrap();
        assert_eq!((three.hours[9], three.method, three.tried), (1200, Method::LastWeek, None), "that is no trend yet");
        let nothing = forecast(&[0; 5 * WEEK_HOURS], 1).unwrap();
        assert!(nothing.hours.iter().all(|hour| *hour == 0) && nothing.tried.is_none());
    }

    #[test]
    fn it_is_found_out_which_of_the_two_was_nearer() {
        let grows = of_weeks(&[1000, 1200, 1400, 1600, 1800, 2000]);
        let its = tried(&grows, 1).unwrap();
        assert_eq!((its.weeks, its.trend_permille), (2, 0));
        assert!(its.last_week_permille > 100, "{its:?}");
        // What has changed for good is seen late by a trend that one odd week does not bend.
        let jumps = of_weeks(&[1000, 1000, 1000, 1000, 4000, 4000, 4000]);
        let its = tried(&jumps, 1).unwrap();
        assert!(its.trend_permille > its.last_week_permille, "{its:?}");
        for ahead in [1, 2] {
            let told = forecast(&jumps, ahead).unwrap();
            assert_eq!((told.method, told.hours[9], told.hours[0]), (Method::LastWeek, 4000, 400), "{ahead}");
        }
        assert_eq!((tried(&grows, 2).unwrap().weeks, tried(&grows, 9)), (1, None));
    }
}
