//! The most that a tenant may have.

/// A hard ceiling as a generic cell rate algorithm (GCRA, ITU-T I.371) over GPU time: work that begins at `s` and takes
/// `u` moves the theoretical arrival time to `max(TAT, s) + u / c`, and the next slice may not begin before it, less a
/// slack `tau`.
///
/// Without slack the time that a tenant waits for its turn after `TAT` is lost for good; with it, it may stand in line
/// that much earlier, and nothing is lost while it waits for less than `tau`. In any window `W` the work before the last
/// turn sums to at most `c (W - u + tau)`, and the last turn takes `u`: together `c W + u + c (tau - u)`. A slack of a
/// usual slice, which is no more than a full turn takes, so costs nothing: the bound is `c W + u` as without any.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Ceiling {
    arrival_ns: u64,
}

impl Ceiling {
    /// When the next slice may begin, if `pending_ns` of launched work count as well and it may begin early by `slack_ns`.
    pub(super) fn opens_ns(&self, limit_permille: u16, pending_ns: u64, slack_ns: u64) -> u64 {
        self.arrival_ns.saturating_add(cost_ns(limit_permille, pending_ns)).saturating_sub(slack_ns)
    }

    /// Books `ns` of work that began at `began_ns`, with a limit in permille of the device. The quotient is rounded up,
    /// so that many small bursts do not slip under it.
    pub(super) fn charge(&mut self, limit_permille: u16, began_ns: u64, ns: u64) {
        self.arrival_ns = self.arrival_ns.max(began_ns).saturating_add(cost_ns(limit_permille, ns));
    }

    /// The limit becomes another: what is still to be waited for is as much work as before.
    pub(super) fn change(&mut self, now_ns: u64, old_permille: u16, new_permille: u16) {
        let Some(wait_ns) = self.arrival_ns.checked_sub(now_ns) else { return };
        let work = u128::from(wait_ns) * u128::from(old_permille);
        let wait_ns = u64::try_from(work.div_ceil(u128::from(new_permille.max(1)))).unwrap_or(u64::MAX);
        self.arrival_ns = now_ns.saturating_add(wait_ns);
    }

    /// Takes back what turned out to have been somebody else's.
    pub(super) fn correct(&mut self, limit_permille: u16, ns: u64) {
        let limit = u64::from(limit_permille.max(1));
        self.arrival_ns = self.arrival_ns.saturating_sub(ns.saturating_mul(1000) / limit);
    }
}

fn cost_ns(limit_permille: u16, ns: u64) -> u64 {
    ns.saturating_mul(1000).div_ceil(u64::from(limit_permille.max(1)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_slice_is_paid_for_before_the_next() {
        let mut ceiling = Ceiling::default();
        ceiling.charge(300, 100, 6_000);
        assert_eq!(ceiling.opens_ns(300, 0, 0), 100 + 20_000);
        ceiling.charge(300, 200, 3_000);
        assert_eq!(ceiling.opens_ns(300, 0, 0), 100 + 30_000);
        ceiling.correct(300, 3_000);
        assert_eq!(ceiling.opens_ns(300, 0, 0), 100 + 20_000);
        ceiling.charge(300, 1_000_000, 3);
        assert_eq!(ceiling.opens_ns(300, 0, 0), 1_000_010, "idle time is not saved up");
        assert_eq!(ceiling.opens_ns(300, 3, 5), 1_000_015);
    }

    #[test]
    fn a_new_limit_counts_for_what_was_before_it() {
        let mut ceiling = Ceiling::default();
        ceiling.charge(10, 0, 1_000);
        ceiling.change(40_000, 10, 500);
        assert_eq!(ceiling.opens_ns(500, 0, 0), 40_000 + 1_200, "of 100 us at 1 % 60 are left");
        ceiling.change(40_200, 500, 100);
        assert_eq!(ceiling.opens_ns(100, 0, 0), 40_200 + 5_000);
        ceiling.change(60_000, 100, 1);
        assert_eq!(ceiling.opens_ns(1, 0, 0), 45_200, "nothing is left to wait for");
    }
}
