//! Once a second: what NVML says of memory, what the scheduler has charged, and which allocations were refused.
//!
//! NVML is asked here and nowhere else, because a call may block for long on a sick GPU.

use crate::auditor::Auditor;
use crate::device::{NvmlInventory, Occupancy};
use crate::gatekeeper::Statistics;
use crate::guard::Guard;
use crate::lease::{Holding, Leases, members};
use crate::refusals;
use crate::region::Report;
use gpool_protocol::HostPid;
use gpool_shared_region::SLOTS;
use std::collections::BTreeMap;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

/// Between two samples.
const PERIOD: Duration = Duration::from_secs(1);
/// A context costs at least and at most this; a sample outside is something else.
const CONTEXT_BYTES: std::ops::RangeInclusive<u64> = 16 << 20..=1 << 30;

/// What a process claims to hold of one GPU.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Claim {
    holding: Holding,
    /// What it claims for images, of which it may hold less.
    image_bytes: u64,
    /// It may hold less of something else too, or is just changing what it holds.
    is_inexact: bool,
}

/// The claims of all processes.
type Claims = BTreeMap<HostPid, Claim>;

/// Samples for ever; runs on its own thread.
pub fn sample(leases: &Leases, inventory: &NvmlInventory) {
    let mut auditor = Auditor::new(leases.gpus.len());
    let mut guard = Guard::new(leases.files.gpu_devices(&leases.gpus));
    loop {
        let occupancies = note_memory(leases, inventory);
        let members = members(leases);
        guard.look(leases, &members, &occupancies);
        let statistics = leases.gatekeeper.statistics();
        note_charges(leases, &statistics);
        auditor.look(leases, &members, inventory, &statistics);
        refusals::tell(leases);
        let next = Instant::now() + PERIOD;
        while leases.occupants.wait(next) {
            note_memory(leases, inventory);
        }
    }
}

/// Asks NVML once who holds what on each GPU; none of one that does not answer.
pub fn note_memory(leases: &Leases, inventory: &NvmlInventory) -> Vec<Option<Occupancy>> {
    let mut occupancies = vec![None; leases.gpus.len()];
    for (index, gpu) in leases.gpus.iter().enumerate() {
        let (before, since) = (claims(leases, index), Instant::now());
        match inventory.occupancy(gpu.index) {
            Ok(occupancy) => {
                let after = claims(leases, index);
                learn_context_cost(leases, index, &before, &after, &occupancy);
                note_foreign(leases, index, &occupancy, &after);
                leases.occupants.note(index, since, occupancy.present.iter().copied().collect());
                occupancies[index] = Some(occupancy);
            }
            Err(error) => eprintln!("gpool-supervisor: {error}"),
        }
    }
    occupancies
}

/// What each registered process of a GPU claims.
fn claims(leases: &Leases, gpu: usize) -> Claims {
    let mut report = Report::new();
    let mut claims = BTreeMap::new();
    for lease in leases.book().leases.values() {
        let Some(place) = lease.place_of(gpu) else { continue };
        report.read(&lease.region, SLOTS);
        for (slot, claimed) in report.taken() {
            if let Some(process) = lease.processes.get(&slot) {
                let holding = Holding::of(&claimed, place, lease.accounts.len());
                let (image_bytes, is_changing) = (claimed.image_bytes(), claimed.changing() != 0);
                let is_inexact = claimed.is_inexact() || is_changing;
                claims.insert(process.watched.name.pid, Claim { holding, image_bytes, is_inexact });
            }
        }
    }
    claims
}

/// A process with one context that claimed the same before and after NVML was asked shows what its context costs
/// beyond its claim, if that is exact but for images, which then count as a part of the context. The least cost seen
/// counts, and for its own lease alone: what a program holds beyond its account, or lies about, is not its neighbours'
/// loss. New leases of the GPU begin with what was seen last.
fn learn_context_cost(leases: &Leases, gpu: usize, before: &Claims, after: &Claims, occupancy: &Occupancy) {
    let mut book = leases.book();
    for lease in book.leases.values_mut().filter(|lease| lease.place_of(gpu).is_some()) {
        for pid in lease.processes.values().map(|process| process.watched.name.pid) {
            let Some(used_bytes) = occupancy.by_process.get(&pid) else { continue };
            let Some(cost) = context_cost(before.get(&pid), after.get(&pid), *used_bytes) else { continue };
            if lease.context_bytes.is_none_or(|known| cost < known) {
                lease.context_bytes = Some(cost);
                lease.region.control().context_bytes.store(cost, Ordering::Relaxed);
                leases.context_bytes[gpu].store(cost, Ordering::Relaxed);
            }
        }
    }
}

