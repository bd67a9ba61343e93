//! By how much a ceiling was passed.

use crate::record::Execution;

/// The windows that are looked at.
pub const WINDOWS_NS: [u64; 6] = [5_000_000, 20_000_000, 50_000_000, 100_000_000, 500_000_000, 1_000_000_000];

/// The most GPU time received above `limit_permille` of a window's length, over every window of
/// [`WINDOWS_NS`] that begins at `from_ns` or later, at any nanosecond. Negative if the ceiling was never reached.
#[must_use]
pub fn worst_excess_ns(execution: &Execution, limit_permille: u16, from_ns: u64) -> i64 {
    let worst = |window_ns: u64| worst_in_windows(execution, window_ns, limit_permille, from_ns);
    WINDOWS_NS.into_iter().map(worst).max().unwrap_or(0)
}

/// What a window contains is greatest when it begins with a stretch of execution or ends with one.
fn worst_in_windows(execution: &Execution, window_ns: u64, limit_permille: u16, from_ns: u64) -> i64 {
    let begins = execution.stretches().iter().flat_map(|ran| [ran.start_ns, ran.end_ns.saturating_sub(window_ns)]);
    let received = |begin_ns| execution.received_before(begin_ns + window_ns) - execution.received_before(begin_ns);
    let most = begins.filter(|&begin_ns| begin_ns >= from_ns).map(received);
    let allowed_ns = window_ns / 1000 * u64::from(limit_permille);
    most.max().unwrap_or(0).cast_signed() - allowed_ns.cast_signed()
}

#[cfg(test)]
mod tests {
    use super::*;

    const MS: u64 = 1_000_000;

    #[test]
    fn the_fullest_window_counts() {
        let mut execution = Execution::default();
        (0..100).for_each(|round| execution.add(round * 20 * MS, round * 20 * MS + 6 * MS));
        // 30 % in rounds of 20 ms: a window of 50 ms can begin with a round and hold three.
        assert_eq!(worst_in_windows(&execution, 50 * MS, 300, 0), 3 * MS as i64);
        assert_eq!(worst_in_windows(&execution, 20 * MS, 300, 0), 0);
        assert_eq!(worst_in_windows(&execution, 5 * MS, 300, 0), 3_500_000);
        assert_eq!(worst_excess_ns(&execution, 300, 0), 3_500_000);
    }

    #[test]
    fn one_that_never_ran_is_below() {
        assert!(worst_excess_ns(&Execution::default(), 500, 0) < 0);
    }
}
