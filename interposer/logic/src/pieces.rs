//! Memory that several processes of the lease hold, charged once however many do.
//!
//! Who makes a piece charges it first and gives up the charge that it had afterwards; who takes hold of one says so
//! first and asks then whether the lease is within its cap; who lets go says so last. So at each moment a piece that
//! anybody holds is charged, and a process that is killed leaves what its slot says, until the supervisor clears that.
//! No lock is shared between processes. Of a lease above its cap, as one is whose cap was lowered, it may be taken hold of
//! while another holds it, too: it is charged already.
//!
//! Whoever sums up while a piece goes from one process to another may see it in neither. But then the one who has taken
//! hold of it did that after the other had added what it asks for, and counts that: of all who hold something, the last
//! one who came has counted everybody.

use crate::memory;
use crate::region::Region;
use gpool_shared_region::atomic::Ordering;
#[cfg(loom)]
use gpool_shared_region::atomic::fence;
use gpool_shared_region::{PIECE_WORDS, PIECES, Piece, PieceSize, Roster, Slot};

/// How often a refusal that may come from another process's passing reservation is tried again.
const TRIES: u32 = if cfg!(loom) { 1 } else { 5 };

/// What became of an attempt to take hold of a piece.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Taken {
    /// This process holds it.
    Held(usize),
    /// The lease would be above its cap by something of this size.
    Refused(PieceSize),
    /// No piece is known by that key.
    Unknown,
}

/// How often this process holds each piece of the lease: its slot only says whether it does.
pub struct Holds([u32; PIECES]);

impl Holds {
    /// None. All zero.
    pub const fn new() -> Self {
        Self([0; PIECES])
    }

    /// Takes hold of the piece that `key` names, for the process in `slot`, which says that it is changing what it holds.
    pub fn take(&mut self, region: &Region, slot: &Slot, key: u64) -> Taken {
        let Some(roster) = region.roster() else { return Taken::Unknown };
        let made = &roster.pieces[..roster.pieces_made()];
        let Some(index) = made.iter().position(|piece| piece.key.load(Ordering::Acquire) == key) else {
            return Taken::Unknown;
        };
        if self.0[index] > 0 {
            self.0[index] += 1;
            return Taken::Held(index);
        }
        let piece = &made[index];
        for _ in 0..TRIES {
            set(slot, index);
            model_fence();
            // Nobody held it, and meanwhile another process has made another piece of its place.
            if piece.key.load(Ordering::SeqCst) != key {
                clear(slot, index);
                return Taken::Unknown;
            }
            let gpu = PieceSize(piece.size.load(Ordering::SeqCst)).gpu().min(gpool_shared_region::GPUS - 1);
            let used = memory::used_bytes(region, gpu);
            if used <= memory::cap_bytes(region) || is_charged_anyway(region, slot, index) {
                memory::note_peak(slot, used);
                self.0[index] = 1;
                return Taken::Held(index);
            }
            clear(slot, index);
            core::hint::spin_loop();
        }
        Taken::Refused(PieceSize(piece.size.load(Ordering::SeqCst)))
    }

    /// Makes a piece of this size that others find by `key`, held by the process in `slot`, which has charged it and may
    /// take that back afterwards. None, with nothing changed, if there is no room.
    ///
    /// A place that nobody holds is claimed by a key that nobody looks for. It is this process's once nobody else has
    /// said that he holds it, be it another who claims it or one who has found what was there before.
    pub fn make(&mut self, region: &Region, slot: &Slot, key: u64, size: PieceSize) -> Option<usize> {
        let roster = region.roster()?;
        for piece in &roster.pieces[..roster.pieces_made()] {
            // The driver has given the same name again, so nobody can mean the other piece by it.
            let _ = piece.key.compare_exchange(key, !key, Ordering::SeqCst, Ordering::Relaxed);
        }
        let index = (0..PIECES).find(|index| {
            let piece = &roster.pieces[*index];
            let before = piece.key.load(Ordering::SeqCst);
            model_fence();
            if is_held(region, *index) {
                return false;
            }
            roster.note_made(*index);
            set(slot, *index);
            model_fence();
            let is_claimed = piece.key.compare_exchange(before, !key, Ordering::SeqCst, Ordering::Relaxed).is_ok();
            model_fence();
            let is_alone = is_claimed && holders(region, *index).all(|holder| core::ptr::eq(holder, slot));
            if !is_alone {
                clear(slot, *index);
            }
            is_alone
        })?;
        let Piece { key: place, size: bytes } = &roster.pieces[index];
        bytes.store(size.0, Ordering::SeqCst);
        place.store(key, Ordering::SeqCst);
        self.0[index] = 1;
        Some(index)
    }

