//! Whether a tenant is charged what it has reported and the device saw.
//!
//! What others report for the same time lowers a charge. Two that work together can report so that next to nothing is charged to the one
//! that works: the other, which does not, claims its time, and what that owes means nothing to it. One alone can report its work late, as
//! if it had been in a neighbour's time. All reports add up to what the device saw then, so that nothing of it shows there; by tenant it
//! does.
//!
//! What the device says of a tenant is coarse, and hardware that takes turns is charged right on average: only what has been missing for a
//! while, and is more than a part of all time, counts. What was not reported is another one's affair: see [`honesty`](crate::honesty).

/// What has been missing for so many periods counts.
const PERIODS: usize = 4;
/// This part of a period may be missing in each.
const TOLERATED: u64 = 10;

/// What one tenant has had of one device and was not charged. Nanoseconds.
#[derive(Clone, Copy, Debug, Default)]
pub struct Unpaid {
    /// What is missing, without what is tolerated, after each of the last periods. Less than nothing where it was charged more.
    missing_ns: [i64; PERIODS],
    /// What it was charged beyond what it had in each of them: while another one's long kernel runs unreported, say, of which the report
    /// takes that back.
    beyond_ns: [i64; PERIODS],
}

impl Unpaid {
    /// A period of `period_ns` is over, in which a tenant reported `reported_ns`, some of it of earlier ones, the device saw it at work for
    /// `seen_ns`, and it was charged `charged_ns`: less than nothing where others' reports have corrected earlier ones. What it has to pay
    /// on top, if anything.
    pub fn judge(&mut self, period_ns: u64, (seen_ns, reported_ns): (u64, u64), charged_ns: i64) -> Option<u64> {
        let narrow = |ns: u64| i64::try_from(ns).unwrap_or(i64::MAX);
        let tolerated_ns = narrow(period_ns / TOLERATED);
        let had_ns = narrow(seen_ns.min(reported_ns));
        self.missing_ns.rotate_left(1);
        self.beyond_ns.rotate_left(1);
        let before_ns = self.missing_ns[PERIODS - 2];
        self.beyond_ns[PERIODS - 1] = charged_ns.saturating_sub(had_ns).max(0);
        let least_ns = self.beyond_ns.iter().fold(0i64, |sum, ns| sum.saturating_sub(*ns));
        let missing_ns = before_ns.saturating_add(had_ns).saturating_sub(charged_ns).saturating_sub(tolerated_ns);
        self.missing_ns[PERIODS - 1] = missing_ns.max(least_ns);
        // What has come in meanwhile was late.
        let due_ns = self.missing_ns.into_iter().min().filter(|ns| *ns > tolerated_ns)?;
        self.missing_ns.iter_mut().for_each(|ns| *ns -= due_ns);
        u64::try_from(due_ns).ok()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const PERIOD: u64 = 5_000;

    /// What it has to pay after each of these periods, in which the device saw all that it reported.
    fn pays(periods: &[(u64, i64)]) -> Vec<u64> {
        let mut unpaid = Unpaid::default();
        let all = periods.iter().map(|&(had, charged)| unpaid.judge(PERIOD, (had, had), charged).unwrap_or(0));
        all.collect()
    }

    #[test]
    fn whose_time_another_one_claims_pays_for_it() {
        let all = pays(&[(4850, 150); 40]);
        assert_eq!(all[..3], [0; 3]);
        let (sum, had) = (all.iter().sum::<u64>() + 40 * 150, 40 * 4850);
        // But for a tenth of all time, and what may come in late.
        assert!(sum <= had && sum + 40 * PERIOD / 10 + 5 * 4850 >= had, "{sum} of {had}");
    }

    #[test]
    fn what_is_late_or_inexact_is_nobodys_fault() {
        assert_eq!(pays(&[(3000, 2550); 40]), [0; 40], "within the tolerance for ever");
        // Corrections come a period late.
        assert_eq!(pays(&[(5000, 0), (5000, 0), (0, 5000), (0, 5000)].repeat(10)), [0; 40]);
        // Another one's kernel of ten seconds, in turns with it, is reported when it ends; then that one rests.
        let beside = [(5000, 5000), (3750, 5000), (2500, 5000), (3750, 0), (5000, 5000), (5000, 5000), (5000, 5000)];
        assert_eq!(pays(&beside.repeat(10)), [0; 70]);
        // What it was overcharged once it does not have for ever.
        let later = [&[(0, 50_000)][..], &[(5000, 0); 12]].concat();
        assert!(pays(&later)[12] > 0);
        let mut unpaid = Unpaid::default();
        let nothing = [(5000, 0), (0, 5000)].repeat(10);
        assert!(nothing.into_iter().all(|both| unpaid.judge(PERIOD, both, 0).is_none()), "the one or the other alone");
    }
}
