//! When something is kept for a reservation.

use crate::clock;
use gpool_configuration::{Configuration, Phase, Preemption, Reservation};
use std::collections::BTreeSet;

/// So many begins and ends of one reservation are looked at.
const MOST_MOMENTS: usize = 64;
/// What it takes until those are told who have to go before a reservation begins, and until what they had is free, in seconds.
pub const NOTICE_S: u64 = 15;

/// Whether nobody else is given what is reserved there: in its time, and for so long before it as it says, or as those of lower
/// priorities have to go.
pub fn is_kept(reservation: &Reservation, configuration: &Configuration) -> bool {
    is_kept_at(reservation, configuration, clock::unix_ms() / 1000)
}

/// The same at a moment, Unix seconds.
pub fn is_kept_at(reservation: &Reservation, configuration: &Configuration, unix_s: u64) -> bool {
    opens_within_at(reservation, kept_before_s(reservation, configuration), unix_s)
}

/// How long before its time it is kept.
pub fn kept_before_s(reservation: &Reservation, configuration: &Configuration) -> u64 {
    let preemption = &configuration.preemption;
    let notice_s = if preemption.enabled { notice_s(preemption) } else { 0 };
    reservation.ahead_seconds.max(notice_s)
}

/// The moments of a span, Unix seconds, at which something begins to be kept for a reservation, or is kept no more.
pub fn moments_of(configuration: &Configuration, (from_s, until_s): (u64, u64)) -> BTreeSet<u64> {
    let mut all = BTreeSet::new();
    for reservation in configuration.reservation.values() {
        let (mut at_s, before_s) = (from_s, kept_before_s(reservation, configuration));
        for _ in 0..MOST_MOMENTS {
            let next_s = match reservation.phase(clock::local_at(at_s)) {
                Phase::Open(Some(ends)) => clock::unix_s_of_local(ends),
                Phase::Closed(Some(opens)) => {
                    let opens_s = clock::unix_s_of_local(opens);
                    all.insert(opens_s.saturating_sub(before_s));
                    opens_s
                }
                Phase::Open(None) | Phase::Closed(None) => break,
            };
            // In the hour that comes twice clocks on the wall go back.
            at_s = next_s.max(at_s.saturating_add(1));
            all.insert(at_s);
            if at_s >= until_s {
                break;
            }
        }
    }
    all.retain(|at_s| (from_s..until_s).contains(at_s));
    all
}

/// How long before it begins those are told who have to go for it.
pub fn notice_s(preemption: &Preemption) -> u64 {
    preemption.grace_seconds.saturating_add(NOTICE_S)
}

/// Whether it is its time, or will be within so many seconds.
pub fn opens_within(reservation: &Reservation, seconds: u64) -> bool {
    opens_within_at(reservation, seconds, clock::unix_ms() / 1000)
}

pub fn opens_within_at(reservation: &Reservation, seconds: u64, unix_s: u64) -> bool {
    match reservation.phase(clock::local_at(unix_s)) {
        Phase::Open(_) => true,
        Phase::Closed(None) => false,
        Phase::Closed(Some(opens)) => clock::unix_s_of_local(opens).saturating_sub(unix_s) <= seconds,
    }
}

/// When it begins next, CLOCK_MONOTONIC; now if it has.
pub fn opens_ns(reservation: &Reservation, now_ns: u64) -> u64 {
    let Phase::Closed(Some(opens)) = reservation.phase(clock::local_now()) else { return now_ns };
    let left_s = clock::unix_s_of_local(opens).saturating_sub(clock::unix_ms() / 1000);
    now_ns.saturating_add(left_s.saturating_mul(1_000_000_000))
}

/// For how long it lasts still, in nanoseconds, once it has begun.
pub fn left_ns(reservation: &Reservation) -> u64 {
    match reservation.phase(clock::local_now()) {
        Phase::Open(Some(ends)) => {
            clock::unix_s_of_local(ends).saturating_sub(clock::unix_ms() / 1000).saturating_mul(1_000_000_000)
        }
        Phase::Open(None) | Phase::Closed(_) => u64::MAX,
    }
}

/// In how long it is over, in nanoseconds, also if it has not begun.
pub fn over_in_ns(reservation: &Reservation) -> u64 {
    let now = clock::local_now();
    let ends = match reservation.phase(now) {
        Phase::Closed(Some(opens)) => match reservation.phase(opens) {
            Phase::Open(ends) => ends,
            Phase::Closed(_) => None,
        },
        Phase::Open(ends) => ends,
        Phase::Closed(None) => None,
    };
    let left_s = |ends| clock::unix_s_of_local(ends).saturating_sub(clock::unix_ms() / 1000);
    ends.map_or(u64::MAX, |ends| left_s(ends).saturating_mul(1_000_000_000))
}

