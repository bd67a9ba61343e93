//! What a process of a lease tells the supervisor.

use crate::GPUS;
use crate::atomic::{AtomicU32, AtomicU64};
use crate::burst_tag::BurstTag;
use crate::pieces::PIECE_WORDS;

/// Bursts that a slot remembers, of all GPUs of its process. One of several GPUs rings when it has filled half of it, so that the
/// supervisor reads in time.
pub const BURST_RING: usize = if cfg!(loom) { 2 } else { 64 };
/// Length of one slot in bytes. Slot `i` of the report starts at `i * SLOT_BYTES`, and its first byte is the one
/// that the owning process holds a POSIX write lock on while it registers.
pub const SLOT_BYTES: usize = if cfg!(loom) { size_of::<Slot>() } else { 2048 };

/// What a process wants of its gate: values of [`Slot::demand`].
#[repr(u32)]
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Demand {
    /// Nothing outstanding, nothing wanted.
    Idle = 0,
    /// Issuing work behind an open gate.
    Running = 1,
    /// At least one thread stands at the gate.
    Waiting = 2,
}

impl Demand {
    /// Reads a word that a tenant wrote; anything unknown counts as idle.
    pub fn from_word(word: u32) -> Self {
        match word {
            1 => Demand::Running,
            2 => Demand::Waiting,
            _ => Demand::Idle,
        }
    }
}

/// One measured burst, in host time.
#[repr(C)]
#[derive(Debug, Default)]
pub struct BurstRecord {
    /// From when on its context had work for the device. What of that it stood before it says its [`BurstTag`].
    pub start_ns: AtomicU64,
    /// End on the device.
    pub end_ns: AtomicU64,
}

/// A process's place in the report.
#[repr(C, align(64))]
#[derive(Debug)]
#[cfg_attr(loom, derive(Default))]
pub struct Slot {
    /// A number that the process makes up when it takes the slot; 0 means free. The supervisor frees a slot,
    /// after the process is dead, so its bytes stay charged until then; while it is away, another process of the lease does, which
    /// has the slot's lock then.
    pub registration: AtomicU64,
    /// The process's own pid as it sees itself: for people, and for processes of its own PID namespace, which ask whether it has
    /// ended while no supervisor is there. Never used to find it.
    pub process_id: AtomicU32,
    /// CUDA contexts that the process holds.
    pub contexts: AtomicU32,
    /// Device memory reserved by the process, contexts not included.
    pub allocated_bytes: AtomicU64,
    /// Allocations refused, because of the cap or because the GPU had no memory left.
    pub refused: AtomicU64,
    /// Size of the last refused allocation.
    pub refused_bytes: AtomicU64,
    /// [`VERSION`](crate::VERSION) of the shim.
    pub shim_version: AtomicU32,
    /// Look-ups by name that were refused because the shim does not know that version of a hooked function. A
    /// shim that does not count them leaves zero.
    pub unknown_versions: AtomicU32,
    /// The number of the PID namespace that `process_id` is of (the inode of `/proc/self/ns/pid`); 0 where it is not known, and of a shim
    /// that does not say it.
    pub pid_namespace: AtomicU32,
    /// What is another number after each execve(2), and the same for all copies of a shim in a process; 0 as above.
    pub image: AtomicU32,
    reserved0: [u32; 2],

    /// [`Demand`].
    pub demand: AtomicU32,
    /// The gate word that `demand` and `estimated_end_ns` refer to.
    pub demand_word: AtomicU32,
    /// When the work issued so far is expected to end; 0, since version 2, when none is outstanding.
    pub estimated_end_ns: AtomicU64,
    /// The gate word behind which `first_launch_ns` happened.
    pub first_launch_word: AtomicU32,
    /// Threads that stand at the gate.
    pub waiters: AtomicU32,
    /// The first launch after the gate opened with `first_launch_word`.
    pub first_launch_ns: AtomicU64,
    /// Time that threads stood at the gate, summed.
    pub gate_wait_ns: AtomicU64,
    /// Launches, counted when their burst ends.
    pub launches: AtomicU64,
    /// The gate word behind which the process has issued all that it will for now, as far as it knows: its program waits for
    /// the work that ends at `estimated_end_ns`, and has paused for long after the last few. 0 from a process that says no
    /// such thing, and once it has begun another burst.
    pub leaving_word: AtomicU32,
    reserved1: [u32; 3],

