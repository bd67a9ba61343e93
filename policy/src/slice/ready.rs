//! Those that may be served, in the order of the rule that chooses.

use std::collections::{BTreeMap, BTreeSet};

use super::virtual_clock::VirtualClock;
use super::{Priority, TenantId};

/// Where a tenant stands that wants the device and may have it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Candidate {
    /// Served before those of a lower priority.
    pub(super) priority: Priority,
    /// Whether somebody waits for its answers.
    pub(super) latency: bool,
    /// Virtual eligible time.
    pub(super) eligible_at: i128,
    /// From when on it is eligible, in virtual time: `ve - slack / w`.
    pub(super) threshold: i128,
    /// Virtual deadline: `ve + r / w`.
    pub(super) deadline: i128,
}

/// One priority. A tenant is in exactly one of the sets; which one follows virtual time only when somebody asks.
#[derive(Clone, Debug, Default)]
struct Line {
    /// Eligible latency tenants, by deadline.
    latency: BTreeSet<(i128, i128, TenantId)>,
    /// The other eligible ones, by deadline.
    other: BTreeSet<(i128, i128, TenantId)>,
    /// Those that are ahead of their share, by threshold.
    ahead: BTreeSet<(i128, i128, TenantId)>,
}

/// The candidates. Every change and every choice is logarithmic in their number: virtual time moves a tenant from
/// "ahead" to "eligible" once for every time that it was placed, and seldom back.
#[derive(Clone, Debug, Default)]
pub(super) struct Ready {
    lines: [Line; Priority::COUNT],
    candidates: BTreeMap<TenantId, Candidate>,
}

impl Ready {
    /// Puts a tenant where it belongs now, or takes it out.
    pub(super) fn place(&mut self, tenant: TenantId, candidate: Option<Candidate>) {
        if self.candidates.get(&tenant) == candidate.as_ref() {
            return;
        }
        if let Some(old) = self.candidates.remove(&tenant) {
            let line = &mut self.lines[old.priority as usize];
            let by_deadline = (old.deadline, old.eligible_at, tenant);
            let _ = line.ahead.remove(&(old.threshold, old.eligible_at, tenant))
                || line.latency.remove(&by_deadline)
                || line.other.remove(&by_deadline);
        }
        if let Some(new) = candidate {
            self.candidates.insert(tenant, new);
            self.lines[new.priority as usize].ahead.insert((new.threshold, new.eligible_at, tenant));
        }
    }

    /// Whether there is no candidate.
    pub(super) fn is_empty(&self) -> bool {
        self.candidates.is_empty()
    }

    /// Whether there is a candidate of this priority or a higher one.
    pub(super) fn is_any_from(&self, priority: Priority) -> bool {
        self.lines[..=priority as usize].iter().any(|line| !line.is_empty())
    }

    /// How many candidates there are of this priority or a higher one.
    pub(super) fn count_from(&self, priority: Priority) -> usize {
        self.lines[..=priority as usize].iter().map(Line::len).sum()
    }

    /// Whether there is no candidate but this tenant, if that is one.
    pub(super) fn is_only(&self, tenant: TenantId) -> bool {
        self.candidates.len() == usize::from(self.candidates.contains_key(&tenant))
    }

    pub(super) fn contains(&self, tenant: TenantId) -> bool {
        self.candidates.contains_key(&tenant)
    }

    pub(super) fn get(&self, tenant: TenantId) -> Option<&Candidate> {
        self.candidates.get(&tenant)
    }

    /// Chooses who is next. The rules, in order, within the highest priority that has a candidate:
    ///
    /// 1. among the eligible latency tenants, the earliest deadline;
    /// 2. among the other eligible ones, the earliest deadline (EEVDF, Stoica & Abdel-Wahab 1995);
    /// 3. if nobody is eligible, because those who are owed time do not want any now, the one that is least ahead.
    ///
    /// Equals go by virtual eligible time, then by id. `clocks` are the virtual times of the priorities.
    pub(super) fn choose(&mut self, clocks: &[VirtualClock; Priority::COUNT]) -> Option<TenantId> {
        let Self { lines, candidates } = self;
        lines.iter_mut().zip(clocks).find_map(|(line, clock)| line.choose(candidates, clock))
    }
}

