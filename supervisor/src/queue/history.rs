//! What owners have had of GPUs before, for the order of the queue where that counts (`[queue] half_life_days`).

use super::Waiter;
use super::waiter::owner_of_team;
use crate::clock;
use crate::lease::{Book, Leases, Tally};
use gpool_policy::fair_share::{decayed_ns, expected_ns, tags};
use gpool_policy::queue::Claim;
use gpool_policy::slice::Priority;
use gpool_protocol::Class;
use std::collections::BTreeMap;

/// One owner: a team, or a user where none is named.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Had {
    /// What counts of what it was promised of GPUs' time, with what its leases are expected to have still, in nanoseconds.
    ns: u64,
    shares: u32,
}

/// Those that have something waiting, and for how long containers of each class run at most where they do not say so.
#[derive(Debug, Default)]
pub struct History {
    by_owner: BTreeMap<String, Had>,
    longest_run_s: Vec<(Class, Option<u64>)>,
}

impl History {
    /// Puts what each has had, and what its requests before that one will have, in place of the round. Who is promised nothing takes turns
    /// with his like: nobody has written down what those had.
    pub fn place(&self, waiting: &[&Waiter], claims: &mut [Claim]) {
        let mut of_owner: BTreeMap<String, Vec<usize>> = BTreeMap::new();
        for (index, waiter) in waiting.iter().enumerate().filter(|(index, _)| counts(&claims[*index])) {
            of_owner.entry(waiter.owner()).or_default().push(index);
        }
        for (owner, mut its) in of_owner {
            let Had { ns, shares } = self.by_owner.get(&owner).copied().unwrap_or(Had { ns: 0, shares: 1 });
            its.sort_by_key(|index| claims[*index]);
            let expected: Vec<u64> = its.iter().map(|index| self.expected_of(waiting[*index])).collect();
            for (index, tag) in its.into_iter().zip(tags(ns, shares, &expected)) {
                claims[index].round = tag;
            }
        }
    }

    /// What the owner of one that waits has had for each of its shares, in nanoseconds, if that counts for it.
    pub fn had_ns(&self, waiter: &Waiter) -> Option<u64> {
        let had = self.by_owner.get(&waiter.owner()).filter(|_| counts(&waiter.claim))?;
        Some(had.ns / u64::from(had.shares.max(1)))
    }

    /// A request whose size shows only on the GPU counts as a tenth of one, and who stands still for something else than room as nothing:
    /// those behind it go on.
    fn expected_of(&self, waiter: &Waiter) -> u64 {
        let request = &waiter.asked.request;
        if waiter.is_over_quota || waiter.lacks_host_memory {
            return 0;
        }
        let permille = u64::from(request.fraction_permille.max(100)) * u64::from(request.gpus.max(1));
        let of_class = || self.longest_run_s.iter().find(|(class, _)| *class == request.class)?.1;
        expected_ns(permille, request.run_seconds.or_else(of_class), 0)
    }
}

fn counts(claim: &Claim) -> bool {
    claim.priority == Priority::Guaranteed
}

impl Leases {
    /// Brings up to date what owners have had, as when somebody joins or is granted something.
    pub fn refresh_history(&self, book: &mut Book) {
        book.queue.history = self.history(book);
    }

