//! What the supervisor tells the processes of a lease.

use crate::atomic::{AtomicU8, AtomicU32, AtomicU64, Ordering};
use crate::{GPUS, GateWord, SLOTS};

/// Length of the control file in bytes.
pub const CONTROL_BYTES: usize = 4096;

/// The supervisor's answer to one registration.
#[repr(C)]
#[derive(Debug, Default)]
pub struct ControlSlot {
    /// The [`Slot::registration`](crate::Slot::registration) that the supervisor accepted, 0 for none.
    pub accepted: AtomicU64,
}

/// The control page. Written by the supervisor only; every field alone is consistent.
///
/// Order of writing: `until_ns` and `opened_ns` before `gate` (release), so whoever sees an open gate word
/// (acquire) sees at least the end that belongs to it.
#[repr(C, align(64))]
#[derive(Debug)]
#[cfg_attr(loom, derive(Default))]
pub struct Control {
    /// [`MAGIC`](crate::MAGIC), written last when the page is made.
    pub magic: AtomicU64,
    /// [`VERSION`](crate::VERSION) of the supervisor that made the page.
    pub version: AtomicU32,
    /// Oldest shim that can read this page: a shim whose [`VERSION`](crate::VERSION) is below it must not run.
    pub oldest_reader: AtomicU32,
    reserved0: [u32; 12],

    /// [`GateWord`](crate::GateWord); a futex word.
    pub gate: AtomicU32,
    /// 1: when the supervisor is away, run unpaced (memory caps hold). 0: stand at the gate until it is back.
    pub fail_open: AtomicU32,
    /// An open gate admits work only while the work already issued is expected to end before this.
    pub until_ns: AtomicU64,
    /// When the gate was opened last, for the measurement of the hand-off.
    pub opened_ns: AtomicU64,
    /// GPU time that one burst should hold.
    pub burst_ns: AtomicU64,
    /// Estimated unfinished work that a process may have on the device.
    pub depth_ns: AtomicU64,
    /// 1: the gate has been left open for a lease that was idle, and the supervisor does not know when one of its processes
    /// launches again, unless that rings. A supervisor that leaves no gate open leaves zero.
    pub is_left_open: AtomicU32,
    /// 1: it is worth saying when a process is about to leave the device, because others have a part of it and the lease is
    /// taken at its word. A supervisor that does not want to be told leaves zero.
    pub heeds_leaving: AtomicU32,
    /// 1: the lease's processes are in the host's memory, or on their way there or back: a call of the driver that has to do
    /// with a GPU would not return. A process that is about to make one says that it waits, rings, and stands until this is 0. It is
    /// set before the driver is asked to move anything, and taken away before the gate has the word that wakes who stands there. Since
    /// version 3; a supervisor that moves nobody leaves zero.
    pub is_suspended: AtomicU32,
    /// 1: no other lease has been at work on any of its GPUs for a while, so that nothing of theirs stands before its work there. A
    /// supervisor that does not say it leaves zero.
    pub stands_alone: AtomicU32,
    reserved1: [u32; 2],

    /// Renewed every 100 ms by a supervisor that lives.
    pub heartbeat_ns: AtomicU64,
    reserved2: [u64; 7],

    /// Most device memory that the lease may hold on each of its GPUs, contexts included.
    pub memory_cap_bytes: AtomicU64,
    /// What one CUDA context costs on this GPU and driver.
    pub context_bytes: AtomicU64,
    /// GPUs of the lease; 0, from a supervisor of version 1, is one. Since version 2.
    pub gpus: AtomicU32,
    /// The lease's part of each of its GPUs, in thousandths: what NVML in the container relates utilisation to. 0, from
    /// a supervisor that does not say it, is all of it.
    pub fraction_permille: AtomicU32,
    reserved3: [u32; 10],

    /// One answer per slot of the report.
    pub slots: [ControlSlot; SLOTS],

    /// The UUIDs of the lease's GPUs as cuDeviceGetUuid gives them; a GPU's place here is its index in
    /// [`Slot::gpu_bytes`](crate::Slot::gpu_bytes) and in a burst's tag. Since version 2.
    pub gpu_uuids: [[AtomicU8; 16]; GPUS],

