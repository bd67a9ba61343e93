//! What the device shows that processes hold beyond their accounts.
//!
//! The shims charge what they can know beforehand. Static data of images that they cannot read, code that is compiled or
//! loaded late, and what a program takes past them show in NVML alone. It counts against the lease's cap from the next
//! look on: it cannot be undone, but nothing comes on top of it.

use crate::context_cost::{Claim, Claims};
use crate::device::Occupancy;
use crate::lease::Leases;
use crate::procfs::ProcessName;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::atomic::Ordering;

/// What each process of a lease holds of one GPU beyond its account, as far as it does.
pub type Uncounted = BTreeMap<ProcessName, u64>;

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
        uncounted.retain(|name, _| known.contains(name));
        for name in alive {
            let used_bytes = occupancy.bytes_of(name.pid).unwrap_or(0);
            if let Some(bytes) = beyond(before.get(&name), after.get(&name), used_bytes, context_bytes) {
                uncounted.insert(name, bytes);
            }
        }
        let sum = uncounted.values().fold(0, |sum: u64, bytes| sum.saturating_add(*bytes));
        control.uncounted_bytes[place].store(sum, Ordering::Relaxed);
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
    fn what_is_beyond_a_claim_that_stands_still_is_uncounted() {
        let claim = |allocated_bytes| Claim {
            holding: Holding { allocated_bytes, contexts: 2 },
            image_bytes: 0,
            is_inexact: true,
            is_changing: false,
        };
        let of = |before: Claim, after: Claim| beyond(Some(&before), Some(&after), 1000, 100);
        assert_eq!(of(claim(500), claim(500)), Some(300), "a process with an inexact account as any other");
        assert_eq!(of(claim(900), claim(900)), Some(0), "it may be charged more than it holds");
        assert_eq!(of(claim(500), claim(600)), None);
        let changing = Claim { is_changing: true, ..claim(500) };
        assert_eq!(of(changing, changing), None);
        assert_eq!(beyond(None, Some(&claim(500)), 1000, 100), None, "it has just come");
        let name = |start_ticks| ProcessName { pid: HostPid(7), start_ticks };
        let (before, after) = (Claims::from([(name(1), claim(500))]), Claims::from([(name(2), claim(500))]));
        let now = beyond(before.get(&name(2)), after.get(&name(2)), 1000, 100);
        assert_eq!(now, None, "the claim before was that of another one with this pid");
    }
}
