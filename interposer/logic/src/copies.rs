//! How much a copy moves and between what, from the description that the program gives the driver.
//!
//! Descriptions are read out of line: dozens of entry points take one.
//!
//! A description that the driver will refuse may say anything: sums saturate, and the worst is a wait for nothing.

use crate::estimates::Bytes;
use gpool_driver_abi::cuda::{
    CU_MEMCPY_OPERAND_TYPE_POINTER, CU_MEMORYTYPE_ARRAY, CU_MEMORYTYPE_DEVICE, CU_MEMORYTYPE_HOST, CUDA_MEMCPY2D,
    CUDA_MEMCPY3D, CUDA_MEMCPY3D_BATCH_OP, CUDA_MEMCPY3D_PEER, CUmemDecompressParams, CUmemorytype,
};

/// The largest element of an array: four channels of 32 bits.
const ELEMENT_BYTES: u64 = 16;

/// What a copy moves.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Moved {
    /// Between what.
    pub kind: Bytes,
    /// How much.
    pub bytes: u64,
}

impl Moved {
    /// No work, or none that the driver will do.
    const NOTHING: Self = Self { kind: Bytes::Host, bytes: 0 };

    /// `bytes` in one piece.
    pub fn piece(kind: Bytes, bytes: usize) -> Self {
        Self { kind, bytes: bytes as u64 }
    }

    /// Rows that are filled with a value of `value_bytes`.
    #[inline(never)]
    pub fn fill(value_bytes: usize, width: usize, height: usize) -> Self {
        Self { kind: Bytes::Set, bytes: volume(&[value_bytes, width, height]) }
    }

    /// Rows of a plane; null moves nothing.
    #[inline(never)]
    pub fn rows(copy: Option<&CUDA_MEMCPY2D>) -> Self {
        copy.map_or(Self::NOTHING, |copy| Self {
            kind: between(copy.srcMemoryType, copy.dstMemoryType),
            bytes: volume(&[copy.WidthInBytes, copy.Height]),
        })
    }

    /// Rows of a block; null moves nothing.
    #[inline(never)]
    pub fn block(copy: Option<&CUDA_MEMCPY3D>) -> Self {
        copy.map_or(Self::NOTHING, |copy| Self {
            kind: between(copy.srcMemoryType, copy.dstMemoryType),
            bytes: volume(&[copy.WidthInBytes, copy.Height, copy.Depth]),
        })
    }

    /// Rows of a block from one context to another; null moves nothing.
    #[inline(never)]
    pub fn peer_block(copy: Option<&CUDA_MEMCPY3D_PEER>) -> Self {
        let moved = Self::block(copy);
        Self { kind: if moved.kind == Bytes::Rows { Bytes::Peer } else { moved.kind }, ..moved }
    }

    /// Pieces of these sizes, each from and to anywhere.
    #[inline(never)]
    pub fn batch(sizes: &[usize]) -> Self {
        let bytes = sizes.iter().fold(0u64, |sum, size| sum.saturating_add(*size as u64));
        Self { kind: Bytes::CopyAny, bytes }
    }

    /// Pieces that are unpacked; a piece counts with the longer of its two sides, of which the program may leave one out.
    #[inline(never)]
    pub fn unpacked(pieces: &[CUmemDecompressParams]) -> Self {
        let longer = |piece: &CUmemDecompressParams| piece.srcNumBytes.max(piece.dstNumBytes) as u64;
        let bytes = pieces.iter().fold(0u64, |sum, piece| sum.saturating_add(longer(piece)));
        Self { kind: Bytes::Unpack, bytes }
    }

    /// Blocks, each from and to anywhere.
    #[inline(never)]
    pub fn blocks(copies: &[CUDA_MEMCPY3D_BATCH_OP]) -> Self {
        let bytes = copies.iter().fold(0u64, |sum, copy| {
            let is_linear = [copy.src.kind, copy.dst.kind].iter().all(|kind| *kind == CU_MEMCPY_OPERAND_TYPE_POINTER);
            let element_bytes = if is_linear { 1 } else { ELEMENT_BYTES };
            sum.saturating_add(volume(&copy.extent).saturating_mul(element_bytes))
        });
        Self { kind: Bytes::RowsAny, bytes }
    }
}

fn volume(extent: &[usize]) -> u64 {
    extent.iter().fold(1, |product, length| product.saturating_mul(*length as u64))
}

