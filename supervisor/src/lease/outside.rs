//! Processes on GPUs that belong to no lease, and in whose way a whole GPU cannot be had.

use super::book::{Book, Lease};
use super::capacity::mps_groups_used;
use super::grant::Leases;
use super::record::Record;
use crate::device::Gpu;
use crate::procfs;
use gpool_protocol::{GpuUuid, HostPid};
use std::path::Path;

impl Leases {
    /// How many there are on each GPU of which nobody has a lease: of the others it is known who is there.
    pub fn outside(&self, gpus: &[Gpu], book: &Book) -> Vec<u32> {
        self.living(gpus, book, |gpu| !book.has_leased(gpu, &gpus[gpu].uuid), |_| true)
    }

    /// How many would be left on each if nobody had a lease: those that are in no container of one.
    pub fn left_without_leases(&self, gpus: &[Gpu], book: &Book) -> Vec<u32> {
        let cgroups = book.cgroups();
        self.living(gpus, book, |_| true, |pid| !cgroups.have(pid))
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

impl Book {
    /// Whether somebody has a share of this GPU of the host, also one that could not be taken over.
    fn has_leased(&self, gpu: usize, uuid: &GpuUuid) -> bool {
        let is_on = |lease: &Lease| !lease.record.has_no_share() && lease.place_of(gpu).is_some();
        let is_stranded_on = |record: &Record| !record.has_no_share() && record.gpus().contains(uuid);
        self.leases.values().any(is_on) || self.stranded.iter().any(is_stranded_on)
    }
}

#[cfg(test)]
mod tests {
    use super::super::record::sample;
    use super::*;

    #[test]
    fn a_gpu_of_a_lease_that_could_not_be_taken_over_is_leased() {
        let record = sample();
        let (its, other) = (record.gpus()[0].clone(), GpuUuid("GPU-other".into()));
        let book = Book { stranded: vec![record], ..Book::default() };
        assert!(book.has_leased(0, &its) && !book.has_leased(1, &other));
        assert!(!Book::default().has_leased(0, &its));
    }
}
