//! What is waited for, and whether it has come: decided by one look at the supervisor, without a clock or a connection.

use crate::arguments::Awaited;
use gpool_protocol::{
    ContainerId, ErrorBody, ErrorCode, Event, EventKind, LeaseId, LeaseState, LeaseView, WaitingView,
};

/// One container or lease that is waited for.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Target {
    /// Its container.
    pub container_id: ContainerId,
    /// Who started it: another user's container may have the same id.
    pub owner_uid: u32,
    /// Its lease, once it has one.
    pub lease_id: Option<LeaseId>,
    /// What happened before, Unix time in milliseconds, was under the same id and not this.
    pub since_unix_ms: u64,
}

impl Target {
    /// A lease that there is.
    pub fn of_lease(lease: &LeaseView) -> Self {
        Self {
            container_id: lease.container_id.clone(),
            owner_uid: lease.owner_uid,
            lease_id: Some(lease.lease_id.clone()),
            since_unix_ms: 0,
        }
    }

    /// A container that waits for room.
    pub fn of_waiting(waiting: &WaitingView) -> Self {
        Self {
            container_id: waiting.container_id.clone(),
            owner_uid: waiting.owner_uid,
            lease_id: None,
            since_unix_ms: waiting.since_unix_ms,
        }
    }

    /// Whether an event may have changed what is waited for.
    pub fn is_met_by(&self, event: &Event) -> bool {
        event.container_id.as_ref() == Some(&self.container_id)
            || (self.lease_id.is_some() && event.lease_id == self.lease_id)
    }

    fn is_for(&self, lease: &LeaseView) -> bool {
        match &self.lease_id {
            Some(id) => lease.lease_id == *id,
            None => {
                lease.container_id == self.container_id
                    && lease.owner_uid == self.owner_uid
                    && lease.created_unix_ms >= self.since_unix_ms
            }
        }
    }
}

/// The one of `waiting` that `id` means, the beginning of its container's id.
///
/// # Errors
/// It means several.
pub fn meant<'a>(waiting: &'a [WaitingView], id: &str) -> Result<Option<&'a WaitingView>, ErrorBody> {
    let meant = || waiting.iter().filter(|one| !id.is_empty() && one.container_id.0.starts_with(id));
    let whole: Vec<&WaitingView> = meant().filter(|one| one.container_id.0 == id).collect();
    let found = if whole.is_empty() { meant().collect() } else { whole };
    match found.as_slice() {
        [] => Ok(None),
        [one] => Ok(Some(one)),
        several => Err(ErrorBody::new(
            ErrorCode::LeaseConflict,
            format!("{id:?} means {} containers that wait for room", several.len()),
            "give more of the id; gpool queue ls shows those that wait",
        )),
    }
}

/// How it came out.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Outcome {
    /// Its lease has ended.
    Ended,
    /// It has a lease, or has had one.
    Granted,
    /// It has left the queue without a lease.
    Left,
}

/// The supervisor at one moment. The events are read last: of whatever is no longer among the leases and in the queue, what has
/// become of it is told by then.
#[derive(Debug, Default)]
pub struct Snapshot {
    /// Who waits for room; read before the leases, so that nobody is missed on the way from here to there.
    pub waiting: Vec<WaitingView>,
    /// The leases.
    pub leases: Vec<LeaseView>,
    /// The events that are kept.
    pub events: Vec<Event>,
}

impl Snapshot {
    /// Whether `target` need not wait any more, and the event that says why, if one is kept.
    pub fn outcome_of(&self, target: &Target, awaited: Awaited) -> Option<(Outcome, Option<&Event>)> {
        match awaited {
            Awaited::End => self.end_of(target),
            Awaited::Grant => self.grant_of(target),
        }
    }

    fn end_of(&self, target: &Target) -> Option<(Outcome, Option<&Event>)> {
        // A kept place is the mark of a lease that has ended.
        let is_there = |lease: &LeaseView| target.is_for(lease) && lease.state != LeaseState::Held;
        if self.leases.iter().any(is_there) {
            return None;
        }
        let ended = self.last_event(|event| event.kind == EventKind::LeaseEnded && event.lease_id == target.lease_id);
        Some((Outcome::Ended, ended))
    }

    fn grant_of(&self, target: &Target) -> Option<(Outcome, Option<&Event>)> {
        let is_it = |one: &WaitingView| one.container_id == target.container_id && one.owner_uid == target.owner_uid;
        if target.lease_id.is_none() && self.waiting.iter().any(is_it) {
            return None;
        }
        let granted = self.last_event(|event| {
            let is_its = match &target.lease_id {
                Some(id) => event.lease_id.as_ref() == Some(id),
                None => {
                    event.container_id.as_ref() == Some(&target.container_id) && event.uid == Some(target.owner_uid)
                }
            };
            event.kind == EventKind::LeaseGranted && is_its && event.unix_ms >= target.since_unix_ms
        });
        match self.leases.iter().find(|lease| target.is_for(lease)) {
            // Under an MPS server it has its place before the server takes it in, which may still refuse it.
            Some(lease) if lease.state == LeaseState::Pending && granted.is_none() => None,
            Some(_) => Some((Outcome::Granted, granted)),
            None if granted.is_some() => Some((Outcome::Granted, granted)),
            None => Some((Outcome::Left, self.why_left(target))),
        }
    }

    fn why_left(&self, target: &Target) -> Option<&Event> {
        let last = |kind: EventKind| {
            self.last_event(|event| {
                let is_its = event.container_id.as_ref() == Some(&target.container_id);
                event.kind == kind && is_its && event.unix_ms >= target.since_unix_ms
            })
        };
        last(EventKind::LeaseUnqueued).or_else(|| last(EventKind::LeaseRefused))
    }

    fn last_event(&self, is_meant: impl Fn(&Event) -> bool) -> Option<&Event> {
        self.events.iter().rfind(|event| is_meant(event))
    }
}

#[cfg(test)]
mod tests;
