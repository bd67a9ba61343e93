//! Memory without an address (cuMemCreate): whose charge it is and when it is gone.
//!
//! The driver frees it with the last of its references, its mappings and its exported counterparts. References and
//! mappings of this process are counted here. What has been exported may be held by a descriptor or a process that
//! nobody here sees, so it stays charged to the process that made it until that ends. What is imported and known as a
//! piece of the lease is charged with that, see `pieces`. Else it is charged to the importer as well, because the process
//! that made it may end first: at once if its size shows, else when it is mapped, by the largest mapping.
//!
//! The table is not locked while the driver is called: that may take long, and a profiler's callback in there may call
//! anything. So what a call is about to do is said before, and what came of it afterwards. Whoever adds a reference or a
//! mapping counts it before the driver does, and whoever ends one counts that after the driver has: memory that is there is
//! charged at each moment. A handle that the driver gives while all that held it is being ended is another's; the threads
//! that end those find by the serial that it is not what they have let go of.

use crate::handles::{Handles, Held, Kind};
use gpool_shared_region::PieceSize;

/// What is mapped lies at multiples of this, and is as long, on every GPU so far; the driver refuses others.
pub const PAGE_BYTES: u64 = 2 << 20;

/// One piece of memory, told from what has the same handle before or after it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Identity {
    /// The driver's handle.
    pub handle: u64,
    serial: u32,
}

/// A mapping that is about to be made.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Mapping {
    /// What it shows, of which a reference is kept until [`Handles::mapped`] or [`Handles::kept`].
    pub memory: Identity,
    /// The GPU on which the memory lies.
    pub gpu: usize,
    /// How much of what it will show is not charged yet.
    pub uncharged_bytes: u64,
}

/// Mappings that are about to be ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Unmapping {
    start: u64,
    /// Where the last one ends that is known.
    end: u64,
    number: u32,
}

/// Gets what has gone, to give its charge back.
pub type Gone<'a> = &'a mut dyn FnMut(&Held);

impl<const CAPACITY: usize> Handles<CAPACITY> {
    /// `bytes` have been made on GPU `gpu` of the lease. Without room for the handle they stay charged.
    pub fn created(&mut self, handle: u64, gpu: usize, bytes: u64, gone: Gone<'_>) {
        self.enter(Held::new(Kind::Physical, handle, bytes), gpu, gone);
    }

    /// `handle` came from an exported counterpart that is `piece` of the lease, of which this process has taken hold for
    /// it: false if it is one that is known, which has its charge already.
    pub fn imported_piece(&mut self, handle: u64, piece: usize, size: PieceSize, gone: Gone<'_>) -> bool {
        let is_new = !self.retained(handle);
        if is_new {
            let mut held = Held::new(Kind::Physical, handle, size.bytes());
            held.charge_to_piece(piece);
            self.enter(held, size.gpu(), gone);
        }
        is_new
    }

    /// `handle` came from an exported counterpart; it may be one that is known.
    pub fn imported(&mut self, handle: u64, gpu: usize, gone: Gone<'_>) {
        if !self.retained(handle) {
            self.enter(Held { is_imported: true, ..Held::new(Kind::Physical, handle, 0) }, gpu, gone);
        }
    }

    fn enter(&mut self, held: Held, gpu: usize, gone: Gone<'_>) {
        let before = self.hold(Held { references: 1, gpu: gpu as u8, ..held });
        // Where nobody is ending what had the handle, it has gone without anybody's having seen it, and stays charged.
        if let Some(before) = before.filter(|before| before.is_ending() && !before.is_shared) {
            gone(&before);
        }
    }

    /// There is one more reference to `handle`; false if it is not known, or a new piece has that handle.
    pub fn retained(&mut self, handle: u64) -> bool {
        let known = self.find(Kind::Physical, handle).filter(|held| !held.is_ending());
        known.map(|held| held.references += 1).is_some()
    }

