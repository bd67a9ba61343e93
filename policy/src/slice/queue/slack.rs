//! What a tenant asks for, and how far one of the latency class may run ahead of its share.

use super::super::{Class, TenantId};
use super::{Place, Queue};

impl Queue {
    /// What a tenant asks for in GPU time: a batch tenant the slice, or its usual burst if that is longer; a latency
    /// tenant what is left of its slack, in parts.
    pub(in crate::slice) fn request_ns(&self, place: &Place) -> u64 {
        let least_ns = self.parameters.least_slice_ns;
        let lag_ns = self.lag_ns(place);
        let slack_ns = self.slack_ns(place);
        if slack_ns > 0 {
            let left_ns = i64::try_from(slack_ns).unwrap_or(i64::MAX).saturating_add(lag_ns);
            return u64::try_from(left_ns).unwrap_or(0).clamp(least_ns, self.parameters.slack_usual_ns);
        }
        let debt_ns = if lag_ns < 0 { lag_ns.unsigned_abs() } else { 0 };
        self.full_slice_ns(place).saturating_sub(debt_ns).max(least_ns)
    }

    /// The slice of a tenant without debt: a whole number of what it launches at once.
    pub(in crate::slice) fn full_slice_ns(&self, place: &Place) -> u64 {
        place.habits.slice_ns(self.slice_ns, self.parameters.slice_max_ns)
    }

    /// How far a tenant may run ahead of its share now.
    pub(in crate::slice) fn slack_ns(&self, place: &Place) -> u64 {
        if place.share.class != Class::Latency || place.slack_spent {
            return 0;
        }
        let (usual_ns, most_ns) = (self.usual_slack_ns(place), self.most_slack_ns(place));
        let overdraft_ns = || place.overdraft.at_ns(self.part_permille(place), self.now_ns);
        let is_far = most_ns > usual_ns
            && overdraft_ns() < place.habits.slack_ns(&self.parameters)
            && self.active_latency_tenants() <= 1;
        let slack_ns = if is_far { most_ns } else { usual_ns };
        // So much may have been forgotten: beside who is always at work next to nothing is, and all of its slack is left.
        let spare_ns = most_ns.max(self.parameters.slack_usual_ns);
        slack_ns.min((slack_ns + spare_ns).saturating_sub(self.forgotten_ns(place)))
    }

    /// What a latency tenant has had beyond its part of those at work lately, and owes to none of them: that is forgotten when one of them
    /// rests, who may be back in a moment.
    fn forgotten_ns(&self, place: &Place) -> u64 {
        let had_ns = self.lead_ns(place);
        if had_ns == 0 { 0 } else { had_ns.saturating_add_signed(self.lag_ns(place).min(0)) }
    }

    fn usual_slack_ns(&self, place: &Place) -> u64 {
        place.habits.slack_ns(&self.parameters).min(self.parameters.slack_usual_ns)
    }

    /// The most that the slack of a latency tenant can be. Beyond the usual it is that much of GPU time in a row, of which its share pays
    /// its part meanwhile.
    pub(in crate::slice) fn most_slack_ns(&self, place: &Place) -> u64 {
        let others_permille = 1000 - u64::from(self.part_permille(place));
        let far_ns = place.habits.slack_ns(&self.parameters).saturating_mul(others_permille) / 1000;
        far_ns.max(self.usual_slack_ns(place))
    }

    /// What it has, in permille of the device, while all of its priority want it.
    pub(super) fn part_permille(&self, place: &Place) -> u16 {
        let all = self.weights[place.share.priority as usize].max(1);
        (u64::from(place.share.weight_permille) * 1000 / all).clamp(1, 1000) as u16
    }

    fn active_latency_tenants(&self) -> usize {
        let is_active = |tenant: &&TenantId| self.places.get(tenant).is_some_and(|place| place.account.is_active());
        self.latency_tenants.iter().filter(is_active).count()
    }
}
