//! What containers and programs without a lease use of the GPUs, once a second, for whoever wants to know what sharing would be
//! worth before anything is shared. Nothing is asked of them and nothing is done to them: NVML lists who has a context, with
//! how much memory, and how busy each keeps the GPU.

mod whose;

use crate::auditor::Auditor;
use crate::clock;
use crate::device::{Gpu, Kind, Occupancy};
use crate::lease::{Leases, Members};
use crate::ledger::Sighting;
use crate::procfs;
use gpool_protocol::{HostPid, Unleased};
use std::collections::{BTreeMap, BTreeSet};

/// The device tells late of what a process has done: one that has ended is known for so long.
const KNOWN_NS: u64 = 10_000_000_000;
/// Who was there for longer than this between two looks nobody knows.
const LONGEST_NS: u64 = 3_000_000_000;

/// A process that has, or had, a context.
#[derive(Debug)]
struct Known {
    start_ticks: Option<u64>,
    /// Whose it is; none of one that was a lease's, or gpool's own.
    user: Option<Unleased>,
    seen_ns: u64,
}

/// Remembers from one look to the next.
#[derive(Debug, Default)]
pub struct BaselineWatch {
    known: BTreeMap<HostPid, Known>,
    /// When it looked last, CLOCK_MONOTONIC.
    looked_ns: Option<u64>,
}

impl BaselineWatch {
    /// Notes in the ledger who used which GPU without a lease since the last look; to be called after the auditor has looked.
    pub fn look(&mut self, leases: &Leases, members: &Members, occupancies: &[Option<Occupancy>], auditor: &Auditor) {
        if !leases.configuration().ledger.is_kept() {
            return;
        }
        let (now_ns, unix_s) = (clock::now_ns(), clock::unix_ms() / 1000);
        let elapsed_ns = now_ns.saturating_sub(self.looked_ns.replace(now_ns).unwrap_or(now_ns));
        let leased: BTreeSet<HostPid> = members.values().flatten().copied().collect();
        let present = occupancies.iter().flatten().flat_map(|its| its.present.iter().copied()).collect();
        let is_gpools = |pid| leases.groups.has_process(pid) || procfs::is_own_child(pid);
        self.learn(&present, now_ns, |pid| leased.contains(&pid) || is_gpools(pid));
        if elapsed_ns > LONGEST_NS {
            return;
        }
        for (place, (gpu, occupancy)) in leases.gpus().iter().zip(occupancies).enumerate() {
            let is_asked = |gpu: &Gpu| matches!(gpu.kind, Kind::Whole | Kind::Instance(_));
            let Some(occupancy) = occupancy.as_ref().filter(|_| is_asked(gpu)) else { continue };
            let busy: BTreeMap<HostPid, u64> = auditor.busy(place).collect();
            let metered_ns = if auditor.has_figures(place) { elapsed_ns } else { 0 };
            for (user, mut sighting) in self.on(occupancy, &busy, (elapsed_ns, metered_ns)) {
                sighting.unix_s = unix_s;
                leases.ledger.note_unleased(&gpu.uuid, user, sighting);
            }
        }
    }

    /// Whose the processes are that have a context now. One that was a lease's stays that until it ends, also when the lease has.
    fn learn(&mut self, present: &BTreeSet<HostPid>, now_ns: u64, is_no_stranger: impl Fn(HostPid) -> bool) {
        for pid in present {
            let start_ticks = procfs::start_ticks(*pid);
            if self.known.get(pid).is_some_and(|its| its.start_ticks != start_ticks) {
                self.known.remove(pid);
            }
            let is_no_stranger = is_no_stranger(*pid);
            let whose = || if is_no_stranger { None } else { whose::whose(*pid) };
            let known = self.known.entry(*pid).or_insert_with(|| Known { start_ticks, user: whose(), seen_ns: now_ns });
            known.seen_ns = now_ns;
            if is_no_stranger {
                known.user = None;
            }
        }
        self.known.retain(|_, its| now_ns.saturating_sub(its.seen_ns) < KNOWN_NS);
    }

