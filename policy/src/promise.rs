//! What a share is worth beside the tenants that are there.

/// Millionths in a whole GPU; a point is 10,000 of them.
pub const WHOLE_PPM: u64 = 1_000_000;

/// The bound on the error of a backlogged tenant's share over any window of `window_ns`, in millionths of a GPU:
/// `(u_i + U) / T`, where `u_i` is the most that a turn of this tenant can use and `U` the most that a turn of any can
/// (the lag of EEVDF lies within `-u_i` and `U`; Stoica & Abdel-Wahab 1995, with charges after use). Rounded up, and a
/// whole GPU at most.
#[must_use]
pub fn share_error_ppm(turn_bound_ns: u64, longest_turn_ns: u64, window_ns: u64) -> u64 {
    let used_ns = u128::from(turn_bound_ns) + u128::from(longest_turn_ns);
    let ppm = (used_ns * u128::from(WHOLE_PPM)).div_ceil(u128::from(window_ns.max(1)));
    u64::try_from(ppm).unwrap_or(u64::MAX).min(WHOLE_PPM)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nine_millisecond_turns_are_within_two_points_a_second() {
        let error = |window_s: u64| share_error_ppm(9_000_000, 9_000_000, window_s * 1_000_000_000);
        assert_eq!((error(1), error(10), error(60)), (18_000, 1_800, 300));
        assert_eq!(share_error_ppm(u64::MAX, u64::MAX, 1), WHOLE_PPM);
        assert_eq!(share_error_ppm(1, 0, 0), WHOLE_PPM);
    }
}
