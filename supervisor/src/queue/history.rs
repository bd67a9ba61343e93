//! What owners have had of GPUs before, for the order of the queue where that counts (`[queue] half_life_days`).

use super::Waiter;
use super::waiter::owner_of_team;
use crate::clock;
use crate::lease::{Book, Holder, Leases, Tally};
use gpool_policy::fair_share::{decayed_ns, expected_ns, tags};
use gpool_policy::queue::Claim;
use std::collections::BTreeMap;

/// One owner: a team, or a user where none is named.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Had {
    /// What counts of what it was promised of GPUs' time, with what its leases are expected to have still, in nanoseconds.
    ns: u64,
    shares: u32,
}

/// Those that have something waiting.
#[derive(Debug, Default)]
pub struct History(BTreeMap<String, Had>);

impl History {
    /// Puts what each has had, and what its requests before that one will have, in place of the round.
    pub fn place(&self, waiting: &[&Waiter], claims: &mut [Claim]) {
        let mut of_owner: BTreeMap<String, Vec<usize>> = BTreeMap::new();
        for (index, waiter) in waiting.iter().enumerate() {
            of_owner.entry(waiter.owner()).or_default().push(index);
        }
        for (owner, mut its) in of_owner {
            let Had { ns, shares } = self.0.get(&owner).copied().unwrap_or(Had { ns: 0, shares: 1 });
            its.sort_by_key(|index| claims[*index]);
            let expected: Vec<u64> = its.iter().map(|index| expected_of(waiting[*index])).collect();
            for (index, tag) in its.into_iter().zip(tags(ns, shares, &expected)) {
                claims[index].round = tag;
            }
        }
    }

    /// What an owner has had for each of its shares, in nanoseconds.
    pub fn had_ns(&self, owner: &str) -> Option<u64> {
        self.0.get(owner).map(|had| had.ns / u64::from(had.shares.max(1)))
    }
}

/// A request whose size shows only on the GPU counts as a tenth of one.
fn expected_of(waiter: &Waiter) -> u64 {
    let request = &waiter.asked.request;
    let permille = u64::from(request.fraction_permille.max(100)) * u64::from(request.gpus.max(1));
    expected_ns(permille, request.run_seconds, 0)
}

impl Leases {
    /// As it is now; none where it does not count, or the ledger has not been read.
    pub fn history(&self, book: &Book) -> Option<History> {
        let configuration = self.configuration();
        let half_life_days = u64::from(configuration.queue.half_life_days);
        if half_life_days == 0 {
            return None;
        }
        let (spent, gpus) = (self.ledger.spent()?, self.gpus());
        let (now_ns, unix_s) = (clock::now_ns(), clock::unix_ms() / 1000);
        let mut had = BTreeMap::new();
        for waiter in &book.queue.waiters {
            let team = waiter.asked.request.team.as_deref();
            let [of_team, of_user] = Holder::both(team, waiter.uid);
            let holder = if team.is_some() { of_team } else { of_user };
            let its = || Had {
                ns: decayed_ns(spent.by_age(&holder, unix_s), half_life_days),
                shares: configuration.shares_of(team),
            };
            had.entry(waiter.owner()).or_insert_with(its);
        }
        for lease in book.leases.values() {
            let record = &lease.record;
            let Some(its) = had.get_mut(&owner_of_team(record.team.as_deref(), record.owner_uid)) else { continue };
            let permille = Tally::of(record, &gpus).amounts().share_permille;
            let ran_ns = now_ns.saturating_sub(record.begun_ns(now_ns));
            let had_ns = u128::from(ran_ns) * u128::from(permille) / 1000;
            let still_ns = expected_ns(permille, record.run_seconds, u64::try_from(had_ns).unwrap_or(u64::MAX));
            its.ns = its.ns.saturating_add(still_ns);
        }
        Some(History(had))
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
        Some(History(all.iter().map(had).collect()))
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
    }
}
