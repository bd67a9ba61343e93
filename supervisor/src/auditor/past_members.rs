//! Whose processes were that have ended: the device tells late what it saw of a process, and of one that lives for less than the
//! time between two looks only when nobody can find it any more.

use crate::clock;
use crate::lease::{Lease, Leases, Members};
use gpool_policy::TenantId;
use gpool_protocol::{HostPid, Mechanism};
use std::collections::{BTreeMap, BTreeSet};

/// For how long a process is known that has ended. The device tells of it within two seconds; pids come to others much later.
const KNOWN_NS: u64 = 10_000_000_000;

/// The device tells within this of what a process has done.
const LATE_NS: u64 = 3_000_000_000;

/// Who was whose lately.
#[derive(Debug, Default)]
pub struct PastMembers {
    all: BTreeMap<HostPid, (TenantId, u64)>,
    /// Those of them that went past the shims, and so reported nothing.
    silent: BTreeSet<HostPid>,
}

/// How busy those kept a GPU that have ended, nanoseconds.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Ended {
    /// All of them.
    pub all_ns: u64,
    /// Those that went past the shims.
    pub silent_ns: u64,
}

impl PastMembers {
    /// Takes who is whose at `now_ns`, CLOCK_MONOTONIC.
    pub fn note(&mut self, members: &Members, now_ns: u64) {
        let all = members.iter().flat_map(|(tenant, pids)| pids.iter().map(|pid| (*pid, (*tenant, now_ns))));
        self.all.extend(all);
        self.all.retain(|_, (_, seen_ns)| now_ns.saturating_sub(*seen_ns) < KNOWN_NS);
        self.silent.retain(|pid| self.all.contains_key(pid));
    }

    /// These were seen past the shims at `now_ns`.
    pub fn note_silent(&mut self, silent: impl Iterator<Item = (TenantId, HostPid)>, now_ns: u64) {
        for (tenant, pid) in silent {
            self.all.insert(pid, (tenant, now_ns));
            self.silent.insert(pid);
        }
    }

    /// How busy processes that have ended kept a GPU, by whose they were, from what each kept it `busy` in nanoseconds: those that
    /// were seen once, and, of a GPU that a lease has as a `whole`, all others that are not alive. Who is alive and nobody's is not
    /// of any lease.
    pub fn of_ended(
        &self,
        busy: &BTreeMap<u32, u64>,
        members: &Members,
        whole: impl FnOnce() -> Option<TenantId>,
        is_alive: impl Fn(HostPid) -> bool,
    ) -> BTreeMap<TenantId, Ended> {
        let there: BTreeSet<HostPid> = members.values().flatten().copied().collect();
        let mut others =
            busy.iter().map(|(pid, ns)| (HostPid(*pid), *ns)).filter(|(pid, _)| !there.contains(pid)).peekable();
        let mut ended: BTreeMap<TenantId, Ended> = BTreeMap::new();
        if others.peek().is_none() {
            return ended;
        }
        let whole = whole();
        for (pid, ns) in others.filter(|(pid, _)| !is_alive(*pid)) {
            if let Some(tenant) = self.all.get(&pid).map(|(tenant, _)| *tenant).or(whole) {
                let its = ended.entry(tenant).or_default();
                its.all_ns += ns;
                its.silent_ns += if self.silent.contains(&pid) { ns } else { 0 };
            }
        }
        ended
    }
}

/// The lease that has all of a GPU, and has had it for so long that the device tells late of nobody before.
pub fn whole(leases: &Leases, gpu: usize) -> Option<TenantId> {
    let book = leases.book();
    let now_ns = clock::now_ns();
    let is_its = |lease: &&Lease| lease.record.mechanism == Mechanism::Exclusive && lease.gpus().any(|its| its == gpu);
    let has_had_it = |lease: &&Lease| lease.record.age_ns(now_ns) >= LATE_NS;
    book.leases.values().find(is_its).filter(has_had_it).map(|lease| lease.tenant)
}

#[cfg(test)]
mod tests {
    use super::*;

    const S: u64 = 1_000_000_000;
    const A: TenantId = TenantId(1);
    const B: TenantId = TenantId(2);

    fn members(all: &[(TenantId, &[u32])]) -> Members {
        all.iter().map(|(tenant, pids)| (*tenant, pids.iter().map(|pid| HostPid(*pid)).collect())).collect()
    }

    #[test]
    fn what_is_told_late_of_who_has_ended_is_its_lease_s() {
        let mut past = PastMembers::default();
        past.note(&members(&[(A, &[10, 11]), (B, &[20])]), S);
        let now = members(&[(A, &[11]), (B, &[20])]);
        past.note(&now, 2 * S);
        let busy = BTreeMap::from([(10, 5), (11, 6), (20, 7), (30, 8), (40, 9)]);
        let of = |past: &PastMembers, whole| past.of_ended(&busy, &now, || whole, |pid| pid == HostPid(40));
        let ended = |all_ns, silent_ns| Ended { all_ns, silent_ns };
        assert_eq!(
            of(&past, None),
            BTreeMap::from([(A, ended(5, 0))]),
            "30 was never seen, and whose it was nobody knows"
        );
        let with_whole = BTreeMap::from([(A, ended(5, 0)), (B, ended(8, 0))]);
        assert_eq!(of(&past, Some(B)), with_whole, "40 is alive, and nobody's");
        past.note_silent([(A, HostPid(30)), (B, HostPid(20))].into_iter(), 2 * S);
        assert_eq!(of(&past, None), BTreeMap::from([(A, ended(13, 8))]), "20 is there, and is seen with the others");
        past.note(&now, 11 * S);
        past.note(&now, 12 * S);
        assert!(past.silent.len() == 1, "{past:?}");
        assert_eq!(past.of_ended(&busy, &now, || None, |_| false), BTreeMap::new(), "its pid may be another's by now");
    }
}
