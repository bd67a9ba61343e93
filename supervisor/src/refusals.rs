//! Why a program was refused: told at once and then ever more rarely for each lease, out of band, since the program itself
//! only gets the driver's own error.

use crate::clock;
use crate::lease::{Figures, Holding, Lease, Leases, about};
use crate::lost_contexts;
use crate::procfs;
use crate::region::Report;
use crate::shortages;
use gpool_protocol::{EventKind, HostPid, format_bytes};
use gpool_shared_region::{Call, SLOTS, SlotSnapshot};
use std::sync::atomic::Ordering;

/// Processes that a message names; the others are summed.
const NAMED: usize = 8;

/// A process and what it claims.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Claimant {
    /// Its pid and name; none if it is not known to the supervisor yet.
    process: Option<(HostPid, String)>,
    /// On the GPU that the refusal is about.
    holding: Holding,
    /// Refusals that no event has told.
    new_refusals: u64,
    /// The last of them.
    last: Refusal,
}

/// What a process says of its last refusal.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Refusal {
    /// How much it had asked for.
    pub bytes: u64,
    /// What was free of the cap.
    pub free_bytes: u64,
    /// A [`Call`], with [`Call::HAD_ROOM`] or without.
    pub call: u32,
    /// The GPU, by its place in the lease.
    pub gpu: usize,
}

impl Refusal {
    /// What the process in `slot` says, of a lease on `gpus` GPUs.
    pub fn of(slot: &SlotSnapshot<'_>, gpus: usize) -> Self {
        Self {
            bytes: slot.refused_bytes(),
            free_bytes: slot.refused_free_bytes(),
            call: slot.refused_call(),
            // A tenant's word: bounded by the GPUs that there are.
            gpu: (slot.refused_gpu() as usize).min(gpus.saturating_sub(1)),
        }
    }
}

/// One event of each kind for each lease, and ever more rarely while it goes on, however often a program asks.
pub fn tell(leases: &Leases) {
    let (mut report, now_ns) = (Report::new(), clock::now_ns());
    leases.each_in_turn(|lease| {
        let figures = lease.figures(&mut report);
        shortages::look(lease, &report);
        let refusals_told = figures.refused - shortages::others(lease, &figures);
        if lease.refusal_repetition.look(now_ns, figures.refused, refusals_told) {
            tell_refusals(leases, lease, &figures, &report);
        }
        if lease.unknown_version_repetition.look(now_ns, figures.unknown_versions, lease.unknown_versions_told) {
            tell_unknown_versions(leases, lease, &figures);
        }
        if lease.spills.look(now_ns, figures.spills) {
            tell_spills(leases, lease, &figures);
        }
        shortages::tell(leases, lease);
        lost_contexts::tell(leases, lease, &figures, &report);
        // By the processes that the supervisor holds: what a report says of itself is no reason to speak. Dead ones have
        // their places until the device has let go of them.
        let is_full = lease.processes.len() + lease.dead.len() >= SLOTS;
        if is_full && !lease.is_full_told {
            let message = format!(
                "all {SLOTS} places of {} for processes that use a GPU are taken: others get \
                 CUDA_ERROR_NOT_INITIALIZED from calls that make contexts until one ends; split it into containers",
                lease.record.container_id.short()
            );
            leases.events.note(EventKind::PlacesFull, about(&lease.record, None), message);
        }
        lease.is_full_told = is_full;
    });
}

/// Tells what has been kept back of a lease that is about to end.
pub fn tell_rest(leases: &Leases, lease: &mut Lease) {
    let (allocations, versions) = (lease.refusal_repetition.has_told(), lease.unknown_version_repetition.has_told());
    let spills = lease.spills.has_told();
    let mut report = Report::new();
    let figures = lease.figures(&mut report);
    shortages::look(lease, &report);
    if allocations && shortages::others(lease, &figures) > 0 {
        tell_refusals(leases, lease, &figures, &report);
    }
    if versions && figures.unknown_versions > lease.unknown_versions_told {
        tell_unknown_versions(leases, lease, &figures);
    }
    if spills && lease.spills.untold(figures.spills) > 0 {
        tell_spills(leases, lease, &figures);
    }
    shortages::tell_rest(leases, lease);
    lost_contexts::tell_rest(leases, lease, &figures, &report);
}

