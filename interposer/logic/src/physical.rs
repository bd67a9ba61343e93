//! Memory without an address (cuMemCreate): whose charge it is and when it is gone.
//!
//! The driver frees it with the last of its references, its mappings and its exported counterparts. References and
//! mappings of this process are counted here. What has been exported may be held by a descriptor or a process that
//! nobody here sees, so it stays charged to the process that made it until that ends. What is imported and known as a
//! piece of the lease is charged with that, see `pieces`. Else it is charged to the importer as well, because the process
//! that made it may end first: at once if its size shows, else when it is mapped, by the largest mapping.

use crate::handles::{Handles, Held, Kind};
use gpool_shared_region::PieceSize;

impl<const CAPACITY: usize> Handles<CAPACITY> {
    /// `bytes` have been made on GPU `gpu` of the lease. Without room for the handle they stay charged.
    pub fn created(&mut self, handle: u64, gpu: usize, bytes: u64) {
        let held = Held::new(Kind::Physical, handle, bytes);
        // What had the handle before has gone without anybody's having seen it, and stays charged.
        self.hold(Held { references: 1, gpu: gpu as u8, ..held });
    }

    /// `handle` came from an exported counterpart that is `piece` of the lease, of which this process has taken hold for
    /// it: false if it is one that is known, which has its charge already.
    pub fn imported_piece(&mut self, handle: u64, piece: usize, size: PieceSize) -> bool {
        let is_new = !self.retained(handle);
        if is_new {
            let mut held = Held::new(Kind::Physical, handle, size.bytes());
            held.charge_to_piece(piece);
            self.hold(Held { references: 1, gpu: size.gpu() as u8, ..held });
        }
        is_new
    }

    /// `handle` came from an exported counterpart; it may be one that is known.
    pub fn imported(&mut self, handle: u64, gpu: usize) {
        if !self.retained(handle) {
            let held = Held::new(Kind::Physical, handle, 0);
            self.hold(Held { references: 1, gpu: gpu as u8, is_imported: true, ..held });
        }
    }

    /// Whether `handle` is memory of a device that this process holds.
    pub fn is_physical(&mut self, handle: u64) -> bool {
        self.find(Kind::Physical, handle).is_some()
    }

    /// There is one more reference to `handle`; false if it is not known.
    pub fn retained(&mut self, handle: u64) -> bool {
        let known = self.find(Kind::Physical, handle);
        known.map(|held| held.references += 1).is_some()
    }

    /// `handle` is about to be given to others: it does not go before [`Handles::bound`] has said what came of that. The
    /// number that tells this memory from what has the same handle later; none if it is not known.
    pub fn binding(&mut self, handle: u64) -> Option<u32> {
        let held = self.find(Kind::Physical, handle)?;
        held.references += 1;
        Some(held.serial)
    }

    /// What was to be given to others is held by them now, or is not; `gone` as in [`Handles::unmapped`].
    pub fn bound(&mut self, handle: u64, serial: u32, is_bound: bool, gone: impl FnMut(&Held)) {
        let Some(held) = self.find(Kind::Physical, handle).filter(|held| held.serial == serial) else { return };
        held.is_shared |= is_bound;
        self.released(handle, gone);
    }

    /// `handle` may now be held by others.
    pub fn shared(&mut self, handle: u64) -> Option<&mut Held> {
        let held = self.find(Kind::Physical, handle)?;
        held.is_shared = true;
        Some(held)
    }

    /// What a mapping up to byte `bytes` of `handle` would show that is not charged yet: the GPU and how much.
    pub fn uncharged(&mut self, handle: u64, bytes: u64) -> Option<(usize, u64)> {
        let held = self.find(Kind::Physical, handle)?;
        (held.is_imported && bytes > held.bytes).then(|| (usize::from(held.gpu), bytes - held.bytes))
    }

    /// `handle` is `bytes` long, and charged.
    pub fn sized(&mut self, handle: u64, bytes: u64) {
        if let Some(held) = self.find(Kind::Physical, handle) {
            held.bytes = held.bytes.max(bytes);
        }
    }

