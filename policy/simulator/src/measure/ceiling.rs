//! By how much a ceiling was passed.

use crate::record::Execution;

/// The windows that are looked at.
pub const WINDOWS_NS: [u64; 6] = [5_000_000, 20_000_000, 50_000_000, 100_000_000, 500_000_000, 1_000_000_000];

/// The most GPU time received above `limit_permille` of a window's length, over every window of
/// [`WINDOWS_NS`] that begins or ends within the run, at any nanosecond. Negative if the ceiling was never reached.
#[must_use]
pub fn worst_excess_ns(execution: &Execution, limit_permille: u16) -> i64 {
    let worst = |window_ns: u64| worst_in_windows(execution, window_ns, limit_permille);
    WINDOWS_NS.into_iter().map(worst).max().unwrap_or(0)
}

/// What a window contains is greatest when it begins with a stretch of execution or ends with one.
fn worst_in_windows(execution: &Execution, window_ns: u64, limit_permille: u16) -> i64 {
    let most = execution.stretches().iter().map(|ran| {
        let from_start = execution.received_before(ran.start_ns + window_ns) - execution.received_before(ran.start_ns);
        let begin_ns = ran.end_ns.saturating_sub(window_ns);
        let to_end = execution.received_before(ran.end_ns) - execution.received_before(begin_ns);
        from_start.max(to_end)
    });
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
        assert_eq!(worst_in_windows(&execution, 50 * MS, 300), 3 * MS as i64);
        assert_eq!(worst_in_windows(&execution, 20 * MS, 300), 0);
        assert_eq!(worst_in_windows(&execution, 5 * MS, 300), 3_500_000);
        assert_eq!(worst_excess_ns(&execution, 300), 3_500_000);
    }

    #[test]
    fn one_that_never_ran_is_below() {
        assert!(worst_excess_ns(&Execution::default(), 500) < 0);
    }
}