/// The kind of a copy between memory of these two types. Of what is neither the device's nor the host's by its type,
/// only the driver knows.
fn between(from: CUmemorytype, to: CUmemorytype) -> Bytes {
    let sides = [from, to];
    if sides.contains(&CU_MEMORYTYPE_HOST) {
        Bytes::Host
    } else if sides.iter().all(|side| matches!(*side, CU_MEMORYTYPE_DEVICE | CU_MEMORYTYPE_ARRAY)) {
        Bytes::Rows
    } else {
        Bytes::RowsAny
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use gpool_driver_abi::cuda::{CU_MEMCPY_OPERAND_TYPE_ARRAY, CU_MEMORYTYPE_UNIFIED, CUmemcpy3DOperand};

    /// A description of which all that is not given is zero, as programs make it.
    fn zeroed<T>() -> T {
        // SAFETY: the descriptions hold numbers and pointers only, for which zero is a value.
        unsafe { core::mem::zeroed() }
    }

    fn plane(from: CUmemorytype, to: CUmemorytype, width: usize, height: usize) -> CUDA_MEMCPY2D {
        CUDA_MEMCPY2D { srcMemoryType: from, dstMemoryType: to, WidthInBytes: width, Height: height, ..zeroed() }
    }

    #[test]
    fn the_kind_follows_from_both_sides() {
        let kinds = [
            (CU_MEMORYTYPE_DEVICE, CU_MEMORYTYPE_DEVICE, Bytes::Rows),
            (CU_MEMORYTYPE_DEVICE, CU_MEMORYTYPE_ARRAY, Bytes::Rows),
            (CU_MEMORYTYPE_ARRAY, CU_MEMORYTYPE_UNIFIED, Bytes::RowsAny),
            (CU_MEMORYTYPE_UNIFIED, CU_MEMORYTYPE_UNIFIED, Bytes::RowsAny),
            (CU_MEMORYTYPE_HOST, CU_MEMORYTYPE_DEVICE, Bytes::Host),
            (CU_MEMORYTYPE_UNIFIED, CU_MEMORYTYPE_HOST, Bytes::Host),
            // What the driver will refuse.
            (0, CU_MEMORYTYPE_DEVICE, Bytes::RowsAny),
        ];
        for (from, to, kind) in kinds {
            assert_eq!(Moved::rows(Some(&plane(from, to, 3, 5))), Moved { kind, bytes: 15 }, "{from} to {to}");
        }
    }

    #[test]
    fn bytes_are_multiplied_and_saturate() {
        let block = CUDA_MEMCPY3D {
            srcMemoryType: CU_MEMORYTYPE_DEVICE,
            dstMemoryType: CU_MEMORYTYPE_DEVICE,
            WidthInBytes: 7,
            Height: 11,
            Depth: 13,
            ..zeroed()
        };
        assert_eq!(Moved::block(Some(&block)), Moved { kind: Bytes::Rows, bytes: 1001 });
        assert_eq!(Moved::peer_block(Some(&block)), Moved { kind: Bytes::Peer, bytes: 1001 });
        let from_host = CUDA_MEMCPY3D { srcMemoryType: CU_MEMORYTYPE_HOST, ..block };
        assert_eq!(Moved::peer_block(Some(&from_host)).kind, Bytes::Host);
        assert_eq!(Moved::rows(Some(&plane(2, 2, usize::MAX, 2))).bytes, u64::MAX);
        assert_eq!(Moved::batch(&[usize::MAX, 1]).bytes, u64::MAX);
        assert_eq!(Moved::fill(4, 10, 3), Moved { kind: Bytes::Set, bytes: 120 });
        assert_eq!(Moved::fill(2, usize::MAX, 1).bytes, u64::MAX);
        let nothing = [Moved::rows(None), Moved::block(None), Moved::peer_block(None)];
        assert!(nothing.iter().all(|moved| moved.bytes == 0 && moved.kind == Bytes::Host));
        assert_eq!(Moved::batch(&[]).bytes, 0);
    }

    #[test]
    fn a_batch_is_the_sum_of_its_copies() {
        let operand = |kind| CUmemcpy3DOperand { kind, place: [0; 4] };
        let copy =
            |from, to, extent| CUDA_MEMCPY3D_BATCH_OP { src: operand(from), dst: operand(to), extent, ..zeroed() };
        let (pointer, array) = (CU_MEMCPY_OPERAND_TYPE_POINTER, CU_MEMCPY_OPERAND_TYPE_ARRAY);
        let copies = [copy(pointer, pointer, [4, 5, 6]), copy(pointer, array, [2, 1, 1])];
        assert_eq!(Moved::blocks(&copies), Moved { kind: Bytes::RowsAny, bytes: 120 + 32 });
        assert_eq!(Moved::batch(&[1 << 20, 5]), Moved { kind: Bytes::CopyAny, bytes: (1 << 20) + 5 });
    }

    #[test]
    fn what_is_unpacked_counts_with_its_longer_side() {
        let piece = |from, to| CUmemDecompressParams { srcNumBytes: from, dstNumBytes: to, ..zeroed() };
        let moved = Moved::unpacked(&[piece(100, 0), piece(100, 700), piece(usize::MAX, 1)]);
        assert_eq!(moved, Moved { kind: Bytes::Unpack, bytes: u64::MAX });
        assert_eq!(Moved::unpacked(&[piece(100, 0), piece(100, 700)]).bytes, 800);
        assert_eq!(Moved::unpacked(&[]).bytes, 0);
    }
}