    /// `bytes` of `handle`, which end at its byte `end`, show at `address`; what was uncharged has been charged.
    pub fn mapped(&mut self, address: u64, bytes: u64, end: u64, handle: u64) {
        let owner = match self.find(Kind::Physical, handle) {
            Some(held) => {
                held.mappings += 1;
                if held.is_imported {
                    held.bytes = held.bytes.max(end);
                }
                handle
            }
            // Of the host, or a multicast object: remembered under no handle, so that what lies behind it in the same
            // range is found when all of it is unmapped.
            None => 0,
        };
        // Without room for the mapping the memory is never seen to go, and stays charged.
        self.put(Held { owner, ..Held::new(Kind::Mapping, address, bytes) });
    }

    /// Nothing shows any more from `address` for `bytes`, whole mappings; `gone` gets what went with its last
    /// mapping.
    pub fn unmapped(&mut self, address: u64, bytes: u64, mut gone: impl FnMut(&Held)) {
        let end = address.saturating_add(bytes);
        let mut start = address;
        while start < end {
            let Some(mapping) = self.take(Kind::Mapping, start) else { return };
            start = start.saturating_add(mapping.bytes);
            if let Some(held) = self.find(Kind::Physical, mapping.owner) {
                held.mappings = held.mappings.saturating_sub(1);
            }
            self.drop_unused(mapping.owner, &mut gone);
        }
    }

    /// One reference to `handle` less; `gone` as in [`Handles::unmapped`].
    pub fn released(&mut self, handle: u64, gone: impl FnMut(&Held)) {
        if let Some(held) = self.find(Kind::Physical, handle) {
            held.references = held.references.saturating_sub(1);
        }
        self.drop_unused(handle, gone);
    }

