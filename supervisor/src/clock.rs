//! The two clocks: monotonic for everything that is compared, wall time for people.

use jiff::civil::DateTime;
use rustix::time::{ClockId, clock_gettime};

/// Seconds as nanoseconds.
pub fn ns(seconds: u64) -> u64 {
    seconds.saturating_mul(1_000_000_000)
}

/// Nanoseconds of CLOCK_MONOTONIC.
pub fn now_ns() -> u64 {
    let time = clock_gettime(ClockId::Monotonic);
    time.tv_sec as u64 * 1_000_000_000 + time.tv_nsec as u64
}

/// Milliseconds since 1970.
pub fn unix_ms() -> u64 {
    let time = clock_gettime(ClockId::Realtime);
    time.tv_sec as u64 * 1000 + time.tv_nsec as u64 / 1_000_000
}

/// When CLOCK_MONOTONIC shows that, in milliseconds since 1970, as far as both clocks go on as they are.
pub fn unix_ms_at(at_ns: u64) -> u64 {
    let (now_ns, unix_ms) = (now_ns(), unix_ms());
    match at_ns.checked_sub(now_ns) {
        Some(left_ns) => unix_ms.saturating_add(left_ns / 1_000_000),
        None => unix_ms.saturating_sub((now_ns - at_ns) / 1_000_000),
    }
}

/// Microseconds since 1970.
pub fn unix_us() -> u64 {
    let time = clock_gettime(ClockId::Realtime);
    time.tv_sec as u64 * 1_000_000 + time.tv_nsec as u64 / 1000
}

/// What clocks on the wall show now, to the second, in the host's zone. One that is changed is seen when [`unix_s_of_local`] has been
/// called, or at the next start.
pub fn local_now() -> DateTime {
    local_at(unix_ms() / 1000)
}

/// The same at that Unix second.
pub fn local_at(unix_s: u64) -> DateTime {
    let now = nix::libc::time_t::try_from(unix_s).unwrap_or(nix::libc::time_t::MAX);
    // SAFETY: numbers and a pointer, for which zeroes are valid.
    let mut local: nix::libc::tm = unsafe { std::mem::zeroed() };
    // SAFETY: both are live; on failure the zeroes stay.
    unsafe { nix::libc::localtime_r(&now, &mut local) };
    let part = |number: nix::libc::c_int| i8::try_from(number).unwrap_or(0);
    let year = i16::try_from(local.tm_year + 1900).unwrap_or(0);
    // A leap second is the one before it twice.
    let (day, time) = ((part(local.tm_mon + 1), part(local.tm_mday)), (part(local.tm_hour), part(local.tm_min)));
    let made = DateTime::new(year, day.0, day.1, time.0, time.1, part(local.tm_sec.min(59)), 0);
    made.unwrap_or(DateTime::ZERO)
}

/// When clocks on the wall show that, Unix seconds, in the host's zone as it is now: the first time of two, and of one that is left
/// out when clocks are put forward as if they were not.
pub fn unix_s_of_local(local: DateTime) -> u64 {
    // SAFETY: numbers and a pointer, for which zeroes are valid.
    let mut parts: nix::libc::tm = unsafe { std::mem::zeroed() };
    (parts.tm_year, parts.tm_mon) = (i32::from(local.year()) - 1900, i32::from(local.month()) - 1);
    (parts.tm_mday, parts.tm_hour) = (i32::from(local.day()), i32::from(local.hour()));
    (parts.tm_min, parts.tm_sec) = (i32::from(local.minute()), i32::from(local.second()));
    // Whether it is summer is for the zone to say.
    parts.tm_isdst = -1;
    // SAFETY: it is live.
    u64::try_from(unsafe { nix::libc::mktime(&mut parts) }).unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_clocks_on_the_wall_show_is_a_moment() {
        let (before, now, after) = (unix_ms() / 1000, unix_s_of_local(local_now()), unix_ms() / 1000);
        // An hour of autumn comes twice.
        assert!((before..=after).contains(&now) || before - now == 3600, "{before} {now} {after}");
        assert!(local_at(before + 7200) > local_at(before), "two hours are more than clocks are put back by");
    }
}
