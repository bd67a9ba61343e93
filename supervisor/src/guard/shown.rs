//! What the guard shows of processes to whoever asks.

use crate::device::Occupancy;
use crate::lease::Leases;
use crate::region::Report;
use gpool_protocol::{GuardedProcess, HostPid, LeaseId};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::PoisonError;

/// So many processes of each lease are shown: a container may have any number.
pub const SHOWN: usize = 64;

/// Those that are shown, in their order, with what NVML `lists` for them: of a lease with many those first that go past its shims.
pub fn shown(seen: Vec<GuardedProcess>, lists: impl Fn(HostPid) -> Option<u64>) -> Vec<GuardedProcess> {
    let mut counts: BTreeMap<LeaseId, usize> = BTreeMap::new();
    let (found, others): (Vec<_>, Vec<_>) = seen.into_iter().enumerate().partition(|(_, its)| its.finding.is_some());
    let mut all: Vec<(usize, GuardedProcess)> = found.into_iter().chain(others).collect();
    all.retain(|(_, process)| {
        let count = counts.entry(process.lease_id.clone()).or_default();
        *count += 1;
        *count <= SHOWN
    });
    all.sort_by_key(|(place, _)| *place);
    all.into_iter().map(|(_, its)| GuardedProcess { memory_nvml_bytes: lists(its.pid), ..its }).collect()
}

/// What NVML lists for a process on all these GPUs together; none where it lists nothing for it, or does not tell.
pub fn listed_bytes(occupancies: &[Option<Occupancy>], pid: HostPid) -> Option<u64> {
    occupancies.iter().flatten().filter_map(|gpu| gpu.listed_bytes_of(pid)).reduce(u64::saturating_add)
}

/// Those that are shown, with what their leases are charged for them now. That is read when somebody asks, and not at each look of
/// the guard: it is long, and there are many looks for which nobody asks.
pub fn with_charges(leases: &Leases) -> Vec<GuardedProcess> {
    let mut seen = leases.guarded.lock().unwrap_or_else(PoisonError::into_inner).to_vec();
    let of: BTreeSet<LeaseId> = seen.iter().map(|process| process.lease_id.clone()).collect();
    let (mut report, mut charged) = (Report::new(), BTreeMap::new());
    leases.each_in_turn(|lease| {
        if of.contains(&lease.record.lease_id) {
            charged.insert(lease.record.lease_id.clone(), lease.charged_by_process(&mut report));
        }
    });
    for process in &mut seen {
        process.memory_charged_bytes =
            charged.get(&process.lease_id).and_then(|lease| lease.get(&process.pid)).copied();
    }
    seen
}
