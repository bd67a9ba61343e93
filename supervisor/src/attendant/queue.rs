//! Registrations that wait to be looked at: one of each lease in its turn, however many a lease makes, and no more time
//! for a lease than its allowance.

use gpool_policy::TenantId;
use std::collections::{BTreeMap, VecDeque};
use std::time::{Duration, Instant};

/// What looks at one lease's processes may take at once. Two hundred that begin together take a tenth of it.
const ALLOWANCE_NS: i64 = 1_000_000_000;
/// What is spent of it comes back in so many times as long.
const RECOVERY: u32 = 10;

/// A slot that somebody has taken.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Registration {
    /// The lease.
    pub tenant: TenantId,
    /// Its slot.
    pub slot: usize,
    /// The number that the process made up.
    pub number: u64,
}

/// All that wait.
#[derive(Debug, Default)]
pub struct Queue {
    lines: BTreeMap<TenantId, Line>,
    /// Whose turn it was last.
    last: Option<TenantId>,
}

/// Those of one lease, no more than it has slots, and what is left of its allowance.
#[derive(Debug)]
struct Line {
    waiting: VecDeque<Registration>,
    /// Below zero after a look that took longer than was left.
    left_ns: i64,
    at: Instant,
}

impl Line {
    fn new(now: Instant) -> Self {
        Self { waiting: VecDeque::new(), left_ns: ALLOWANCE_NS, at: now }
    }

    fn recover(&mut self, now: Instant) {
        let back = now.saturating_duration_since(self.at) / RECOVERY;
        self.left_ns = self.left_ns.saturating_add(nanoseconds(back)).min(ALLOWANCE_NS);
        self.at = now;
    }

    /// How long until one of it may be looked at; none if none waits.
    fn patience(&self) -> Option<Duration> {
        let missing_ns = 1_i64.saturating_sub(self.left_ns).max(0).cast_unsigned();
        (!self.waiting.is_empty()).then(|| Duration::from_nanos(missing_ns) * RECOVERY)
    }
}

fn nanoseconds(duration: Duration) -> i64 {
    i64::try_from(duration.as_nanos()).unwrap_or(i64::MAX)
}

impl Queue {
    /// Puts a registration behind those of its lease; one of the same slot, which it has replaced, is forgotten.
    pub fn put(&mut self, registration: Registration, now: Instant) {
        if !self.lines.contains_key(&registration.tenant) {
            // Leases that have ended, and those that have been quiet for long, are forgotten.
            self.lines.values_mut().for_each(|line| line.recover(now));
            self.lines.retain(|_, line| !line.waiting.is_empty() || line.left_ns < ALLOWANCE_NS);
        }
        let line = self.lines.entry(registration.tenant).or_insert_with(|| Line::new(now));
        match line.waiting.iter_mut().find(|waiting| waiting.slot == registration.slot) {
            Some(waiting) => *waiting = registration,
            None => line.waiting.push_back(registration),
        }
    }

    /// Puts a registration of before in again, unless one of the same slot waits: that has replaced it.
    pub fn put_again(&mut self, registration: Registration, now: Instant) {
        let line = self.lines.get(&registration.tenant);
        if !line.is_some_and(|line| line.waiting.iter().any(|waiting| waiting.slot == registration.slot)) {
            self.put(registration, now);
        }
    }

    /// The first registration of the next lease in turn that has something left of its allowance.
    pub fn next(&mut self, now: Instant) -> Option<Registration> {
        self.lines.values_mut().for_each(|line| line.recover(now));
        let may_go = |(tenant, line): (&TenantId, &Line)| (line.patience() == Some(Duration::ZERO)).then_some(*tenant);
        let is_behind = |tenant: &TenantId| Some(*tenant) > self.last;
        let mut due = self.lines.iter().filter_map(may_go);
        let tenant = due.clone().find(is_behind).or_else(|| due.next())?;
        self.last = Some(tenant);
        self.lines.get_mut(&tenant)?.waiting.pop_front()
    }

    /// A look at a process of this lease took so long. A single one never takes more than the allowance: the supervisor
    /// may have been stopped meanwhile.
    pub fn spend(&mut self, tenant: TenantId, took: Duration) {
        if let Some(line) = self.lines.get_mut(&tenant) {
            line.left_ns -= nanoseconds(took).min(ALLOWANCE_NS);
        }
    }

