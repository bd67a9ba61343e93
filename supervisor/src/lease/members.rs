//! Which processes belong to which lease, as the host sees it.

use super::book::Lease;
use super::grant::Leases;
use crate::cgroup;
use gpool_policy::TenantId;
use gpool_protocol::HostPid;
use std::collections::{BTreeMap, BTreeSet};

/// The processes of each lease: those that registered, and all of its cgroup, as some may work past the shim.
pub type Members = BTreeMap<TenantId, BTreeSet<HostPid>>;

/// Looks who belongs to whom now. The book is not locked while cgroups are read.
pub fn members(leases: &Leases) -> Members {
    let known = |lease: &Lease| {
        let registered: BTreeSet<HostPid> = lease.processes.values().map(|process| process.watched.name.pid).collect();
        (lease.tenant, registered, lease.record.cgroup.clone())
    };
    let all: Vec<_> = leases.book().leases.values().map(known).collect();
    let with_cgroup = |(tenant, mut pids, cgroup): (TenantId, BTreeSet<HostPid>, Option<String>)| {
        pids.extend(cgroup.as_deref().map(cgroup::processes_in).unwrap_or_default());
        (tenant, pids)
    };
    all.into_iter().map(with_cgroup).collect()
}
