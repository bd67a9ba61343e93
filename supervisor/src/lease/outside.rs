//! Processes on GPUs that belong to no lease, and in whose way a whole GPU cannot be had.

use super::book::{Book, Lease};
use super::capacity::mps_groups_used;
use super::cgroups::Cgroups;
use super::grant::Leases;
use super::record::Record;
use crate::device::Gpu;
use crate::procfs;
use gpool_protocol::{GpuUuid, HostPid};
use std::collections::BTreeSet;
use std::path::Path;
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

/// What has been looked up so long ago is looked up anew by who needs it: the sampler is late.
const LATE: Duration = Duration::from_secs(3);

/// How many processes would be left on each GPU if nobody had a lease, as that was looked up last.
#[derive(Debug, Default)]
pub struct Outsiders(Mutex<Option<(Instant, Vec<u32>)>>);

impl Outsiders {
    /// That is so at `at`.
    fn note(&self, at: Instant, left: Vec<u32>) {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner) = Some((at, left));
    }

    /// Of so many GPUs; none if that is not known as of just before `now`.
    fn at(&self, now: Instant, gpus: usize) -> Option<Vec<u32>> {
        let known = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let (at, left) = known.as_ref()?;
        (left.len() == gpus && now.saturating_duration_since(*at) < LATE).then(|| left.clone())
    }
}

impl Leases {
    /// How many there are on each GPU of which nobody has a lease: of the others it is known who is there.
    pub fn outside(&self, gpus: &[Gpu], book: &Book) -> Vec<u32> {
        self.living(gpus, &mps_groups_used(book), |gpu| !book.has_leased(gpu, &gpus[gpu].uuid), |_| true)
    }

    /// How many would be left on each if nobody had a lease: those that are in no container of one. Each of them is looked at for that,
    /// and who waits for room asks for it with the book held, again and again: so it is as of the sampler's last look.
    pub fn left_without_leases(&self, gpus: &[Gpu], book: &Book) -> Vec<u32> {
        let now = Instant::now();
        self.outsiders.at(now, gpus.len()).unwrap_or_else(|| {
            let left = self.left_beside(gpus, &self.known_cgroups.now(), &mps_groups_used(book));
            self.outsiders.note(now, left.clone());
            left
        })
    }

    /// Looks that up, without the book: once a second.
    pub fn look_for_outsiders(&self) {
        let (now, gpus) = (Instant::now(), self.gpus());
        let used: Vec<String> = mps_groups_used(&self.book()).into_iter().cloned().collect();
        self.outsiders.note(now, self.left_beside(&gpus, &self.known_cgroups.now(), &used.iter().collect()));
    }

    fn left_beside(&self, gpus: &[Gpu], cgroups: &Cgroups, used: &BTreeSet<&String>) -> Vec<u32> {
        self.living(gpus, used, |_| true, |pid| !cgroups.have(pid))
    }

    /// MPS daemons and servers of `used` groups are there for leases, until they are being stopped after the last of them.
    fn living(
        &self,
        gpus: &[Gpu],
        used: &BTreeSet<&String>,
        is_asked: impl Fn(usize) -> bool,
        counts: impl Fn(HostPid) -> bool,
    ) -> Vec<u32> {
        // So are those that time slices are tried on.
        let is_gpools =
            |pid: HostPid| self.groups.are_served_by(pid, used) || procfs::is_own_child(pid) || self.gpu_tests.has(pid);
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
    fn who_waits_does_not_look_at_each_process_but_at_what_was_seen_a_moment_ago() {
        let (left, now) = (Outsiders::default(), Instant::now());
        assert_eq!(left.at(now, 2), None);
        left.note(now, vec![3, 0]);
        let later = |after: Duration| left.at(now + after, 2);
        assert_eq!(later(LATE / 2), Some(vec![3, 0]));
        assert_eq!((later(LATE), left.at(now, 3)), (None, None), "the sampler is late, or there is another GPU");
    }

    #[test]
    fn a_gpu_of_a_lease_that_could_not_be_taken_over_is_leased() {
        let record = sample();
        let (its, other) = (record.gpus()[0].clone(), GpuUuid("GPU-other".into()));
        let book = Book { stranded: vec![record], ..Book::default() };
        assert!(book.has_leased(0, &its) && !book.has_leased(1, &other));
        assert!(!Book::default().has_leased(0, &its));
    }
}
