//! What a process does with the pieces of its lease: see `pieces` for what they are.

use crate::handles::Held;
use crate::pieces::Taken;
use crate::process::{Place, Process};
use core::sync::atomic::Ordering;
use gpool_shared_region::{BurstTag, PieceSize};

impl Process {
    /// What is charged for `held` is charged from now on with a piece of the lease that others find by `name`, until they
    /// and this process have let go of it. Nothing changes where there is no room for one.
    pub fn share(&self, place: &Place, held: &mut Held, name: u64) {
        if held.piece().is_some() {
            return;
        }
        let gpu = if held.is_on_device() { usize::from(held.gpu) } else { BurstTag(held.owner).gpu() };
        let Some(size) = PieceSize::new(gpu, held.bytes) else { return };
        if let Some(index) = self.pieces.lock().make(&place.region, place.slot(), name, size) {
            self.give_back(place, held);
            held.charge_to_piece(index);
        }
    }

    /// The name and the size of a piece that this process holds.
    pub fn piece(&self, place: &Place, index: usize) -> Option<(u64, PieceSize)> {
        let piece = place.region.roster()?.pieces.get(index)?;
        Some((piece.key.load(Ordering::Acquire), PieceSize(piece.size.load(Ordering::Acquire))))
    }

    /// Takes hold of the piece of the lease that has this name.
    pub fn take_piece(&self, place: &Place, name: u64) -> Taken {
        self.pieces.lock().take(&place.region, place.slot(), name)
    }

    /// Lets go of a piece, once for each time that it was shared or taken hold of.
    pub fn leave_piece(&self, place: &Place, index: usize) {
        self.pieces.lock().leave(place.slot(), index);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::handles::{Handles, Kind};
    use crate::memory::{self, Charge};

    #[test]
    fn what_is_shared_goes_from_its_context_to_the_lease_and_from_there_with_the_last_who_holds_it() {
        let process = crate::fake_driver::process();
        let place = process.place().unwrap();
        place.region.control().memory_cap_bytes.store(10 << 20, Ordering::Relaxed);
        let context = crate::fake_driver::CONTEXTS[0];
        process.enter_context(context, 0);
        assert!(memory::try_reserve(&place.region, place.slot(), 0, Charge::Context));
        let made = |bytes| {
            assert!(memory::try_reserve(&place.region, place.slot(), 0, Charge::Bytes(bytes)));
            Held { owner: process.allocated(place, bytes).0, ..Held::new(Kind::Memory, bytes, bytes) }
        };
        let (mut shared, mut part, kept) = (made(4 << 20), made(512), made(2 << 20));
        process.share(place, &mut shared, 7);
        process.share(place, &mut shared, 8);
        process.share(place, &mut part, 9);
        assert_eq!(
            (part.piece(), process.piece(place, 0).map(|(name, size)| (name, size.bytes()))),
            (None, Some((7, 4 << 20)))
        );
        assert_eq!(memory::used_bytes(&place.region, 0), (6 << 20) + 512, "once");
        let mut handles = Handles::<8>::new();
        assert!(handles.put(shared));
        assert_eq!(process.take_piece(place, 8), Taken::Unknown);
        assert_eq!(process.take_piece(place, 7), Taken::Held(0));
        process.give_back(place, &kept);
        let tag = process.context_gone(context).unwrap();
        assert_eq!(
            memory::used_bytes(&place.region, 0),
            4 << 20,
            "others may hold it, whatever becomes of its context"
        );
        handles.context_gone(tag, |held| process.give_back(place, held));
        assert_eq!(memory::used_bytes(&place.region, 0), 4 << 20, "it was taken hold of once more");
        process.leave_piece(place, 0);
        assert_eq!(memory::used_bytes(&place.region, 0), 0);
        let mut alone = Held::new(Kind::Physical, 5, 2 << 20);
        assert!(process.reserve_on_device(place, 0, 2 << 20));
        process.share(place, &mut alone, 11);
        assert_eq!(
            (alone.piece(), memory::used_bytes(&place.region, 0)),
            (Some(0), 2 << 20),
            "the place is free again"
        );
    }
}
