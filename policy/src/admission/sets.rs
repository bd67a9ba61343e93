//! Which GPUs a lease under an MPS server goes on. A GPU belongs to one daemon, and a daemon's clients see all of its GPUs:
//! a lease is on exactly those of a daemon of its own domain, or on GPUs that are no daemon's.

use super::{GpuCapacity, Taking, together};
use std::collections::BTreeSet;

/// A GPU on which a lease fits.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Fit {
    /// Share that is left there; the less, the better.
    pub(super) share_left_permille: u16,
    /// Memory that is left there.
    pub(super) memory_left_bytes: u64,
    /// Its key.
    pub(super) key: String,
    /// Its place among all GPUs.
    pub(super) index: usize,
    /// The memory cap there.
    pub(super) memory_bytes: u64,
}

/// The best `wanted` of those that fit, which are sorted; none if they are parts of daemons' sets alone.
pub(super) fn choose(gpus: &[GpuCapacity], fitting: &[Fit], wanted: usize) -> Option<Vec<Fit>> {
    let set_of = |fit: &&Fit| gpus[fit.index].users.mps_set;
    let free: Vec<Fit> = fitting.iter().filter(|fit| set_of(fit).is_none()).cloned().collect();
    let mut free = together(&free, wanted, Taking::Best, |fit| gpus[fit.index].site.clone());
    free.truncate(wanted);
    let sets: BTreeSet<usize> = fitting.iter().filter_map(|fit| set_of(&fit)).collect();
    let whole = sets.into_iter().map(|set| fitting.iter().filter(|fit| set_of(fit) == Some(set)).cloned().collect());
    let candidates = std::iter::once(free).chain(whole);
    candidates.filter(|candidate| candidate.len() == wanted).min()
}
