//! What the device shows that processes hold beyond their accounts.
//!
//! The shims charge what they can know beforehand. Static data of images that they cannot read, code that is compiled or
//! loaded late, and what a program takes past them show in NVML alone. It counts against the lease's cap from the next
//! look on: it cannot be undone, but nothing comes on top of it.

use crate::context_cost::{Claim, Claims};
use crate::device::Occupancy;
use crate::lease::Leases;
use crate::procfs::ProcessName;
use gpool_shared_region::Control;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::atomic::Ordering;

/// What each process of a lease holds of one GPU beyond its account, as far as it does.
#[derive(Debug, Default)]
pub struct Uncounted {
    by_process: BTreeMap<ProcessName, u64>,
    /// What an earlier life of the supervisor had seen of all together.
    earlier_bytes: u64,
    /// Of whom it had seen that, and whether this one has said of them what they hold.
    earlier: BTreeMap<ProcessName, bool>,
}

impl Uncounted {
    /// Goes on from what an earlier life of the supervisor had seen of these: until each of them has been seen again, which a
    /// busy one may not be for long, or has gone, they count as holding that together.
    pub fn going_on(earlier_bytes: u64, processes: impl Iterator<Item = ProcessName>) -> Self {
        Self { by_process: BTreeMap::new(), earlier_bytes, earlier: processes.map(|name| (name, false)).collect() }
    }

    /// All others have gone.
    fn keep(&mut self, known: &BTreeSet<ProcessName>) {
        self.by_process.retain(|name, _| known.contains(name));
        self.earlier.retain(|name, _| known.contains(name));
    }

    fn see(&mut self, name: ProcessName, bytes: u64) {
        self.by_process.insert(name, bytes);
        self.earlier.entry(name).and_modify(|is_seen| *is_seen = true);
    }

    /// It has gone, and the device has back what it held. Whether that changes anything.
    fn forget(&mut self, name: &ProcessName) -> bool {
        let was_seen = self.by_process.remove(name).is_some();
        self.earlier.remove(name).is_some() || was_seen
    }

    fn bytes(&self) -> u64 {
        let sum = |of_earlier: bool| {
            let its = self.by_process.iter().filter(|(name, _)| self.earlier.contains_key(name) == of_earlier);
            its.fold(0, |sum: u64, (_, bytes)| sum.saturating_add(*bytes))
        };
        let least = if self.earlier.values().all(|is_seen| *is_seen) { 0 } else { self.earlier_bytes };
        sum(true).max(least).saturating_add(sum(false))
    }
}

/// Compares the claims that were there before and after NVML was asked with its answer, and says in each control page what
/// is held beside them.
pub fn note(leases: &Leases, gpu: usize, before: &Claims, after: &Claims, occupancy: &Occupancy) {
    let mut book = leases.book();
    for lease in book.leases.values_mut() {
        let Some(place) = lease.place_of(gpu) else { continue };
        let control = lease.region.control();
        let context_bytes = control.context_bytes.load(Ordering::Relaxed);
        let alive: Vec<ProcessName> = lease.processes.values().map(|process| process.watched.name).collect();
        // What one has held that has died counts for as long as its slot does.
        let known: BTreeSet<ProcessName> =
            lease.dead.values().filter_map(|dead| dead.name).chain(alive.iter().copied()).collect();
        let uncounted = &mut lease.uncounted[place];
        uncounted.keep(&known);
        for name in alive {
            let used_bytes = occupancy.bytes_of(name.pid).unwrap_or(0);
            if let Some(bytes) = beyond(before.get(&name), after.get(&name), used_bytes, context_bytes) {
                uncounted.see(name, bytes);
            }
        }
        control.uncounted_bytes[place].store(uncounted.bytes(), Ordering::Relaxed);
    }
}

/// The lease with this control page has back what `name` held, which has gone: not at the next look, since with its slot what it held
/// by its account is free at once, and somebody may wait for all of that.
pub fn note_gone(uncounted: &mut [Uncounted], control: &Control, name: &ProcessName) {
    for (its, told_bytes) in uncounted.iter_mut().zip(&control.uncounted_bytes) {
        if its.forget(name) {
            told_bytes.store(its.bytes(), Ordering::Relaxed);
        }
    }
}

