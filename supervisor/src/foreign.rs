//! Memory in use on a GPU that is within no lease's promise, and so cannot be promised to anybody else.
//!
//! What the processes of a lease hold is within its promise up to its cap, whether they have registered, have not yet, or
//! have died and the driver is not done with them: the cap is promised in any case, and counting their bytes beside it
//! would refuse room that there is. What a lease holds beyond its cap is foreign, as is everything of other processes; to
//! that lease alone it is none, so that a cap which was lowered by mistake can be raised again.
//!
//! What gpool's own MPS servers hold is kept for them already, since nobody who is under them is promised it.

use crate::cgroup;
use crate::device::Occupancy;
use crate::gpu_tests;
use crate::lease::Leases;
use crate::procfs::{self, ProcessName, is_same};
use gpool_policy::TenantId;
use gpool_policy::mechanism::MPS_SERVER_BYTES;
use gpool_protocol::HostPid;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::atomic::Ordering;

/// What one lease was promised of a GPU, and by what its processes are known.
struct Promise {
    /// None of one that is not taken over yet.
    tenant: Option<TenantId>,
    cap_bytes: u64,
    /// Registered and dead.
    processes: BTreeSet<ProcessName>,
    cgroup: Option<String>,
}

/// Notes what NVML says of GPU `gpu`, whose processes have these start times now, as far as they live.
pub fn note(leases: &Leases, gpu: usize, occupancy: &Occupancy, listed: &BTreeMap<HostPid, Option<u64>>) {
    let mut promises = promises(leases, gpu);
    gpu_tests::see(leases, gpu);
    // What one held that has ended is not of the container in which its pid has begun anew.
    let cgroup_of = |pid: HostPid| cgroup::path_of(pid).filter(|_| !occupancy.inherited.contains(&pid));
    let owner = |pid: &HostPid| owner(&promises, *pid, listed.get(pid).copied().flatten(), cgroup_of);
    // What time slices are tried on, and what tests a GPU, goes before anybody could want its memory.
    let is_passing = |pid: HostPid| procfs::is_own_child(pid) || leases.gpu_tests.has(pid);
    let tried = occupancy.by_process.iter().filter(|(pid, _)| is_passing(**pid));
    let tried_bytes: u64 = tried.map(|(_, bytes)| bytes).sum();
    let server_bytes = kept_for_servers(&occupancy.by_process, |pid| leases.groups.has_process(pid));
    let held = held_by(&promises, &occupancy.by_process, owner);
    // A change reads both figures below, and must not see one of them from before.
    let mut book = leases.book();
    // A cap that was lowered since is the one of now: what is held beyond it would be nobody's for a second, and sold.
    for promise in &mut promises {
        let lease = promise.tenant.and_then(|tenant| book.of_tenant(tenant));
        promise.cap_bytes = lease.map_or(promise.cap_bytes, |lease| lease.record.promised_bytes());
    }
    let within_bytes = within_promises(&promises, &held).saturating_add(tried_bytes).saturating_add(server_bytes);
    leases.used_bytes[gpu].store(occupancy.used_bytes, Ordering::Relaxed);
    // What NVML attributes to nobody is the driver's own and foreign too, but for what is sold to nobody for its sake.
    let beyond_bytes = occupancy.used_bytes.saturating_sub(within_bytes);
    let foreign_bytes = beyond_bytes.saturating_sub(leases.gpus()[gpu].memory_headroom_bytes);
    leases.foreign_bytes[gpu].store(foreign_bytes, Ordering::Relaxed);
    for (promise, held_bytes) in promises.iter().zip(held) {
        let account = promise.tenant.and_then(|tenant| book.of_tenant(tenant)?.account_on(gpu));
        if let Some(account) = account {
            account.see_excess(held_bytes.saturating_sub(promise.cap_bytes));
        }
    }
}

fn promises(leases: &Leases, gpu: usize) -> Vec<Promise> {
    let book = leases.book();
    let here = book.leases.values().filter(|lease| lease.place_of(gpu).is_some()).map(|lease| Promise {
        tenant: Some(lease.tenant),
        cap_bytes: lease.record.promised_bytes(),
        processes: (lease.processes.values().map(|process| process.watched.name))
            .chain(lease.dead.values().filter_map(|dead| dead.name))
            .collect(),
        cgroup: lease.record.cgroup.clone(),
    });
    let uuid = &leases.gpus()[gpu].uuid;
    let stranded = book.stranded.iter().filter(|record| record.gpus().contains(uuid)).map(|record| Promise {
        tenant: None,
        cap_bytes: record.promised_bytes(),
        processes: record.processes.iter().map(|process| process.process).collect(),
        cgroup: record.cgroup.clone(),
    });
    here.chain(stranded).collect()
}

