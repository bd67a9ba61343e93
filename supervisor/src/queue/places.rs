//! How many may wait, and who.

use super::{Queue, Waiter};
use crate::lease::slice_priority;
use gpool_policy::slice::Priority;
use gpool_protocol::LeaseRequest;
use std::collections::BTreeSet;

/// Of the places in the queue a user without root has one in so many at most.
const USER_PART: usize = 4;
/// And all of them together.
const USERS_PART: usize = 2;

impl Queue {
    /// Whether there is a place for one that is not in the queue, of which `places` says how many there are. Those alone count
    /// that do not stand behind it by their priority, and in an emergency of it those that have one. Where these have all
    /// places, an owner that has less than an equal part of them is let in all the same: nobody's crowd shuts others out.
    pub fn has_place_for(&self, asked: &LeaseRequest, uid: u32, is_over_quota: bool, places: usize) -> bool {
        let (priority, is_urgent) = (slice_priority(asked.request.priority), self.is_urgent(asked, uid));
        let all: Vec<&Waiter> = self.waiters.iter().filter(|waiter| waiter.is_there()).collect();
        let counts = |waiter: &&&Waiter| {
            waiter.claim.priority <= priority && (!is_urgent || self.is_urgent(&waiter.asked, waiter.uid))
        };
        let counted: Vec<&Waiter> = all.iter().filter(counts).copied().collect();
        let many = |is_one: &dyn Fn(&Waiter) -> bool| counted.iter().filter(|waiter| is_one(waiter)).count();
        let is_user = |waiter: &Waiter| waiter.uid != 0;
        let is_beyond = uid != 0
            && (many(&|its| its.uid == uid) >= part(places, USER_PART) || many(&is_user) >= part(places, USERS_PART));
        let owner = super::waiter::owner_of(asked, uid);
        // All of the queue is not for one team's own quota.
        let is_crowd =
            is_over_quota && many(&|its| its.is_over_quota && its.owner() == owner) >= part(places, USER_PART);
        let owners: BTreeSet<String> = counted.iter().map(|its| its.owner()).chain([owner.clone()]).collect();
        let has_less = || many(&|its| its.owner() == owner) < places / owners.len();
        let is_full = counted.len() >= places && !has_less();
        !(is_full || is_beyond || is_crowd || all.len() >= most(places, priority, is_urgent))
    }
}

fn part(places: usize, of: usize) -> usize {
    (places / of).max(1)
}

/// How many wait at most, whoever they are, when one of this priority comes: what lower ones have is left for it. Each asks again
/// and again, and the queue is gone through for each.
fn most(places: usize, priority: Priority, is_urgent: bool) -> usize {
    let before = match priority {
        Priority::Scavenger => 0,
        Priority::Burst => 1,
        Priority::Guaranteed => 2,
    };
    places * (3 + before + usize::from(is_urgent)) / 2
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::lease::Holder;
    use crate::procfs::WatchedProcess;
    use gpool_protocol::{ContainerId, HostPid, Priority};

    fn asked(id: usize, team: &str, priority: Priority) -> LeaseRequest {
        let text = r#"{"container_id":"c","request":{"fraction_permille":300,"wait_seconds":60}}"#;
        let mut asked: LeaseRequest = serde_json::from_str(text).unwrap();
        asked.container_id = ContainerId(id.to_string());
        (asked.request.team, asked.request.priority) = ((!team.is_empty()).then(|| team.to_owned()), priority);
        asked
    }

    /// Has them come until there is no place for one more; how many have.
    fn fill(queue: &mut Queue, team: &str, priority: Priority, uid: u32, places: usize) -> usize {
        let mut count = 0;
        loop {
            let next = asked(queue.waiters.len(), team, priority);
            if !queue.has_place_for(&next, uid, false, places) {
                return count;
            }
            let this = WatchedProcess::open(HostPid(std::process::id())).unwrap();
            queue.join(&next, uid, this, 1 + count as u64);
            count += 1;
        }
    }

    #[test]
    fn one_owner_may_have_all_places_and_keeps_no_other_one_out() {
        let mut queue = Queue::default();
        let mut of = |team: &str| fill(&mut queue, team, Priority::Guaranteed, 0, 12);
        assert_eq!([of("a"), of("b"), of(""), of("c"), of("a")], [12, 6, 4, 3, 0]);
        assert_eq!(of("d"), 2);
        let all = queue.len();
        assert_eq!(
            (all, fill(&mut queue, "e", Priority::Guaranteed, 0, 12)),
            (27, 2),
            "an equal part of twelve is two"
        );
        let mut of = |team: &str| fill(&mut queue, team, Priority::Guaranteed, 0, 12);
        assert_eq!([of("f"), of("g")], [1, 0], "no more than thirty in all");
    }

    #[test]
    fn lower_priorities_keep_no_higher_one_out() {
        let mut queue = Queue::default();
        let mut of = |priority| fill(&mut queue, "a", priority, 0, 8);
        assert_eq!([of(Priority::Scavenger), of(Priority::Burst), of(Priority::Guaranteed)], [8, 8, 4]);
        assert_eq!([of(Priority::Scavenger), of(Priority::Burst), of(Priority::Guaranteed)], [0, 0, 0]);
        let mut queue = Queue::default();
        assert_eq!(fill(&mut queue, "a", Priority::Guaranteed, 0, 8), 8);
        assert_eq!(fill(&mut queue, "a", Priority::Scavenger, 0, 8), 0);
    }

    #[test]
    fn an_emergency_finds_a_place_in_a_full_queue() {
        let mut queue = Queue::default();
        assert_eq!(fill(&mut queue, "a", Priority::Guaranteed, 0, 4), 4);
        assert_eq!(fill(&mut queue, "a", Priority::Guaranteed, 0, 4), 0);
        queue.put_first(vec![Holder::User(1000)]);
        assert_eq!(fill(&mut queue, "", Priority::Burst, 1000, 4), 1, "a user has a quarter then as well");
        queue.put_first(vec![Holder::Team("b".into())]);
        assert_eq!(fill(&mut queue, "b", Priority::Scavenger, 0, 4), 3, "eight in all");
    }

    #[test]
    fn users_without_root_have_a_part_and_who_waits_for_its_own_quota_too() {
        let mut queue = Queue::default();
        let mut of = |uid| fill(&mut queue, "", Priority::Guaranteed, uid, 8);
        assert_eq!([of(1000), of(1001), of(1002)], [2, 2, 0]);
        let mut queue = Queue::default();
        for id in 0..2 {
            let this = WatchedProcess::open(HostPid(std::process::id())).unwrap();
            queue.join(&asked(id, "a", Priority::Guaranteed), 0, this, 1).is_over_quota = true;
        }
        let next = asked(9, "a", Priority::Guaranteed);
        assert!(queue.has_place_for(&next, 0, false, 8) && !queue.has_place_for(&next, 0, true, 8));
    }
}
