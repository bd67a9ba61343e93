//! What a lease did between two looks: differences of the supervisor's counters over the time between its own readings of
//! them. Where a counter is not kept, was not there before or went back, nobody knows, and nothing is made up.

use crate::table::Known;
use gpool_protocol::{LeaseId, LeaseView};
use std::collections::HashMap;

/// The supervisor counts GPU time once a second. What it counted last is no figure of now when that is longer ago than this.
const OLDEST_COUNT_NS: u64 = 3_000_000_000;

/// The figures of one lease over one interval.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Figures {
    /// The lease as it is at the end of the interval.
    pub lease: LeaseView,
    /// The time between the two readings.
    pub interval_ns: Option<u64>,
    /// GPU time charged, in permille of the time between two counts of it; of several GPUs the mean.
    pub received_permille: Option<u64>,
    /// Memory held at the end of it.
    pub memory_used_bytes: Option<u64>,
    /// Time of all its threads at the closed gate, in permille of the interval; above 1000 when several wait.
    pub gate_wait_permille: Option<u64>,
    /// Launches in it.
    pub launches: Option<u64>,
    /// Allocations refused in it.
    pub allocations_refused: Option<u64>,
    /// Processes that use the GPU, at the end of it.
    pub processes: Option<u32>,
}

impl Figures {
    /// Memory held, in permille of the cap; none without one.
    pub fn memory_permille(&self) -> Option<u64> {
        let cap_bytes = u128::from(self.lease.memory_cap_bytes);
        let used_bytes = u128::from(self.memory_used_bytes?);
        (used_bytes * 1000).checked_div(cap_bytes).map(|permille| permille as u64)
    }

    /// Launches in a second of it.
    pub fn launches_per_second(&self) -> Option<u64> {
        let (launches, interval_ns) = (u128::from(self.launches?), u128::from(self.interval_ns?));
        (launches * 1_000_000_000).checked_div(interval_ns).map(|rate| rate as u64)
    }
}

/// GPU time as the supervisor counted it last.
#[derive(Debug, Clone, Copy)]
struct Count {
    charged_ns: u64,
    at_ns: u64,
    /// What was had since the count before.
    permille: Option<u64>,
}

/// One look at one lease.
#[derive(Debug, Clone)]
struct Look {
    at_ns: u64,
    lease: LeaseView,
    count: Count,
}

/// The last look at each lease.
#[derive(Debug, Default)]
pub struct Looks(HashMap<LeaseId, Look>);

impl Looks {
    /// The figures of `leases` since the last look, which this one is from now on. `now_ns` is CLOCK_MONOTONIC, for an older
    /// supervisor, which does not say when it has read them.
    pub fn figures(&mut self, leases: Vec<LeaseView>, now_ns: u64) -> Vec<Figures> {
        let mut looks = HashMap::new();
        let mut all = Vec::new();
        for lease in leases {
            let before = self.0.get(&lease.lease_id);
            let at_ns = if lease.read_at_ns > 0 { lease.read_at_ns } else { now_ns };
            let look = Look { at_ns, count: count_of(before.map(|before| before.count), &lease), lease };
            all.push(figures(before, &look));
            looks.insert(look.lease.lease_id.clone(), look);
        }
        // Who is not there has ended: one that comes later is another one.
        self.0 = looks;
        all
    }

    /// Nothing was seen for a while: the next look compares with nothing from before.
    pub fn forget(&mut self) {
        self.0.clear();
    }

    /// Whether the GPU time of one of `leases` would be known if only the supervisor had counted it once more. Of one that was
    /// not counted at all at the last look, as when it had just begun, the first count is what the next one is compared with.
    pub fn want_a_count(&mut self, leases: &[LeaseView]) -> bool {
        let mut is_wanted = false;
        for lease in leases.iter().filter(|lease| known(lease).gpu_time) {
            let Some(before) = self.0.get_mut(&lease.lease_id).filter(|before| before.count.permille.is_none()) else {
                continue;
            };
            if before.count.at_ns == 0 {
                before.count = count_of(None, lease);
            }
            is_wanted |= before.count.at_ns >= lease.charged_at_ns;
        }
        is_wanted
    }
}

fn known(lease: &LeaseView) -> Known {
    Known::of(lease.state, lease.mechanism)
}

/// What of `lease` is counted by now; the same as before until it is counted again.
fn count_of(before: Option<Count>, lease: &LeaseView) -> Count {
    let (charged_ns, at_ns) = (lease.charged_gpu_ns, lease.charged_at_ns);
    let permille = match before {
        Some(before) if before.at_ns == at_ns => before.permille,
        // A supervisor that has just started has counted nothing yet.
        Some(before) if before.at_ns > 0 => {
            let elapsed_ns =
                at_ns.checked_sub(before.at_ns).map(|one| u128::from(one) * lease.gpus.len().max(1) as u128);
            charged_ns
                .checked_sub(before.charged_ns)
                .zip(elapsed_ns)
                .and_then(|(had_ns, all_ns)| permille(had_ns, all_ns))
        }
        _ => None,
    };
    Count { charged_ns, at_ns, permille }
}

fn figures(before: Option<&Look>, look: &Look) -> Figures {
    let lease = &look.lease;
    let its = known(lease);
    let interval_ns = before.and_then(|before| look.at_ns.checked_sub(before.at_ns)).filter(|ns| *ns > 0 && its.memory);
    let grown = |counter: fn(&LeaseView) -> u64| {
        let before = before.filter(|_| its.reports && interval_ns.is_some())?;
        counter(lease).checked_sub(counter(&before.lease))
    };
    let is_fresh = look.at_ns.saturating_sub(look.count.at_ns) <= OLDEST_COUNT_NS;
    Figures {
        interval_ns,
        received_permille: look.count.permille.filter(|_| its.gpu_time && is_fresh),
        memory_used_bytes: its.memory.then_some(lease.memory_used_bytes),
        gate_wait_permille: grown(|lease| lease.gate_wait_ns)
            .zip(interval_ns)
            .and_then(|(waited_ns, interval_ns)| permille(waited_ns, interval_ns.into())),
        launches: grown(|lease| lease.launches),
        allocations_refused: grown(|lease| lease.allocations_refused),
        processes: its.reports.then_some(lease.processes),
        lease: lease.clone(),
    }
}

fn permille(part_ns: u64, whole_ns: u128) -> Option<u64> {
    (u128::from(part_ns) * 1000).checked_div(whole_ns).map(|permille| permille as u64)
}

/// A lease of 30 %, looked at when the supervisor's clock says `at_ns`, with its GPU time counted then.
#[cfg(test)]
pub fn sample(id: &str, at_ns: u64) -> LeaseView {
    let text = format!(
        r#"{{"lease_id":"{id}","container_id":"container-of-{id}","state":"active","gpu_uuid":"GPU-1",
        "gpus":[{{"gpu_uuid":"GPU-1","received_permille":0,"charged_gpu_ns":0,"memory_used_bytes":0}}],
        "fraction_permille":300,"received_permille":999,"charged_gpu_ns":0,"charged_at_ns":{at_ns},
        "memory_cap_bytes":4294967296,"memory_used_bytes":1073741824,"allocations_refused":0,"gate_wait_ns":0,"launches":0,
        "processes":2,"read_at_ns":{at_ns},"init_pid":null,"cgroup":null,"enforcement":"co-operative","owner_uid":0,
        "created_unix_ms":9}}"#
    );
    serde_json::from_str(&text).unwrap()
}

#[cfg(test)]
mod tests;
