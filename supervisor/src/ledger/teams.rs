//! What teams were promised and had since the supervisor started, added up as the ledger is written: figures that never fall.

use super::balance::Batch;
use super::spent::of_leases;
use super::store::GpuFacts;
use std::collections::BTreeMap;

/// So many teams are kept apart, the first that come; what others have is one figure. Whoever may name a team makes no more of them.
const TEAMS: usize = 256;
/// What those are called. No team has such a name.
const OTHERS: &str = "(others)";

/// One team's figures, nanoseconds of whole GPUs.
#[derive(Debug, Clone, Copy, Default)]
struct Sum {
    ns: i128,
    /// The most that it ever was: what is corrected is left out of what follows.
    most_ns: u64,
}

impl Sum {
    fn add(&mut self, ns: i128) {
        self.ns += ns;
        self.most_ns = self.most_ns.max(u64::try_from(self.ns.max(0)).unwrap_or(u64::MAX));
    }
}

/// What each team was promised and had; of leases without one under an empty name.
#[derive(Debug, Default)]
pub struct Teams {
    of: BTreeMap<String, [Sum; 2]>,
}

impl Teams {
    /// Adds what has just been written; `gpus` are those that are there.
    pub fn note(&mut self, batch: &Batch<'_>, gpus: (&[GpuFacts], &str)) {
        for its in of_leases(batch, gpus) {
            let name = its.facts.team.as_deref().unwrap_or_default();
            let is_known = self.of.contains_key(name) || self.of.len() < TEAMS;
            let sums = self.of.entry(if is_known { name } else { OTHERS }.to_owned()).or_default();
            let used_ns = its.amounts.within_ns.saturating_add(its.amounts.burst_ns);
            for (sum, ns) in sums.iter_mut().zip([its.promised_ns(), its.part_of(used_ns)]) {
                sum.add(ns);
            }
        }
    }

    /// Promised and had, nanoseconds, by name.
    pub fn figures(&self) -> Vec<(String, [u64; 2])> {
        self.of.iter().map(|(name, sums)| (name.clone(), sums.map(|sum| sum.most_ns))).collect()
    }
}
