//! What is booked of a tenant's work.

use super::super::virtual_clock::VirtualClock;
use super::super::{Class, TenantId};
use super::{Place, Queue};

impl Queue {
    /// Changes a tenant with what it has on its clock, then puts it where it belongs.
    pub(in crate::slice) fn book(&mut self, tenant: TenantId, change: impl FnOnce(&mut Place, &mut VirtualClock)) {
        self.book_since(tenant, None, change);
    }

    /// The same of what it has used since `began_ns`; else that is what it has used now.
    pub(in crate::slice) fn book_since(
        &mut self,
        tenant: TenantId,
        began_ns: Option<u64>,
        change: impl FnOnce(&mut Place, &mut VirtualClock),
    ) {
        let part_permille = self.places.get(&tenant).map_or(1000, |place| self.part_permille(place));
        let Some(place) = self.places.get_mut(&tenant) else { return };
        let before_ns = place.account.used_ns();
        change(place, &mut self.clocks[place.share.priority as usize]);
        // What others were kept from counts, also where it was no work; what was before all was forgiven does not.
        let used_ns = place.account.used_ns().saturating_sub(before_ns);
        let is_forgiven = began_ns.is_some_and(|began_ns| began_ns < place.account.forgiven_ns());
        let now_ns = self.now_ns;
        let began_ns = began_ns.unwrap_or(now_ns.saturating_sub(used_ns.unsigned_abs()));
        if place.share.class == Class::Latency && !is_forgiven {
            let most_ns = 2 * self.parameters.slack_max_ns;
            let clock = &self.clocks[place.share.priority as usize];
            place.book_lead(clock, self.own_times.at(place, now_ns), used_ns, most_ns);
            match u64::try_from(used_ns) {
                Ok(ns) => place.overdraft.charge(part_permille, (began_ns, now_ns), ns, most_ns),
                Err(_) => place.overdraft.correct(part_permille, used_ns.unsigned_abs()),
            }
        }
        self.own_times.note_had(place.share.priority, used_ns, (began_ns, now_ns));
        if place.account.is_active() && place.wants_since_ns.is_some() {
            self.place(tenant);
        }
    }
}
