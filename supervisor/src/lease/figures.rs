//! What the processes of a lease say of themselves, in sums: memory by GPU, and counts.

use crate::region::Report;
use gpool_shared_region::{GPUS, PIECE_WORDS, PiecesSnapshot, SlotSnapshot};
use serde::{Deserialize, Serialize};

/// What processes have counted that have ended since, and what events have told of all that was counted.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Counted {
    /// Allocations refused.
    pub refused: u64,
    /// Size of the last of them.
    pub refused_bytes: u64,
    /// Look-ups refused because the shim does not know the version.
    pub unknown_versions: u64,
    /// Time stood at the gate.
    pub gate_wait_ns: u64,
    /// Launches.
    pub launches: u64,
    /// The most memory that the lease was known to hold on one GPU, live processes left out that say so themselves.
    #[serde(default)]
    pub peak_bytes: u64,
    /// Refused allocations, of all processes, that have been told.
    pub refusals_told: u64,
    /// Refused look-ups, of all processes, that have been told.
    pub unknown_versions_told: u64,
    /// Allocations that have gone to the host's memory.
    #[serde(default)]
    pub spills: u64,
    /// Those, of all processes, that have been told.
    #[serde(default)]
    pub spills_told: u64,
    /// Processes that have lost a context for good.
    #[serde(default)]
    pub faults: u64,
    /// Those, of all processes, that have been told.
    #[serde(default)]
    pub faults_told: u64,
}

/// Memory on one GPU, summed over processes.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Holding {
    /// Memory reserved, contexts not included.
    pub allocated_bytes: u64,
    /// Contexts.
    pub contexts: u64,
}

impl Holding {
    /// What a process claims to hold on GPU `gpu` of a lease on `gpus` of them, with all of what it holds with others.
    pub fn of(slot: &SlotSnapshot<'_>, pieces: &PiecesSnapshot<'_>, gpu: usize, gpus: usize) -> Self {
        let own = Self::alone(slot, gpu, gpus);
        let piece_bytes = pieces.bytes_on(slot.pieces(), gpu, gpus);
        Self { allocated_bytes: own.allocated_bytes.saturating_add(piece_bytes), ..own }
    }

    /// What a process claims to hold alone. On a single GPU that is all it claims, whatever it says of GPUs.
    fn alone(slot: &SlotSnapshot<'_>, gpu: usize, gpus: usize) -> Self {
        if gpus == 1 {
            return match gpu {
                0 => Self { allocated_bytes: slot.allocated_bytes(), contexts: slot.contexts().into() },
                _ => Self::default(),
            };
        }
        Self { allocated_bytes: slot.gpu_bytes(gpu), contexts: slot.gpu_contexts(gpu).into() }
    }

    /// All of it, where a context costs `context_bytes`.
    pub fn bytes(self, context_bytes: u64) -> u64 {
        self.allocated_bytes.saturating_add(self.contexts.saturating_mul(context_bytes))
    }
}

/// Sums over processes.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Figures {
    /// Memory by GPU of the lease.
    pub held: [Holding; GPUS],
    /// Allocations refused.
    pub refused: u64,
    /// Size of the last refused allocation.
    pub refused_bytes: u64,
    /// Look-ups refused because the shim does not know the version.
    pub unknown_versions: u64,
    /// Time stood at the gate.
    pub gate_wait_ns: u64,
    /// Launches.
    pub launches: u64,
    /// The most memory that was held on one GPU, by all processes of the lease together.
    pub peak_bytes: u64,
    /// Memory that lies in the host's for want of room within the cap.
    pub spilled_bytes: u64,
    /// Allocations that have gone there.
    pub spills: u64,
    /// Processes that have lost a context for good.
    pub faults: u64,
}

impl Figures {
    /// Adds all processes of a lease on `gpus` GPUs, as their report says.
    pub(super) fn and(self, report: &Report, gpus: usize) -> Self {
        let mut held = [0; PIECE_WORDS];
        let alone = report.taken().fold(self, |sum, (_, slot)| {
            held.iter_mut().zip(slot.pieces()).for_each(|(all, its)| *all |= its);
            sum.add(&slot, gpus)
        });
        alone.add_pieces(&report.pieces(), held, gpus)
    }

    /// Adds a process of a lease on `gpus` GPUs, without what it holds with others.
    pub(super) fn add(mut self, slot: &SlotSnapshot<'_>, gpus: usize) -> Self {
        for (gpu, held) in self.held.iter_mut().enumerate().take(gpus) {
            let claimed = Holding::alone(slot, gpu, gpus);
            held.allocated_bytes = held.allocated_bytes.saturating_add(claimed.allocated_bytes);
            held.contexts = held.contexts.saturating_add(claimed.contexts);
        }
        self.spilled_bytes = self.spilled_bytes.saturating_add(slot.spilled_bytes());
        self.count(slot);
        self
    }

    /// Adds what processes of a lease on `gpus` GPUs hold together, `held` of its pieces: each once.
    pub(super) fn add_pieces(mut self, pieces: &PiecesSnapshot<'_>, held: [u64; PIECE_WORDS], gpus: usize) -> Self {
        for (gpu, sum) in self.held.iter_mut().enumerate().take(gpus) {
            sum.allocated_bytes = sum.allocated_bytes.saturating_add(pieces.bytes_on(held, gpu, gpus));
        }
        self
    }