    /// Bursts ever written; the newest is at `(burst_count - 1) % BURST_RING`.
    pub burst_count: AtomicU64,
    /// Lengths of all bursts ever written, summed.
    pub burst_total_ns: AtomicU64,
    reserved2: [u64; 6],
    /// The ring of bursts.
    pub bursts: [BurstRecord; BURST_RING],

    /// What ran in the burst at the same place of the ring: a [`BurstTag`]. Since version 2.
    pub burst_tags: [AtomicU64; BURST_RING],
    /// Device memory reserved on each GPU of the lease, contexts not included; `allocated_bytes` is the sum. Since
    /// version 2.
    pub gpu_bytes: [AtomicU64; GPUS],
    /// CUDA contexts held on each GPU of the lease; `contexts` is the sum. Since version 2.
    pub gpu_contexts: [AtomicU32; GPUS],
    /// 1 once something has been charged that may take less than its charge: what the process holds beyond its account
    /// then no longer tells what a context costs. Since version 2; a shim that does not say it leaves zero.
    pub is_inexact: AtomicU32,
    /// The [`Call`](crate::Call) that was refused last. A shim that does not say it leaves zero; so for all that
    /// follows.
    pub refused_call: AtomicU32,
    /// What the lease had left on that GPU when it was refused.
    pub refused_free_bytes: AtomicU64,
    /// What is charged for modules and libraries, by their images, a part of `allocated_bytes`: at least what they take,
    /// so that without it the process shows at least what a context costs.
    pub image_bytes: AtomicU64,
    /// The GPU of the lease that the last refusal was about.
    pub refused_gpu: AtomicU32,
    /// Calls under way that change what is held: until they are over, account and device may differ. It stays so in the
    /// slot of a process that was killed in one.
    pub changing: AtomicU32,
    /// The [`Piece`](crate::Piece)s that the process holds, one bit each. They are in no other account of it.
    pub pieces: [AtomicU64; PIECE_WORDS],
    /// The most that the lease was within its cap with on any of its GPUs when this process asked for memory, contexts
    /// included. A shim that does not say it leaves zero.
    pub peak_bytes: AtomicU64,
    /// How often what the process says that it holds has been changed, raised before each change: the same account in two
    /// looks is one that stood still in between only if this is the same, too. Who looks reads it last: a change that he has
    /// seen is in it then. A shim that does not say it leaves zero.
    pub changes: AtomicU64,
    /// What of the process's memory lies in the host's because it had no room within the cap, in bytes, of all GPUs together. It is
    /// in no other account. A shim that does not say it leaves zero; so for what follows.
    pub spilled_bytes: AtomicU64,
    /// Allocations ever that went there.
    pub spills: AtomicU64,
    /// The answer of the driver by which the process has lost a context for good, a CUresult; 0 while it has lost none. Written
    /// once, after `fault_gpu` and `fault_ns`. A shim that does not say it leaves zero; so for what follows.
    pub fault: AtomicU32,
    /// The GPU of the lease on which that was.
    pub fault_gpu: AtomicU32,
    /// When the shim saw it, CLOCK_MONOTONIC. What follows in the slot is reserved and zero.
    pub fault_ns: AtomicU64,
}

