//! What the guard has to know of a lease.

use super::process::{Library, Look};
use crate::lease::{Leases, class_policy};
use crate::procfs::ProgramMark;
use gpool_configuration::BypassAction;
use gpool_policy::TenantId;
use gpool_policy::guard::Mapped;
use gpool_protocol::{ContainerId, HostPid, LeaseId, ShimView};
use std::collections::BTreeMap;

/// What the guard has to know of a lease, copied out of the book.
pub struct Charge {
    pub lease_id: LeaseId,
    pub container_id: ContainerId,
    /// What follows when it is found past the shims or above its cap.
    pub action: BypassAction,
    pub cgroup: Option<String>,
    pub registered: Vec<(HostPid, Option<ProgramMark>)>,
    pub shims: Vec<ShimView>,
    pub gpus: Vec<usize>,
    pub cap_bytes: u64,
    pub highest_cap_bytes: Option<u64>,
    pub context_bytes: u64,
    /// Whether its programs have to come through shims and keep to a cap.
    pub has_shims: bool,
    /// The group of its MPS daemon, if its programs have to be clients of that server.
    pub mps_group: Option<String>,
}

impl Charge {
    /// Whether a mapped library is a build of the shim that the container was started with.
    pub fn is_shim(&self, library: &Library) -> bool {
        let stands_in = |shim: &&ShimView| shim.library.starts_with("libcuda") == library.is_cuda;
        let is_it = |shim: &ShimView| shim.build_id.is_some() && shim.build_id == library.build_id;
        self.shims.iter().filter(stands_in).any(is_it)
    }

    /// What the process has mapped of a library that a shim stands in for. One that hides its shim behind more mappings than
    /// are read is judged by what was read: no honest program comes near that.
    pub fn mapped(&self, look: &Look, is_cuda: bool) -> Mapped {
        let its = || look.libraries.iter().filter(|library| library.is_cuda == is_cuda);
        match its().any(|library| self.is_shim(library)) {
            true => Mapped::Shim,
            false if look.is_cut => Mapped::Other,
            false if look.is_unread => Mapped::Unread,
            false if its().any(|library| library.is_unread) => Mapped::Unread,
            false if its().next().is_some() => Mapped::Other,
            false => Mapped::Nothing,
        }
    }
}

/// What is to be known of all leases now.
pub fn charges(leases: &Leases) -> BTreeMap<TenantId, Charge> {
    let (book, configuration) = (leases.book(), leases.configuration());
    let charge = |lease: &crate::lease::Lease| Charge {
        lease_id: lease.record.lease_id.clone(),
        container_id: lease.record.container_id.clone(),
        action: class_policy(&configuration, lease.record.class).bypass_action,
        cgroup: lease.record.cgroup.clone(),
        registered: lease.processes.values().map(|process| (process.watched.name.pid, process.program)).collect(),
        shims: lease.record.shims.clone(),
        gpus: lease.gpus().collect(),
        cap_bytes: lease.record.memory_cap_bytes,
        highest_cap_bytes: lease.record.highest_cap_bytes,
        // What uses a GPU of a revoked lease is ended, whatever it came through.
        has_shims: lease.record.mechanism.has_shims() && lease.record.revocation.is_none(),
        mps_group: lease.record.mps_group.clone(),
        context_bytes: lease.region.control().context_bytes.load(std::sync::atomic::Ordering::Relaxed),
    };
    book.leases.values().map(|lease| (lease.tenant, charge(lease))).collect()
}