#[cfg(test)]
mod tests {
    use super::*;
    use jiff::ToSpan;

    fn text_of(at: jiff::civil::DateTime) -> String {
        format!("{} {:02}:{:02}", at.date(), at.hour(), at.minute())
    }

    /// In a zone of central Europe, which it takes a process of its own to have.
    #[test]
    fn a_window_is_of_clocks_on_the_wall_also_where_these_are_changed() {
        const ZONE: &str = "CET-1CEST,M3.5.0,M10.5.0/3";
        const NAME: &str =
            "lease::reserved::calendar::tests::a_window_is_of_clocks_on_the_wall_also_where_these_are_changed";
        if std::env::var("TZ").as_deref() != Ok(ZONE) {
            let mut again = std::process::Command::new(std::env::current_exe().unwrap());
            let output = again.args(["--exact", NAME]).env("TZ", ZONE).output().unwrap();
            let said = String::from_utf8_lossy(&output.stdout).into_owned();
            assert!(output.status.success() && said.contains("1 passed"), "{said}");
            return;
        }
        let open = |day: jiff::civil::Date| {
            let text = "[reservation.r]\nusers = [7]\nwindows = [\"Sun 02:00-04:00\"]\n";
            let configuration = gpool_configuration::parse(std::path::Path::new("c.toml"), text).unwrap();
            let midnight_s = clock::unix_s_of_local(day.at(0, 0, 0, 0));
            let moments = moments_of(&configuration, (midnight_s, midnight_s + 12 * 3600));
            let is_kept = |at_s: u64| is_kept_at(&configuration.reservation["r"], &configuration, at_s);
            assert!(moments.iter().all(|at_s| is_kept(*at_s) != is_kept(*at_s - 1)), "{day}: {moments:?}");
            moments.into_iter().map(|at_s| (at_s - midnight_s) / 60).collect::<Vec<u64>>()
        };
        assert_eq!(open(jiff::civil::date(2026, 3, 22)), [120, 240], "as on any Sunday");
        assert_eq!(open(jiff::civil::date(2026, 3, 29)), [120, 180], "of an hour that is left out there is nothing");
        assert_eq!(open(jiff::civil::date(2026, 10, 25)), [120, 300], "one that comes twice is in it twice");
    }

    #[test]
    fn the_moments_of_a_span_are_those_at_which_something_begins_or_ends() {
        // Of local time, at noon of a day on which no clock is changed.
        let noon = jiff::civil::date(2026, 11, 30).at(12, 0, 0, 0);
        let table = |more: &str| {
            let text = format!("[reservation.r]\nusers = [7]\nahead_seconds = 600\n{more}\n");
            gpool_configuration::parse(std::path::Path::new("c.toml"), &text).unwrap()
        };
        let at = |hours: i64| clock::unix_s_of_local(noon.checked_add(hours.hours()).unwrap());
        let of = |more: &str, hours| -> Vec<u64> {
            moments_of(&table(more), (at(0), at(hours))).into_iter().map(|unix_s| unix_s - at(0)).collect()
        };
        let daily = "windows = [\"Mon-Sun 14:00-16:00\"]";
        assert_eq!(of(daily, 3), [2 * 3600 - 600, 2 * 3600]);
        assert_eq!(of(daily, 28), [6600, 7200, 14_400, 93_000, 93_600]);
        assert_eq!(of("until = \"2026-11-30 13:00\"", 28), [3600]);
        assert_eq!((of("", 28).len(), of("until = \"2026-11-30 11:00\"", 28).len()), (0, 0));
        let is_kept = |more: &str, hours: i64, less_s: u64| {
            let configuration = table(more);
            is_kept_at(&configuration.reservation["r"], &configuration, at(hours) - less_s)
        };
        assert_eq!([is_kept(daily, 2, 601), is_kept(daily, 2, 600), is_kept(daily, 4, 1)], [false, true, true]);
        assert!(!is_kept(daily, 4, 0));
        let soon = |from_s: i64, until_s: i64| {
            let at = |seconds: i64| {
                clock::local_now().checked_add(seconds.seconds()).unwrap().round(jiff::Unit::Minute).unwrap()
            };
            let keys = format!("from = \"{}\"\nuntil = \"{}\"", text_of(at(from_s)), text_of(at(until_s)));
            over_in_ns(&table(&keys).reservation["r"]) / 60_000_000_000
        };
        let (open, coming) = (soon(-600, 3600), soon(600, 3600));
        assert!((58..=61).contains(&open) && (58..=61).contains(&coming), "{open} {coming}");
        assert_eq!(over_in_ns(&table("").reservation["r"]), u64::MAX);
    }
}