    /// The memory of this identity.
    #[inline(never)]
    pub fn of(&mut self, memory: Identity) -> Option<&mut Held> {
        self.find(Kind::Physical, memory.handle).filter(|held| held.serial == memory.serial)
    }

    /// A call is about to do something with `handle` that makes more of it be held: one more reference is counted until
    /// [`Handles::kept`]. None if it is not known.
    pub fn keep(&mut self, handle: u64) -> Option<Identity> {
        let held = self.find(Kind::Physical, handle)?;
        held.references += 1;
        Some(Identity { handle, serial: held.serial })
    }

    /// The same of the memory that shows at `address`, which may lie within a mapping.
    pub fn keep_at(&mut self, address: u64) -> Option<Identity> {
        let mut start = address / PAGE_BYTES * PAGE_BYTES;
        loop {
            if let Some(mapping) = self.find(Kind::Mapping, start) {
                let (is_in, handle, serial) = (address - start < mapping.bytes, mapping.owner, mapping.serial);
                self.of(Identity { handle, serial }).filter(|_| is_in)?.references += 1;
                return Some(Identity { handle, serial });
            }
            start = start.checked_sub(PAGE_BYTES).filter(|start| address - start < self.longest_mapping_bytes)?;
        }
    }

    /// What [`Handles::keep`] has counted is over.
    #[inline(never)] // each of these is called from several places
    pub fn kept(&mut self, memory: Identity, gone: Gone<'_>) {
        if let Some(held) = self.of(memory) {
            held.references = held.references.saturating_sub(1);
        }
        self.drop_unused(memory, gone);
    }

    /// As [`Handles::kept`], and others may hold it from now on if `is_bound`.
    #[inline(never)]
    pub fn bound(&mut self, memory: Identity, is_bound: bool, gone: Gone<'_>) {
        if let Some(held) = self.of(memory) {
            held.is_shared |= is_bound;
        }
        self.kept(memory, gone);
    }

    /// What of `memory` is not charged yet if it is `bytes` long: the GPU and how much.
    pub fn uncharged(&mut self, memory: Identity, bytes: u64) -> Option<(usize, u64)> {
        let held = self.of(memory)?;
        (held.is_imported && bytes > held.bytes).then(|| (usize::from(held.gpu), bytes - held.bytes))
    }

    /// `memory` is `bytes` long, of which `charged_bytes` have been charged since it was [`Handles::uncharged`]: how many
    /// of these are too many, because another thread has charged some meanwhile.
    pub fn sized(&mut self, memory: Identity, bytes: u64, charged_bytes: u64) -> u64 {
        let more = self.uncharged(memory, bytes).map_or(0, |(_, more)| more);
        if let Some(held) = self.of(memory).filter(|_| more > 0) {
            held.bytes = bytes;
        }
        charged_bytes.saturating_sub(more)
    }

    /// The driver is about to show `handle` up to its byte `end`; none if it is not known.
    pub fn mapping(&mut self, handle: u64, end: u64) -> Option<Mapping> {
        let memory = self.keep(handle)?;
        let (gpu, uncharged_bytes) = self.uncharged(memory, end).unwrap_or_default();
        Some(Mapping { memory, gpu, uncharged_bytes })
    }

    /// `bytes` of `memory` show at `address`.
    pub fn mapped(&mut self, address: u64, bytes: u64, memory: Option<Identity>, gone: Gone<'_>) {
        if let Some(held) = memory.and_then(|memory| self.of(memory)) {
            held.mappings += 1;
        }
        // Of the host, or a multicast object: remembered under no handle, so that what lies behind it in the same
        // range is found when all of it is unmapped.
        let Identity { handle, serial } = memory.unwrap_or(Identity { handle: 0, serial: 0 });
        // What was here has gone if it is being unmapped. Else one of two threads that map here has been unmapped by
        // another who did not wait for it: it is not known which, and both stay charged.
        if let Some(before) = self.take(Kind::Mapping, address).filter(|before| before.references != 0) {
            self.unmapped_one(&before, true, &mut *gone);
        }
        self.longest_mapping_bytes = self.longest_mapping_bytes.max(bytes);
        // Without room for the mapping the memory is never seen to go, and stays charged.
        self.put(Held { owner: handle, serial, ..Held::new(Kind::Mapping, address, bytes) });
        if let Some(memory) = memory {
            self.kept(memory, gone);
        }
    }