impl Line {
    fn len(&self) -> usize {
        self.latency.len() + self.other.len() + self.ahead.len()
    }

    fn is_empty(&self) -> bool {
        self.latency.is_empty() && self.other.is_empty() && self.ahead.is_empty()
    }

    fn choose(&mut self, candidates: &BTreeMap<TenantId, Candidate>, clock: &VirtualClock) -> Option<TenantId> {
        while let Some(&(threshold, eligible_at, tenant)) = self.ahead.first()
            && clock.has_reached(threshold)
        {
            self.ahead.pop_first();
            let candidate = candidates.get(&tenant)?;
            let set = if candidate.latency { &mut self.latency } else { &mut self.other };
            set.insert((candidate.deadline, eligible_at, tenant));
        }
        for set in [&mut self.latency, &mut self.other] {
            while let Some(&(_, eligible_at, tenant)) = set.first() {
                let threshold = candidates.get(&tenant)?.threshold;
                if clock.has_reached(threshold) {
                    return Some(tenant);
                }
                // Virtual time has gone back, because somebody with a debt has joined.
                set.pop_first();
                self.ahead.insert((threshold, eligible_at, tenant));
            }
        }
        self.ahead.first().map(|&(_, _, tenant)| tenant)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn clocks(now: i128) -> [VirtualClock; Priority::COUNT] {
        let mut clock = VirtualClock::default();
        clock.enter(1, now);
        [clock.clone(), clock.clone(), clock]
    }

    fn candidate(eligible_at: i128, deadline: i128) -> Option<Candidate> {
        let priority = Priority::Guaranteed;
        Some(Candidate { priority, latency: false, eligible_at, threshold: eligible_at, deadline })
    }

    #[test]
    fn the_earliest_deadline_among_the_eligible_wins() {
        let mut ready = Ready::default();
        for (tenant, place) in [(1, candidate(0, 30)), (2, candidate(10, 20)), (3, candidate(11, 12))] {
            ready.place(TenantId(tenant), place);
        }
        assert_eq!(ready.choose(&clocks(10)), Some(TenantId(2)));
        assert_eq!(ready.choose(&clocks(9)), Some(TenantId(1)), "virtual time may go back");
        assert_eq!(ready.choose(&clocks(11)), Some(TenantId(3)));
    }

    #[test]
    fn without_an_eligible_one_the_least_ahead_wins() {
        let mut ready = Ready::default();
        ready.place(TenantId(1), candidate(13, 14));
        ready.place(TenantId(2), candidate(12, 40));
        assert_eq!(ready.choose(&clocks(10)), Some(TenantId(2)));
        ready.place(TenantId(1), None);
        ready.place(TenantId(2), None);
        assert_eq!(ready.choose(&clocks(10)), None);
        assert!(ready.is_empty());
    }

    #[test]
    fn latency_goes_before_batch_and_priority_before_both() {
        let mut ready = Ready::default();
        ready.place(TenantId(1), candidate(0, 1));
        ready.place(TenantId(2), candidate(9, 90).map(|place| Candidate { latency: true, ..place }));
        assert_eq!(ready.choose(&clocks(10)), Some(TenantId(2)));
        let burst = candidate(0, 0).map(|place| Candidate { priority: Priority::Burst, latency: true, ..place });
        ready.place(TenantId(3), burst);
        assert_eq!(ready.choose(&clocks(10)), Some(TenantId(2)));
        ready.place(TenantId(2), None);
        ready.place(TenantId(1), None);
        assert_eq!(ready.choose(&clocks(10)), Some(TenantId(3)));
    }
}
