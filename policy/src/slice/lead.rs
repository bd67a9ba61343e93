//! What a latency tenant has had beyond its part of those at work. What it owes to one of them is forgotten as soon as that one rests for a
//! moment; this is not, until what it is entitled to has paid for it.

use super::own_time::Moment;

/// A bucket that its part empties while anybody of its priority is at work. Time without work is not saved up.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Lead {
    left_ns: u64,
    /// When that was.
    since: Moment,
}

/// A tenant at a moment of its priority.
#[derive(Clone, Copy, Debug)]
pub(super) struct Standing {
    /// That moment.
    pub(super) now: Moment,
    /// Its weight.
    pub(super) weight_permille: u16,
    /// Whether it is at work, and was since the last time.
    pub(super) is_at_work: bool,
}

impl Lead {
    /// Whether nothing was left when it was settled last.
    pub(super) fn is_empty(&self) -> bool {
        self.left_ns == 0
    }

    /// What is left of it.
    pub(super) fn at_ns(&self, its: Standing) -> u64 {
        let entitled_ns = its.now.entitled_ns(self.since, its.weight_permille, its.is_at_work);
        self.left_ns.saturating_sub(entitled_ns)
    }

    /// Nothing is left of it.
    pub(super) fn forget(&mut self) {
        self.left_ns = 0;
    }

    /// It is of another priority from that moment of it on.
    pub(super) fn go_over(&mut self, now: Moment) {
        self.since = now;
    }

    /// It begins to work, or ends, or its weight is another from now on.
    pub(super) fn settle(&mut self, its: Standing) {
        *self = Self { left_ns: self.at_ns(its), since: its.now };
    }

    /// It has used `ns`. No more than `most_ns` is ever to be paid off.
    pub(super) fn charge(&mut self, its: Standing, ns: u64, most_ns: u64) {
        let left_ns = self.left_ns.saturating_add(ns);
        *self = Self { left_ns, ..*self };
        self.settle(its);
        self.left_ns = self.left_ns.min(most_ns);
    }

    /// Takes back what turned out to have been somebody else's.
    pub(super) fn correct(&mut self, ns: u64) {
        self.left_ns = self.left_ns.saturating_sub(ns);
    }
}
