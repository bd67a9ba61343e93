//! The queue for room: requests for which there is none, and that say how long to wait.
//!
//! Nobody is called when room is there: who waits asks again and again, and is told when to ask next. So a supervisor that is
//! restarted finds the queue in a file and its people at the door, and who has gone is out by his silence.

mod asking;
mod departed;
mod history;
mod holding;
mod places;
mod store;
mod tending;
mod waiter;

pub use asking::is_for_want_of_room;
pub use holding::Placing;
pub use tending::Left;
pub use waiter::{Appointment, Waiter};

use crate::clock;
use crate::lease::{Holder, Record, Since, slice_priority};
use crate::procfs::WatchedProcess;
use departed::DepartedPods;
use gpool_policy::queue::{Claim, Rounds, order};
use gpool_protocol::{LeaseRequest, Priority, WaitingView};
use history::History;
use std::collections::BTreeSet;
use std::time::Duration;

/// Who waits, in no order.
#[derive(Default)]
pub struct Queue {
    waiters: Vec<Waiter>,
    rounds: Rounds,
    departed: DepartedPods,
    /// For whom there is an emergency: they stand first among their priority.
    urgent: Vec<Holder>,
    /// What owners have had before, where that counts.
    history: Option<History>,
    /// When it was looked last who is gone, and when it was last written down; CLOCK_MONOTONIC.
    tended_ns: u64,
    written_ns: u64,
}

impl Queue {
    /// Who waits, the next one first.
    pub fn in_order(&self) -> Vec<&Waiter> {
        let waiting: Vec<&Waiter> = self.waiters.iter().filter(|waiter| waiter.is_in_line()).collect();
        let claim = |waiter: &&Waiter| Claim { is_ordinary: !self.stands_first(waiter), ..waiter.claim };
        let mut claims: Vec<Claim> = waiting.iter().map(claim).collect();
        if let Some(history) = &self.history {
            history.place(&waiting, &mut claims);
        }
        order(&claims).into_iter().map(|index| waiting[index]).collect()
    }

    /// Who stands before this request: those before it in the queue, or those of its priority and of higher ones where it is
    /// not in it.
    pub fn ahead_of(&self, asked: &LeaseRequest, uid: u32) -> Vec<&Waiter> {
        let mut all = self.before(asked.request.priority, self.goes_first(asked, uid));
        if let Some(place) = all.iter().position(|waiter| waiter.is_for(asked, uid)) {
            all.truncate(place);
        }
        all
    }

    /// Those who stand before a lease that runs, when it wants more: those of its priority and of higher ones, the next one first.
    pub fn before_lease(&self, record: &Record, priority: Priority) -> Vec<&Waiter> {
        let holders = Holder::both(record.team.as_deref(), record.owner_uid);
        self.before(priority, self.urgent.iter().any(|its| holders.contains(its)))
    }

    /// Those of this priority and of higher ones, the next one first; where this one goes first only those of its priority that do.
    fn before(&self, priority: Priority, goes_first: bool) -> Vec<&Waiter> {
        let (mut all, priority) = (self.in_order(), slice_priority(priority));
        all.retain(|waiter| match waiter.claim.priority == priority {
            true => !goes_first || self.stands_first(waiter),
            false => waiter.claim.priority < priority,
        });
        all
    }

    /// Whether there is an emergency of this request's team or user.
    pub fn is_urgent(&self, asked: &LeaseRequest, uid: u32) -> bool {
        !self.urgent.is_empty() && {
            let holders = Holder::both(asked.request.team.as_deref(), uid);
            self.urgent.iter().any(|its| holders.contains(its))
        }
    }

    /// Whether this request stands before the others of its priority: in an emergency, or because somebody said so.
    fn goes_first(&self, asked: &LeaseRequest, uid: u32) -> bool {
        self.is_urgent(asked, uid) || self.waiter_of(asked, uid).is_some_and(|waiter| waiter.is_first)
    }

    /// The same of one that waits: it is not looked for among all others.
    fn stands_first(&self, waiter: &Waiter) -> bool {
        waiter.is_first || self.is_urgent(&waiter.asked, waiter.uid)
    }

    /// From now on these stand first.
    pub fn put_first(&mut self, urgent: Vec<Holder>) {
        self.urgent = urgent;
    }

