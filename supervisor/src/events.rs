//! What happened, for people and audits: the newest events in memory, and followers that wait for more.

use crate::clock;
use gpool_protocol::{ContainerId, Event, EventKind, LeaseId};
use std::collections::{BTreeMap, VecDeque};
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

/// Events kept.
const KEPT: usize = 10_000;

/// What an event is about.
#[derive(Debug, Clone, Default)]
pub struct About {
    /// The lease, if any.
    pub lease_id: Option<LeaseId>,
    /// The container, if any.
    pub container_id: Option<ContainerId>,
    /// Who asked for it, if anybody.
    pub uid: Option<u32>,
}

#[derive(Default)]
struct Kept {
    next: u64,
    counts: BTreeMap<EventKind, u64>,
    events: VecDeque<Event>,
}

/// The event log of one life of the supervisor.
#[derive(Default)]
pub struct Events {
    kept: Mutex<Kept>,
    more: Condvar,
}

impl Events {
    fn lock(&self) -> MutexGuard<'_, Kept> {
        self.kept.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Writes an event down, on stderr too, where the journal takes it.
    pub fn note(&self, kind: EventKind, about: About, message: String) {
        let mut kept = self.lock();
        kept.next += 1;
        *kept.counts.entry(kind).or_default() += 1;
        eprintln!("gpool-supervisor: {message}");
        let event = Event {
            sequence: kept.next,
            unix_ms: clock::unix_ms(),
            kind,
            lease_id: about.lease_id,
            container_id: about.container_id,
            uid: about.uid,
            message,
        };
        kept.events.push_back(event);
        if kept.events.len() > KEPT {
            kept.events.pop_front();
        }
        self.more.notify_all();
    }

    /// How many there were of each kind that came up, those included that are no longer kept.
    pub fn counts(&self) -> Vec<(EventKind, u64)> {
        self.lock().counts.iter().map(|(kind, count)| (*kind, *count)).collect()
    }

    /// Events after number `after`; waits up to `patience` for one if there is none yet.
    pub fn after(&self, after: u64, patience: Option<Duration>) -> Vec<Event> {
        let newer =
            |kept: &Kept| kept.events.iter().filter(|event| event.sequence > after).cloned().collect::<Vec<_>>();
        let kept = self.lock();
        let found = newer(&kept);
        let Some(patience) = patience.filter(|_| found.is_empty()) else { return found };
        let (kept, _) = self.more.wait_timeout(kept, patience).unwrap_or_else(PoisonError::into_inner);
        newer(&kept)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn followers_get_what_is_new_and_old_events_fall_off() {
        let events = Events::default();
        for number in 0..KEPT + 5 {
            events.note(EventKind::LeaseGranted, About::default(), format!("number {number}"));
        }
        let all = events.after(0, None);
        assert_eq!((all.len(), all[0].sequence), (KEPT, 6));
        assert_eq!(events.counts(), [(EventKind::LeaseGranted, KEPT as u64 + 5)]);
        assert_eq!(events.after(all[KEPT - 2].sequence, None).len(), 1);
        assert!(events.after(all[KEPT - 1].sequence, Some(Duration::from_millis(1))).is_empty());
    }
}