    /// Lets go of a piece, once for each time that this process has made it or taken hold of it.
    pub fn leave(&mut self, slot: &Slot, index: usize) {
        let Some(times) = self.0.get_mut(index).filter(|times| **times > 0) else { return };
        *times -= 1;
        if *times == 0 {
            clear(slot, index);
        }
    }
}

impl Default for Holds {
    fn default() -> Self {
        Self::new()
    }
}

/// What the pieces that the lease's processes hold take on GPU `gpu`; to be asked after the accounts of the slots, from
/// which memory goes into pieces and never back.
#[inline(always)]
pub fn bytes(region: &Region, gpu: usize) -> u64 {
    match region.roster() {
        Some(roster) if roster.pieces_made() > 0 => sum(region, roster, gpu),
        _ => 0,
    }
}

#[cold]
#[inline(never)]
fn sum(region: &Region, roster: &Roster, gpu: usize) -> u64 {
    let mut held = [0; PIECE_WORDS];
    for slot in region.slots() {
        held.iter_mut().zip(&slot.pieces).for_each(|(all, its)| *all |= its.load(Ordering::SeqCst));
    }
    sizes(roster, held, gpu)
}

/// What the pieces that the process in `slot` holds take on GPU `gpu`.
pub fn bytes_of(region: &Region, slot: &Slot, gpu: usize) -> u64 {
    let held = core::array::from_fn(|word| slot.pieces[word].load(Ordering::SeqCst));
    region.roster().map_or(0, |roster| sizes(roster, held, gpu))
}

fn sizes(roster: &Roster, held: [u64; PIECE_WORDS], gpu: usize) -> u64 {
    let is_held = |index: usize| held[index / 64] >> (index % 64) & 1 == 1;
    let sizes = roster.pieces.iter().map(|piece| PieceSize(piece.size.load(Ordering::SeqCst)));
    let here = sizes.enumerate().filter(|(index, size)| is_held(*index) && size.gpu() == gpu);
    here.fold(0, |sum: u64, (_, size)| sum.saturating_add(size.bytes()))
}

fn holders(region: &Region, index: usize) -> impl Iterator<Item = &'static Slot> + '_ {
    let holds = move |slot: &&Slot| slot.pieces[index / 64].load(Ordering::SeqCst) >> (index % 64) & 1 == 1;
    region.slots().filter(holds)
}

fn is_held(region: &Region, index: usize) -> bool {
    holders(region, index).next().is_some()
}

/// Whether another process holds piece `index`, of which the one in `slot` has said that it holds it, and no call is under way
/// anywhere but that one: who was charging something may have looked for the piece here before that was said, and there once the
/// other has let go. To be asked after what is charged.
#[cold]
fn is_charged_anyway(region: &Region, slot: &Slot, index: usize) -> bool {
    let is_own = |its: &Slot| core::ptr::eq(its, slot);
    holders(region, index).any(|holder| !is_own(holder))
        && region.slots().all(|its| its.changing.load(Ordering::SeqCst) <= u32::from(is_own(its)))
}

fn set(slot: &Slot, index: usize) {
    memory::note_change(slot);
    slot.pieces[index / 64].fetch_or(1 << (index % 64), Ordering::SeqCst);
}

fn clear(slot: &Slot, index: usize) {
    memory::note_change(slot);
    slot.pieces[index / 64].fetch_and(!(1 << (index % 64)), Ordering::SeqCst);
}

