//! One stretch of time in which the set of contexts with work does not change.

use super::{Delta, length};
use crate::TenantId;

/// Contexts of one tenant that count in one segment. Beside another one's only context the 33rd would move a thousandth of
/// the device's time; a tenant that invents thousands makes every burst dear to account.
const CONTEXTS: usize = 32;

/// A stretch of time and the contexts that share it. Its start is its key in the window.
#[derive(Clone, Debug)]
pub(super) struct Segment {
    /// First nanosecond after it.
    pub(super) end_ns: u64,
    /// Contexts with work, by tenant, each once.
    holders: Vec<Holder>,
}

/// A context that has work.
#[derive(Clone, Copy, Debug)]
pub(super) struct Holder {
    pub(super) tenant: TenantId,
    /// Unique within the tenant.
    pub(super) context: u64,
    /// It has just come onto the device: the others wait until its time slice is over.
    pub(super) arrives: bool,
}

impl Holder {
    fn key(&self) -> (TenantId, u64) {
        (self.tenant, self.context)
    }
}

impl Segment {
    pub(super) fn new(end_ns: u64, holder: Holder) -> Self {
        Self { end_ns, holders: vec![holder] }
    }

    /// Whether a context of the tenant has work in the segment.
    pub(super) fn holds(&self, tenant: TenantId) -> bool {
        self.holders.iter().any(|holder| holder.tenant == tenant)
    }

    /// Whether no other tenant has work in it.
    pub(super) fn is_only_of(&self, tenant: TenantId) -> bool {
        self.holders.iter().all(|holder| holder.tenant == tenant)
    }

    /// Those who have the device: who has just come onto it, if anybody has, or else all.
    fn payers(&self) -> impl Iterator<Item = &Holder> {
        let arrives = self.holders.iter().any(|holder| holder.arrives);
        self.holders.iter().filter(move |holder| holder.arrives == arrives)
    }

    /// How many of the contexts that have the device are the tenant's, and how many there are.
    pub(super) fn part_of(&self, tenant: TenantId) -> (u128, u128) {
        self.payers().fold((0, 0), |(own, all), holder| (own + u128::from(holder.tenant == tenant), all + 1))
    }

    /// Adds a context to those that share the segment, unless its tenant has enough there.
    pub(super) fn enter(&mut self, start_ns: u64, holder: Holder, deltas: &mut Vec<Delta>) {
        if let Err(place) = self.holders.binary_search_by_key(&holder.key(), Holder::key) {
            let of_tenant = self.holders.iter().filter(|other| other.tenant == holder.tenant);
            if of_tenant.count() >= CONTEXTS {
                return;
            }
            self.settle(start_ns, -1, deltas);
            self.holders.insert(place, holder);
            self.settle(start_ns, 1, deltas);
        }
    }

    /// How many contexts share it.
    pub(super) fn holders(&self) -> usize {
        self.holders.len()
    }

    /// Shortens the segment to end at `at` and returns the rest. Rounding may move a nanosecond between tenants.
    pub(super) fn cut(&mut self, start_ns: u64, at: u64, deltas: &mut Vec<Delta>) -> Self {
        let rest = Self { end_ns: self.end_ns, holders: self.holders.clone() };
        let shared = self.holders.len() > 1;
        if shared {
            self.settle(start_ns, -1, deltas);
        }
        self.end_ns = at;
        if shared {
            self.settle(start_ns, 1, deltas);
            rest.settle(at, 1, deltas);
        }
        rest
    }

    /// Charges (`sign` 1) or returns (-1) the segment's length, split by contexts.
    fn settle(&self, start_ns: u64, sign: i64, deltas: &mut Vec<Delta>) {
        let total = i128::from(length(start_ns, self.end_ns));
        let contexts = self.payers().count() as i128;
        let mut paid = 0;
        for (counted, holder) in (1..).zip(self.payers()) {
            let due = i64::try_from(total * counted / contexts).unwrap_or(i64::MAX);
            charge(deltas, holder.tenant, sign * (due - paid));
            paid = due;
        }
    }
}

/// Adds to a tenant's delta, or starts one.
pub(super) fn charge(deltas: &mut Vec<Delta>, tenant: TenantId, ns: i64) {
    match deltas.iter_mut().find(|delta| delta.tenant == tenant) {
        Some(delta) => delta.ns += ns,
        None => deltas.push(Delta { tenant, ns }),
    }
}

/// Removes the deltas from `first` on that cancelled out.
pub(super) fn drop_zeroes(deltas: &mut Vec<Delta>, first: usize) {
    let mut index = 0;
    deltas.retain(|delta| {
        index += 1;
        index <= first || delta.ns != 0
    });
}
