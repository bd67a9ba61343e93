//! What the others are like beside whom a tenant works.

use super::super::TenantId;
use super::{Place, Queue};

/// Of how many parts of what was promised to all one is a good part.
const PARTS: u64 = 5;
/// So many times as often is oftener: requests that come at random are often and seldom by turns.
const OFTENER: u64 = 3;

impl Queue {
    /// Whether all that are active are latency tenants.
    pub(in crate::slice) fn latency_alone_is_at_work(&self) -> bool {
        let is_active = |tenant: &&TenantId| self.places.get(tenant).is_some_and(|place| place.account.is_active());
        self.latency_tenants.iter().filter(is_active).count() == self.active_count
    }

    /// Whether those that come back often, of its priority or a higher one, were promised a good part of what those priorities
    /// have been: what it launches ahead they wait for each time, and nothing makes up for that. Of one that comes back often itself,
    /// and so leaves the device soon, only those count that do it more than [`OFTENER`] times as often.
    pub(in crate::slice) fn others_return(&self, tenant: TenantId, place: &Place) -> bool {
        if self.returning.is_empty() {
            return false;
        }
        let own_ns = self.returning.get(&tenant).map_or(u64::MAX, |(_, span_ns)| *span_ns);
        let ranks = |other: &Place| other.share.priority <= place.share.priority && !other.paused;
        let weight = |(other, (_, span_ns)): (&TenantId, &(u64, u64))| {
            let is_oftener = *other != tenant && span_ns.saturating_mul(OFTENER) < own_ns;
            let its = self.places.get(other).filter(|other| is_oftener && ranks(other));
            its.map_or(0, |other| u64::from(other.share.weight_permille))
        };
        let others: u64 = self.returning.iter().map(weight).sum();
        let all: u64 = self.weights[..=place.share.priority as usize].iter().sum();
        others > 0 && others.saturating_mul(PARTS) >= all
    }
}
