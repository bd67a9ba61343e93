//! Windows: spans of local time that come back each week.

use jiff::ToSpan;
use jiff::civil::{Date, DateTime, Time};
use serde::{Deserialize, Serialize};
use std::time::Duration;

const DAY_SECONDS: u64 = 24 * 60 * 60;
const WEEK_SECONDS: u64 = 7 * DAY_SECONDS;
/// In the order of [`Window::days`].
const DAYS: [&str; 7] = ["Mon", "Tue", "Wed", "Thu", "Fri", "Sat", "Sun"];
const FORM: &str = "write days and local times, for example \"Sun 02:00-04:00\", \"Mon-Fri 22:30-01:00\" or \
                    \"Sat,Sun 00:00-24:00\"";

/// A span of local time on some days of the week. One that ends before it begins ends on the next day.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct Window {
    text: String,
    /// The days on which it begins, from Monday.
    days: [bool; 7],
    /// When it begins, in seconds of the day.
    start_seconds: u64,
    /// How long it lasts.
    length_seconds: u64,
}

impl TryFrom<String> for Window {
    type Error = String;

    fn try_from(text: String) -> Result<Self, String> {
        let wrong = |cause: &str| format!("{text:?} is no window ({cause}); {FORM}");
        let (days, times) = text.trim().split_once(' ').ok_or_else(|| wrong("days or times are missing"))?;
        let (start, end) = times.trim().split_once('-').ok_or_else(|| wrong("a time is missing"))?;
        let (start, end) =
            (seconds(start).map_err(|cause| wrong(&cause))?, seconds(end).map_err(|cause| wrong(&cause))?);
        if start == end || start == DAY_SECONDS {
            return Err(wrong("it never begins, or never ends"));
        }
        let length_seconds = if end > start { end - start } else { end + DAY_SECONDS - start };
        let days = days_of(days).map_err(|cause| wrong(&cause))?;
        Ok(Self { days, start_seconds: start, length_seconds, text })
    }
}

impl From<Window> for String {
    fn from(window: Window) -> Self {
        window.text
    }
}

impl Window {
    /// When it begins and ends, if it begins on that day.
    fn on(&self, day: Date) -> Option<(DateTime, DateTime)> {
        let place = usize::try_from(day.weekday().to_monday_zero_offset()).ok()?;
        let after = |begin: DateTime, seconds: u64| begin.checked_add(i64::try_from(seconds).ok()?.seconds()).ok();
        let begins = after(day.to_datetime(Time::midnight()), self.start_seconds)?;
        self.days[place].then(|| Some((begins, after(begins, self.length_seconds)?)))?
    }
}

/// The first span in which some of these windows are open and that is not over at `base` of local time: when it began or begins, and
/// when it ends; without an end where that is a week away or more, and they may leave no gap. Those that touch are one.
pub(crate) fn span_after(windows: &[Window], base: DateTime) -> Option<(DateTime, Option<DateTime>)> {
    // A week of days, the one before it, whose windows may reach into it, and one more to see what they end in.
    let days = (-1i64..=8).filter_map(|day| base.date().checked_add(day.days()).ok());
    let mut spans: Vec<(DateTime, DateTime)> =
        days.flat_map(|day| windows.iter().filter_map(move |window| window.on(day))).collect();
    spans.sort_unstable();
    let mut spans = spans.into_iter();
    let (mut begins, mut ends) = spans.next()?;
    let horizon = base.checked_add(7i64.days()).ok()?;
    for (its_begin, its_end) in spans {
        if its_begin <= ends {
            ends = ends.max(its_end);
        } else if ends <= base {
            (begins, ends) = (its_begin, its_end);
        } else {
            break;
        }
    }
    (ends > base).then_some((begins, Some(ends).filter(|ends| *ends < horizon)))
}

/// How long some of these windows will be open without a break from `now` of local time on, a week at most; none while all are closed.
#[must_use]
pub fn open_for(windows: &[Window], now: DateTime) -> Option<Duration> {
    let (_, ends) = span_after(windows, now).filter(|(begins, _)| *begins <= now)?;
    let Some(ends) = ends else { return Some(Duration::from_secs(WEEK_SECONDS)) };
    Duration::try_from(now.duration_until(ends)).ok()
}