    /// The one that waits for this request.
    pub fn waiter_of(&self, asked: &LeaseRequest, uid: u32) -> Option<&Waiter> {
        self.waiters.iter().find(|waiter| waiter.is_for(asked, uid))
    }

    /// Since when a request waits: also of the next attempt at a container of a pod, whose place is kept.
    pub fn since(&self, asked: &LeaseRequest, uid: u32, now_ns: u64) -> Since {
        let departed =
            || Since { first_ns: self.departed.since_ns(asked, uid, now_ns).unwrap_or(now_ns), attempt_ns: now_ns };
        self.waiter_of(asked, uid).map_or_else(departed, Waiter::since)
    }

    /// All of them, the next one first and those that are held back last, as the socket shows them.
    pub fn views(&self) -> Vec<WaitingView> {
        let had = |waiter: &Waiter| Some(self.history.as_ref()?.had_ns(waiter)? / 1_000_000_000);
        let view =
            |(waiter, place): (&Waiter, u32)| WaitingView { owner_had_gpu_seconds: had(waiter), ..waiter.view(place) };
        self.in_order().into_iter().chain(self.held()).zip(1..).map(view).collect()
    }

    /// How long the one has waited that came first.
    pub fn longest_wait(&self, now_ns: u64) -> Duration {
        self.in_order().into_iter().map(|waiter| waiter.waited(now_ns)).max().unwrap_or_default()
    }

    /// Whether the one that waits for this request is about to have its lease, and in nobody's way meanwhile.
    pub fn set_seated(&mut self, asked: &LeaseRequest, uid: u32, is_seated: bool) {
        if let Some(waiter) = self.waiter_of_mut(asked, uid) {
            waiter.is_seated = is_seated;
        }
    }

    /// How many there are.
    pub fn len(&self) -> usize {
        self.waiters.len()
    }

    fn waiter_of_mut(&mut self, asked: &LeaseRequest, uid: u32) -> Option<&mut Waiter> {
        self.waiters.iter_mut().find(|waiter| waiter.is_for(asked, uid))
    }

    /// For how long this request has waited, earlier attempts included, milliseconds; 0 of one that is not in the queue.
    pub fn waited_ms(&self, asked: &LeaseRequest, uid: u32) -> u64 {
        let now_ns = clock::now_ns();
        now_ns.saturating_sub(self.since(asked, uid, now_ns).first_ns) / 1_000_000
    }

    /// Takes one out, in this way.
    fn leave(&mut self, asked: &LeaseRequest, uid: u32, how: Left) -> Option<Waiter> {
        let index = self.waiters.iter().position(|waiter| waiter.is_for(asked, uid))?;
        let waiter = self.waiters.remove(index);
        self.note_left(&waiter, how);
        Some(waiter)
    }

    /// Who leaves with nothing is not behind for it when it comes again, and what a pod starts again has its place back.
    fn note_left(&mut self, waiter: &Waiter, how: Left) {
        match how {
            Left::Granted => return,
            // It may come back to its round, which nobody else of its owner has meanwhile.
            Left::Refused | Left::Gone if waiter.asked.in_pod.is_some() => {
                self.departed.note(waiter, clock::now_ns());
                return;
            }
            Left::Cancelled | Left::Refused | Left::Gone => {}
        }
        let (priority, owner) = (waiter.claim.priority, waiter.owner());
        let is_its = |other: &&Waiter| other.claim.priority == priority && other.owner() == owner;
        let rounds: Vec<u64> = self.waiters.iter().filter(is_its).map(|other| other.claim.round).collect();
        self.rounds.give_back(priority, &owner, waiter.claim.round, rounds.into_iter());
    }