#[cfg(not(loom))]
const _: () = {
    use core::mem::{offset_of, size_of};
    assert!(size_of::<Slot>() <= SLOT_BYTES);
    assert!(offset_of!(Slot, registration) == 0);
    assert!(offset_of!(Slot, process_id) == 8);
    assert!(offset_of!(Slot, contexts) == 12);
    assert!(offset_of!(Slot, allocated_bytes) == 16);
    assert!(offset_of!(Slot, refused) == 24);
    assert!(offset_of!(Slot, refused_bytes) == 32);
    assert!(offset_of!(Slot, shim_version) == 40);
    assert!(offset_of!(Slot, unknown_versions) == 44);
    assert!(offset_of!(Slot, demand) == 64);
    assert!(offset_of!(Slot, demand_word) == 68);
    assert!(offset_of!(Slot, estimated_end_ns) == 72);
    assert!(offset_of!(Slot, first_launch_word) == 80);
    assert!(offset_of!(Slot, waiters) == 84);
    assert!(offset_of!(Slot, first_launch_ns) == 88);
    assert!(offset_of!(Slot, gate_wait_ns) == 96);
    assert!(offset_of!(Slot, launches) == 104);
    assert!(offset_of!(Slot, leaving_word) == 112);
    assert!(offset_of!(Slot, burst_count) == 128);
    assert!(offset_of!(Slot, burst_total_ns) == 136);
    assert!(offset_of!(Slot, bursts) == 192);
    assert!(offset_of!(Slot, burst_tags) == 1216);
    assert!(offset_of!(Slot, gpu_bytes) == 1728);
    assert!(offset_of!(Slot, gpu_contexts) == 1856);
    assert!(offset_of!(Slot, is_inexact) == 1920);
    assert!(offset_of!(Slot, refused_call) == 1924);
    assert!(offset_of!(Slot, refused_free_bytes) == 1928);
    assert!(offset_of!(Slot, image_bytes) == 1936);
    assert!(offset_of!(Slot, refused_gpu) == 1944);
    assert!(offset_of!(Slot, changing) == 1948);
    assert!(offset_of!(Slot, pieces) == 1952);
    assert!(offset_of!(Slot, peak_bytes) == 1976);
    assert!(offset_of!(Slot, changes) == 1984);
    assert!(offset_of!(Slot, spilled_bytes) == 1992);
    assert!(offset_of!(Slot, spills) == 2000);
    assert!(offset_of!(Slot, fault) == 2008);
    assert!(offset_of!(Slot, fault_gpu) == 2012);
    assert!(offset_of!(Slot, fault_ns) == 2016);
};

/// A copy of one slot, as read by the supervisor with pread. Every value is a claim of the tenant.
#[derive(Debug, Clone, Copy)]
pub struct SlotSnapshot<'a> {
    bytes: &'a [u8],
}

impl<'a> SlotSnapshot<'a> {
    /// A view of one slot's bytes; none if there are too few, because a tenant may truncate its report.
    pub fn new(bytes: &'a [u8]) -> Option<Self> {
        bytes.get(..size_of::<Slot>()).map(|bytes| Self { bytes })
    }

    fn u64_at(&self, offset: usize) -> u64 {
        let mut word = [0; 8];
        word.copy_from_slice(&self.bytes[offset..offset + 8]);
        u64::from_le_bytes(word)
    }

    fn u32_at(&self, offset: usize) -> u32 {
        let mut word = [0; 4];
        word.copy_from_slice(&self.bytes[offset..offset + 4]);
        u32::from_le_bytes(word)
    }

    /// See [`Slot::registration`].
    pub fn registration(&self) -> u64 {
        self.u64_at(0)
    }

    /// See [`Slot::process_id`].
    pub fn process_id(&self) -> u32 {
        self.u32_at(8)
    }

    /// See [`Slot::contexts`].
    pub fn contexts(&self) -> u32 {
        self.u32_at(12)
    }

    /// See [`Slot::allocated_bytes`].
    pub fn allocated_bytes(&self) -> u64 {
        self.u64_at(16)
    }

    /// See [`Slot::shim_version`].
    pub fn shim_version(&self) -> u32 {
        self.u32_at(40)
    }

    /// See [`Slot::unknown_versions`].
    pub fn unknown_versions(&self) -> u32 {
        self.u32_at(44)
    }

