//! How much of what tenants report at the same time is believed.
//!
//! Two tenants may report one moment, and each report is true when the hardware took turns between them. But the moment
//! was there once: who runs for a second that nobody has reported, and reports a second of its neighbour's beside it,
//! has reported as much as the device saw. All charges of one device add up to the time that anybody has reported at all,
//! each moment once. Where reports that the device confirms add up to more, somebody has worked in hiding by so much.
//!
//! Whose part that is shows by who has reported, was seen, and was not charged: with what is found here each tenant's
//! charge and debt come to what the device saw of it. What one that was not seen claims beside a neighbour lowers the
//! neighbour's charge, and takes nothing of its report.

/// One tenant on one device in one period.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Reported {
    /// How long the device saw it at work.
    pub seen_ns: u64,
    /// How long it reports to have been at work in this period, whoever else was.
    pub reported_ns: u64,
    /// What was charged to it in this period. Less than nothing where a neighbour's report has corrected an earlier one.
    pub charged_ns: i64,
}

impl Reported {
    fn confirmed_ns(&self) -> u64 {
        self.reported_ns.min(self.seen_ns)
    }

    fn unpaid_ns(&self) -> u64 {
        u64::try_from(i128::from(self.confirmed_ns()) - i128::from(self.charged_ns)).unwrap_or(0)
    }
}

/// What each of those that share a device is believed to have reported in one period, in nanoseconds and in their order.
#[must_use]
pub fn believed(all: &[Reported]) -> Vec<u64> {
    let sum = |of: fn(&Reported) -> i128| all.iter().map(of).sum::<i128>();
    let reported_once = sum(|its| i128::from(its.charged_ns)).max(0);
    let hidden = sum(|its| i128::from(its.confirmed_ns())) - reported_once;
    if hidden <= 0 {
        // Reported beyond what was seen is only what the device has not shown as anybody's.
        let idle_ns = u64::try_from(-hidden).unwrap_or(u64::MAX);
        return all.iter().map(|its| its.reported_ns.min(its.seen_ns.saturating_add(idle_ns))).collect();
    }
    let unpaid = sum(|its| i128::from(its.unpaid_ns())).max(1);
    let part = |its: &Reported| hidden.saturating_mul(i128::from(its.unpaid_ns())) / unpaid;
    let part = |its: &Reported| u64::try_from(part(its)).unwrap_or(u64::MAX);
    all.iter().map(|its| its.confirmed_ns().saturating_sub(part(its))).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn reported(seen_ns: u64, reported_ns: u64, charged_ns: i64) -> Reported {
        Reported { seen_ns, reported_ns, charged_ns }
    }

    #[test]
    fn who_shares_the_device_in_truth_is_believed() {
        let both = [reported(500, 1000, 500), reported(500, 1000, 500)];
        assert_eq!(believed(&both), [500, 500], "what was seen, and nothing in store for what is hidden later");
        let one_after_the_other = [reported(300, 300, 300), reported(600, 600, 600)];
        assert_eq!(believed(&one_after_the_other), [300, 600]);
        let long_kernel = [reported(0, 800, 800), reported(200, 200, 200)];
        assert_eq!(believed(&long_kernel), [800, 200], "the device's samples may be late");
        assert!(believed(&[]).is_empty());
    }

    #[test]
    fn reports_of_one_moment_cover_no_second_one() {
        let both = [reported(500, 500, 250), reported(500, 500, 250)];
        assert_eq!(believed(&both), [250, 250], "charge and debt are what the device saw");
        let many_contexts = [reported(500, 500, 450), reported(500, 500, 50)];
        assert_eq!(believed(&many_contexts), [450, 50], "whoever has lowered the other's charge");
        let beside_honest = [both[0], both[1], reported(400, 400, 400), reported(100, 200, 100)];
        assert_eq!(believed(&beside_honest), [250, 250, 400, 100]);
    }

    #[test]
    fn claims_of_who_was_not_seen_take_nothing_of_a_report() {
        assert_eq!(believed(&[reported(1000, 1000, 100), reported(0, 1000, 900)])[0], 1000);
        assert_eq!(believed(&[reported(1000, 500, 100), reported(0, 1000, 900)])[0], 500, "what is hidden stays so");
    }

    #[test]
    fn no_figure_is_too_odd() {
        let odd = [reported(u64::MAX, u64::MAX, i64::MIN), reported(u64::MAX, u64::MAX, i64::MAX), reported(0, 0, -1)];
        let sum: u128 = believed(&odd).into_iter().map(u128::from).sum();
        assert!(sum <= 2 * u128::from(u64::MAX));
    }
}
