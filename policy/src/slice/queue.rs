//! The tenants of a GPU: who is active, who wants, who lingers.

use std::collections::{BTreeMap, BTreeSet};

use super::account::Account;
use super::virtual_clock::VirtualClock;
use super::{Parameters, TenantId};

/// A tenant and where it stands.
#[derive(Clone, Debug)]
struct Place {
    account: Account,
    wants: bool,
    /// Idle and still active, until then.
    lingers_until_ns: Option<u64>,
}

/// A tenant is *active*, and counts in virtual time, from its first want until it has been idle for `linger_ns`; it
/// *wants* while it stands at its gate.
#[derive(Clone, Debug, Default)]
pub(super) struct Queue {
    pub(super) clock: VirtualClock,
    places: BTreeMap<TenantId, Place>,
    /// Those that linger, by when that ends.
    lingering: BTreeSet<(u64, TenantId)>,
    active_count: usize,
    wanting_count: usize,
}

impl Queue {
    pub(super) fn get(&self, tenant: TenantId) -> Option<&Account> {
        self.places.get(&tenant).map(|place| &place.account)
    }

    /// The account and the clock it moves.
    pub(super) fn book(&mut self, tenant: TenantId) -> Option<(&mut Account, &mut VirtualClock)> {
        self.places.get_mut(&tenant).map(|place| (&mut place.account, &mut self.clock))
    }

    pub(super) fn join(&mut self, tenant: TenantId, account: Account) {
        self.places.insert(tenant, Place { account, wants: false, lingers_until_ns: None });
    }

    /// Forgets a tenant.
    pub(super) fn remove(&mut self, tenant: TenantId, now_ns: u64) {
        self.serve(tenant);
        self.retire(tenant, now_ns);
        self.places.remove(&tenant);
    }

    /// The tenant stands at its gate. Returns whether it is known.
    pub(super) fn want(&mut self, tenant: TenantId, now_ns: u64, parameters: &Parameters) -> bool {
        let Some(place) = self.places.get_mut(&tenant) else { return false };
        if !place.account.is_active() {
            place.account.wake(&mut self.clock, now_ns, parameters.debt_keep_ns);
            self.active_count += 1;
        }
        if let Some(until_ns) = place.lingers_until_ns.take() {
            self.lingering.remove(&(until_ns, tenant));
        }
        self.wanting_count += usize::from(!place.wants);
        place.wants = true;
        true
    }

    /// The tenant stands at its gate no longer.
    pub(super) fn serve(&mut self, tenant: TenantId) {
        if let Some(place) = self.places.get_mut(&tenant) {
            self.wanting_count -= usize::from(place.wants);
            place.wants = false;
        }
    }

    /// The tenant wants nothing any more; it lingers from now on, if it does not already.
    pub(super) fn rest(&mut self, tenant: TenantId, now_ns: u64, linger_ns: u64) {
        self.serve(tenant);
        let Some(place) = self.places.get_mut(&tenant) else { return };
        if place.account.is_active() && place.lingers_until_ns.is_none() {
            let until_ns = now_ns.saturating_add(linger_ns);
            place.lingers_until_ns = Some(until_ns);
            self.lingering.insert((until_ns, tenant));
        }
    }

    /// Those whose linger time is over are active no longer.
    pub(super) fn retire_lingering(&mut self, now_ns: u64) {
        while let Some(&(until_ns, tenant)) = self.lingering.first().filter(|(until_ns, _)| *until_ns <= now_ns) {
            self.retire(tenant, until_ns);
        }
    }

    /// When the next linger time is over.
    pub(super) fn linger_timer(&self) -> Option<u64> {
        self.lingering.first().map(|&(until_ns, _)| until_ns)
    }

    /// Those that stand at their gates, by id.
    pub(super) fn wanting(&self) -> impl Iterator<Item = (TenantId, &Account)> {
        self.places.iter().filter(|(_, place)| place.wants).map(|(&tenant, place)| (tenant, &place.account))
    }

    pub(super) fn wants(&self, tenant: TenantId) -> bool {
        self.places.get(&tenant).is_some_and(|place| place.wants)
    }

    pub(super) fn anybody_wants(&self) -> bool {
        self.wanting_count > 0
    }

    pub(super) fn active_count(&self) -> usize {
        self.active_count
    }

    fn retire(&mut self, tenant: TenantId, at_ns: u64) {
        let Some(place) = self.places.get_mut(&tenant) else { return };
        if let Some(until_ns) = place.lingers_until_ns.take() {
            self.lingering.remove(&(until_ns, tenant));
        }
        if place.account.is_active() {
            place.account.retire(&mut self.clock, at_ns);
            self.active_count -= 1;
        }
    }
}
