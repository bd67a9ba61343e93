//! The system's virtual time.

/// Virtual time units per nanosecond of GPU time at a weight of 1 permille.
pub(super) const SCALE: i128 = 1 << 20;

/// `V = sum w ve / sum w` over active tenants, the point at which the lags `w (V - ve)` sum to zero (EEVDF, Stoica &
/// Abdel-Wahab 1995), kept as the two sums. When nobody is active it rests where it was.
#[derive(Clone, Debug, Default)]
pub(super) struct VirtualClock {
    weight_sum: i128,
    weighted_sum: i128,
    resting: i128,
}

impl VirtualClock {
    /// V, rounded down: the least `ve` of an active tenant is never above it.
    pub(super) fn now(&self) -> i128 {
        if self.weight_sum == 0 { self.resting } else { self.weighted_sum.div_euclid(self.weight_sum) }
    }

    /// A tenant becomes active.
    pub(super) fn enter(&mut self, weight: i128, ve: i128) {
        self.weight_sum += weight;
        self.weighted_sum += weight * ve;
    }

    /// A tenant is active no longer.
    pub(super) fn leave(&mut self, weight: i128, ve: i128) {
        self.resting = self.now();
        self.weight_sum -= weight;
        self.weighted_sum -= weight * ve;
    }

    /// The virtual eligible time of an active tenant has changed.
    pub(super) fn shift(&mut self, weight: i128, from: i128, to: i128) {
        self.weighted_sum += weight * (to - from);
    }

    /// `w (V - ve)` of an active tenant in GPU ns, rounded to the nearest, from the sums themselves.
    pub(super) fn lag_ns(&self, weight: i128, ve: i128) -> i64 {
        if self.weight_sum == 0 {
            return narrow(rounded(weight * (self.resting - ve), SCALE));
        }
        narrow(rounded(weight * (self.weighted_sum - self.weight_sum * ve), self.weight_sum * SCALE))
    }

    /// Whether V, not rounded, is at or after `at`.
    pub(super) fn has_reached(&self, at: i128) -> bool {
        if self.weight_sum == 0 { self.resting >= at } else { self.weighted_sum >= self.weight_sum * at }
    }

    /// Sum of the weights of active tenants.
    pub(super) fn weight_sum(&self) -> u64 {
        u64::try_from(self.weight_sum).unwrap_or(0)
    }

    /// The lag that a tenant which is not active would have if it became active now, in GPU ns. As its own weight
    /// would move V towards it, this is less than `w (V - ve)` by the factor `W / (W + w)`.
    pub(super) fn lag_on_entry_ns(&self, weight: i128, ve: i128) -> i64 {
        let apart = weight * (self.now() - ve);
        if self.weight_sum == 0 {
            return narrow(rounded(apart, SCALE));
        }
        narrow(rounded(apart * self.weight_sum, (self.weight_sum + weight) * SCALE))
    }

    /// The virtual eligible time at which a tenant that enters has `lag`, in units of weight times virtual time. Its own
    /// weight moves V when it enters; one that is not `active` does not.
    pub(super) fn entry_with_lag(&self, weight: i128, lag: i128, active: bool) -> i128 {
        match (active, self.weight_sum) {
            (false, _) => self.now() - lag.div_euclid(weight),
            (true, 0) => self.now(),
            (true, others) => self.now() - (lag * (others + weight)).div_euclid(others * weight),
        }
    }

    /// The virtual eligible time at which a tenant that becomes active now has a lag of `-debt_ns`.
    pub(super) fn entry_with_debt(&self, weight: i128, debt_ns: u64) -> i128 {
        let apart = i128::from(debt_ns) * SCALE;
        if self.weight_sum == 0 {
            return self.now() + apart / weight;
        }
        self.now() + apart * (self.weight_sum + weight) / (self.weight_sum * weight)
    }
}

fn rounded(numerator: i128, denominator: i128) -> i128 {
    (2 * numerator + denominator).div_euclid(2 * denominator)
}

fn narrow(ns: i128) -> i64 {
    i64::try_from(ns).unwrap_or(if ns < 0 { i64::MIN } else { i64::MAX })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_debt_on_entry_is_the_lag_after_entry() {
        let mut clock = VirtualClock::default();
        clock.enter(300, 7_000_000_000);
        clock.enter(600, 9_000_000_000);
        let ve = clock.entry_with_debt(100, 5_000_000);
        assert_eq!(clock.lag_on_entry_ns(100, ve), -5_000_000);
        clock.enter(100, ve);
        assert_eq!(clock.lag_ns(100, ve), -5_000_000);
        let lags = [(300, 7_000_000_000), (600, 9_000_000_000), (100, ve)].map(|(w, ve)| clock.lag_ns(w, ve));
        assert!(lags.iter().sum::<i64>().abs() <= 2, "{lags:?}");
    }

    #[test]
    fn it_rests_when_nobody_is_active() {
        let mut clock = VirtualClock::default();
        clock.enter(300, 12_345);
        clock.leave(300, 12_345);
        assert_eq!(clock.now(), 12_345);
    }
}