fn tell_refusals(leases: &Leases, lease: &mut Lease, figures: &Figures, report: &Report) {
    let message = refusal(lease, figures, report);
    leases.events.note(EventKind::AllocationRefused, about(&lease.record, None), message);
    lease.refusals_told = lease.refusals_told.saturating_add(shortages::others(lease, figures));
    for (slot, claimed) in report.taken() {
        if let Some(process) = lease.processes.get_mut(&slot) {
            process.refusals_told = claimed.refused();
        }
    }
}

fn tell_spills(leases: &Leases, lease: &mut Lease, figures: &Figures) {
    let count = lease.spills.untold(figures.spills);
    let (there, limit) = (lease.spilled_bytes(figures), lease.record.spill_bytes);
    let message = format!(
        "{count} more allocation(s) of {} had no room within its cap of {} and lie in the host's memory, which the GPU reaches over its \
         bus: {} of {} there now",
        lease.record.container_id.short(),
        format_bytes(lease.record.memory_cap_bytes),
        format_bytes(there),
        format_bytes(limit),
    );
    leases.events.note(EventKind::AllocationSpilled, about(&lease.record, None), message);
    lease.spills.note_told(figures.spills);
}

fn tell_unknown_versions(leases: &Leases, lease: &mut Lease, figures: &Figures) {
    let message = format!(
        "refused {} more look-up(s) of {} of functions in versions that its shim does not know: programs that need them \
         want a newer gpool",
        figures.unknown_versions - lease.unknown_versions_told,
        lease.record.container_id.short()
    );
    leases.events.note(EventKind::UnknownVersion, about(&lease.record, None), message);
    lease.unknown_versions_told = figures.unknown_versions;
}

/// The sentence about refusals that have not been told; `report` holds the lease's slots.
fn refusal(lease: &Lease, figures: &Figures, report: &Report) -> String {
    let gpus = lease.accounts.len();
    let asked = report.taken().filter_map(|(slot, claimed)| {
        let told = lease.processes.get(&slot)?.refusals_told;
        (claimed.refused() > told).then(|| (claimed.refused() - told, Refusal::of(&claimed, gpus)))
    });
    let gpu = asked.max_by_key(|(count, _)| *count).map_or(0, |(_, refusal)| refusal.gpu);
    let claimants = report.taken().take(SLOTS).map(|(slot, claimed)| {
        let process = lease.processes.get(&slot);
        Claimant {
            process: process.map(|process| (process.watched.name.pid, procfs::comm(process.watched.name.pid))),
            holding: Holding::of(&claimed, &report.pieces(), gpu, gpus),
            new_refusals: process.map_or(0, |process| claimed.refused().saturating_sub(process.refusals_told)),
            last: Refusal::of(&claimed, gpus),
        }
    });
    let control = lease.region.control();
    let spilled = match lease.record.spill_bytes {
        0 => String::new(),
        most => format!(
            "; beside it {} of {} of the host's memory are taken",
            format_bytes(lease.spilled_bytes(figures)),
            format_bytes(most)
        ),
    };
    let text = sentence(
        shortages::others(lease, figures),
        lease.record.container_id.short(),
        claimants.collect(),
        control.context_bytes.load(Ordering::Relaxed),
        lease.record.memory_cap_bytes,
    );
    text + &spilled
}

