//! Looking after revoked leases for as long as they last, which may be weeks: what they cost each second is bounded.

use super::{end_users, enforce, give_back, keep_denied};
use crate::faults::Faults;
use crate::lease::Leases;
use gpool_protocol::{HostPid, LeaseId};
use std::collections::{BTreeMap, BTreeSet};
use std::time::{Duration, Instant};

/// Looks at the processes of those whose share is others' by now take so long at most, all together, but for the last process: a
/// container may hold any number of descriptors for as long as it likes.
const UPKEEP: Duration = Duration::from_millis(100);

/// Where looking after revoked leases has come to.
#[derive(Debug, Default)]
pub struct Upkeep {
    /// Of whom it cannot be done.
    faults: Faults<LeaseId>,
    /// Whose processes come first at the next look, and from which on.
    next: Option<(LeaseId, HostPid)>,
}

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
    let mut without_share = BTreeMap::new();
    for (id, has_lost_share) in revoked {
        let kept = match has_lost_share {
            true => {
                keep_denied(leases, &id).map(|kept| without_share.extend(kept.map(|(taken, _)| (id.clone(), taken))))
            }
            // A look at all of its processes says whether its share is free.
            false => enforce(leases, &id).map(drop).or_else(|cause| give_back(leases, &id, cause)),
        };
        let ended = kept.map_err(|cause| format!("the revoked lease {id}: {cause}"));
        upkeep.faults.note(id, &ended);
    }
    let deadline = Instant::now() + UPKEEP;
    upkeep.go_on(&without_share, deadline, |id, taken, reach| end_users(leases, id, taken, reach).1);
}

impl Upkeep {
    /// Has `look` look at the processes of these from where the last time has stopped until `deadline`, one at least; it says where it
    /// has stopped.
    fn go_on<T>(
        &mut self,
        all: &BTreeMap<LeaseId, T>,
        deadline: Instant,
        mut look: impl FnMut(&LeaseId, &T, Reach) -> Option<HostPid>,
    ) {
        let next = self.next.take();
        let (first, from) = next.unwrap_or_else(|| (LeaseId(String::new()), HostPid(0)));
        let turns = all.range(&first..).chain(all.range(..&first));
        for (count, (id, its)) in turns.enumerate() {
            let from = if *id == first { from } else { HostPid(0) };
            if count > 0 && Instant::now() >= deadline {
                self.next = Some((id.clone(), from));
                return;
            }
            if let Some(stopped_at) = look(id, its, Reach { from, deadline: Some(deadline) }) {
                self.next = Some((id.clone(), stopped_at));
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
    deadline: Option<Instant>,
}

impl Reach {
    /// At each.
    pub const ALL: Self = Self { from: HostPid(0), deadline: None };

    /// Whether it is over.
    pub fn is_over(&self) -> bool {
        self.deadline.is_some_and(|deadline| Instant::now() >= deadline)
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
        let mut upkeep = Upkeep::default();
        // So many leases, and processes of the last of them, are looked at before the time is over.
        let mut look = |leases: usize, processes: usize| {
            let mut seen: Vec<(String, Vec<u32>)> = Vec::new();
            let (over, later) = (Instant::now(), Instant::now() + Duration::from_secs(600));
            upkeep.go_on(&all, if leases == 1 { over } else { later }, |id, (), mut reach| {
                let is_last = seen.len() + 1 == leases;
                let mut own = Vec::new();
                reach.deadline = Some(if is_last && processes == 1 { over } else { later });
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