    /// Device memory reserved on GPU `gpu` of the lease. A shim of version 1 knows one GPU.
    pub fn gpu_bytes(&self, gpu: usize) -> u64 {
        match (self.shim_version(), gpu) {
            (0..=1, 0) => self.allocated_bytes(),
            (0..=1, _) | (_, GPUS..) => 0,
            _ => self.u64_at(1728 + 8 * gpu),
        }
    }

    /// Contexts on GPU `gpu` of the lease. A shim of version 1 knows one GPU.
    pub fn gpu_contexts(&self, gpu: usize) -> u32 {
        match (self.shim_version(), gpu) {
            (0..=1, 0) => self.contexts(),
            (0..=1, _) | (_, GPUS..) => 0,
            _ => self.u32_at(1856 + 4 * gpu),
        }
    }

    /// See [`Slot::is_inexact`].
    pub fn is_inexact(&self) -> bool {
        self.u32_at(1920) != 0
    }

    /// See [`Slot::refused_call`].
    pub fn refused_call(&self) -> u32 {
        self.u32_at(1924)
    }

    /// See [`Slot::refused_free_bytes`].
    pub fn refused_free_bytes(&self) -> u64 {
        self.u64_at(1928)
    }

    /// See [`Slot::image_bytes`].
    pub fn image_bytes(&self) -> u64 {
        self.u64_at(1936)
    }

    /// See [`Slot::refused_gpu`].
    pub fn refused_gpu(&self) -> u32 {
        self.u32_at(1944)
    }

    /// See [`Slot::changing`].
    pub fn changing(&self) -> u32 {
        self.u32_at(1948)
    }

    /// See [`Slot::pieces`].
    pub fn pieces(&self) -> [u64; PIECE_WORDS] {
        core::array::from_fn(|word| self.u64_at(1952 + 8 * word))
    }

    /// See [`Slot::peak_bytes`].
    pub fn peak_bytes(&self) -> u64 {
        self.u64_at(1976)
    }

    /// See [`Slot::changes`].
    pub fn changes(&self) -> u64 {
        self.u64_at(1984)
    }

    /// See [`Slot::spilled_bytes`].
    pub fn spilled_bytes(&self) -> u64 {
        self.u64_at(1992)
    }

    /// See [`Slot::spills`].
    pub fn spills(&self) -> u64 {
        self.u64_at(2000)
    }

    /// See [`Slot::fault`].
    pub fn fault(&self) -> u32 {
        self.u32_at(2008)
    }

    /// See [`Slot::fault_gpu`].
    pub fn fault_gpu(&self) -> u32 {
        self.u32_at(2012)
    }

    /// See [`Slot::fault_ns`].
    pub fn fault_ns(&self) -> u64 {
        self.u64_at(2016)
    }

    /// Whether the process claims to hold nothing of any GPU, by itself or with others, and to be changing nothing of that.
    pub fn holds_nothing(&self) -> bool {
        let is_nothing_here = |gpu| self.gpu_bytes(gpu) == 0 && self.gpu_contexts(gpu) == 0;
        self.allocated_bytes() == 0
            && self.contexts() == 0
            && self.changing() == 0
            && self.pieces() == [0; PIECE_WORDS]
            && (0..GPUS).all(is_nothing_here)
    }

    /// Whether the process has never done any work and wants none.
    pub fn did_nothing(&self) -> bool {
        let has_asked = self.demand() != Demand::Idle || self.waiters() > 0 || self.estimated_end_ns() != 0;
        !has_asked && self.burst_count() == 0 && self.launches() == 0
    }

    /// See [`Slot::waiters`].
    pub fn waiters(&self) -> u32 {
        self.u32_at(84)
    }

    /// See [`Slot::refused`].
    pub fn refused(&self) -> u64 {
        self.u64_at(24)
    }

    /// See [`Slot::refused_bytes`].
    pub fn refused_bytes(&self) -> u64 {
        self.u64_at(32)
    }