    /// Puts one in, in the round that it comes to, or where its pod stood before.
    fn join(&mut self, asked: &LeaseRequest, uid: u32, requester: WatchedProcess, now_ns: u64) -> &mut Waiter {
        // Who is held back, waits for a quota of its own or has a lease that cannot be made stands still, and time goes on without it; so it does
        // without who waits for the host's memory, for those who want none.
        let wants_some = asked.request.spill_bytes.is_some();
        let stands_still = |waiter: &Waiter| {
            let is_kept = waiter.held_by.is_some() || waiter.has_failed;
            is_kept || waiter.is_over_quota || waiter.lacks_host_memory && !wants_some
        };
        let waiting = self.waiters.iter().filter(|waiter| !stands_still(waiter));
        let claims: Vec<Claim> = waiting.map(|waiter| waiter.claim).collect();
        let priority = slice_priority(asked.request.priority);
        let mut waiter =
            Waiter::new(asked, uid, requester, Claim { priority, is_ordinary: true, round: 0, since_ns: now_ns });
        match self.departed.give_back(&mut waiter, now_ns) {
            true => self.rounds.note(priority, &waiter.owner(), waiter.claim.round),
            false => {
                // Holding one's own back is no way to have many in one round when they are released.
                let held = self.waiters.iter().filter(|its| its.held_by.is_some() && its.owner() == waiter.owner());
                let rounds: BTreeSet<u64> =
                    held.filter(|its| its.claim.priority == priority).map(|its| its.claim.round).collect();
                let first = self.rounds.join(&claims, priority, &waiter.owner());
                // The first one that none of them has.
                waiter.claim.round = (first..).find(|round| !rounds.contains(round)).unwrap_or(first);
                self.rounds.note(priority, &waiter.owner(), waiter.claim.round);
            }
        }
        self.waiters.push(waiter);
        self.waiters.last_mut().expect("just put in")
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use gpool_protocol::{ContainerId, HostPid, PodPlace};

    fn asked(id: &str, team: Option<&str>, priority: Priority) -> LeaseRequest {
        let text = r#"{"container_id":"c","request":{"fraction_permille":300,"wait_seconds":60}}"#;
        let mut asked: LeaseRequest = serde_json::from_str(text).unwrap();
        asked.container_id = ContainerId(id.into());
        (asked.request.team, asked.request.priority) = (team.map(str::to_owned), priority);
        asked
    }

    fn joins(queue: &mut Queue, id: &str, team: Option<&str>, priority: Priority) {
        let this = WatchedProcess::open(HostPid(std::process::id())).unwrap();
        let now_ns = 1 + queue.waiters.len() as u64;
        queue.join(&asked(id, team, priority), 0, this, now_ns);
    }

    fn ids<'a>(waiters: impl IntoIterator<Item = &'a Waiter>) -> Vec<&'a str> {
        waiters.into_iter().map(|waiter| waiter.asked.container_id.0.as_str()).collect()
    }

    #[test]
    fn teams_take_turns_and_who_does_not_wait_is_behind_its_like() {
        let mut queue = Queue::default();
        for (id, team) in [("a1", Some("a")), ("a2", Some("a")), ("b1", Some("b")), ("n1", None), ("n2", None)] {
            joins(&mut queue, id, team, Priority::Guaranteed);
        }
        joins(&mut queue, "s1", Some("b"), Priority::Scavenger);
        assert_eq!(ids(queue.in_order()), ["a1", "b1", "n1", "a2", "n2", "s1"]);
        assert_eq!(ids(queue.ahead_of(&asked("n1", None, Priority::Guaranteed), 0)), ["a1", "b1"]);
        assert_eq!(ids(queue.ahead_of(&asked("new", None, Priority::Guaranteed), 0)), ["a1", "b1", "n1", "a2", "n2"]);
        assert_eq!(queue.ahead_of(&asked("new", None, Priority::Scavenger), 0).len(), 6);
        let of_another_user = queue.ahead_of(&asked("a1", Some("a"), Priority::Guaranteed), 7);
        assert_eq!(of_another_user.len(), 5, "an id is no name of another user's container");
        assert!(queue.leave(&asked("b1", Some("b"), Priority::Guaranteed), 0, Left::Granted).is_some());
        assert_eq!(queue.views().iter().map(|view| view.place).collect::<Vec<_>>(), [1, 2, 3, 4, 5]);
    }

    #[test]
    fn who_was_taken_out_stands_in_nobodys_way() {
        let mut queue = Queue::default();
        joins(&mut queue, "a", None, Priority::Guaranteed);
        joins(&mut queue, "b", None, Priority::Guaranteed);
        queue.waiter_of_mut(&asked("a", None, Priority::Guaranteed), 0).unwrap().cancelled_by = Some(0);
        assert_eq!(ids(queue.in_order()), ["b"]);
        assert!(queue.ahead_of(&asked("b", None, Priority::Guaranteed), 0).is_empty());
        assert!(queue.waiter_of(&asked("a", None, Priority::Guaranteed), 0).is_some(), "it is to be told");
    }

    #[test]
    fn whose_daemon_is_started_stands_in_nobodys_way_and_has_its_place_if_that_fails() {
        let mut queue = Queue::default();
        joins(&mut queue, "a", None, Priority::Guaranteed);
        joins(&mut queue, "b", None, Priority::Guaranteed);
        queue.set_seated(&asked("a", None, Priority::Guaranteed), 0, true);
        assert_eq!(ids(queue.in_order()), ["b"]);
        queue.set_seated(&asked("a", None, Priority::Guaranteed), 0, false);
        assert_eq!(ids(queue.in_order()), ["a", "b"]);
    }

    #[test]
    fn whose_lease_cannot_be_made_stands_in_nobodys_way() {
        let mut queue = Queue::default();
        joins(&mut queue, "a", None, Priority::Guaranteed);
        let waiter = queue.waiter_of_mut(&asked("a", None, Priority::Guaranteed), 0).unwrap();
        assert!(!waiter.is_in_nobodys_way());
        waiter.has_failed = true;
        assert!(waiter.is_in_nobodys_way());
        joins(&mut queue, "b", Some("b"), Priority::Guaranteed);
        assert_eq!(ids(queue.in_order()), ["a", "b"], "it has its place");
    }

    #[test]
    fn holding_ones_own_back_is_no_way_past_the_rounds() {
        let mut queue = Queue::default();
        for id in ["a1", "a2", "a3"] {
            joins(&mut queue, id, Some("a"), Priority::Guaranteed);
            queue.waiter_of_mut(&asked(id, Some("a"), Priority::Guaranteed), 0).unwrap().held_by = Some(0);
        }
        joins(&mut queue, "b1", Some("b"), Priority::Guaranteed);
        joins(&mut queue, "b2", Some("b"), Priority::Guaranteed);
        queue.waiters.iter_mut().for_each(|waiter| waiter.held_by = None);
        assert_eq!(ids(queue.in_order()), ["a1", "b1", "a2", "b2", "a3"]);
        // One of many that is held back for long puts those that come later behind nobody.
        let last = queue.waiters.iter_mut().find(|waiter| waiter.asked.container_id.0 == "a3").unwrap();
        last.held_by = Some(0);
        queue.waiters.retain(|waiter| waiter.held_by.is_some());
        joins(&mut queue, "a4", Some("a"), Priority::Guaranteed);
        joins(&mut queue, "b3", Some("b"), Priority::Guaranteed);
        assert_eq!(queue.waiters.iter().map(|waiter| waiter.claim.round).collect::<Vec<_>>(), [2, 0, 0]);
    }

    #[test]
    fn ids_are_everybodys_to_choose_and_ones_own_comes_first() {
        let mut queue = Queue::default();
        joins(&mut queue, "abc1", None, Priority::Guaranteed);
        joins(&mut queue, "abc2", None, Priority::Guaranteed);
        let this = WatchedProcess::open(HostPid(std::process::id())).unwrap();
        queue.join(&asked("abc1", None, Priority::Guaranteed), 1000, this, 9);
        let found = |text: &str, peer| queue.find(text, peer).map(|(id, uid)| (id.0, uid)).ok();
        assert_eq!(found("abc1", 0), Some(("abc1".to_owned(), 0)), "whoever else has taken the name");
        assert_eq!(found("abc1", 1000), Some(("abc1".to_owned(), 1000)));
        assert_eq!(
            (found("abc2", 0), found("abc", 1000)),
            (Some(("abc2".to_owned(), 0)), Some(("abc1".to_owned(), 1000)))
        );
        assert_eq!((found("abc", 0), found("", 0), found("x", 0)), (None, None, None));
    }

    #[test]
    fn in_an_emergency_a_team_s_are_the_first_of_their_priority_and_behind_nobody_of_it() {
        let mut queue = Queue::default();
        for (id, team) in [("a1", Some("a")), ("b1", Some("b")), ("b2", Some("b"))] {
            joins(&mut queue, id, team, Priority::Guaranteed);
        }
        joins(&mut queue, "u1", Some("u"), Priority::Burst);
        queue.put_first(vec![Holder::Team("b".into()), Holder::Team("u".into())]);
        assert_eq!(ids(queue.in_order()), ["b1", "b2", "a1", "u1"]);
        let new = |team, priority| ids(queue.ahead_of(&asked("new", Some(team), priority), 0)).join(" ");
        assert_eq!(
            (new("b", Priority::Guaranteed).as_str(), new("a", Priority::Guaranteed).as_str()),
            ("b1 b2", "b1 b2 a1")
        );
        assert_eq!(new("u", Priority::Burst), "b1 b2 a1 u1", "who was promised something goes first all the same");
        let lease = Record { team: Some("b".into()), ..crate::lease::sample() };
        assert_eq!(ids(queue.before_lease(&lease, Priority::Guaranteed)), ["b1", "b2"]);
    }

    #[test]
    fn the_next_attempt_at_a_container_of_a_pod_has_its_place() {
        let place = |name: &str| Some(PodPlace { sandbox_id: "s".into(), container_name: name.into() });
        let mut queue = Queue::default();
        let this = || WatchedProcess::open(HostPid(std::process::id())).unwrap();
        let first = LeaseRequest { in_pod: place("web"), ..asked("try-1", None, Priority::Guaranteed) };
        queue.join(&first, 0, this(), 1);
        let next = LeaseRequest { in_pod: place("web"), ..asked("try-2", None, Priority::Guaranteed) };
        assert!(queue.waiter_of(&next, 0).is_some());
        let other = LeaseRequest { in_pod: place("log"), ..asked("try-2", None, Priority::Guaranteed) };
        assert!(queue.waiter_of(&other, 0).is_none());
    }

    #[test]
    fn who_waits_for_the_hosts_memory_holds_up_a_round_of_those_alone_who_want_some() {
        let joins = |queue: &mut Queue, id: &str, team: &str, wants_some: bool| {
            let this = WatchedProcess::open(HostPid(std::process::id())).unwrap();
            let mut asks = asked(id, Some(team), Priority::Guaranteed);
            asks.request.spill_bytes = wants_some.then_some(1);
            let now_ns = 1 + queue.waiters.len() as u64;
            queue.join(&asks, 0, this, now_ns).lacks_host_memory = wants_some;
        };
        let mut queue = Queue::default();
        for (id, team) in [("a1", "a"), ("a2", "a"), ("a3", "a"), ("b1", "b")] {
            joins(&mut queue, id, team, true);
        }
        assert_eq!(ids(queue.in_order()).join(" "), "a1 b1 a2 a3", "teams take turns for that as well");
        let mut queue = Queue::default();
        joins(&mut queue, "blocked", "v", true);
        for id in ["s1", "s2", "s3"] {
            joins(&mut queue, id, "s", false);
            queue.leave(&asked(id, Some("s"), Priority::Guaranteed), 0, Left::Granted);
        }
        for (id, team) in [("s4", "s"), ("o1", "o"), ("o2", "o")] {
            joins(&mut queue, id, team, false);
        }
        assert_eq!(ids(queue.in_order()).join(" "), "blocked s4 o1 o2", "what was had meanwhile puts nobody behind");
    }

    #[test]
    fn who_waits_for_a_quota_of_its_own_holds_no_round_up() {
        let order = |is_over_quota| {
            let mut queue = Queue::default();
            joins(&mut queue, "blocked", Some("vision"), Priority::Guaranteed);
            queue.waiters[0].is_over_quota = is_over_quota;
            for id in ["s1", "s2", "s3"] {
                joins(&mut queue, id, Some("speech"), Priority::Guaranteed);
                queue.leave(&asked(id, Some("speech"), Priority::Guaranteed), 0, Left::Granted);
            }
            for (id, team) in [("s4", "speech"), ("o1", "other"), ("o2", "other")] {
                joins(&mut queue, id, Some(team), Priority::Guaranteed);
            }
            ids(queue.in_order()).join(" ")
        };
        assert_eq!(order(true), "blocked s4 o1 o2", "what was had while it stood still puts nobody behind");
        assert_eq!(order(false), "blocked o1 o2 s4", "who waits for room does");
    }
}