    /// What NVML shows that the lease's processes hold of each GPU beyond their accounts, contexts included: it counts as
    /// held. A supervisor that does not say it leaves zero.
    pub uncounted_bytes: [AtomicU64; GPUS],

    /// Most memory of the host that the lease may hold beside that of its GPUs, of all of them together: what it allocates beyond
    /// its cap goes there. A supervisor that does not say it leaves zero. What follows on the page is reserved and zero.
    pub spill_bytes: AtomicU64,
}

/// How a lease may work behind its open gate, in nanoseconds.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Opening {
    /// [`Control::until_ns`].
    pub until_ns: u64,
    /// [`Control::depth_ns`].
    pub depth_ns: u64,
    /// [`Control::burst_ns`].
    pub burst_ns: u64,
    /// [`Control::is_left_open`].
    pub is_left_open: bool,
    /// [`Control::heeds_leaving`].
    pub heeds_leaving: bool,
    /// [`Control::stands_alone`].
    pub stands_alone: bool,
}

impl Control {
    /// Opens the gate, or renews an open one; the new word. Whoever stands at the gate must be woken then. For the one who
    /// writes the page.
    pub fn open_gate(&self, now_ns: u64, opening: Opening) -> GateWord {
        self.is_left_open.store(u32::from(opening.is_left_open), Ordering::Relaxed);
        self.heeds_leaving.store(u32::from(opening.heeds_leaving), Ordering::Relaxed);
        self.stands_alone.store(u32::from(opening.stands_alone), Ordering::Relaxed);
        self.burst_ns.store(opening.burst_ns, Ordering::Relaxed);
        self.depth_ns.store(opening.depth_ns, Ordering::Relaxed);
        self.until_ns.store(opening.until_ns, Ordering::Relaxed);
        self.opened_ns.store(now_ns, Ordering::Relaxed);
        self.turn(true)
    }

    /// Closes the gate; the new word. Nobody is woken: who waits goes on waiting. For the one who writes the page.
    pub fn close_gate(&self) -> GateWord {
        self.turn(false)
    }

    /// Whether [`Control::is_suspended`] stands there, as 1 and nothing else: nobody stands for ever because of a word that no supervisor
    /// writes. Who waits for its end reads the gate's word before this.
    #[inline(always)]
    pub fn is_suspended(&self) -> bool {
        self.is_suspended.load(Ordering::Relaxed) == 1
    }

    fn turn(&self, open: bool) -> GateWord {
        let word = GateWord(self.gate.load(Ordering::Relaxed)).next(open);
        self.gate.store(word.0, Ordering::Release);
        word
    }
}

#[cfg(not(loom))]
const _: () = {
    use core::mem::offset_of;
    assert!(core::mem::size_of::<Control>() <= CONTROL_BYTES);
    // The wire format: old shims meet new supervisors.
    assert!(offset_of!(Control, magic) == 0);
    assert!(offset_of!(Control, version) == 8);
    assert!(offset_of!(Control, oldest_reader) == 12);
    assert!(offset_of!(Control, gate) == 64);
    assert!(offset_of!(Control, fail_open) == 68);
    assert!(offset_of!(Control, until_ns) == 72);
    assert!(offset_of!(Control, opened_ns) == 80);
    assert!(offset_of!(Control, burst_ns) == 88);
    assert!(offset_of!(Control, depth_ns) == 96);
    assert!(offset_of!(Control, is_left_open) == 104);
    assert!(offset_of!(Control, heeds_leaving) == 108);
    assert!(offset_of!(Control, stands_alone) == 116);
    assert!(offset_of!(Control, is_suspended) == 112);
    assert!(offset_of!(Control, heartbeat_ns) == 128);
    assert!(offset_of!(Control, memory_cap_bytes) == 192);
    assert!(offset_of!(Control, context_bytes) == 200);
    assert!(offset_of!(Control, gpus) == 208);
    assert!(offset_of!(Control, fraction_permille) == 212);
    assert!(offset_of!(Control, slots) == 256);
    assert!(offset_of!(Control, gpu_uuids) == 768);
    assert!(offset_of!(Control, uncounted_bytes) == 1024);
    assert!(offset_of!(Control, spill_bytes) == 1152);
};
