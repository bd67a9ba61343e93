//! Tenants that are above their ceilings.

use std::collections::BTreeSet;

use super::super::{Class, TenantId};
use super::{Place, Queue};

impl Queue {
    /// When its ceiling lets a tenant's next turn begin, what it has launched included; none without a limit. That is
    /// early by a slice: see [`Ceiling`].
    pub(in crate::slice) fn opens_ns(&self, place: &Place) -> Option<u64> {
        let opens = |limit| place.ceiling.opens_ns(limit, place.unmeasured.ns(), self.slice_ns);
        place.share.limit_permille.map(opens)
    }

    /// The same of the latency tenants that have one and are not among `gangs`.
    pub(in crate::slice) fn latency_opens_ns(&self, gangs: &BTreeSet<TenantId>) -> impl Iterator<Item = u64> {
        let single = self.latency_tenants.iter().filter(|tenant| !gangs.contains(tenant));
        single.filter_map(|tenant| self.opens_ns(self.get(*tenant)?))
    }

    /// A tenant that wants is above its ceiling now: its turn would have to wait.
    pub(in crate::slice) fn block(&mut self, tenant: TenantId, now_ns: u64) {
        let Some(place) = self.places.get(&tenant) else { return };
        let Some(until_ns) = self.opens_ns(place).filter(|_| place.wants_since_ns.is_some()) else { return };
        if until_ns <= now_ns {
            return;
        }
        self.set_blocked(tenant, Some(until_ns));
        self.ready.place(tenant, None);
    }

    /// Notes until when a tenant is above its ceiling, if it is. Whether it was. It does not count among those who are at work meanwhile,
    /// since what it leaves is nobody's loss; nor does it where what it has launched is on the device still.
    pub(super) fn set_blocked(&mut self, tenant: TenantId, until_ns: Option<u64>) -> bool {
        let Some(place) = self.places.get_mut(&tenant) else { return false };
        if place.share.class == Class::Latency && place.blocked_until_ns.is_some() != until_ns.is_some() {
            place.lead.settle(place.standing(self.own_times.at(place, self.now_ns)));
        }
        let old_ns = std::mem::replace(&mut place.blocked_until_ns, until_ns);
        if let Some(old_ns) = old_ns {
            self.blocked.remove(&(old_ns, tenant));
        }
        if let Some(until_ns) = until_ns {
            self.blocked.insert((until_ns, tenant));
        }
        if old_ns.is_some() != until_ns.is_some() {
            let priority = place.share.priority;
            self.own_times.note_blocked(&place.share, until_ns.is_some());
            self.own_times.note_weight(priority, &self.clocks[priority as usize], self.now_ns);
        }
        old_ns.is_some()
    }

    /// Time that its limit kept from a tenant is not owed to it, beyond two slices: the others may use it. With one, a
    /// tenant whose limit is close to its share would have less than either. Whether there was such time.
    pub(super) fn limit_credit(&mut self, tenant: TenantId) -> bool {
        let credit_ns = 2 * self.slice_ns;
        let Some(place) = self.places.get_mut(&tenant) else { return false };
        let clock = &mut self.clocks[place.share.priority as usize];
        let is_above = place.account.lag_ns(clock) > i64::try_from(credit_ns).unwrap_or(i64::MAX);
        if is_above {
            place.account.limit_credit(clock, credit_ns);
        }
        is_above
    }
}
