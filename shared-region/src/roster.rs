//! What all processes of a lease tell each other, behind the slots.

use crate::atomic::{AtomicU32, Ordering};
use crate::pieces::{PIECES, Piece};
use crate::{SLOT_BYTES, SLOTS};

/// Where the roster begins in the report.
pub const ROSTER_OFFSET: usize = SLOTS * SLOT_BYTES;
/// Length of the roster in bytes, reserved space included.
pub const ROSTER_BYTES: usize = if cfg!(loom) { size_of::<Roster>() } else { 4096 };

/// The page behind the last slot. A report of an older supervisor ends without it.
#[repr(C, align(64))]
#[derive(Debug)]
#[cfg_attr(loom, derive(Default))]
pub struct Roster {
    /// Slots from this one on have never been taken; 0 says nothing. Raised before a slot is taken, and never lowered
    /// while the region lives, be its process dead: all processes of a lease have one build of the shim.
    slots_taken: AtomicU32,
    /// Pieces from this one on have never been made; raised before one is.
    pieces_made: AtomicU32,
    reserved0: [u32; 14],
    /// What several processes may hold.
    pub pieces: [Piece; PIECES],
    // What follows on the page is reserved and zero.
}

impl Roster {
    /// Slot `index` is about to be taken. Whoever charges anything there has called this before.
    pub fn note_taken(&self, index: usize) {
        self.slots_taken.fetch_max(index as u32 + 1, Ordering::SeqCst);
    }

    /// No slot from here on holds anything. Whatever a tenant has written there, it is no more than there are.
    pub fn slots_taken(&self) -> usize {
        match self.slots_taken.load(Ordering::SeqCst) as usize {
            0 => SLOTS,
            taken => taken.min(SLOTS),
        }
    }

    /// Piece `index` is about to be made.
    pub fn note_made(&self, index: usize) {
        self.pieces_made.fetch_max(index as u32 + 1, Ordering::SeqCst);
    }

    /// No piece from here on is held.
    #[inline(always)]
    pub fn pieces_made(&self) -> usize {
        (self.pieces_made.load(Ordering::SeqCst) as usize).min(PIECES)
    }
}

#[cfg(not(loom))]
const _: () = {
    use core::mem::offset_of;
    assert!(size_of::<Roster>() <= ROSTER_BYTES);
    assert!(ROSTER_OFFSET == 131_072);
    assert!(offset_of!(Roster, slots_taken) == 0);
    assert!(offset_of!(Roster, pieces_made) == 4);
    assert!(offset_of!(Roster, pieces) == 64);
};

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_mark_only_rises_and_says_nothing_impossible() {
        let roster = Roster {
            slots_taken: AtomicU32::new(0),
            pieces_made: AtomicU32::new(0),
            reserved0: [0; 14],
            pieces: core::array::from_fn(|_| Piece::default()),
        };
        assert_eq!((roster.slots_taken(), roster.pieces_made()), (SLOTS, 0), "nobody has said anything");
        roster.note_taken(4);
        roster.note_taken(0);
        assert_eq!(roster.slots_taken(), 5);
        roster.slots_taken.store(u32::MAX, Ordering::Relaxed);
        roster.note_made(3);
        roster.note_made(1);
        assert_eq!((roster.slots_taken(), roster.pieces_made()), (SLOTS, 4));
        roster.pieces_made.store(u32::MAX, Ordering::Relaxed);
        assert_eq!(roster.pieces_made(), PIECES);
    }
}