/// `02:00`, at most `24:00`.
fn seconds(text: &str) -> Result<u64, String> {
    let number = |text: &str| {
        let is_plain = text.len() == 2 && text.bytes().all(|byte| byte.is_ascii_digit());
        text.parse::<u64>().ok().filter(|_| is_plain)
    };
    let read = text.trim().split_once(':').and_then(|(hour, minute)| Some((number(hour)?, number(minute)?)));
    let seconds = read.filter(|(_, minute)| *minute < 60).map(|(hour, minute)| (hour * 60 + minute) * 60);
    seconds.filter(|seconds| *seconds <= DAY_SECONDS).ok_or_else(|| format!("{text:?} is no time"))
}

/// `Sun`, `Mon-Fri`, `Sat,Sun`.
fn days_of(text: &str) -> Result<[bool; 7], String> {
    let day = |name: &str| {
        let place = DAYS.iter().position(|known| known.eq_ignore_ascii_case(name.trim()));
        place.ok_or_else(|| format!("{name:?} is none of {}", DAYS.join(", ")))
    };
    let mut days = [false; 7];
    for part in text.split(',') {
        let (first, last) = part.split_once('-').unwrap_or((part, part));
        let (first, last) = (day(first)?, day(last)?);
        // From Saturday to Monday there are three.
        for place in 0..=(last + 7 - first) % 7 {
            days[(first + place) % 7] = true;
        }
    }
    Ok(days)
}

#[cfg(test)]
mod tests {
    use super::*;

    const HOUR: u64 = 60 * 60;

    fn windows(texts: &[&str]) -> Vec<Window> {
        texts.iter().map(|text| Window::try_from((*text).to_owned()).unwrap()).collect()
    }

    /// So many seconds after a Monday has begun.
    fn at_second(of_week: u64) -> DateTime {
        jiff::civil::date(2026, 11, 30).at(0, 0, 0, 0) + i64::try_from(of_week).unwrap().seconds()
    }

    /// Minutes for which they are open at that day and hour.
    fn left(texts: &[&str], day: u64, hour: u64) -> Option<u64> {
        open_for(&windows(texts), at_second(day * DAY_SECONDS + hour * HOUR)).map(|open| open.as_secs() / 60)
    }

    #[test]
    fn a_window_is_open_from_its_first_second_to_its_last() {
        let sunday = windows(&["Sun 02:00-04:00"]);
        let at = |seconds: u64| open_for(&sunday, at_second(6 * DAY_SECONDS + seconds)).map(|open| open.as_secs());
        assert_eq!(
            [at(2 * HOUR - 1), at(2 * HOUR), at(4 * HOUR - 1), at(4 * HOUR)],
            [None, Some(2 * HOUR), Some(1), None]
        );
        assert_eq!(left(&["Sun 02:00-04:00"], 5, 3), None, "on Saturday");
    }

    #[test]
    fn one_that_ends_before_it_begins_ends_on_the_next_day_also_after_sunday() {
        let night = ["Sun 22:00-01:00"];
        assert_eq!([left(&night, 6, 23), left(&night, 0, 0), left(&night, 0, 1)], [Some(120), Some(60), None]);
        assert_eq!(left(&["Sat-Mon 12:00-13:00"], 6, 12), Some(60), "days go round, too");
        assert_eq!(left(&["Sat-Mon 12:00-13:00"], 1, 12), None);
        assert_eq!(left(&["tue,thu 12:00-13:30"], 3, 13), Some(30));
    }

    #[test]
    fn windows_that_meet_are_one_and_a_week_is_the_longest() {
        assert_eq!(left(&["Sat 22:00-24:00", "Sun 00:00-02:00"], 5, 23), Some(180));
        assert_eq!(left(&["Mon 01:00-05:00", "Mon 02:00-03:00"], 0, 2), Some(180));
        assert_eq!(left(&["Mon-Sun 00:00-24:00"], 3, 7), Some(7 * 24 * 60));
        assert_eq!(left(&[], 3, 7), None);
    }

    #[test]
    fn what_is_no_window_is_told_with_the_part_that_is_wrong() {
        for (text, part) in [
            ("02:00-04:00", "missing"),
            ("Sun 02:00", "a time is missing"),
            ("So 02:00-04:00", "\"So\" is none of Mon"),
            ("Sun 2:00-04:00", "\"2:00\" is no time"),
            ("Sun 02:60-04:00", "\"02:60\""),
            ("Sun 02:00-24:01", "\"24:01\""),
            ("Sun 02:00-02:00", "never"),
            ("Sun 24:00-02:00", "never"),
            ("Sun +1:00-02:00", "\"+1:00\""),
        ] {
            let error = Window::try_from(text.to_owned()).unwrap_err();
            assert!(error.contains(part) && error.contains("for example"), "{error} lacks {part}");
        }
    }
}