    fn drop_unused(&mut self, handle: u64, mut gone: impl FnMut(&Held)) {
        let is_unused = |held: &mut Held| held.references == 0 && held.mappings == 0;
        if self.find(Kind::Physical, handle).is_some_and(is_unused)
            && let Some(held) = self.take(Kind::Physical, handle)
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
    fn gone(work: impl FnOnce(&mut dyn FnMut(&Held))) -> Vec<(usize, u64)> {
        let mut all = Vec::new();
        work(&mut |held| all.push((usize::from(held.gpu), held.bytes)));
        all
    }

    #[test]
    fn memory_goes_with_its_last_reference_or_mapping() {
        let mut handles = Handles::<64>::new();
        handles.created(1, 3, 4 * MIB);
        assert!(handles.retained(1) && !handles.retained(2));
        handles.mapped(0x1000, 4 * MIB, 4 * MIB, 1);
        handles.mapped(0x9000_0000, 4 * MIB, 4 * MIB, 1);
        assert_eq!(gone(|all| handles.released(1, all)), []);
        assert_eq!(gone(|all| handles.unmapped(0x1000, 4 * MIB, all)), []);
        assert_eq!(gone(|all| handles.released(1, all)), [], "it is still mapped");
        assert_eq!(gone(|all| handles.unmapped(0x9000_0000, 4 * MIB, all)), [(3, 4 * MIB)]);
        assert_eq!(gone(|all| handles.released(1, all)), [], "only once");
    }

    #[test]
    fn one_range_may_show_many_pieces() {
        let mut handles = Handles::<64>::new();
        for piece in 0..5 {
            handles.created(10 + piece, 0, 2 * MIB);
            handles.mapped(0x4000_0000 + piece * 2 * MIB, 2 * MIB, 2 * MIB, 10 + piece);
            handles.released(10 + piece, |_| panic!("it is mapped"));
        }
        assert_eq!(gone(|all| handles.unmapped(0x4000_0000, 10 * MIB, all)), [(0, 2 * MIB); 5]);
    }

    #[test]
    fn memory_that_is_not_charged_hides_nothing_behind_it() {
        let mut handles = Handles::<64>::new();
        handles.mapped(0x4000_0000, 2 * MIB, 2 * MIB, 77);
        handles.created(1, 0, 2 * MIB);
        handles.mapped(0x4000_0000 + 2 * MIB, 2 * MIB, 2 * MIB, 1);
        handles.released(1, |_| panic!("it is mapped"));
        handles.created(77, 0, 2 * MIB);
        assert_eq!(gone(|all| handles.unmapped(0x4000_0000, 4 * MIB, all)), [(0, 2 * MIB)], "and not the new 77");
        assert_eq!(gone(|all| handles.released(77, all)), [(0, 2 * MIB)]);
    }

    #[test]
    fn what_others_may_hold_stays_charged() {
        let mut handles = Handles::<64>::new();
        handles.created(1, 0, 2 * MIB);
        handles.shared(1);
        assert_eq!(gone(|all| handles.released(1, all)), []);
        handles.created(1, 0, 6 * MIB);
        assert_eq!(gone(|all| handles.released(1, all)), [(0, 6 * MIB)], "the handle means something else now");
    }

    #[test]
    fn what_others_were_to_hold_and_do_not_goes_as_before() {
        let mut handles = Handles::<64>::new();
        for (is_bound, left) in [(false, vec![(0, 2 * MIB)]), (true, vec![])] {
            handles.created(1, 0, 2 * MIB);
            let serial = handles.binding(1).unwrap();
            assert_eq!(gone(|all| handles.released(1, all)), [], "the driver may hold it for others already");
            assert_eq!(gone(|all| handles.bound(1, serial, is_bound, all)), left);
            assert_eq!(handles.binding(1), None);
        }
        handles.created(1, 0, 2 * MIB);
        let before = handles.binding(1).unwrap();
        handles.created(1, 0, 6 * MIB);
        assert_eq!(gone(|all| handles.bound(1, before, false, all)), [], "the handle means something else now");
        assert_eq!(gone(|all| handles.released(1, all)), [(0, 6 * MIB)]);
    }

    #[test]
    fn what_is_imported_is_charged_by_its_largest_mapping() {
        let mut handles = Handles::<64>::new();
        handles.imported(5, 1);
        handles.created(6, 0, 2 * MIB);
        assert_eq!(handles.uncharged(6, 2 * MIB), None, "what was made here is charged");
        assert_eq!(handles.uncharged(5, 2 * MIB), Some((1, 2 * MIB)));
        handles.mapped(0x1000_0000, 2 * MIB, 2 * MIB, 5);
        assert_eq!(handles.uncharged(5, 2 * MIB), None);
        assert_eq!(handles.uncharged(5, 6 * MIB), Some((1, 4 * MIB)));
        handles.mapped(0x2000_0000, 6 * MIB, 6 * MIB, 5);
        handles.released(5, |_| panic!("it is mapped"));
        assert_eq!(gone(|all| handles.unmapped(0x2000_0000, 6 * MIB, all)), []);
        assert_eq!(gone(|all| handles.unmapped(0x1000_0000, 2 * MIB, all)), [(1, 6 * MIB)]);
        handles.imported(8, 0);
        handles.sized(8, 4 * MIB);
        assert_eq!(gone(|all| handles.released(8, all)), [(0, 4 * MIB)], "never mapped");
        handles.imported(6, 0);
        assert_eq!(handles.uncharged(6, 4 * MIB), None, "one's own memory comes back under its handle");
    }

    #[test]
    fn without_room_memory_is_only_ever_counted_for_too_long() {
        let mut handles = Handles::<8>::new();
        for handle in 1..=7 {
            handles.created(handle, 0, 2 * MIB);
        }
        handles.created(8, 0, 2 * MIB);
        assert_eq!(gone(|all| handles.released(8, all)), []);
        handles.mapped(0x1000_0000, 2 * MIB, 2 * MIB, 1);
        assert_eq!(gone(|all| handles.released(1, all)), []);
        assert_eq!(gone(|all| handles.unmapped(0x1000_0000, 2 * MIB, all)), []);
    }

    #[test]
    fn what_is_imported_as_a_piece_goes_as_one_and_shows_nothing_uncharged() {
        let mut handles = Handles::<64>::new();
        let size = PieceSize::new(2, 4 * MIB).unwrap();
        assert!(handles.imported_piece(5, 9, size));
        assert!(!handles.imported_piece(5, 9, size), "it is known, and so is its charge");
        assert_eq!(handles.uncharged(5, 4 * MIB), None);
        handles.mapped(0x1000_0000, 4 * MIB, 4 * MIB, 5);
        handles.released(5, |_| panic!("it is mapped, and referred to"));
        handles.released(5, |_| panic!("it is mapped"));
        let mut pieces = Vec::new();
        handles.unmapped(0x1000_0000, 4 * MIB, |held| pieces.push((held.piece(), held.gpu, held.bytes)));
        assert_eq!(pieces, [(Some(9), 2, 4 * MIB)]);
    }
}