    /// How long until one may be looked at; none if none waits.
    pub fn patience(&mut self, now: Instant) -> Option<Duration> {
        self.lines.values_mut().for_each(|line| line.recover(now));
        self.lines.values().filter_map(Line::patience).min()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LOOK: Duration = Duration::from_millis(1);

    fn registration(tenant: u64, slot: usize, number: u64) -> Registration {
        Registration { tenant: TenantId(tenant), slot, number }
    }

    /// Takes the next one, which takes `LOOK`.
    fn look(queue: &mut Queue, now: &mut Instant) -> Option<Registration> {
        let next = queue.next(*now)?;
        *now += LOOK;
        queue.spend(next.tenant, LOOK);
        Some(next)
    }

    #[test]
    fn one_of_each_lease_is_looked_at_in_turn() {
        let (mut queue, mut now) = (Queue::default(), Instant::now());
        (0..64).for_each(|slot| queue.put(registration(1, slot, 7), now));
        (0..64).for_each(|slot| queue.put(registration(2, slot, 7), now));
        let first: Vec<u64> = (0..2).filter_map(|_| look(&mut queue, &mut now)).map(|next| next.tenant.0).collect();
        assert_eq!(first, [1, 2]);
        queue.put(registration(9, 0, 7), now);
        let until = (0..200).position(|_| look(&mut queue, &mut now).is_some_and(|next| next.tenant.0 == 9));
        assert!(until < Some(3), "behind {until:?} of the others");
        let rest: Vec<Registration> = std::iter::from_fn(|| look(&mut queue, &mut now)).collect();
        assert_eq!(rest.len() + 2 + until.unwrap(), 128);
        let of_first: Vec<usize> = rest.iter().filter(|next| next.tenant.0 == 1).map(|next| next.slot).collect();
        assert!(of_first.is_sorted(), "within a lease in the order in which they came");
        assert_eq!(queue.patience(now), None);
    }

    #[test]
    fn a_slot_that_was_taken_again_is_looked_at_once() {
        let (mut queue, mut now) = (Queue::default(), Instant::now());
        (0..1000).for_each(|number| queue.put(registration(1, 5, number), now));
        assert_eq!(look(&mut queue, &mut now), Some(registration(1, 5, 999)));
        assert_eq!(look(&mut queue, &mut now), None);
    }

    #[test]
    fn who_floods_has_a_part_of_the_time_and_many_at_once_are_not_slowed() {
        let (mut queue, mut now) = (Queue::default(), Instant::now());
        let start = now;
        let mut looks = 0;
        while now < start + Duration::from_secs(11) {
            (0..64).for_each(|slot| queue.put(registration(1, slot, looks), now));
            match look(&mut queue, &mut now) {
                Some(_) => looks += 1,
                None => now += queue.patience(now).unwrap().max(LOOK),
            }
            let is_at_once = looks <= 900;
            assert!(!is_at_once || now <= start + LOOK * (looks as u32 + 1), "a burst waits for nothing");
        }
        // The allowance, and what comes back of it in eleven seconds.
        assert!((2000..=2200).contains(&looks), "{looks}");
        queue.put(registration(2, 0, 7), now);
        assert_eq!(look(&mut queue, &mut now).map(|next| next.tenant.0), Some(2));
    }

    #[test]
    fn a_look_that_took_for_ever_stops_nobody_for_long_and_who_is_quiet_is_forgotten() {
        let (mut queue, mut now) = (Queue::default(), Instant::now());
        queue.put(registration(1, 0, 7), now);
        assert!(queue.next(now).is_some());
        queue.spend(TenantId(1), Duration::from_secs(3600));
        queue.put(registration(1, 1, 7), now);
        assert!(queue.patience(now).unwrap() < LOOK, "its first allowance was whole");
        now += LOOK;
        assert!(queue.next(now).is_some());
        now += Duration::from_secs(60);
        queue.put(registration(2, 0, 7), now);
        assert_eq!(queue.lines.keys().collect::<Vec<_>>(), [&TenantId(2)]);
    }
}