    /// The driver is about to unmap `bytes` from `address`, whole mappings.
    pub fn unmapping(&mut self, address: u64, bytes: u64) -> Unmapping {
        let (number, end) = (self.next_serial(), address.saturating_add(bytes));
        let mut start = address;
        while start < end {
            let Some(mapping) = self.find(Kind::Mapping, start) else { break };
            start = start.saturating_add(mapping.bytes);
            // What another thread is unmapping is its to count.
            if mapping.references == 0 {
                mapping.references = number;
                let memory = Identity { handle: mapping.owner, serial: mapping.serial };
                if let Some(held) = self.of(memory) {
                    held.ending = held.ending.saturating_add(1);
                }
            }
        }
        Unmapping { start: address, end: start, number }
    }

    /// The driver has unmapped that, or has not.
    pub fn unmapped(&mut self, range: Unmapping, is_unmapped: bool, gone: Gone<'_>) {
        let mut start = range.start;
        while start < range.end {
            let ours = self.find(Kind::Mapping, start).filter(|mapping| mapping.references == range.number);
            let Some(mapping) = ours else {
                // Another thread has mapped something here since.
                start = start.saturating_add(PAGE_BYTES);
                continue;
            };
            mapping.references = 0;
            let mapping = *mapping;
            start = start.saturating_add(mapping.bytes);
            if is_unmapped {
                self.take(Kind::Mapping, mapping.handle);
            }
            self.unmapped_one(&mapping, is_unmapped, &mut *gone);
        }
    }

    fn unmapped_one(&mut self, mapping: &Held, is_unmapped: bool, gone: Gone<'_>) {
        let memory = Identity { handle: mapping.owner, serial: mapping.serial };
        if let Some(held) = self.of(memory) {
            held.ending = held.ending.saturating_sub(1);
            held.mappings = held.mappings.saturating_sub(u32::from(is_unmapped));
        }
        self.drop_unused(memory, gone);
    }

    /// The driver is about to end a reference to `handle`; none if it is not known.
    pub fn releasing(&mut self, handle: u64) -> Option<Identity> {
        self.leaving(Kind::Physical, handle).map(|held| Identity { handle, serial: held.serial })
    }

    /// The driver has ended a reference, or has not.
    pub fn released(&mut self, memory: Identity, is_released: bool, gone: Gone<'_>) {
        if let Some(held) = self.of(memory) {
            held.ending = held.ending.saturating_sub(1);
            held.references = held.references.saturating_sub(u32::from(is_released));
        }
        self.drop_unused(memory, gone);
    }

