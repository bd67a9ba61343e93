//! Places of pods' containers that have left without a lease, for their next attempts. A kubelet gives up on a start, pauses, for
//! up to five minutes after several, and tries again under another id: without this a pod would be the last at each attempt, and
//! the room that is kept for a large one would go to those who come between.
//!
//! Nobody waits for who is away, and nothing is kept for it. They are written down with the queue.

use super::Waiter;
use super::waiter::asks_the_same;
use crate::lease::slice_priority;
use gpool_policy::queue::Claim;
use gpool_protocol::LeaseRequest;
use serde::{Deserialize, Serialize};
use std::collections::VecDeque;

/// How long a place is remembered: longer than the longest pause of a kubelet (`MaxContainerBackOff`, 5 min).
const REMEMBERED_NS: u64 = 360 * 1_000_000_000;
/// So many at most, the newest ones.
const MOST: usize = 256;

/// One that has left.
#[derive(Debug)]
struct Departed {
    asked: LeaseRequest,
    uid: u32,
    claim: Claim,
    since_unix_ms: u64,
    kept_ns: u64,
    lacks_room_since_ns: Option<u64>,
    left_ns: u64,
}

/// The same as written down. Times are of CLOCK_MONOTONIC but for the one of Unix.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct DepartedRecord {
    pub asked: LeaseRequest,
    pub uid: u32,
    pub round: u64,
    since_ns: u64,
    since_unix_ms: u64,
    kept_ns: u64,
    lacks_room_since_ns: Option<u64>,
    left_ns: u64,
}

/// Those that have left lately.
#[derive(Debug, Default)]
pub struct DepartedPods(VecDeque<Departed>);

impl DepartedPods {
    /// All of them, as they are written down.
    pub fn records(&self) -> impl Iterator<Item = DepartedRecord> {
        self.0.iter().map(|it| DepartedRecord {
            asked: it.asked.clone(),
            uid: it.uid,
            round: it.claim.round,
            since_ns: it.claim.since_ns,
            since_unix_ms: it.since_unix_ms,
            kept_ns: it.kept_ns,
            lacks_room_since_ns: it.lacks_room_since_ns,
            left_ns: it.left_ns,
        })
    }

    /// Takes one over that an earlier supervisor has remembered.
    pub fn take_over(&mut self, record: DepartedRecord) {
        let DepartedRecord { asked, uid, round, since_ns, since_unix_ms, kept_ns, lacks_room_since_ns, left_ns } =
            record;
        let claim = Claim { priority: slice_priority(asked.request.priority), is_ordinary: true, round, since_ns };
        self.0.push_back(Departed { asked, uid, claim, since_unix_ms, kept_ns, lacks_room_since_ns, left_ns });
    }

    /// Remembers one of a pod that leaves at `now_ns`, CLOCK_MONOTONIC.
    pub fn note(&mut self, waiter: &Waiter, now_ns: u64) {
        self.0.retain(|it| now_ns.saturating_sub(it.left_ns) < REMEMBERED_NS && !waiter.is_for(&it.asked, it.uid));
        self.0.push_back(Departed {
            asked: waiter.asked.clone(),
            uid: waiter.uid,
            claim: waiter.claim,
            since_unix_ms: waiter.since_unix_ms,
            kept_ns: waiter.kept_ns.get(),
            lacks_room_since_ns: waiter.lacks_room_since_ns,
            left_ns: now_ns,
        });
        while self.0.len() > MOST {
            self.0.pop_front();
        }
    }

    /// Since when one has waited that comes again and asks for the same, CLOCK_MONOTONIC.
    pub fn since_ns(&self, asked: &LeaseRequest, uid: u32, now_ns: u64) -> Option<u64> {
        let is_same = |it: &Departed| it.asked.in_pod == asked.in_pod && asks_the_same(&it.asked, asked);
        let is_its = |it: &&Departed| {
            asked.in_pod.is_some() && it.uid == uid && is_same(it) && now_ns.saturating_sub(it.left_ns) < REMEMBERED_NS
        };
        self.0.iter().find(is_its).map(|it| it.claim.since_ns)
    }

    /// Gives one that is about to join the place that it had, if it asks for the same. Whether it had one.
    pub fn give_back(&mut self, waiter: &mut Waiter, now_ns: u64) -> bool {
        let is_its = |it: &Departed| waiter.is_for(&it.asked, it.uid) && waiter.asks_the_same(&it.asked);
        let Some(its) = self.0.iter().position(is_its).and_then(|place| self.0.remove(place)) else { return false };
        if now_ns.saturating_sub(its.left_ns) >= REMEMBERED_NS {
            return false;
        }
        (waiter.claim, waiter.since_unix_ms) = (its.claim, its.since_unix_ms);
        waiter.kept_ns.set(its.kept_ns);
        waiter.lacks_room_since_ns = its.lacks_room_since_ns;
        true
    }
}