    /// As it is now; none where it does not count, or the ledger has not been read.
    fn history(&self, book: &Book) -> Option<History> {
        let configuration = self.configuration();
        let half_life_days = u64::from(configuration.queue.half_life_days);
        if half_life_days == 0 || book.queue.waiters.is_empty() {
            return None;
        }
        let (spent, gpus) = (self.ledger.spent()?, self.gpus());
        // What runs has had by the ledger what it had when that was written last, and not more.
        let (until_ns, unix_s) = (self.ledger.spent_until_ns(), clock::unix_ms() / 1000);
        let mut had = BTreeMap::new();
        for waiter in &book.queue.waiters {
            let team = waiter.asked.request.team.as_deref();
            let its = || Had {
                ns: decayed_ns(spent.by_age(team, waiter.uid, unix_s), half_life_days),
                shares: configuration.shares_of(team),
            };
            had.entry(waiter.owner()).or_insert_with(its);
        }
        for lease in book.leases.values() {
            let record = &lease.record;
            let Some(its) = had.get_mut(&owner_of_team(record.team.as_deref(), record.owner_uid)) else { continue };
            let permille = Tally::of(record, &gpus).amounts().share_permille;
            let ran_ns = until_ns.saturating_sub(record.begun_ns(clock::now_ns()));
            let had_ns = u128::from(ran_ns) * u128::from(permille) / 1000;
            let still_ns = expected_ns(permille, record.run_seconds, u64::try_from(had_ns).unwrap_or(u64::MAX));
            its.ns = its.ns.saturating_add(still_ns);
        }
        let longest_run_s = [Class::Latency, Class::Batch, Class::Notebook, Class::Train]
            .map(|class| (class, self.longest_run_seconds(class)));
        Some(History { by_owner: had, longest_run_s: longest_run_s.to_vec() })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::procfs::WatchedProcess;
    use crate::queue::Queue;
    use gpool_protocol::{ContainerId, HostPid, LeaseRequest, Priority};

    const HOUR_NS: u64 = 3600 * 1_000_000_000;

    fn joins(queue: &mut Queue, id: &str, team: &str, permille: u16, priority: Priority) {
        let text = r#"{"container_id":"c","request":{"fraction_permille":300,"wait_seconds":60}}"#;
        let mut asked: LeaseRequest = serde_json::from_str(text).unwrap();
        asked.container_id = ContainerId(id.into());
        (asked.request.team, asked.request.fraction_permille) = (Some(team.into()), permille);
        asked.request.priority = priority;
        let this = WatchedProcess::open(HostPid(std::process::id())).unwrap();
        let now_ns = 1 + queue.waiters.len() as u64;
        queue.join(&asked, 0, this, now_ns);
    }

    fn order(queue: &Queue) -> String {
        let ids: Vec<&str> = queue.in_order().iter().map(|waiter| waiter.asked.container_id.0.as_str()).collect();
        ids.join(" ")
    }

    fn had(all: &[(&str, u64, u32)]) -> Option<History> {
        let had = |(team, hours, shares): &(&str, u64, u32)| {
            (format!("team {team}"), Had { ns: hours * HOUR_NS, shares: *shares })
        };
        Some(History { by_owner: all.iter().map(had).collect(), longest_run_s: vec![(Class::Train, Some(7200))] })
    }

    #[test]
    fn who_has_had_less_is_first_and_what_he_has_waiting_counts_for_those_behind_it() {
        let mut queue = Queue::default();
        for (id, team) in [("a1", "a"), ("a2", "a"), ("a3", "a"), ("b1", "b"), ("b2", "b")] {
            joins(&mut queue, id, team, 1000, Priority::Guaranteed);
        }
        joins(&mut queue, "s1", "c", 1000, Priority::Scavenger);
        assert_eq!(order(&queue), "a1 b1 a2 b2 a3 s1", "turns");
        queue.history = had(&[("a", 0, 1), ("b", 2, 1), ("c", 0, 1)]);
        assert_eq!(order(&queue), "a1 a2 a3 b1 b2 s1", "two hours behind, and as they came where they are level");
        queue.history = had(&[("a", 4, 1), ("b", 2, 1), ("c", 0, 1)]);
        assert_eq!(order(&queue), "b1 b2 a1 a2 a3 s1", "a lower priority is behind, whatever was had");
        queue.history = had(&[("a", 4, 4), ("b", 2, 1), ("c", 0, 1)]);
        assert_eq!(order(&queue), "a1 a2 a3 b1 b2 s1", "for each share");
        queue.history = had(&[]);
        assert_eq!(order(&queue), "a1 b1 a2 b2 a3 s1", "of whom nothing is known has had nothing");
        queue.put_first(vec![crate::lease::Holder::Team("b".into())]);
        queue.history = had(&[("a", 0, 1), ("b", 20, 1)]);
        assert_eq!(order(&queue), "b1 b2 a1 a2 a3 s1", "an emergency stands before it");
    }

    #[test]
    fn small_requests_count_less_than_large_ones() {
        let mut queue = Queue::default();
        for (id, team, permille) in
            [("a1", "a", 1000), ("a2", "a", 1000), ("b1", "b", 100), ("b2", "b", 100), ("b3", "b", 0)]
        {
            joins(&mut queue, id, team, permille, Priority::Guaranteed);
        }
        queue.history = had(&[("a", 0, 1), ("b", 0, 1)]);
        assert_eq!(order(&queue), "a1 b1 b2 b3 a2");
        // Who waits for a quota of its own holds none of its own up, and a class may say how long its containers run.
        queue.waiters[0].is_over_quota = true;
        assert_eq!(order(&queue), "a1 a2 b1 b2 b3");
        queue.waiters[2].asked.request.class = Class::Train;
        queue.waiters[3].asked.request.class = Class::Train;
        queue.history = had(&[("a", 0, 4), ("b", 0, 1)]);
        queue.waiters[0].is_over_quota = false;
        assert_eq!(order(&queue), "a1 b1 b2 a2 b3", "a quarter of an hour is before twice 0.2, and behind once");
    }

    #[test]
    fn who_is_promised_nothing_takes_turns() {
        let mut queue = Queue::default();
        for (id, team) in [("a1", "a"), ("a2", "a"), ("b1", "b")] {
            joins(&mut queue, id, team, 1000, Priority::Scavenger);
        }
        queue.history = had(&[("a", 0, 1), ("b", 9, 1)]);
        assert_eq!(order(&queue), "a1 b1 a2");
        assert!(queue.views().iter().all(|view| view.owner_had_gpu_seconds.is_none()));
    }
}
