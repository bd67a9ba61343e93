//! What arrays take of the device, from their description.
//!
//! An array is kept in blocks: 64 bytes of a row, 8 to 256 rows of them, and up to 32 slices of a three-dimensional one.
//! The driver chooses the block, and an image is padded to whole ones, so the largest block that the image half fills
//! is assumed. Source: the block-linear layout in NVIDIA's open-gpu-doc. The driver's own choice is not documented.

use gpool_driver_abi::cuda::{
    CUDA_ARRAY3D_CUBEMAP, CUDA_ARRAY3D_DEFERRED_MAPPING, CUDA_ARRAY3D_DESCRIPTOR, CUDA_ARRAY3D_LAYERED,
    CUDA_ARRAY3D_SPARSE, CUarray_format,
};

/// The width of a block.
const BLOCK_BYTES: u64 = 64;
const LEAST_ROWS: u64 = 8;
const MOST_ROWS: u64 = 256;
const MOST_SLICES: u64 = 32;
/// An element of a format that is not known here: no format has more.
const LARGEST_ELEMENT_BYTES: u64 = 16;

/// Device memory that an array of so many levels takes, in bytes, never less than the driver takes. What is mapped
/// later takes nothing.
pub fn bytes(descriptor: &CUDA_ARRAY3D_DESCRIPTOR, levels: u32) -> u64 {
    if descriptor.Flags & (CUDA_ARRAY3D_SPARSE | CUDA_ARRAY3D_DEFERRED_MAPPING) != 0 {
        return 0;
    }
    let longest = descriptor.Width.max(descriptor.Height).max(descriptor.Depth).max(1);
    // No more levels than halvings of the longest side.
    let levels = levels.clamp(1, longest.ilog2() + 1);
    (0..levels).fold(0, |sum: u64, level| sum.saturating_add(level_bytes(descriptor, level)))
}

fn level_bytes(descriptor: &CUDA_ARRAY3D_DESCRIPTOR, level: u32) -> u64 {
    let side = |side: usize| (side as u64 >> level).max(1);
    let row = side(descriptor.Width).saturating_mul(element_bytes(descriptor.Format, descriptor.NumChannels));
    let rows = padded(side(descriptor.Height), LEAST_ROWS, MOST_ROWS);
    let is_layered = descriptor.Flags & (CUDA_ARRAY3D_LAYERED | CUDA_ARRAY3D_CUBEMAP) != 0;
    // Layers are not halved from level to level, and each is made of blocks of its own.
    let slices =
        if is_layered { descriptor.Depth.max(1) as u64 } else { padded(side(descriptor.Depth), 1, MOST_SLICES) };
    multiple(row, BLOCK_BYTES).saturating_mul(rows).saturating_mul(slices)
}

/// `count` in whole blocks of a power of two of them, the smallest that holds it, within limits.
fn padded(count: u64, least: u64, most: u64) -> u64 {
    multiple(count, count.min(most).next_power_of_two().max(least))
}

fn multiple(count: u64, unit: u64) -> u64 {
    count.saturating_add(unit - 1) / unit * unit
}

/// Source: CUarray_format of cuda.h. Block-compressed and planar formats are taken to be the largest.
fn element_bytes(format: CUarray_format, channels: u32) -> u64 {
    let channel_bytes = match format {
        0x01 | 0x08 => 1,
        0x02 | 0x09 | 0x10 => 2,
        0x03 | 0x0a | 0x20 => 4,
        _ => return LARGEST_ELEMENT_BYTES,
    };
    u64::from(channels) * channel_bytes
}

#[cfg(test)]
mod tests {
    use super::*;

    fn float4(width: usize, height: usize, depth: usize, flags: u32) -> CUDA_ARRAY3D_DESCRIPTOR {
        let (format, channels) = (0x20, 4);
        CUDA_ARRAY3D_DESCRIPTOR {
            Width: width,
            Height: height,
            Depth: depth,
            Format: format,
            NumChannels: channels,
            Flags: flags,
        }
    }

    #[test]
    fn whole_blocks_take_no_more_than_their_elements() {
        assert_eq!(bytes(&float4(4096, 16384, 0, 0), 1), 1 << 30);
        assert_eq!(bytes(&float4(256, 256, 64, 0), 1), 64 << 20);
        let bytes_of = |format, channels| {
            bytes(&CUDA_ARRAY3D_DESCRIPTOR { Format: format, NumChannels: channels, ..float4(1024, 1024, 0, 0) }, 1)
        };
        assert_eq!(
            [(1, 1), (9, 2), (0x10, 4), (3, 1)].map(|(format, channels)| bytes_of(format, channels) >> 20),
            [1, 4, 8, 4]
        );
        assert_eq!(bytes_of(0x9d, 4) >> 20, 16, "what is not known is taken to be large");
    }

    #[test]
    fn an_image_is_padded_to_blocks() {
        assert_eq!(bytes(&float4(1, 0, 0, 0), 1), 64 * 8);
        assert_eq!(bytes(&float4(4, 9, 0, 0), 1), 64 * 16);
        assert_eq!(bytes(&float4(4, 300, 0, 0), 1), 64 * 512);
        assert_eq!(bytes(&float4(4, 8, 33, 0), 1), 64 * 8 * 64);
    }

    #[test]
    fn layers_faces_and_levels_are_counted() {
        assert_eq!(bytes(&float4(64, 64, 33, CUDA_ARRAY3D_LAYERED), 1), 33 * 64 * 64 * 16);
        assert_eq!(bytes(&float4(64, 64, 12, CUDA_ARRAY3D_LAYERED | CUDA_ARRAY3D_CUBEMAP), 1), 12 * 64 * 64 * 16);
        let levels = [64u64 * 64, 32 * 32, 16 * 16, 8 * 8, 4 * 8, 4 * 8, 4 * 8];
        let sum = levels.iter().sum::<u64>() * 16;
        assert_eq!((bytes(&float4(64, 64, 0, 0), 7), bytes(&float4(64, 64, 0, 0), 99)), (sum, sum));
        assert_eq!(bytes(&float4(64, 64, 2, CUDA_ARRAY3D_LAYERED), 7), 2 * sum);
    }

    #[test]
    fn absurd_sizes_are_large_and_mapped_ones_nothing() {
        assert!(bytes(&float4(usize::MAX, usize::MAX, usize::MAX, 0), 64) > 1 << 62);
        assert_eq!(bytes(&float4(1 << 20, 1 << 20, 0, CUDA_ARRAY3D_SPARSE), 1), 0);
    }
}