    #[inline(never)]
    fn drop_unused(&mut self, memory: Identity, gone: Gone<'_>) {
        let is_unused = |held: &mut Held| held.references == 0 && held.mappings == 0;
        if self.of(memory).is_some_and(is_unused)
            && let Some(held) = self.take(Kind::Physical, memory.handle)
            && !held.is_shared
        {
            gone(&held);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MIB: u64 = 1 << 20;

    /// What `work` says is gone.
    fn gone(work: impl FnOnce(Gone<'_>)) -> Vec<(usize, u64)> {
        let mut all = Vec::new();
        work(&mut |held| all.push((usize::from(held.gpu), held.bytes)));
        all
    }

    /// For what lets nothing go.
    fn nothing(held: &Held) {
        panic!("{held:?} went");
    }

    /// The calls of one thread, each of which succeeds.
    impl Handles<64> {
        fn create(&mut self, handle: u64, gpu: usize, bytes: u64) {
            self.created(handle, gpu, bytes, &mut nothing);
        }

        fn release(&mut self, handle: u64) -> Vec<(usize, u64)> {
            let memory = self.releasing(handle);
            gone(|all| {
                if let Some(memory) = memory {
                    self.released(memory, true, all);
                }
            })
        }

        fn map(&mut self, address: u64, bytes: u64, handle: u64) {
            let memory = self.mapping(handle, bytes).map(|mapping| {
                self.sized(mapping.memory, bytes, mapping.uncharged_bytes);
                mapping.memory
            });
            self.mapped(address, bytes, memory, &mut nothing);
        }

        fn unmap(&mut self, address: u64, bytes: u64) -> Vec<(usize, u64)> {
            let range = self.unmapping(address, bytes);
            gone(|all| self.unmapped(range, true, all))
        }
    }

    #[test]
    fn memory_goes_with_its_last_reference_or_mapping() {
        let mut handles = Handles::<64>::new();
        handles.create(1, 3, 4 * MIB);
        assert!(handles.retained(1) && !handles.retained(2));
        handles.map(0x1000_0000, 4 * MIB, 1);
        handles.map(0x9000_0000, 4 * MIB, 1);
        assert_eq!(handles.release(1), []);
        assert_eq!(handles.unmap(0x1000_0000, 4 * MIB), []);
        assert_eq!(handles.release(1), [], "it is still mapped");
        assert_eq!(handles.unmap(0x9000_0000, 4 * MIB), [(3, 4 * MIB)]);
        assert_eq!(handles.release(1), [], "only once");
    }

    #[test]
    fn what_the_driver_refuses_changes_nothing() {
        let mut handles = Handles::<64>::new();
        handles.create(1, 0, 4 * MIB);
        handles.map(0x1000_0000, 4 * MIB, 1);
        let (memory, range) = (handles.releasing(1).unwrap(), handles.unmapping(0x1000_0000, 4 * MIB));
        handles.released(memory, false, &mut nothing);
        handles.unmapped(range, false, &mut nothing);
        let mapping = handles.mapping(1, 2 * MIB).unwrap();
        handles.kept(mapping.memory, &mut nothing);
        assert!(handles.retained(1), "nobody is ending it any more");
        assert_eq!((handles.release(1), handles.release(1)), (vec![], vec![]));
        assert_eq!(handles.unmap(0x1000_0000, 4 * MIB), [(0, 4 * MIB)]);
    }

    #[test]
    fn one_range_may_show_many_pieces() {
        let mut handles = Handles::<64>::new();
        for piece in 0..5 {
            handles.create(10 + piece, 0, 2 * MIB);
            handles.map(0x4000_0000 + piece * 2 * MIB, 2 * MIB, 10 + piece);
            assert_eq!(handles.release(10 + piece), [], "it is mapped");
        }
        assert_eq!(handles.unmap(0x4000_0000, 10 * MIB), [(0, 2 * MIB); 5]);
    }

    #[test]
    fn memory_that_is_not_charged_hides_nothing_behind_it() {
        let mut handles = Handles::<64>::new();
        handles.map(0x4000_0000, 2 * MIB, 77);
        handles.create(1, 0, 2 * MIB);
        handles.map(0x4000_0000 + 2 * MIB, 2 * MIB, 1);
        assert_eq!(handles.release(1), [], "it is mapped");
        handles.create(77, 0, 2 * MIB);
        assert_eq!(handles.unmap(0x4000_0000, 4 * MIB), [(0, 2 * MIB)], "and not the new 77");
        assert_eq!(handles.release(77), [(0, 2 * MIB)]);
    }

    #[test]
    fn what_others_may_hold_stays_charged() {
        let mut handles = Handles::<64>::new();
        for (is_bound, left) in [(false, vec![(0, 2 * MIB)]), (true, vec![])] {
            handles.create(1, 0, 2 * MIB);
            let memory = handles.keep(1).unwrap();
            assert_eq!(handles.release(1), [], "the driver may hold it for others already");
            assert_eq!(gone(|all| handles.bound(memory, is_bound, all)), left);
            assert_eq!(handles.keep(1), None);
        }
        handles.create(1, 0, 6 * MIB);
        assert_eq!(handles.release(1), [(0, 6 * MIB)], "the handle means something else now");
    }

    #[test]
    fn what_shows_at_an_address_is_found_wherever_that_lies_in_it() {
        let mut handles = Handles::<64>::new();
        handles.create(1, 0, 8 * MIB);
        handles.map(0x4000_0000, 8 * MIB, 1);
        handles.map(0x4000_0000 + 16 * MIB, 2 * MIB, 77);
        let memory = handles.keep_at(0x4000_0000 + 8 * MIB - 1);
        assert_eq!(memory.map(|memory| memory.handle), Some(1));
        for outside in [8 * MIB, 12 * MIB, 16 * MIB, 1 << 40] {
            assert_eq!(handles.keep_at(0x4000_0000 + outside), None);
        }
        assert_eq!((handles.keep_at(0), handles.release(1)), (None, vec![]));
        assert_eq!(handles.unmap(0x4000_0000, 8 * MIB), [], "a reference is kept");
        assert_eq!(gone(|all| handles.kept(memory.unwrap(), all)), [(0, 8 * MIB)]);
    }

    #[test]
    fn a_handle_that_comes_again_while_it_is_ended_is_another_piece() {
        let mut handles = Handles::<64>::new();
        handles.create(1, 0, 2 * MIB);
        let before = handles.releasing(1).unwrap();
        assert_eq!(gone(|all| handles.created(1, 0, 6 * MIB, all)), [(0, 2 * MIB)], "the driver has let go of it");
        handles.released(before, true, &mut nothing);
        assert_eq!(handles.release(1), [(0, 6 * MIB)]);
        // Imported, it may be the same piece again.
        handles.imported(1, 0, &mut nothing);
        let memory = handles.keep(1).unwrap();
        handles.sized(memory, 2 * MIB, 2 * MIB);
        let before = handles.releasing(1).unwrap();
        assert!(handles.retained(1), "somebody else has a reference");
        assert_eq!(handles.release(1), []);
        handles.kept(memory, &mut nothing);
        assert_eq!(gone(|all| handles.imported(1, 3, all)), [(0, 2 * MIB)], "nobody had one");
        handles.released(before, true, &mut nothing);
        assert_eq!(handles.release(1), [(3, 0)]);
    }

    #[test]
    fn an_address_that_is_mapped_again_while_it_is_unmapped_shows_another_piece() {
        let mut handles = Handles::<64>::new();
        for handle in [1, 2, 3] {
            handles.create(handle, 0, handle * 2 * MIB);
        }
        handles.map(0x4000_0000, 2 * MIB, 1);
        handles.map(0x4000_0000 + 2 * MIB, 4 * MIB, 2);
        assert_eq!((handles.release(1), handles.release(2)), (vec![], vec![]));
        let range = handles.unmapping(0x4000_0000, 6 * MIB);
        let memory = handles.mapping(3, 2 * MIB).map(|mapping| mapping.memory);
        assert_eq!(gone(|all| handles.mapped(0x4000_0000, 2 * MIB, memory, all)), [(0, 2 * MIB)]);
        assert_eq!(gone(|all| handles.unmapped(range, true, all)), [(0, 4 * MIB)], "what is behind it is found");
        assert_eq!(handles.release(3), [], "it is mapped");
        assert_eq!(handles.unmap(0x4000_0000, 2 * MIB), [(0, 6 * MIB)]);
    }

    #[test]
    fn of_mappings_of_which_one_must_have_gone_unseen_both_stay_charged() {
        let mut handles = Handles::<64>::new();
        for handle in [1, 2] {
            handles.create(handle, 0, handle * 2 * MIB);
            handles.map(0x4000_0000, 2 * MIB, handle);
        }
        assert_eq!((handles.release(1), handles.release(2)), (vec![], vec![]));
        assert_eq!(handles.unmap(0x4000_0000, 2 * MIB), [(0, 4 * MIB)]);
    }

    #[test]
    fn what_is_imported_is_charged_by_its_largest_mapping() {
        let mut handles = Handles::<64>::new();
        let uncharged = |handles: &mut Handles<64>, handle, bytes| {
            let mapping = handles.mapping(handle, bytes).unwrap();
            handles.kept(mapping.memory, &mut nothing);
            (mapping.gpu, mapping.uncharged_bytes)
        };
        handles.imported(5, 1, &mut nothing);
        handles.create(6, 0, 2 * MIB);
        assert_eq!(uncharged(&mut handles, 6, 2 * MIB), (0, 0), "what was made here is charged");
        assert_eq!(uncharged(&mut handles, 5, 2 * MIB), (1, 2 * MIB));
        handles.map(0x1000_0000, 2 * MIB, 5);
        assert_eq!(uncharged(&mut handles, 5, 2 * MIB), (0, 0));
        let of_two = handles.mapping(5, 6 * MIB).unwrap();
        assert_eq!((of_two.gpu, of_two.uncharged_bytes), (1, 4 * MIB));
        handles.map(0x2000_0000, 6 * MIB, 5);
        assert_eq!(handles.sized(of_two.memory, 6 * MIB, 4 * MIB), 4 * MIB, "another thread has charged it");
        handles.kept(of_two.memory, &mut nothing);
        assert_eq!(handles.release(5), [], "it is mapped");
        assert_eq!(handles.unmap(0x2000_0000, 6 * MIB), []);
        assert_eq!(handles.unmap(0x1000_0000, 2 * MIB), [(1, 6 * MIB)]);
        handles.imported(6, 0, &mut nothing);
        assert_eq!(uncharged(&mut handles, 6, 4 * MIB), (0, 0), "one's own memory comes back under its handle");
    }

    #[test]
    fn without_room_memory_is_only_ever_counted_for_too_long() {
        let mut handles = Handles::<8>::new();
        for handle in 1..=8 {
            handles.created(handle, 0, 2 * MIB, &mut nothing);
        }
        assert_eq!((handles.releasing(8), handles.keep(8)), (None, None));
        let memory = handles.keep(1);
        handles.mapped(0x1000_0000, 2 * MIB, memory, &mut nothing);
        let (memory, range) = (handles.releasing(1).unwrap(), handles.unmapping(0x1000_0000, 2 * MIB));
        handles.released(memory, true, &mut nothing);
        handles.unmapped(range, true, &mut nothing);
    }

    #[test]
    fn what_is_imported_as_a_piece_goes_as_one_and_shows_nothing_uncharged() {
        let mut handles = Handles::<64>::new();
        let size = PieceSize::new(2, 4 * MIB).unwrap();
        assert!(handles.imported_piece(5, 9, size, &mut nothing));
        assert!(!handles.imported_piece(5, 9, size, &mut nothing), "it is known, and so is its charge");
        let mapping = handles.mapping(5, 4 * MIB).unwrap();
        assert_eq!(mapping.uncharged_bytes, 0);
        handles.mapped(0x1000_0000, 4 * MIB, Some(mapping.memory), &mut nothing);
        assert_eq!((handles.release(5), handles.release(5)), (vec![], vec![]), "it is mapped");
        let (range, mut pieces) = (handles.unmapping(0x1000_0000, 4 * MIB), Vec::new());
        handles.unmapped(range, true, &mut |held| pieces.push((held.piece(), held.gpu, held.bytes)));
        assert_eq!(pieces, [(Some(9), 2, 4 * MIB)]);
    }
}
