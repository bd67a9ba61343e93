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
        let is_far = most_ns > usual_ns
            && place.overdraft.at_ns(self.now_ns) < place.habits.slack_ns(&self.parameters)
            && self.active_latency_tenants() <= 1;
        let slack_ns = if is_far { most_ns } else { usual_ns };
        // As much again may have been forgotten: beside who is always at work next to nothing is, and it has all of its slack.
        slack_ns.min((2 * slack_ns).saturating_sub(self.forgotten_ns(place)))
    }

    /// What a latency tenant has had beyond its part of those at work lately, and owes to none of them: that is forgotten when one of them
    /// rests, who may be back in a moment.
    fn forgotten_ns(&self, place: &Place) -> u64 {
        let had_ns = place.lead.at_ns(self.now_ns);
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

    /// The same while those want it who are at work now.
    pub(super) fn active_part_permille(&self, place: &Place) -> u16 {
        let weight = u64::from(place.share.weight_permille);
        let mine = if place.account.is_active() { 0 } else { weight };
        let all = self.clock_of(place).weight_sum() + mine;
        (weight * 1000 / all.max(1)).clamp(1, 1000) as u16
    }

    fn active_latency_tenants(&self) -> usize {
        let is_active = |tenant: &&TenantId| self.places.get(tenant).is_some_and(|place| place.account.is_active());
        self.latency_tenants.iter().filter(is_active).count()
    }
}
