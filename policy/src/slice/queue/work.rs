//! When tenants begin to work and end, and what those of the latency class have had of that time. At work is who is active and not above its
//! ceiling.

use super::super::lead::Standing;
use super::super::own_time::{Moment, OwnTime};
use super::super::virtual_clock::VirtualClock;
use super::super::{Class, Priority, Share, TenantId};
use super::{Place, Queue};

/// The times of the priorities.
#[derive(Clone, Debug, Default)]
pub(super) struct OwnTimes {
    times: [OwnTime; Priority::COUNT],
    /// Weights of those who are above their ceilings.
    blocked: [u64; Priority::COUNT],
}

impl OwnTimes {
    /// The moment of a tenant's priority at `now_ns`.
    pub(super) fn at(&self, place: &Place, now_ns: u64) -> Moment {
        self.times[place.share.priority as usize].at(now_ns)
    }

    /// Those of a priority have had `ns` since `began_ns`.
    pub(super) fn note_had(&mut self, priority: Priority, ns: i64, (began_ns, now_ns): (u64, u64)) {
        self.times[priority as usize + 1..].iter_mut().for_each(|time| time.take(ns, (began_ns, now_ns)));
    }

    /// A tenant is above its ceiling, or no longer: with the share that it had when that was noted.
    pub(super) fn note_blocked(&mut self, share: &Share, is_blocked: bool) {
        let (blocked, weight) = (&mut self.blocked[share.priority as usize], u64::from(share.weight_permille.max(1)));
        *blocked = if is_blocked { *blocked + weight } else { blocked.saturating_sub(weight) };
    }

    /// From `now_ns` on those are at work who count in this clock, but for those who are above their ceilings.
    pub(super) fn note_weight(&mut self, priority: Priority, clock: &VirtualClock, now_ns: u64) {
        let weight_permille = clock.weight_sum().saturating_sub(self.blocked[priority as usize]);
        self.times[priority as usize].set_weight(weight_permille, now_ns);
    }
}

impl Queue {
    /// A tenant becomes active.
    pub(super) fn begin_work(&mut self, tenant: TenantId, now_ns: u64) {
        let Some(place) = self.places.get_mut(&tenant) else { return };
        if place.share.class == Class::Latency {
            place.lead.settle(place.standing(self.own_times.at(place, now_ns)));
        }
        let clock = &mut self.clocks[place.share.priority as usize];
        if place.account.wake(clock, now_ns, self.parameters.debt_keep_ns) {
            place.lead.forget();
        }
        place.habits.begin_request(place.account.used_ns());
        place.slack_spent = false;
        self.active_count += 1;
        self.own_times.note_weight(place.share.priority, clock, now_ns);
    }

    /// It is active no longer.
    pub(super) fn end_work(&mut self, tenant: TenantId, at_ns: u64) {
        let Some(place) = self.places.get_mut(&tenant) else { return };
        if place.share.class == Class::Latency {
            place.lead.settle(place.standing(self.own_times.at(place, at_ns)));
        }
        let clock = &mut self.clocks[place.share.priority as usize];
        place.account.retire(clock, at_ns);
        self.active_count -= 1;
        self.own_times.note_weight(place.share.priority, clock, at_ns);
    }

    /// How much a latency tenant has had beyond its part of those at work, and has not been entitled to since.
    pub(super) fn lead_ns(&self, place: &Place) -> u64 {
        if place.lead.is_empty() { 0 } else { place.lead.at_ns(place.standing(self.own_times.at(place, self.now_ns))) }
    }
}

impl Place {
    /// Whether nobody else of its priority is active, now that it is told of, to whom what it has had could have gone.
    fn is_alone(&self, clock: &VirtualClock) -> bool {
        let mine = if self.account.is_active() { u64::from(self.share.weight_permille.max(1)) } else { 0 };
        clock.weight_sum() <= mine
    }

    /// Of a latency tenant: it has used `ns`, or has not after all. No more than `most_ns` is ever to be paid off.
    pub(super) fn book_lead(&mut self, clock: &VirtualClock, now: Moment, ns: i64, most_ns: u64) {
        let (its, is_alone) = (self.standing(now), self.is_alone(clock));
        match u64::try_from(ns) {
            Ok(0) => {}
            Ok(ns) => self.lead.charge(its, ns, is_alone, most_ns),
            Err(_) => self.lead.correct(ns.unsigned_abs()),
        }
    }

    pub(super) fn standing(&self, now: Moment) -> Standing {
        let is_at_work = self.account.is_active() && self.blocked_until_ns.is_none();
        Standing { now, weight_permille: self.share.weight_permille.max(1), is_at_work }
    }
}
