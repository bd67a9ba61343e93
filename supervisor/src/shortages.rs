//! Allocations within a lease's cap for which the GPU itself had no memory left. The program has the driver's error, as of one above its
//! cap, and cannot tell the two apart; but this time its promise was not kept, and who has the memory is somebody else's to find out.

use crate::clock;
use crate::lease::{Figures, Lease, Leases, Process, Tellings, about};
use crate::procfs;
use crate::refusals::Refusal;
use crate::region::Report;
use gpool_protocol::{EventKind, HostPid, format_bytes};
use gpool_shared_region::{Call, SlotSnapshot};
use std::sync::atomic::Ordering;

/// What is known and told of those of one lease. All but the process is the tenant's word.
#[derive(Debug, Default)]
pub struct Shortages {
    tellings: Tellings,
    count: u64,
    last: Option<(HostPid, String, Refusal)>,
}

impl Shortages {
    /// Looks at what a process of a lease on `gpus` GPUs says, also one that has just ended. A report holds how many allocations were
    /// refused, and of the last of them why: so it is taken to be of all since the last look, a second before.
    pub fn look(&mut self, process: &mut Process, slot: &SlotSnapshot<'_>, gpus: usize) {
        // What one was refused before a restart of the supervisor has been told.
        let before = process.refusals_seen.replace(slot.refused()).unwrap_or(slot.refused());
        let new = slot.refused().saturating_sub(before);
        if new == 0 || slot.refused_call() & Call::HAD_ROOM == 0 {
            return;
        }
        self.count = self.count.saturating_add(new);
        // They are told here, and not as refusals for want of room within the cap.
        process.refusals_told = process.refusals_told.saturating_add(new);
        let pid = process.watched.name.pid;
        self.last = Some((pid, procfs::comm(pid), Refusal::of(slot, gpus)));
    }

    /// How many have not been told.
    pub fn untold(&self) -> u64 {
        self.tellings.untold(self.count)
    }
}

/// Looks at what all processes of a lease say.
pub fn look(lease: &mut Lease, report: &Report) {
    let gpus = lease.accounts.len();
    for (slot, claimed) in report.taken() {
        if let Some(process) = lease.processes.get_mut(&slot) {
            lease.shortages.look(process, &claimed, gpus);
        }
    }
}

/// Tells what has been seen of a lease, if it is to be told now.
pub fn tell(leases: &Leases, lease: &mut Lease) {
    let count = lease.shortages.count;
    if lease.shortages.tellings.look(clock::now_ns(), count) {
        tell_now(leases, lease);
    }
}

/// Tells what has been kept back, or not been seen, of a lease that is about to end.
pub fn tell_rest(leases: &Leases, lease: &mut Lease) {
    if lease.shortages.untold() > 0 {
        tell_now(leases, lease);
    }
}

/// How many refusals there were by `figures` for want of room within the cap that have not been told.
pub fn others(lease: &Lease, figures: &Figures) -> u64 {
    figures.refused.saturating_sub(lease.refusals_told).saturating_sub(lease.shortages.untold())
}

fn tell_now(leases: &Leases, lease: &mut Lease) {
    let (untold, count) = (lease.shortages.untold(), lease.shortages.count);
    let Some(last) = &lease.shortages.last else { return };
    let gpu = lease.accounts.get(last.2.gpu).map(|account| account.gpu);
    let on = gpu.and_then(|gpu| Some((leases.gpus().get(gpu)?.clone(), gpu))).map(|(gpu, index)| Board {
        name: format!("GPU {} ({})", gpu.index, gpu.uuid),
        bytes: gpu.memory_had_bytes(),
        used_bytes: leases.used_bytes[index].load(Ordering::Relaxed),
        foreign_bytes: leases.foreign_bytes[index].load(Ordering::Relaxed),
    });
    let container = lease.record.container_id.short();
    let message = sentence(untold, container, lease.record.memory_cap_bytes, last, on.as_ref());
    leases.events.note(EventKind::GpuFull, about(&lease.record, None), message);
    lease.shortages.tellings.note_told(count);
    lease.refusals_told = lease.refusals_told.saturating_add(untold);
}

/// A GPU, and what NVML has said of its memory last.
struct Board {
    name: String,
    bytes: u64,
    used_bytes: u64,
    foreign_bytes: u64,
}

