//! Memory that several processes of a lease may hold, and that is charged once however many do.
//!
//! A piece has a place in the [`Roster`](crate::Roster), and every process says with one bit in its own slot whether it
//! holds it. It is charged as long as one bit is set. So nothing is moved from one process to another when one of them
//! ends, and what a killed process held goes when its slot is cleared, as everything else of it does.

use crate::ROSTER_OFFSET;
use crate::atomic::AtomicU64;

/// Words of a slot that say which pieces its process holds.
pub const PIECE_WORDS: usize = if cfg!(loom) { 1 } else { 3 };
/// Pieces that one lease can have at a time. What is shared beyond them is charged to each process that holds it.
pub const PIECES: usize = if cfg!(loom) { 1 } else { 64 * PIECE_WORDS };
/// Where the pieces begin in the report.
const PIECES_OFFSET: usize = ROSTER_OFFSET + 64;
const PIECE_BYTES: usize = 16;

/// One piece; free while no process holds it.
#[repr(C)]
#[derive(Debug, Default)]
pub struct Piece {
    /// What all who know of the piece can find out about it, see the interposer's `sharing`. Never 0, once made.
    pub key: AtomicU64,
    /// A [`PieceSize`]. Written by the one who makes the piece, before others can find it.
    pub size: AtomicU64,
}

/// How large a piece is, and where: whole pages of 4 KiB, and below them the index of the GPU in the lease.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PieceSize(pub u64);

impl PieceSize {
    const GPU_MASK: u64 = 0xfff;

    /// `bytes` on GPU `gpu` of the lease; none for what does not end with a page.
    pub fn new(gpu: usize, bytes: u64) -> Option<Self> {
        (bytes & Self::GPU_MASK == 0).then_some(Self(bytes | gpu as u64 & Self::GPU_MASK))
    }

    /// The GPU's index in the lease, as claimed.
    pub fn gpu(self) -> usize {
        (self.0 & Self::GPU_MASK) as usize
    }

    /// Its bytes, as claimed.
    pub fn bytes(self) -> u64 {
        self.0 & !Self::GPU_MASK
    }
}

/// A copy of a report's pieces, as read by the supervisor with pread. Every value is a claim of the tenant.
#[derive(Debug, Clone, Copy)]
pub struct PiecesSnapshot<'a> {
    bytes: &'a [u8],
}

impl<'a> PiecesSnapshot<'a> {
    /// Those of a whole report; none in one that is shorter, because it is an older supervisor's or was cut.
    pub fn new(report: &'a [u8]) -> Self {
        Self { bytes: report.get(PIECES_OFFSET..PIECES_OFFSET + PIECES * PIECE_BYTES).unwrap_or_default() }
    }

    /// What the pieces with a bit in `held` take on GPU `gpu` of a lease on `gpus` of them. On a single one that is all
    /// of it, whatever they say of GPUs.
    pub fn bytes_on(&self, held: [u64; PIECE_WORDS], gpu: usize, gpus: usize) -> u64 {
        let sizes = self.bytes.chunks_exact(PIECE_BYTES).map(|piece| {
            let mut word = [0; 8];
            word.copy_from_slice(&piece[8..]);
            PieceSize(u64::from_le_bytes(word))
        });
        let is_held = |index: &usize| held[index / 64] >> (index % 64) & 1 == 1;
        let here = sizes.enumerate().filter(|(index, size)| is_held(index) && (gpus == 1 || size.gpu() == gpu));
        here.fold(0, |sum: u64, (_, size)| sum.saturating_add(size.bytes()))
    }
}

#[cfg(not(loom))]
const _: () = {
    use core::mem::offset_of;
    assert!(size_of::<Piece>() == PIECE_BYTES);
    assert!(offset_of!(Piece, key) == 0);
    assert!(offset_of!(Piece, size) == 8);
    assert!(PIECES == 192);
};

#[cfg(all(test, not(loom)))]
mod tests {
    extern crate std;

    use super::*;
    use crate::REPORT_BYTES;
    use std::vec;

    #[test]
    fn a_size_says_where_it_is_and_has_whole_pages() {
        let size = PieceSize::new(7, 3 << 20).unwrap();
        assert_eq!((size.gpu(), size.bytes()), (7, 3 << 20));
        assert_eq!(PieceSize::new(0, 4097), None);
    }

    #[test]
    fn pieces_are_read_where_the_layout_has_them_and_a_report_without_them_has_none() {
        let mut report = vec![0u8; REPORT_BYTES];
        for (index, gpu, bytes) in [(0usize, 0, 2u64 << 20), (70, 1, 6 << 20), (191, 1, !0xfff)] {
            let at = PIECES_OFFSET + index * PIECE_BYTES + 8;
            report[at..at + 8].copy_from_slice(&PieceSize::new(gpu, bytes).unwrap().0.to_le_bytes());
        }
        let pieces = PiecesSnapshot::new(&report);
        assert_eq!(pieces.bytes_on([1, 1 << 6, 0], 0, 2), 2 << 20);
        assert_eq!(pieces.bytes_on([1, 1 << 6, 0], 1, 2), 6 << 20);
        assert_eq!(pieces.bytes_on([1, 1 << 6, 0], 0, 1), 8 << 20, "a GPU that is not there");
        assert_eq!(pieces.bytes_on([u64::MAX; PIECE_WORDS], 1, 2), u64::MAX, "a nonsense of a tenant");
        assert_eq!(PiecesSnapshot::new(&report[..ROSTER_OFFSET + 100]).bytes_on([u64::MAX; PIECE_WORDS], 0, 1), 0);
    }
}