    /// What each of them did on one GPU since the last look, in which its figures were had for `metered_ns`.
    fn on(
        &self,
        occupancy: &Occupancy,
        busy: &BTreeMap<HostPid, u64>,
        (elapsed_ns, metered_ns): (u64, u64),
    ) -> BTreeMap<Unleased, Sighting> {
        let stranger = |pid: &HostPid| self.known.get(pid).and_then(|its| its.user.clone());
        let mut all: BTreeMap<Unleased, Sighting> = BTreeMap::new();
        for pid in &occupancy.present {
            let Some(user) = stranger(pid) else { continue };
            let its = all.entry(user).or_default();
            its.seen.held_ns = elapsed_ns;
            its.seen.unmetered_ns = elapsed_ns.saturating_sub(metered_ns);
            its.seen.peak_bytes = its.seen.peak_bytes.saturating_add(occupancy.bytes_of(*pid).unwrap_or(0));
            if its.command.is_empty() {
                its.command = procfs::comm(*pid);
            }
        }
        let all_ns: u64 = busy.values().fold(0, |sum, ns| sum.saturating_add(*ns));
        for (pid, ns) in busy {
            if let Some(user) = stranger(pid) {
                let its = all.entry(user).or_default();
                its.seen.busy_ns = its.seen.busy_ns.saturating_add(*ns);
            }
        }
        all.values_mut().for_each(|its| its.seen.others_ns = all_ns.saturating_sub(its.seen.busy_ns));
        all
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use gpool_policy::mechanism::ComputeMode;
    use gpool_policy::sizing::Seen;
    use gpool_protocol::UnleasedKind;

    const S: u64 = 1_000_000_000;

    fn user(name: &str) -> Unleased {
        Unleased { kind: UnleasedKind::Container, name: name.into(), uid: None }
    }

    /// Processes 1 and 2 are one container's, 3 is another one's, 4 is a lease's.
    fn watch() -> BaselineWatch {
        let known = |name: Option<&str>| Known { start_ticks: None, user: name.map(user), seen_ns: 0 };
        let all = [(1, Some("a")), (2, Some("a")), (3, Some("b")), (4, None)];
        BaselineWatch { known: all.map(|(pid, name)| (HostPid(pid), known(name))).into(), looked_ns: None }
    }

    fn occupancy(pids: &[u32]) -> Occupancy {
        Occupancy {
            used_bytes: 0,
            is_still: true,
            by_process: pids.iter().map(|pid| (HostPid(*pid), u64::from(*pid) * 100)).collect(),
            present: pids.iter().map(|pid| HostPid(*pid)).collect(),
            inherited: BTreeSet::new(),
            compute_mode: ComputeMode::Default,
            energy: None,
        }
    }

    #[test]
    fn what_processes_of_one_container_did_is_one_sum_and_leases_are_left_out() {
        let busy = BTreeMap::from([(1, S / 4), (3, S / 10), (4, S / 2), (9, S / 20)]);
        let busy = busy.into_iter().map(|(pid, ns)| (HostPid(pid), ns)).collect();
        let seen = watch().on(&occupancy(&[1, 2, 4]), &busy, (S, S));
        let [(a, first), (b, other)] = seen.iter().collect::<Vec<_>>()[..] else { panic!("{seen:?}") };
        let all_ns = S / 4 + S / 10 + S / 2 + S / 20;
        let want = |held_ns, busy_ns, peak_bytes| Seen {
            held_ns,
            unmetered_ns: 0,
            busy_ns,
            others_ns: all_ns - busy_ns,
            peak_bytes,
        };
        assert_eq!((a, first.seen), (&user("a"), want(S, S / 4, 300)));
        // It has ended, and what it did was told after that.
        assert_eq!((b, other.seen, other.command.as_str()), (&user("b"), want(0, S / 10, 0), ""));
        let hidden = watch().on(&occupancy(&[3]), &BTreeMap::new(), (S, 0));
        assert_eq!(hidden[&user("b")].seen.unmetered_ns, S, "an instance tells of nobody's work");
    }

    #[test]
    fn who_was_a_lease_s_stays_that_and_who_has_ended_is_known_for_a_while() {
        let me = HostPid(std::process::id());
        let (present, mut watch) = (BTreeSet::from([me]), BaselineWatch::default());
        watch.learn(&present, S, |_| false);
        assert!(watch.known[&me].user.is_some());
        watch.learn(&present, 2 * S, |_| true);
        watch.learn(&present, 3 * S, |_| false);
        assert!(watch.known[&me].user.is_none(), "its lease has ended, and it not yet");
        watch.learn(&BTreeSet::new(), 12 * S, |_| false);
        assert!(watch.known.contains_key(&me));
        watch.learn(&BTreeSet::new(), 13 * S, |_| false);
        assert!(watch.known.is_empty());
        // Another process that has its pid.
        watch.known.insert(me, Known { start_ticks: Some(1), user: None, seen_ns: 13 * S });
        watch.learn(&present, 14 * S, |_| false);
        assert!(watch.known[&me].user.is_some());
    }
}