fn sentence(count: u64, container: &str, mut claimants: Vec<Claimant>, context_bytes: u64, cap_bytes: u64) -> String {
    let mut text = format!("refused {count} more allocation(s) of {container}");
    match claimants.iter().max_by_key(|claimant| claimant.new_refusals).filter(|asked| asked.new_refusals > 0) {
        Some(asked) => {
            let call = Call::name_of(asked.last.call).unwrap_or("an allocator");
            let (bytes, free) = (format_bytes(asked.last.bytes), format_bytes(asked.last.free_bytes));
            text += &format!(", the last of {bytes} by {call} of {} when {free} were free", name(&asked.process));
        }
        None => text += ", by a process that has ended",
    }
    text += &format!("; of a cap of {} hold", format_bytes(cap_bytes));
    let held = |claimant: &Claimant| claimant.holding.bytes(context_bytes);
    claimants.retain(|claimant| held(claimant) > 0);
    claimants.sort_by_key(|claimant| std::cmp::Reverse(held(claimant)));
    let part =
        |bytes: u64, contexts: u64, who: String| format!(" {who} {} with {contexts} context(s)", format_bytes(bytes));
    let named = claimants.iter().take(NAMED);
    let mut parts: Vec<String> =
        named.map(|claimant| part(held(claimant), claimant.holding.contexts, name(&claimant.process))).collect();
    let others = claimants.get(NAMED..).unwrap_or_default();
    if !others.is_empty() {
        let bytes = others.iter().fold(0u64, |sum, claimant| sum.saturating_add(held(claimant)));
        let contexts = others.iter().fold(0u64, |sum, claimant| sum.saturating_add(claimant.holding.contexts));
        parts.push(part(bytes, contexts, format!("{} others", others.len())));
    }
    if parts.is_empty() {
        parts.push(" none of its processes anything".into());
    }
    text + &parts.join(",") + &format!(", {} for each context", format_bytes(context_bytes))
}

fn name(process: &Option<(HostPid, String)>) -> String {
    match process {
        Some((pid, comm)) => format!("process {pid} ({comm})"),
        None => "a process not known yet".into(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const GIB: u64 = 1 << 30;

    fn claimant(pid: u32, comm: &str, allocated_bytes: u64, new_refusals: u64) -> Claimant {
        let last = Refusal { bytes: 2 * GIB, free_bytes: GIB / 2, call: Call::MemAllocAsync as u32, gpu: 0 };
        let holding = Holding { allocated_bytes, contexts: 1 };
        Claimant { process: Some((HostPid(pid), comm.into())), holding, new_refusals, last }
    }

    #[test]
    fn a_refusal_says_who_asked_for_what_and_who_has_it() {
        let claimants = vec![claimant(10, "trainer", GIB, 3), claimant(11, "server", 4 * GIB, 0)];
        assert_eq!(
            sentence(3, "abc", claimants, GIB / 4, 6 * GIB),
            "refused 3 more allocation(s) of abc, the last of 2GiB by cuMemAllocAsync of process 10 (trainer) when 512MiB \
             were free; of a cap of 6GiB hold process 11 (server) 4.2GiB with 1 context(s), process 10 (trainer) 1.2GiB \
             with 1 context(s), 256MiB for each context"
        );
    }

    #[test]
    fn many_processes_are_summed_and_ended_ones_are_said_to_be() {
        let mut claimants: Vec<Claimant> = (0..20).map(|pid| claimant(pid, "worker", GIB, 0)).collect();
        claimants[19].process = None;
        let text = sentence(1, "abc", claimants, 0, 32 * GIB);
        assert!(text.contains("by a process that has ended"), "{text}");
        assert!(text.contains(" 12 others 12GiB with 12 context(s)"), "{text}");
        assert!(text.len() < 1000, "{text}");
    }

    #[test]
    fn a_slot_cannot_name_what_is_not_there() {
        let mut bytes = [0u8; gpool_shared_region::SLOT_BYTES];
        bytes[1924..1928].fill(0xff);
        bytes[1944..1948].fill(0xff);
        let slot = SlotSnapshot::new(&bytes).unwrap();
        let refusal = Refusal::of(&slot, 2);
        assert_eq!((refusal.gpu, Call::name_of(refusal.call)), (1, None));
        assert_eq!(Refusal::of(&slot, 0).gpu, 0);
    }
}
