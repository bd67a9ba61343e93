//! The most that a tenant may have.

/// A hard ceiling as a generic cell rate algorithm (GCRA, ITU-T I.371) over GPU time: work that begins at `s` and takes
/// `u` moves the theoretical arrival time to `max(TAT, s) + u / c`, and the next slice may not begin before it. So all
/// work but the last slice and what was launched with it sums to at most `c W` in any window `W`.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Ceiling {
    arrival_ns: u64,
    /// Launched in the last turn, as far as was announced, and not yet measured.
    pending_ns: u64,
    /// When that should be over.
    pending_until_ns: u64,
}

impl Ceiling {
    /// When the next slice may begin; what is launched and not yet measured counts.
    pub(super) fn opens_ns(&self, limit_permille: u16) -> u64 {
        self.arrival_ns.saturating_add(cost_ns(limit_permille, self.pending_ns))
    }

    /// A turn ends with so much unmeasured, which should be over at `until_ns`.
    pub(super) fn expect(&mut self, pending_ns: u64, until_ns: u64) {
        (self.pending_ns, self.pending_until_ns) = (pending_ns, until_ns);
    }

    /// The tenant stands at its gate or is idle: what has not been measured by now was a wrong estimate.
    pub(super) fn drained(&mut self, now_ns: u64) {
        if now_ns >= self.pending_until_ns {
            self.pending_ns = 0;
        }
    }

    /// Books `ns` of work that began at `began_ns`, with a limit in permille of the device. The quotient is rounded up,
    /// so that many small bursts do not slip under it.
    pub(super) fn charge(&mut self, limit_permille: u16, began_ns: u64, ns: u64) {
        self.arrival_ns = self.arrival_ns.max(began_ns).saturating_add(cost_ns(limit_permille, ns));
        self.pending_ns = self.pending_ns.saturating_sub(ns);
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
        assert_eq!(ceiling.opens_ns(300), 100 + 20_000);
        ceiling.charge(300, 200, 3_000);
        assert_eq!(ceiling.opens_ns(300), 100 + 30_000);
        ceiling.correct(300, 3_000);
        assert_eq!(ceiling.opens_ns(300), 100 + 20_000);
        ceiling.charge(300, 1_000_000, 3);
        assert_eq!(ceiling.opens_ns(300), 1_000_010, "idle time is not saved up");
    }

    #[test]
    fn what_is_launched_counts_until_it_is_measured_or_over() {
        let mut ceiling = Ceiling::default();
        ceiling.expect(6_000, 50_000);
        assert_eq!(ceiling.opens_ns(500), 12_000);
        ceiling.charge(500, 0, 2_000);
        assert_eq!(ceiling.opens_ns(500), 12_000);
        ceiling.drained(49_999);
        assert_eq!(ceiling.opens_ns(500), 12_000);
        ceiling.drained(50_000);
        assert_eq!(ceiling.opens_ns(500), 4_000);
    }
}
