//! Which processes belong to which lease, as the host sees it.

use super::book::Lease;
use super::grant::Leases;
use crate::cgroup;
use gpool_policy::TenantId;
use gpool_protocol::HostPid;
use std::collections::{BTreeMap, BTreeSet};

/// So many groups of a lease are looked into where that is done for each lease in turn.
pub const GROUPS: usize = 1024;

/// The processes of each lease: those that registered, and all of its cgroup, as some may work past the shim.
pub type Members = BTreeMap<TenantId, BTreeSet<HostPid>>;

/// Looks who belongs to whom now. Of those `with_context`, which use a GPU, that is found out however many groups a lease has
/// made below its own; of the others `groups` of these are looked into. The book is not locked while cgroups are read.
pub fn members(leases: &Leases, with_context: &BTreeSet<HostPid>, groups: usize) -> Members {
    look(leases, |_| true, with_context, groups)
}

/// The same of these leases alone.
pub fn members_of(
    leases: &Leases,
    tenants: &BTreeSet<TenantId>,
    with_context: &BTreeSet<HostPid>,
    groups: usize,
) -> Members {
    look(leases, |tenant| tenants.contains(&tenant), with_context, groups)
}

fn look(
    leases: &Leases,
    is_wanted: impl Fn(TenantId) -> bool,
    with_context: &BTreeSet<HostPid>,
    groups: usize,
) -> Members {
    let known = |lease: &Lease| {
        let registered: BTreeSet<HostPid> = lease.processes.values().map(|process| process.watched.name.pid).collect();
        (lease.tenant, registered, lease.record.cgroup.clone())
    };
    let all: Vec<_> = leases.book().leases.values().filter(|lease| is_wanted(lease.tenant)).map(known).collect();
    let paths: Vec<(HostPid, String)> =
        with_context.iter().filter_map(|pid| Some((*pid, cgroup::path_of(*pid)?))).collect();
    let with_cgroup = |(tenant, mut pids, cgroup): (TenantId, BTreeSet<HostPid>, Option<String>)| {
        if let Some(cgroup) = cgroup {
            pids.extend(cgroup::processes_in_some(&cgroup, groups));
            let its = paths.iter().filter(|(_, path)| cgroup::is_at_or_below(&cgroup, path));
            pids.extend(its.map(|(pid, _)| *pid));
        }
        (tenant, pids)
    };
    all.into_iter().map(with_cgroup).collect()
}
