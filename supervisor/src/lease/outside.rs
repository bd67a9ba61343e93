//! Processes on GPUs that belong to no lease, and in whose way a whole GPU cannot be had.

use super::book::{Book, Lease};
use super::capacity::mps_groups_used;
use super::grant::Leases;
use crate::cgroup;
use crate::device::Gpu;
use crate::procfs;
use gpool_protocol::HostPid;
use std::path::Path;

impl Leases {
    /// How many there are on each GPU of which nobody has a lease: of the others it is known who is there.
    pub fn outside(&self, gpus: &[Gpu], book: &Book) -> Vec<u32> {
        let holds = |lease: &&Lease| !lease.record.has_no_share();
        let is_leased = |gpu: usize| book.leases.values().filter(holds).any(|lease| lease.gpus().any(|its| its == gpu));
        self.living(gpus, book, |gpu| !is_leased(gpu), |_| true)
    }

    /// How many would be left on each if nobody had a lease: those that are in no container of one.
    pub fn left_without_leases(&self, gpus: &[Gpu], book: &Book) -> Vec<u32> {
        let cgroups: Vec<&str> = book.leases.values().filter_map(|lease| lease.record.cgroup.as_deref()).collect();
        let is_of_nobody = |pid: HostPid| {
            let path = cgroup::path_of(pid);
            !path.is_some_and(|path| cgroups.iter().any(|its| cgroup::is_at_or_below(its, &path)))
        };
        self.living(gpus, book, |_| true, is_of_nobody)
    }

    fn living(
        &self,
        gpus: &[Gpu],
        book: &Book,
        is_asked: impl Fn(usize) -> bool,
        counts: impl Fn(HostPid) -> bool,
    ) -> Vec<u32> {
        // MPS daemons and servers are there for leases, until they are being stopped after the last of them.
        // So are those that time slices are tried on.
        let used = mps_groups_used(book);
        let is_gpools = |pid: HostPid| {
            self.groups.are_served_by(pid, &used) || procfs::is_own_child(pid) || self.gpu_tests.has(pid)
        };
        let is_alive = |pid: HostPid| Path::new(&format!("/proc/{pid}")).exists() && !is_gpools(pid) && counts(pid);
        let count = |gpu: usize| if is_asked(gpu) { self.occupants.living(gpu, is_alive) } else { 0 };
        (0..gpus.len()).map(count).collect()
    }
}
