//! What a GPU's time went to over a span, in sums that tie out to the nanosecond: what leases had and what nobody had is
//! all of the time there was, and so is what was promised to them and what was promised to nobody.

/// What one lease was promised and had of one GPU over a span, in nanoseconds of GPU time.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Held {
    /// Its share times the time for which it held it.
    pub reserved_ns: u64,
    /// What it was charged.
    pub used_ns: u64,
}

/// Where that went. `within + burst` is what was used, `within + lent + idle` what was reserved.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Entry {
    /// Used of its own share.
    pub within_ns: u64,
    /// Used beyond its share.
    pub burst_ns: u64,
    /// Of its share, had by others.
    pub lent_ns: u64,
    /// Of its share, had by nobody.
    pub idle_ns: u64,
}

impl Entry {
    /// What the lease was promised.
    #[must_use]
    pub fn reserved_ns(&self) -> u64 {
        self.within_ns + self.lent_ns + self.idle_ns
    }

    /// What the lease had.
    #[must_use]
    pub fn used_ns(&self) -> u64 {
        self.within_ns + self.burst_ns
    }

    /// The same, with each part put through `change`.
    fn map(self, mut change: impl FnMut(u64) -> u64) -> Self {
        Self {
            within_ns: change(self.within_ns),
            burst_ns: change(self.burst_ns),
            lent_ns: change(self.lent_ns),
            idle_ns: change(self.idle_ns),
        }
    }
}

/// Settles a span of `wall_ns` of one GPU between those who held shares of it, in their order. What leases had beyond their
/// shares is taken from what was promised to nobody first; only the rest was lent, by each according to what it left. In one
/// span a charge may be more than there was time, because work is charged when it has ended.
#[must_use]
pub fn settle(wall_ns: u64, held: &[Held]) -> Vec<Entry> {
    let spare_ns = |its: &Held| its.reserved_ns.saturating_sub(its.used_ns);
    let sum = |part: &dyn Fn(&Held) -> u64| held.iter().fold(0u64, |sum, its| sum.saturating_add(part(its)));
    let (all_spare_ns, reserved_ns) = (sum(&spare_ns), sum(&|its| its.reserved_ns));
    let burst_ns = sum(&|its| its.used_ns.saturating_sub(its.reserved_ns));
    let lent_ns = burst_ns.saturating_sub(wall_ns.saturating_sub(reserved_ns)).min(all_spare_ns);
    let mut spare_before_ns = 0;
    let entry = |its: &Held| {
        let spare_ns = spare_ns(its);
        let lent_ns = part(lent_ns, spare_before_ns, spare_before_ns + spare_ns, all_spare_ns);
        spare_before_ns += spare_ns;
        let within_ns = its.used_ns.min(its.reserved_ns);
        Entry { within_ns, burst_ns: its.used_ns - within_ns, lent_ns, idle_ns: spare_ns - lent_ns }
    };
    held.iter().map(entry).collect()
}

/// What of `amount` falls to the stretch from `from` to `to` of a length of `whole`. The parts of stretches that follow each
/// other add up to all of it.
fn part(amount: u64, from: u64, to: u64, whole: u64) -> u64 {
    let until = |at: u64| u128::from(amount) * u128::from(at) / u128::from(whole.max(1));
    // Both are at most `amount`.
    (until(to) - until(from)) as u64
}

/// A stretch of time in seconds that something is entered for, by when it begins.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct Slot(pub u64);

/// The slots of `slot_ms` that lie between two moments, as numbers of milliseconds of one clock, with how far from the first
/// moment each begins and ends. A span that is none belongs to the slot that it is in, whole.
#[must_use]
pub fn slots(from_ms: u64, to_ms: u64, slot_ms: u64) -> Vec<(Slot, u64, u64)> {
    let (slot_ms, to_ms) = (slot_ms.max(1), to_ms.max(from_ms));
    let (first, last) = (from_ms / slot_ms, to_ms.saturating_sub(1).max(from_ms) / slot_ms);
    let within = |at_ms: u64| at_ms.clamp(from_ms, to_ms) - from_ms;
    let slot = |number: u64| (Slot(number * slot_ms / 1000), within(number * slot_ms), within((number + 1) * slot_ms));
    (first..=last).map(slot).collect()
}

/// An amount that belongs to a span, divided among the slots that the span touches, by time.
#[must_use]
pub fn spread(amount: u64, slots: &[(Slot, u64, u64)]) -> Vec<(Slot, u64)> {
    let whole = slots.last().map_or(0, |(_, _, end)| *end);
    match slots {
        [(slot, ..)] => vec![(*slot, amount)],
        _ => slots.iter().map(|(slot, begin, end)| (*slot, part(amount, *begin, *end, whole))).collect(),
    }
}

/// The same with each part of an entry.
#[must_use]
pub fn spread_entry(entry: Entry, slots: &[(Slot, u64, u64)]) -> Vec<(Slot, Entry)> {
    let whole = slots.last().map_or(0, |(_, _, end)| *end);
    match slots {
        [(slot, ..)] => vec![(*slot, entry)],
        _ => slots
            .iter()
            .map(|(slot, begin, end)| (*slot, entry.map(|amount| part(amount, *begin, *end, whole))))
            .collect(),
    }
}
