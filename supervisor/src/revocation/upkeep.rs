//! Looking after revoked leases for as long as they last, which may be weeks: what they cost each second is bounded.

use super::{Taken, end_users, give_back, keep_denied};
use crate::faults::Faults;
use crate::lease::Leases;
use gpool_protocol::{HostPid, LeaseId};
use std::collections::{BTreeMap, BTreeSet};
use std::time::{Duration, Instant};

/// Looks at the processes of those whose share is others' by now take so long at most, all together, but for the last process: a
/// container may hold any number of descriptors for as long as it likes.
const UPKEEP: Duration = Duration::from_millis(100);
/// The same of those whose share is to be free, of which one look has to see all of it.
const TAKING: Duration = Duration::from_secs(1);

/// Where looking after revoked leases has come to.
#[derive(Debug, Default)]
pub struct Upkeep {
    /// Of whom it cannot be done.
    faults: Faults<LeaseId>,
    without_share: Turns,
    taken: Turns,
}

/// Whose processes come first at the next look, and from which on.
#[derive(Debug, Default)]
struct Turns(Option<(LeaseId, HostPid)>);

/// Looks after those that are revoked: what was given back to them, as a service manager that is reloaded does, is denied
/// again, and who uses it all the same is ended. Also what a supervisor that was killed has left undone; where that cannot be done, it is
/// undone.
pub fn keep_up(leases: &Leases, upkeep: &mut Upkeep) {
    let revoked: BTreeMap<LeaseId, bool> = {
        let book = leases.book();
        let revoked = book.leases.values().filter(|lease| lease.record.revocation.is_some());
        revoked.map(|lease| (lease.record.lease_id.clone(), lease.record.has_lost_share())).collect()
    };
    upkeep.faults.retain(|id| revoked.contains_key(id));
    let (mut without_share, mut in_taking) = (BTreeMap::new(), BTreeMap::new());
    for (id, has_lost_share) in revoked {
        let kept = keep_denied(leases, &id).map(|kept| {
            let all = if has_lost_share { &mut without_share } else { &mut in_taking };
            all.extend(kept.map(|(taken, _)| (id.clone(), taken)));
        });
        let kept = kept.or_else(|cause| if has_lost_share { Err(cause) } else { give_back(leases, &id, cause) });
        let ended = kept.map_err(|cause| format!("the revoked lease {id}: {cause}"));
        upkeep.faults.note(id, &ended);
    }
    let mut look = |id: &LeaseId, taken: &Taken, reach: Reach| end_users(leases, id, taken, reach).1;
    upkeep.without_share.go_on(&without_share, Instant::now() + UPKEEP, &mut look);
    upkeep.taken.go_on(&in_taking, Instant::now() + TAKING, |id, taken, reach| {
        // Who shares the time with others is seen from the first process on when it has all of it.
        look(id, taken, reach).map(|stopped_at| if reach.has_all_time { stopped_at } else { HostPid(0) })
    });
}

impl Turns {
    /// Has `look` look at the processes of these from where the last time has stopped until `deadline`, one at least; it says where it
    /// has stopped.
    fn go_on<T>(
        &mut self,
        all: &BTreeMap<LeaseId, T>,
        deadline: Instant,
        mut look: impl FnMut(&LeaseId, &T, Reach) -> Option<HostPid>,
    ) {
        let next = self.0.take();
        let (first, from) = next.unwrap_or_else(|| (LeaseId(String::new()), HostPid(0)));
        let turns = all.range(&first..).chain(all.range(..&first));
        for (count, (id, its)) in turns.enumerate() {
            let from = if *id == first { from } else { HostPid(0) };
            if count > 0 && Instant::now() >= deadline {
                self.0 = Some((id.clone(), from));
                return;
            }
            if let Some(stopped_at) = look(id, its, Reach { from, deadline, has_all_time: count == 0 }) {
                self.0 = Some((id.clone(), stopped_at));
                return;
            }
        }
    }
}

/// At which of the processes of a container is looked.
#[derive(Debug, Clone, Copy)]
pub struct Reach {
    /// The first.
    from: HostPid,
    /// When it is over, if all do not come first.
    deadline: Instant,
    /// Whether the time is for this container alone.
    pub has_all_time: bool,
}

impl Reach {
    /// At each of one container, as far as there is time.
    pub fn of_one() -> Self {
        Self { from: HostPid(0), deadline: Instant::now() + TAKING, has_all_time: true }
    }

    /// Whether one that did not stop has seen each.
    pub fn is_from_the_first(&self) -> bool {
        self.from == HostPid(0)
    }

    /// Whether it is over.
    pub fn is_over(&self) -> bool {
        Instant::now() >= self.deadline
    }

    /// What `look` finds in those of `all` that are within it, one at least, and where it has stopped.
    pub fn over<T>(
        self,
        all: &BTreeSet<HostPid>,
        mut look: impl FnMut(HostPid) -> Option<T>,
    ) -> (Vec<T>, Option<HostPid>) {
        let mut found = Vec::new();
        for (count, pid) in all.range(self.from..).enumerate() {
            if count > 0 && self.is_over() {
                return (found, Some(*pid));
            }
            found.extend(look(*pid));
        }
        (found, None)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_does_not_fit_into_a_look_is_gone_on_with_at_the_next_one() {
        let pids: BTreeSet<HostPid> = (1..=4).map(HostPid).collect();
        let all: BTreeMap<LeaseId, ()> = ["a", "b", "c"].map(|id| (LeaseId(id.into()), ())).into();
        let mut turns = Turns::default();
        // So many leases, and processes of the last of them, are looked at before the time is over.
        let mut look = |leases: usize, processes: usize| {
            let mut seen: Vec<(String, Vec<u32>)> = Vec::new();
            let (over, later) = (Instant::now(), Instant::now() + Duration::from_secs(600));
            turns.go_on(&all, if leases == 1 { over } else { later }, |id, (), mut reach| {
                assert_eq!(reach.has_all_time, seen.is_empty());
                let is_last = seen.len() + 1 == leases;
                let mut own = Vec::new();
                reach.deadline = if is_last && processes == 1 { over } else { later };
                let (_, stopped_at) = reach.over(&pids, |pid| {
                    own.push(pid.0);
                    None::<()>
                });
                seen.push((id.0.clone(), own));
                stopped_at
            });
            seen
        };
        let whole = |id: &str| (id.to_owned(), vec![1, 2, 3, 4]);
        assert_eq!(look(9, 9), [whole("a"), whole("b"), whole("c")]);
        assert_eq!(look(2, 1), [whole("a"), ("b".into(), vec![1])]);
        assert_eq!(look(1, 1), [("b".into(), vec![2])], "one process is looked at however long it takes");
        assert_eq!(look(1, 9), [("b".into(), vec![3, 4])]);
        assert_eq!(look(1, 9), [whole("c")], "and each lease has its turn");
        assert_eq!(look(9, 9), [whole("a"), whole("b"), whole("c")]);
    }
}