    /// What is written down of what processes have counted that have ended, and of how many refusals have been told, of
    /// allocations and of look-ups, of how many allocations in the host's memory, and of how many lost contexts.
    pub(super) fn written(&self, told: [u64; 4]) -> Counted {
        let [refusals_told, unknown_versions_told, spills_told, faults_told] = told;
        let Self {
            refused, refused_bytes, unknown_versions, gate_wait_ns, launches, peak_bytes, spills, faults, ..
        } = *self;
        Counted {
            refused,
            refused_bytes,
            unknown_versions,
            gate_wait_ns,
            launches,
            peak_bytes,
            refusals_told,
            unknown_versions_told,
            spills,
            spills_told,
            faults,
            faults_told,
        }
    }

    /// What was written down. Memory is not.
    pub(super) fn read(counted: &Counted) -> Self {
        Self {
            refused: counted.refused,
            refused_bytes: counted.refused_bytes,
            unknown_versions: counted.unknown_versions,
            gate_wait_ns: counted.gate_wait_ns,
            launches: counted.launches,
            peak_bytes: counted.peak_bytes,
            spills: counted.spills,
            faults: counted.faults,
            ..Self::default()
        }
    }

    /// Adds what a process has counted. Memory comes back with the process; what it counted stays.
    pub fn count(&mut self, slot: &SlotSnapshot<'_>) {
        self.refused = self.refused.saturating_add(slot.refused());
        self.unknown_versions = self.unknown_versions.saturating_add(slot.unknown_versions().into());
        self.gate_wait_ns = self.gate_wait_ns.saturating_add(slot.gate_wait_ns());
        self.launches = self.launches.saturating_add(slot.launches());
        self.peak_bytes = self.peak_bytes.max(slot.peak_bytes());
        self.spills = self.spills.saturating_add(slot.spills());
        self.faults = self.faults.saturating_add(u64::from(slot.fault() != 0));
        if slot.refused() > 0 {
            self.refused_bytes = slot.refused_bytes();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use gpool_shared_region::{REPORT_BYTES, ROSTER_OFFSET, SLOT_BYTES};

    fn claim(bytes: &mut [u8], offset: usize, value: u64) {
        bytes[offset..offset + 8].copy_from_slice(&value.to_le_bytes());
    }

    #[test]
    fn memory_is_summed_by_gpu_and_what_was_counted_stays() {
        let mut bytes = [0u8; SLOT_BYTES];
        claim(&mut bytes, 16, 70);
        claim(&mut bytes, 24, 3);
        claim(&mut bytes, 32, 9);
        bytes[12] = 2;
        bytes[40] = 2;
        claim(&mut bytes, 1728, 50);
        claim(&mut bytes, 1736, 20);
        claim(&mut bytes, 1992, 40);
        claim(&mut bytes, 2000, 6);
        bytes[2008] = 7;
        bytes[1856] = 1;
        bytes[1860] = 1;
        let slot = SlotSnapshot::new(&bytes).unwrap();
        let two = Figures::default().add(&slot, 2).add(&slot, 2);
        assert_eq!(two.held.map(|held| held.allocated_bytes)[..3], [100, 40, 0]);
        assert_eq!((two.held[1].contexts, two.held[1].bytes(5), two.refused, two.refused_bytes), (2, 50, 6, 9));
        assert_eq!((two.spilled_bytes, two.spills), (80, 12), "in the host's memory and in no other sum");
        let one = Figures::default().add(&slot, 1);
        assert_eq!((one.held[0].bytes(5), one.held[1].bytes(5)), (80, 0), "on a single GPU it is all that is claimed");
        let mut retired = Figures::default();
        retired.count(&slot);
        assert_eq!((retired.held, retired.refused), ([Holding::default(); GPUS], 3));
        assert_eq!((retired.spilled_bytes, retired.spills, retired.faults), (0, 6, 1), "what it held there has gone");
        let written = retired.written([2, 1, 4, 1]);
        assert_eq!(Figures::read(&written), retired, "the next life of the supervisor goes on from there");
        assert_eq!((written.refusals_told, written.unknown_versions_told), (2, 1));
        assert_eq!((written.spills_told, written.faults_told), (4, 1));
    }

    #[test]
    fn what_two_processes_hold_is_the_leases_once_and_each_ones_in_full() {
        let mut bytes = [0u8; SLOT_BYTES];
        claim(&mut bytes, 16, 4096);
        bytes[40] = 2;
        claim(&mut bytes, 1728, 4096);
        bytes[1952] = 0b10;
        let slot = SlotSnapshot::new(&bytes).unwrap();
        let mut report = vec![0u8; REPORT_BYTES];
        // The second piece: two pages on the first GPU.
        claim(&mut report, ROSTER_OFFSET + 64 + 16 + 8, 8192);
        let pieces = PiecesSnapshot::new(&report);
        assert_eq!(Holding::of(&slot, &pieces, 0, 2).allocated_bytes, 4096 + 8192);
        assert_eq!(Holding::of(&slot, &pieces, 1, 2).allocated_bytes, 0);
        let two = Figures::default().add(&slot, 2).add(&slot, 2).add_pieces(&pieces, slot.pieces(), 2);
        assert_eq!((two.held[0].allocated_bytes, two.held[1].allocated_bytes), (2 * 4096 + 8192, 0));
    }
}