/// The place in `promises` of the lease that the process belongs to. Where it is known by its name, its cgroup is not
/// asked for.
fn owner(
    promises: &[Promise],
    pid: HostPid,
    start_ticks: Option<u64>,
    cgroup_of: impl Fn(HostPid) -> Option<String>,
) -> Option<usize> {
    let is_its = |name: &ProcessName| name.pid == pid && is_same(name, start_ticks);
    promises.iter().position(|promise| promise.processes.iter().any(is_its)).or_else(|| {
        let path = cgroup_of(pid)?;
        let holds = |its: &str| cgroup::is_at_or_below(its, &path);
        promises.iter().position(|promise| promise.cgroup.as_deref().is_some_and(holds))
    })
}

/// What the processes of each of `promises` hold together.
fn held_by(
    promises: &[Promise],
    by_process: &BTreeMap<HostPid, u64>,
    owner: impl Fn(&HostPid) -> Option<usize>,
) -> Vec<u64> {
    let mut held = vec![0u64; promises.len()];
    for (pid, bytes) in by_process {
        if let Some(its) = owner(pid) {
            held[its] = held[its].saturating_add(*bytes);
        }
    }
    held
}

/// What MPS servers hold of what is kept for them. More than that is foreign as anything else.
fn kept_for_servers(by_process: &BTreeMap<HostPid, u64>, is_server: impl Fn(HostPid) -> bool) -> u64 {
    let theirs = by_process.iter().filter(|(pid, _)| is_server(**pid)).map(|(_, bytes)| *bytes);
    theirs.fold(0, u64::saturating_add).min(MPS_SERVER_BYTES)
}

fn within_promises(promises: &[Promise], held: &[u64]) -> u64 {
    let capped = held.iter().zip(promises).map(|(held, promise)| (*held).min(promise.cap_bytes));
    capped.fold(0, u64::saturating_add)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn name(pid: u32) -> ProcessName {
        ProcessName { pid: HostPid(pid), start_ticks: 100 }
    }

    fn promise(cap_bytes: u64, pids: &[u32], cgroup: Option<&str>) -> Promise {
        let processes = pids.iter().map(|pid| name(*pid)).collect();
        Promise { tenant: None, cap_bytes, processes, cgroup: cgroup.map(str::to_owned) }
    }

    #[test]
    fn a_process_belongs_to_the_lease_that_it_registered_with_or_whose_cgroup_it_is_in() {
        let promises = [promise(10, &[5], None), promise(10, &[6], Some("/docker/b"))];
        let cgroup_of = |pid: HostPid| match pid.0 {
            7 => Some("/docker/b/inner".to_owned()),
            8 => Some("/docker/bc".to_owned()),
            _ => None,
        };
        let owner = |pid: u32, start| owner(&promises, HostPid(pid), start, cgroup_of);
        assert_eq!(owner(5, Some(100)), Some(0));
        assert_eq!(owner(5, None), Some(0), "dead, and the driver is not done with it");
        assert_eq!(owner(5, Some(101)), None, "another process has its pid");
        assert_eq!((owner(7, Some(3)), owner(8, Some(3)), owner(9, None)), (Some(1), None, None));
    }

    #[test]
    fn what_a_lease_holds_is_foreign_only_beyond_its_cap() {
        let promises = [promise(10, &[1, 2], None), promise(10, &[3], None)];
        let by_process = BTreeMap::from([(1, 4), (2, 3), (3, 25), (4, 7)].map(|(pid, bytes)| (HostPid(pid), bytes)));
        let owner = |pid: &HostPid| owner(&promises, *pid, None, |_| None);
        let held = held_by(&promises, &by_process, owner);
        assert_eq!((held.as_slice(), within_promises(&promises, &held)), ([7, 25].as_slice(), 7 + 10));
        let nobody = BTreeMap::from([(HostPid(9), u64::MAX)]);
        assert_eq!(within_promises(&promises, &held_by(&promises, &nobody, owner)), 0);
        let servers =
            |held_bytes| kept_for_servers(&BTreeMap::from([(HostPid(9), held_bytes)]), |pid| pid == HostPid(9));
        assert_eq!([32 << 20, 1 << 30].map(servers), [32 << 20, MPS_SERVER_BYTES], "a server has what is kept for it");
        assert_eq!(kept_for_servers(&by_process, |_| false), 0);
        let huge = BTreeMap::from([(HostPid(1), u64::MAX), (HostPid(2), 1)]);
        assert_eq!(within_promises(&promises, &held_by(&promises, &huge, owner)), 10);
    }
}
