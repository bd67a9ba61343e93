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
pub struct PastMembers(BTreeMap<HostPid, (TenantId, u64)>);

impl PastMembers {
    /// Takes who is whose at `now_ns`, CLOCK_MONOTONIC.
    pub fn note(&mut self, members: &Members, now_ns: u64) {
        let all = members.iter().flat_map(|(tenant, pids)| pids.iter().map(|pid| (*pid, (*tenant, now_ns))));
        self.0.extend(all);
        self.0.retain(|_, (_, seen_ns)| now_ns.saturating_sub(*seen_ns) < KNOWN_NS);
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
    ) -> BTreeMap<TenantId, u64> {
        let there: BTreeSet<HostPid> = members.values().flatten().copied().collect();
        let mut others =
            busy.iter().map(|(pid, ns)| (HostPid(*pid), *ns)).filter(|(pid, _)| !there.contains(pid)).peekable();
        let mut ended = BTreeMap::new();
        if others.peek().is_none() {
            return ended;
        }
        let whole = whole();
        for (pid, ns) in others.filter(|(pid, _)| !is_alive(*pid)) {
            if let Some(tenant) = self.0.get(&pid).map(|(tenant, _)| *tenant).or(whole) {
                *ended.entry(tenant).or_insert(0) += ns;
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
        let of = |whole| past.of_ended(&busy, &now, || whole, |pid| pid == HostPid(40));
        assert_eq!(of(None), BTreeMap::from([(A, 5)]), "30 was never seen, and whose it was nobody knows");
        assert_eq!(of(Some(B)), BTreeMap::from([(A, 5), (B, 8)]), "40 is alive, and nobody's");
        past.note(&now, 11 * S);
        assert_eq!(past.of_ended(&busy, &now, || None, |_| false), BTreeMap::new(), "its pid may be another's by now");
    }
}