/// What the context of a process costs that claimed this before and after it was seen to use `used_bytes`, if that
/// tells.
fn context_cost(before: Option<&Claim>, after: Option<&Claim>, used_bytes: u64) -> Option<u64> {
    let claim = after.filter(|claim| claim.holding.contexts == 1 && !claim.is_inexact && before == Some(claim))?;
    let cost = used_bytes.checked_sub(claim.holding.allocated_bytes.saturating_sub(claim.image_bytes))?;
    CONTEXT_BYTES.contains(&cost).then_some(cost)
}

/// Memory that no lease accounts for cannot be promised to anybody.
fn note_foreign(leases: &Leases, gpu: usize, occupancy: &Occupancy, claims: &Claims) {
    let leased: u64 =
        occupancy.by_process.iter().filter(|(pid, _)| claims.contains_key(pid)).map(|(_, bytes)| *bytes).sum();
    let foreign: u64 =
        occupancy.by_process.iter().filter(|(pid, _)| !claims.contains_key(pid)).map(|(_, bytes)| *bytes).sum();
    leases.used_bytes[gpu].store(occupancy.used_bytes, Ordering::Relaxed);
    // What NVML attributes to nobody is the driver's own and foreign too.
    let unattributed = occupancy.used_bytes.saturating_sub(leased + foreign);
    leases.foreign_bytes[gpu].store(foreign + unattributed, Ordering::Relaxed);
}

/// What the scheduler has charged goes into the book, and into the record if there is anything new: a restarted
/// supervisor goes on from there.
fn note_charges(leases: &Leases, statistics: &Statistics) {
    let mut book = leases.book();
    for standing in &statistics.standings {
        let Some(lease) = book.of_tenant(standing.tenant) else { continue };
        if let Some(account) = lease.accounts.iter_mut().find(|account| account.gpu == standing.gpu) {
            account.note(statistics.at_ns, standing.charged_ns, standing.lag_ns);
        }
    }
    for lease in book.leases.values_mut() {
        if lease.note_standing(statistics.at_ns)
            && let Err(error) = lease.record.write(&leases.configuration.paths.run_dir)
        {
            eprintln!("gpool-supervisor: {error}");
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_a_process_with_one_context_and_an_exact_claim_tells_what_a_context_costs() {
        let claim = |allocated_bytes, contexts, is_inexact| Claim {
            holding: Holding { allocated_bytes, contexts },
            image_bytes: 0,
            is_inexact,
        };
        let cost = |before: Claim, after: Claim| context_cost(Some(&before), Some(&after), 1 << 30);
        let (held, context) = (768 << 20, 256 << 20);
        assert_eq!(cost(claim(held, 1, false), claim(held, 1, false)), Some(context));
        assert_eq!(cost(claim(held, 1, false), claim(held, 1, true)), None, "it may hold less");
        assert_eq!(cost(claim(held, 1, true), claim(held, 1, true)), None);
        assert_eq!(cost(claim(held, 2, false), claim(held, 2, false)), None);
        assert_eq!(cost(claim(0, 1, false), claim(held, 1, false)), None, "it changed meanwhile");
        assert_eq!(cost(claim(1 << 30, 1, false), claim(1 << 30, 1, false)), None, "no context is that small");
        assert_eq!(cost(claim(2 << 30, 1, false), claim(2 << 30, 1, false)), None);
        let with_images = Claim { image_bytes: 100 << 20, ..claim(held, 1, false) };
        assert_eq!(cost(with_images, with_images), Some(context + (100 << 20)), "these may take nothing yet");
    }
}