/// What a process that claimed this before and after it was seen to use `used_bytes` holds beyond it; none where that does
/// not tell, because it was just changing.
fn beyond(before: Option<&Claim>, after: Option<&Claim>, used_bytes: u64, context_bytes: u64) -> Option<u64> {
    let claim = after.filter(|claim| before == Some(claim) && !claim.is_changing)?;
    Some(used_bytes.saturating_sub(claim.holding.bytes(context_bytes)))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::lease::Holding;
    use gpool_protocol::HostPid;

    #[test]
    fn what_an_earlier_supervisor_had_seen_counts_until_all_of_whom_it_was_have_been_seen_again_or_have_gone() {
        let [one, two, new] = [1, 2, 3].map(|pid| ProcessName { pid: HostPid(pid), start_ticks: 7 });
        let mut uncounted = Uncounted::going_on(1000, [one, two].into_iter());
        uncounted.see(new, 5);
        assert_eq!(uncounted.bytes(), 1005);
        uncounted.see(one, 300);
        assert_eq!(uncounted.bytes(), 1005, "the other one has not been seen yet");
        uncounted.see(two, 600);
        assert_eq!(uncounted.bytes(), 905);
        let mut uncounted = Uncounted::going_on(1000, [one, two].into_iter());
        uncounted.see(one, 300);
        uncounted.keep(&BTreeSet::from([one]));
        assert_eq!(uncounted.bytes(), 300, "the other one has gone");
        uncounted.keep(&BTreeSet::new());
        assert_eq!((uncounted.bytes(), Uncounted::default().bytes()), (0, 0));
    }

    #[test]
    fn what_one_held_that_has_gone_counts_no_longer_than_its_slot() {
        let dir = tempfile::tempdir().unwrap();
        let region = crate::lease::lease_in(dir.path(), "01").region;
        let [one, two] = [1, 2].map(|pid| ProcessName { pid: HostPid(pid), start_ticks: 7 });
        let mut uncounted = [Uncounted::default(), Uncounted::default()];
        for (gpu, name, bytes) in [(0, one, 100), (0, two, 20), (1, two, 3)] {
            uncounted[gpu].see(name, bytes);
        }
        let told = || [0, 1].map(|gpu| region.control().uncounted_bytes[gpu].load(Ordering::Relaxed));
        region.control().uncounted_bytes[1].store(3, Ordering::Relaxed);
        note_gone(&mut uncounted, region.control(), &one);
        assert_eq!(told(), [20, 3]);
        note_gone(&mut uncounted, region.control(), &two);
        assert_eq!(told(), [0, 0]);
    }

    #[test]
    fn what_is_beyond_a_claim_that_stands_still_is_uncounted() {
        let claim = |allocated_bytes| Claim {
            holding: Holding { allocated_bytes, contexts: 2 },
            image_bytes: 0,
            is_inexact: true,
            is_changing: false,
            changes: 3,
        };
        let of = |before: Claim, after: Claim| beyond(Some(&before), Some(&after), 1000, 100);
        assert_eq!(of(claim(500), claim(500)), Some(300), "a process with an inexact account as any other");
        assert_eq!(of(claim(900), claim(900)), Some(0), "it may be charged more than it holds");
        assert_eq!(of(claim(500), claim(600)), None);
        let changing = Claim { is_changing: true, ..claim(500) };
        assert_eq!(of(changing, changing), None);
        assert_eq!(of(claim(500), Claim { changes: 4, ..claim(500) }), None, "it was another one in between");
        assert_eq!(beyond(None, Some(&claim(500)), 1000, 100), None, "it has just come");
        let name = |start_ticks| ProcessName { pid: HostPid(7), start_ticks };
        let (before, after) = (Claims::from([(name(1), claim(500))]), Claims::from([(name(2), claim(500))]));
        let now = beyond(before.get(&name(2)), after.get(&name(2)), 1000, 100);
        assert_eq!(now, None, "the claim before was that of another one with this pid");
    }
}
