//! What a latency tenant has had beyond its share lately, as if all who have joined wanted theirs. Whether it may run far ahead goes by
//! that; what it owes and has been forgotten is in `lead.rs`.

/// A bucket that its share empties, whoever is beside it. Time without work is not saved up.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Overdraft {
    /// When its share has paid for all that it has had.
    paid_ns: u64,
}

impl Overdraft {
    /// Books `ns` that it has used since `began_ns`, of a tenant that has that part of the device. No more than `most_ns` is ever to be paid
    /// off, from `now_ns` on.
    pub(super) fn charge(&mut self, part_permille: u16, (began_ns, now_ns): (u64, u64), ns: u64, most_ns: u64) {
        let latest_ns = now_ns.saturating_add(time_ns(part_permille, most_ns));
        self.paid_ns = self.paid_ns.max(began_ns).saturating_add(time_ns(part_permille, ns)).min(latest_ns);
    }

    /// Takes back what turned out to have been somebody else's.
    pub(super) fn correct(&mut self, part_permille: u16, ns: u64) {
        self.paid_ns = self.paid_ns.saturating_sub(time_ns(part_permille, ns));
    }

    /// What it has had beyond its share and not paid off at `now_ns`.
    pub(super) fn at_ns(&self, part_permille: u16, now_ns: u64) -> u64 {
        let left_ns = u128::from(self.paid_ns.saturating_sub(now_ns)) * u128::from(part_permille) / 1000;
        u64::try_from(left_ns).unwrap_or(u64::MAX)
    }
}

/// How long a share takes to pay for `ns`.
fn time_ns(part_permille: u16, ns: u64) -> u64 {
    ns.saturating_mul(1000) / u64::from(part_permille.max(1))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn its_share_pays_off_what_it_has_had_and_nothing_else_does() {
        let mut its = Overdraft::default();
        its.charge(500, (900, 1000), 100, 1000);
        assert_eq!((its.at_ns(500, 1000), its.at_ns(500, 1050), its.at_ns(500, 1100)), (50, 25, 0));
        its.charge(500, (5000, 5100), 100, 1000);
        assert_eq!(its.at_ns(500, 5100), 50, "idle time is not saved up");
        its.correct(500, 40);
        assert_eq!(its.at_ns(500, 5100), 10);
        its.charge(500, (6000, 9000), 1500, 1000);
        assert_eq!(its.at_ns(500, 9000), 0, "half of the time is its own");
        (0..100).for_each(|step| its.charge(500, (10_000 + 100 * step, 10_100 + 100 * step), 100, 1000));
        assert_eq!(its.at_ns(500, 20_000), 1000, "who was alone for long owes no more than that");
        its.charge(500, (15_000, 20_000), 1, 1000);
        assert_eq!(its.at_ns(500, 20_000), 1000, "and what is told late takes nothing of it back");
    }
}
