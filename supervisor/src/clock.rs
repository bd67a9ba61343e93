//! The two clocks: monotonic for everything that is compared, wall time for people.

use rustix::time::{ClockId, clock_gettime};

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

/// Microseconds since 1970.
pub fn unix_us() -> u64 {
    let time = clock_gettime(ClockId::Realtime);
    time.tv_sec as u64 * 1_000_000 + time.tv_nsec as u64 / 1000
}

/// Seconds of local time since Monday, midnight. The zone is the one that the host had when it was asked first.
pub fn local_second_of_week() -> u64 {
    let now: nix::libc::time_t = clock_gettime(ClockId::Realtime).tv_sec;
    // SAFETY: numbers and a pointer, for which zeroes are valid.
    let mut local: nix::libc::tm = unsafe { std::mem::zeroed() };
    // SAFETY: both are live; on failure the zeroes stay.
    unsafe { nix::libc::localtime_r(&now, &mut local) };
    second_of_week(&local)
}

fn second_of_week(local: &nix::libc::tm) -> u64 {
    // Sunday is day 0 there.
    let day = (local.tm_wday + 6) % 7;
    let seconds = ((day * 24 + local.tm_hour) * 60 + local.tm_min) * 60 + local.tm_sec;
    u64::try_from(seconds).unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn weeks_begin_on_monday() {
        // SAFETY: as above.
        let mut local: nix::libc::tm = unsafe { std::mem::zeroed() };
        (local.tm_wday, local.tm_hour, local.tm_min, local.tm_sec) = (1, 0, 0, 5);
        assert_eq!(second_of_week(&local), 5);
        (local.tm_wday, local.tm_hour) = (0, 23);
        assert_eq!(second_of_week(&local), 6 * 86_400 + 23 * 3600 + 5);
        assert!(local_second_of_week() < 7 * 86_400);
    }
}