/// Loom knows no sequential consistency but that of fences.
#[inline(always)]
fn model_fence() {
    #[cfg(loom)]
    fence(Ordering::SeqCst);
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fake_driver::region;
    use crate::memory::{Charge, release, try_reserve, used_bytes};

    const MIB: u64 = 1 << 20;

    fn size(gpu: usize, mib: u64) -> PieceSize {
        PieceSize::new(gpu, mib * MIB).unwrap()
    }

    fn region_with_cap(mib: u64) -> Region {
        let region = region();
        region.control().memory_cap_bytes.store(mib * MIB, Ordering::Relaxed);
        region
    }

    #[test]
    fn a_piece_is_charged_once_until_the_last_has_let_go() {
        let region = region_with_cap(100);
        let (one, two) = (region.slot(0), region.slot(40));
        let (mut maker, mut taker) = (Holds::new(), Holds::new());
        assert_eq!((bytes(&region, 0), taker.take(&region, two, 5)), (0, Taken::Unknown));
        assert_eq!(maker.make(&region, one, 5, size(0, 60)), Some(0));
        assert_eq!((used_bytes(&region, 0), used_bytes(&region, 1)), (60 * MIB, 0));
        assert_eq!(taker.take(&region, two, 5), Taken::Held(0));
        assert_eq!(taker.take(&region, two, 5), Taken::Held(0), "and once more");
        assert_eq!((used_bytes(&region, 0), bytes_of(&region, two, 0)), (60 * MIB, 60 * MIB), "to the lease it is one");
        maker.leave(one, 0);
        taker.leave(two, 0);
        assert_eq!((used_bytes(&region, 0), bytes_of(&region, one, 0)), (60 * MIB, 0));
        taker.leave(two, 0);
        taker.leave(two, 0);
        assert_eq!(used_bytes(&region, 0), 0, "never below zero");
    }

    #[test]
    fn what_nobody_holds_is_charged_to_who_takes_hold_of_it_within_the_cap() {
        let region = region_with_cap(100);
        let (one, two) = (region.slot(0), region.slot(1));
        let (mut maker, mut taker) = (Holds::new(), Holds::new());
        let index = maker.make(&region, one, 5, size(0, 60)).unwrap();
        maker.leave(one, index);
        assert!(try_reserve(&region, one, 0, Charge::Bytes(41 * MIB)));
        assert_eq!(taker.take(&region, two, 5), Taken::Refused(size(0, 60)));
        assert_eq!(used_bytes(&region, 0), 41 * MIB, "a refusal leaves nothing");
        release(one, 0, Charge::Bytes(MIB));
        assert_eq!(taker.take(&region, two, 5), Taken::Held(index));
        assert!(!try_reserve(&region, one, 0, Charge::Bytes(1)));
    }

    #[test]
    fn what_another_holds_is_taken_hold_of_above_the_cap_while_nobody_charges_anything() {
        let region = region_with_cap(100);
        let (one, two) = (region.slot(0), region.slot(1));
        let (mut maker, mut taker) = (Holds::new(), Holds::new());
        let index = maker.make(&region, one, 5, size(0, 60)).unwrap();
        region.control().memory_cap_bytes.store(50 * MIB, Ordering::Relaxed);
        two.changing.store(1, Ordering::Relaxed);
        one.changing.store(1, Ordering::Relaxed);
        assert_eq!(taker.take(&region, two, 5), Taken::Refused(size(0, 60)), "one may not have counted the piece");
        one.changing.store(0, Ordering::Relaxed);
        two.changing.store(2, Ordering::Relaxed);
        assert_eq!(taker.take(&region, two, 5), Taken::Refused(size(0, 60)), "nor another thread of this process");
        two.changing.store(1, Ordering::Relaxed);
        assert_eq!(taker.take(&region, two, 5), Taken::Held(index));
        assert_eq!(used_bytes(&region, 0), 60 * MIB, "it is charged once");
        maker.leave(one, index);
        assert_eq!(used_bytes(&region, 0), 60 * MIB, "and as long as anybody holds it");
        taker.leave(two, index);
        assert_eq!(taker.take(&region, two, 5), Taken::Refused(size(0, 60)), "nobody holds it any more");
    }

    #[test]
    fn a_place_is_made_anew_once_nobody_holds_it_and_a_name_given_again_means_the_newest() {
        let region = region_with_cap(1000);
        let (one, two) = (region.slot(0), region.slot(1));
        let (mut maker, mut taker) = (Holds::new(), Holds::new());
        assert_eq!(maker.make(&region, one, 5, size(0, 60)), Some(0));
        assert_eq!(taker.take(&region, two, 5), Taken::Held(0));
        maker.leave(one, 0);
        assert_eq!(maker.make(&region, one, 5, size(0, 10)), Some(1), "the other still holds the first");
        assert_eq!((used_bytes(&region, 0), taker.take(&region, two, 5)), (70 * MIB, Taken::Held(1)));
        taker.leave(two, 0);
        assert_eq!(maker.make(&region, one, 6, size(0, 2)), Some(0));
        assert_eq!(used_bytes(&region, 0), 12 * MIB);
    }

    #[test]
    fn there_is_room_for_so_many_and_a_dead_process_leaves_its_own() {
        let region = region_with_cap(10_000);
        let (one, two) = (region.slot(0), region.slot(1));
        let (mut maker, mut taker) = (Holds::new(), Holds::new());
        for key in 0..PIECES as u64 {
            assert_eq!(maker.make(&region, one, 1000 + key, size(0, 2)), Some(key as usize));
        }
        assert_eq!(maker.make(&region, one, 7, size(0, 2)), None);
        assert_eq!(used_bytes(&region, 0), 2 * MIB * PIECES as u64);
        assert_eq!(taker.take(&region, two, 1100), Taken::Held(100));
        // As the supervisor clears the slot of the dead.
        one.pieces.iter().for_each(|word| word.store(0, Ordering::SeqCst));
        assert_eq!(used_bytes(&region, 0), 2 * MIB, "what the other holds");
        let mut next = Holds::new();
        assert_eq!(next.make(&region, one, 7, size(0, 4)), Some(0));
        assert_eq!((taker.take(&region, two, 1101), used_bytes(&region, 0)), (Taken::Held(101), 8 * MIB));
    }

    /// Does what a call of the process in `slot` does.
    fn calling<T>(slot: &Slot, what: impl FnOnce() -> T) -> T {
        slot.changing.fetch_add(1, Ordering::AcqRel);
        let result = what();
        slot.changing.fetch_sub(1, Ordering::AcqRel);
        result
    }

    #[test]
    fn racing_processes_that_hand_pieces_on_never_pass_the_cap() {
        // Two hand a piece of 60 to and fro, one of them at least holds it; two others want 40 and 40 beside it.
        let region = region_with_cap(100);
        Holds::new().make(&region, region.slot(0), 5, size(0, 60)).unwrap();
        let is_over = std::sync::atomic::AtomicBool::new(false);
        let granted = std::sync::atomic::AtomicU64::new(0);
        std::thread::scope(|scope| {
            let handing_on = scope.spawn(|| {
                let mut at = 0;
                for _ in 0..20_000 {
                    // Refused because of a passing reservation, the one who has it keeps it.
                    let taker = region.slot(1 - at);
                    if let Taken::Held(_) = calling(taker, || Holds::new().take(&region, taker, 5)) {
                        clear(region.slot(at), 0);
                        at = 1 - at;
                    }
                }
                is_over.store(true, Ordering::SeqCst);
            });
            let charging = [2, 3].map(|index| {
                let (region, is_over, granted) = (&region, &is_over, &granted);
                scope.spawn(move || {
                    while !is_over.load(Ordering::SeqCst) {
                        let slot = region.slot(index);
                        if calling(slot, || try_reserve(region, slot, 0, Charge::Bytes(40 * MIB))) {
                            let before = granted.fetch_add(1, Ordering::SeqCst);
                            assert_eq!(before, 0, "two were granted beside the piece");
                            granted.fetch_sub(1, Ordering::SeqCst);
                            release(slot, 0, Charge::Bytes(40 * MIB));
                        }
                    }
                })
            });
            // Joined: a checker of threads does not see how a scope waits.
            charging.into_iter().chain([handing_on]).for_each(|thread| thread.join().unwrap());
        });
        assert_eq!(used_bytes(&region, 0), 60 * MIB);
    }
}
