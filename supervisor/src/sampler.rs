//! Once a second: what NVML says of memory, what the scheduler has charged, and which allocations were refused.
//!
//! NVML is asked here and nowhere else, because a call may block for long on a sick GPU.

use crate::device::{NvmlInventory, Occupancy};
use crate::lease::{Lease, Leases, about};
use crate::region::Report;
use gpool_protocol::{EventKind, HostPid, format_bytes};
use gpool_shared_region::SLOTS;
use std::collections::BTreeMap;
use std::sync::atomic::Ordering;
use std::time::Duration;

/// Between two samples.
const PERIOD: Duration = Duration::from_secs(1);
/// A context costs at least and at most this; a sample outside is something else.
const CONTEXT_BYTES: std::ops::RangeInclusive<u64> = 16 << 20..=4 << 30;

/// Samples for ever; runs on its own thread.
pub fn sample(leases: &Leases, inventory: &NvmlInventory) {
    let mut learnt: Vec<Option<u64>> = vec![None; leases.gpus.len()];
    loop {
        for (index, gpu) in leases.gpus.iter().enumerate() {
            let before = claims(leases, index);
            match inventory.occupancy(gpu.index) {
                Ok(occupancy) => {
                    let after = claims(leases, index);
                    learn_context_cost(leases, index, &before, &after, &occupancy, &mut learnt[index]);
                    note_foreign(leases, index, &occupancy, &after);
                }
                Err(error) => eprintln!("gpool-supervisor: {error}"),
            }
        }
        note_charges(leases);
        tell_refusals(leases);
        std::thread::sleep(PERIOD);
    }
}

/// What each registered process of a GPU claims: allocated bytes and contexts.
fn claims(leases: &Leases, gpu: usize) -> BTreeMap<HostPid, (u64, u32)> {
    let mut report = Report::new();
    let mut claims = BTreeMap::new();
    for lease in leases.book().leases.values().filter(|lease| lease.gpu == gpu) {
        report.read(&lease.region, SLOTS);
        for (slot, claimed) in report.taken() {
            if let Some(process) = lease.processes.get(&slot) {
                claims.insert(process.watched.name.pid, (claimed.allocated_bytes(), claimed.contexts()));
            }
        }
    }
    claims
}

/// A process that claimed the same before and after NVML was asked shows what its contexts cost beyond its claim.
/// The largest cost seen counts, so that caps are never passed because of an estimate.
fn learn_context_cost(
    leases: &Leases,
    gpu: usize,
    before: &BTreeMap<HostPid, (u64, u32)>,
    after: &BTreeMap<HostPid, (u64, u32)>,
    occupancy: &Occupancy,
    learnt: &mut Option<u64>,
) {
    for (pid, claim) in after.iter().filter(|(pid, claim)| before.get(pid) == Some(claim)) {
        let (allocated_bytes, contexts) = *claim;
        let Some(used_bytes) = occupancy.by_process.get(pid) else { continue };
        let Some(beyond) = used_bytes.checked_sub(allocated_bytes).filter(|_| contexts > 0) else { continue };
        let cost = beyond.div_ceil(contexts.into());
        if CONTEXT_BYTES.contains(&cost) && learnt.is_none_or(|known| cost > known) {
            *learnt = Some(cost);
            leases.context_bytes[gpu].store(cost, Ordering::Relaxed);
            let book = leases.book();
            let here = book.leases.values().filter(|lease| lease.gpu == gpu);
            here.for_each(|lease| lease.region.control().context_bytes.store(cost, Ordering::Relaxed));
        }
    }
}

/// Memory that no lease accounts for cannot be promised to anybody.
fn note_foreign(leases: &Leases, gpu: usize, occupancy: &Occupancy, claims: &BTreeMap<HostPid, (u64, u32)>) {
    let leased: u64 =
        occupancy.by_process.iter().filter(|(pid, _)| claims.contains_key(pid)).map(|(_, bytes)| *bytes).sum();
    let foreign: u64 =
        occupancy.by_process.iter().filter(|(pid, _)| !claims.contains_key(pid)).map(|(_, bytes)| *bytes).sum();
    leases.used_bytes[gpu].store(occupancy.used_bytes, Ordering::Relaxed);
    // What NVML attributes to nobody is the driver's own and foreign too.
    let unattributed = occupancy.used_bytes.saturating_sub(leased + foreign);
    leases.foreign_bytes[gpu].store(foreign + unattributed, Ordering::Relaxed);
}

fn note_charges(leases: &Leases) {
    let statistics = leases.gatekeeper.statistics();
    let mut book = leases.book();
    for standing in &statistics.standings {
        if let Some(lease) = book.of_tenant(standing.tenant) {
            lease.note_charge(statistics.at_ns, standing.charged_ns);
        }
    }
}

/// One event a second at most for each lease, however often a program asks.
fn tell_refusals(leases: &Leases) {
    let mut report = Report::new();
    let mut book = leases.book();
    for lease in book.leases.values_mut() {
        let figures = lease.figures(&mut report);
        if figures.refused > lease.refusals_told {
            let message = refusal_message(lease, &figures);
            lease.refusals_told = figures.refused;
            leases.events.note(EventKind::AllocationRefused, about(&lease.record, None), message);
        }
    }
}

fn refusal_message(lease: &Lease, figures: &crate::lease::Figures) -> String {
    let context_bytes = lease.region.control().context_bytes.load(Ordering::Relaxed);
    format!(
        "refused {} more allocation(s) of {}, the last of {}: it holds {} and {} context(s) of {} each, of a cap of {}",
        figures.refused - lease.refusals_told,
        lease.record.container_id.short(),
        format_bytes(figures.refused_bytes),
        format_bytes(figures.allocated_bytes),
        figures.contexts,
        format_bytes(context_bytes),
        format_bytes(lease.record.memory_cap_bytes)
    )
}