    /// See [`Slot::demand`].
    pub fn demand(&self) -> Demand {
        Demand::from_word(self.u32_at(64))
    }

    /// See [`Slot::demand_word`].
    pub fn demand_word(&self) -> u32 {
        self.u32_at(68)
    }

    /// See [`Slot::leaving_word`].
    pub fn leaving_word(&self) -> u32 {
        self.u32_at(112)
    }

    /// See [`Slot::estimated_end_ns`].
    pub fn estimated_end_ns(&self) -> u64 {
        self.u64_at(72)
    }

    /// See [`Slot::first_launch_word`].
    pub fn first_launch_word(&self) -> u32 {
        self.u32_at(80)
    }

    /// See [`Slot::first_launch_ns`].
    pub fn first_launch_ns(&self) -> u64 {
        self.u64_at(88)
    }

    /// See [`Slot::gate_wait_ns`].
    pub fn gate_wait_ns(&self) -> u64 {
        self.u64_at(96)
    }

    /// See [`Slot::launches`].
    pub fn launches(&self) -> u64 {
        self.u64_at(104)
    }

    /// See [`Slot::burst_count`].
    pub fn burst_count(&self) -> u64 {
        self.u64_at(128)
    }

    /// See [`Slot::burst_total_ns`].
    pub fn burst_total_ns(&self) -> u64 {
        self.u64_at(136)
    }

    /// Where burst number `number` ran; all zero from a shim of version 1.
    pub fn burst_tag(&self, number: u64) -> BurstTag {
        BurstTag(self.u64_at(1216 + 8 * (number % BURST_RING as u64) as usize))
    }

    /// Start and end of burst number `number`, which must be among the last [`BURST_RING`].
    pub fn burst(&self, number: u64) -> (u64, u64) {
        let offset = 192 + (number % BURST_RING as u64) as usize * size_of::<BurstRecord>();
        (self.u64_at(offset), self.u64_at(offset + 8))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::VERSION;

    #[test]
    fn a_snapshot_reads_the_fields_where_the_layout_has_them() {
        let mut bytes = [0u8; SLOT_BYTES];
        bytes[16..24].copy_from_slice(&7u64.to_le_bytes());
        bytes[64..68].copy_from_slice(&2u32.to_le_bytes());
        bytes[192 + 16..192 + 24].copy_from_slice(&11u64.to_le_bytes());
        assert!(!SlotSnapshot::new(&bytes).unwrap().is_inexact());
        bytes[1920] = 1;
        bytes[1976..1984].copy_from_slice(&13u64.to_le_bytes());
        let slot = SlotSnapshot::new(&bytes).unwrap();
        assert_eq!((slot.allocated_bytes(), slot.demand(), slot.burst(65)), (7, Demand::Waiting, (11, 0)));
        assert!(slot.is_inexact());
        assert_eq!(slot.peak_bytes(), 13);
    }

    #[test]
    fn any_claim_is_something() {
        let with = |offset: Option<usize>| {
            let mut bytes = [0u8; SLOT_BYTES];
            bytes[40] = VERSION as u8;
            offset.iter().for_each(|offset| bytes[*offset] = 1);
            let slot = SlotSnapshot::new(&bytes).unwrap();
            (slot.holds_nothing(), slot.did_nothing())
        };
        assert_eq!(with(None), (true, true));
        let last_gpu = GPUS - 1;
        for held in [12, 16, 1728 + 8 * last_gpu, 1856 + 4 * last_gpu, 1948, 1952 + 8 * (PIECE_WORDS - 1)] {
            assert_eq!(with(Some(held)), (false, true), "{held}");
        }
        for done in [64, 72, 84, 104, 128] {
            assert_eq!(with(Some(done)), (true, false), "{done}");
        }
    }

    #[test]
    fn a_truncated_slot_is_none_and_an_unknown_demand_is_idle() {
        assert!(SlotSnapshot::new(&[0; 100]).is_none());
        assert_eq!(Demand::from_word(77), Demand::Idle);
    }
}