#[cfg(test)]
mod tests {
    use super::super::{Left, Queue};
    use super::*;
    use crate::clock;
    use crate::procfs::WatchedProcess;
    use gpool_protocol::{ContainerId, HostPid, PodPlace};

    fn attempt(id: &str, container_name: Option<&str>, fraction_permille: u16) -> LeaseRequest {
        let text = r#"{"container_id":"c","request":{"fraction_permille":300,"wait_seconds":60}}"#;
        let mut asked: LeaseRequest = serde_json::from_str(text).unwrap();
        asked.container_id = ContainerId(id.into());
        asked.request.fraction_permille = fraction_permille;
        asked.in_pod = container_name.map(|name| PodPlace { sandbox_id: "s".into(), container_name: name.into() });
        asked
    }

    fn joins(queue: &mut Queue, asked: &LeaseRequest, now_ns: u64) {
        let this = WatchedProcess::open(HostPid(std::process::id())).unwrap();
        queue.join(asked, 0, this, now_ns);
    }

    fn first(queue: &Queue) -> &str {
        queue.in_order()[0].asked.container_id.0.as_str()
    }

    #[test]
    fn the_next_attempt_at_a_pod_s_container_has_the_place_of_the_one_before() {
        let (mut queue, now_ns) = (Queue::default(), clock::now_ns());
        joins(&mut queue, &attempt("large-1", Some("large"), 900), now_ns);
        joins(&mut queue, &attempt("other", None, 300), now_ns + 1);
        queue.waiters[0].kept_ns.set(7);
        assert!(queue.leave(&attempt("large-1", Some("large"), 900), 0, Left::Refused).is_some());
        assert_eq!(first(&queue), "other", "nobody waits for who is away");
        joins(&mut queue, &attempt("large-2", Some("large"), 900), now_ns + 2);
        assert_eq!(first(&queue), "large-2");
        let again = queue.in_order()[0];
        assert_eq!((again.claim.since_ns, again.kept_ns.get()), (now_ns, 7));
        assert!(!again.is_over(now_ns + 60_000_000_000), "its own time begins with this attempt");
        assert!(again.is_over(now_ns + 2 + 60_000_000_000));
    }

    #[test]
    fn who_is_no_pod_s_or_asks_for_more_or_was_taken_out_or_comes_too_late_is_the_last() {
        let large = |id: &str| attempt(id, Some("large"), 600);
        for (before, how, after, later_ns) in [
            (attempt("large-1", None, 600), Left::Refused, attempt("large-1", None, 600), 0),
            (large("large-1"), Left::Refused, attempt("large-2", Some("large"), 700), 0),
            (large("large-1"), Left::Cancelled, large("large-2"), 0),
            (large("large-1"), Left::Granted, large("large-2"), 0),
            (large("large-1"), Left::Gone, attempt("log-1", Some("log"), 600), 0),
            (large("large-1"), Left::Gone, large("large-2"), REMEMBERED_NS + 60_000_000_000),
        ] {
            let (mut queue, now_ns) = (Queue::default(), clock::now_ns());
            joins(&mut queue, &before, now_ns);
            joins(&mut queue, &attempt("other", None, 300), now_ns + 1);
            queue.leave(&before, 0, how).unwrap();
            joins(&mut queue, &after, now_ns + 2 + later_ns);
            assert_eq!(first(&queue), "other", "{how:?} {}", after.container_id);
        }
    }

    #[test]
    fn who_comes_back_and_another_of_the_same_team_are_not_in_one_round() {
        let of = |id: &str, name: &str, team: &str| {
            let mut asked = attempt(id, Some(name), 300);
            asked.request.team = Some(team.into());
            asked
        };
        let (mut queue, now_ns) = (Queue::default(), clock::now_ns());
        joins(&mut queue, &of("b1", "b1", "b"), now_ns);
        joins(&mut queue, &of("a1", "a1", "a"), now_ns + 1);
        joins(&mut queue, &of("b2", "b2", "b"), now_ns + 2);
        queue.leave(&of("a1", "a1", "a"), 0, Left::Refused);
        joins(&mut queue, &of("a3", "a3", "a"), now_ns + 3);
        joins(&mut queue, &of("a1-2", "a1", "a"), now_ns + 4);
        let ids: Vec<&str> = queue.in_order().iter().map(|waiter| waiter.asked.container_id.0.as_str()).collect();
        assert_eq!(ids, ["b1", "a1-2", "b2", "a3"]);
    }

    #[test]
    fn no_more_are_remembered_than_can_come_back() {
        let mut queue = Queue::default();
        for number in 0..MOST + 5 {
            let asked = attempt(&format!("c{number}"), Some(&format!("name-{number}")), 300);
            joins(&mut queue, &asked, clock::now_ns());
            queue.leave(&asked, 0, Left::Gone);
        }
        assert_eq!(queue.departed.0.len(), MOST);
    }
}