fn sentence(
    count: u64,
    container: &str,
    cap_bytes: u64,
    (pid, comm, last): &(HostPid, String, Refusal),
    on: Option<&Board>,
) -> String {
    let call = Call::name_of(last.call).unwrap_or("an allocator");
    let gpu = on.map_or("a GPU", |board| &board.name);
    let [bytes, free, cap] = [last.bytes, last.free_bytes, cap_bytes].map(format_bytes);
    let text = format!(
        "{gpu} had no memory left for {count} more allocation(s) of {container} within its cap, the last of {bytes} by {call} of process \
         {pid} ({comm}) when {free} of {cap} were free"
    );
    let Some(board) = on else { return text };
    let [bytes, used, foreign] = [board.bytes, board.used_bytes, board.foreign_bytes].map(format_bytes);
    text + &format!(
        "; of the GPU's {bytes} NVML shows {used} in use, {foreign} of it outside of what leases were promised"
    )
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::procfs::WatchedProcess;
    use gpool_shared_region::SLOT_BYTES;

    const GIB: u64 = 1 << 30;

    fn slot(refused: u64, call: u32) -> [u8; SLOT_BYTES] {
        let mut bytes = [0u8; SLOT_BYTES];
        bytes[24..32].copy_from_slice(&refused.to_le_bytes());
        bytes[32..40].copy_from_slice(&(7 * GIB).to_le_bytes());
        bytes[1924..1928].copy_from_slice(&call.to_le_bytes());
        bytes[1928..1936].copy_from_slice(&(8 * GIB).to_le_bytes());
        bytes
    }

    #[test]
    fn what_had_room_within_the_cap_is_told_apart_from_what_had_not() {
        let dir = tempfile::tempdir().unwrap();
        let mut lease = crate::lease::lease_in(dir.path(), "01");
        let process = |refusals_seen| Process {
            registration: 1,
            watched: WatchedProcess::open(HostPid(std::process::id())).unwrap(),
            program: None,
            refusals_told: 0,
            refusals_seen,
        };
        let (mut new, mut taken_over) = (process(Some(0)), process(None));
        let mut look = |process: &mut Process, refused, call| {
            lease.shortages.look(process, &SlotSnapshot::new(&slot(refused, call)).unwrap(), 1);
            (lease.shortages.untold(), process.refusals_told)
        };
        let (above, within) = (Call::MemAlloc as u32, Call::MemAlloc as u32 | Call::HAD_ROOM);
        assert_eq!(look(&mut taken_over, 5, within), (0, 0), "an earlier supervisor has told that");
        assert_eq!(look(&mut new, 2, above), (0, 0));
        assert_eq!(look(&mut new, 3, within), (1, 1));
        assert_eq!(look(&mut new, 3, within), (1, 1), "nothing is new");
        assert_eq!(look(&mut taken_over, 7, within), (3, 2));
        assert_eq!(others(&lease, &Figures { refused: 10, ..Figures::default() }), 7);
        assert_eq!(others(&lease, &Figures { refused: 2, ..Figures::default() }), 0, "whatever a tenant says");
    }

    #[test]
    fn a_shortage_says_who_asked_for_what_and_what_is_in_use() {
        let bytes = slot(1, Call::MemAllocAsync as u32 | Call::HAD_ROOM);
        let last = (HostPid(10), "trainer".to_owned(), Refusal::of(&SlotSnapshot::new(&bytes).unwrap(), 1));
        let board =
            Board { name: "GPU 1 (GPU-1)".into(), bytes: 24 * GIB, used_bytes: 24 * GIB, foreign_bytes: 9 * GIB };
        assert_eq!(
            sentence(3, "abc", 8 * GIB, &last, Some(&board)),
            "GPU 1 (GPU-1) had no memory left for 3 more allocation(s) of abc within its cap, the last of 7GiB by cuMemAllocAsync of \
             process 10 (trainer) when 8GiB of 8GiB were free; of the GPU's 24GiB NVML shows 24GiB in use, 9GiB of it outside of what \
             leases were promised"
        );
        assert!(
            sentence(1, "abc", GIB, &last, None).starts_with("a GPU had no memory left for 1 more allocation(s) of")
        );
    }
}
