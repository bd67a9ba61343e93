//! What copies and memsets do, and how much GPU time they take.

use crate::driver::Outcome;
use crate::objects::Objects;
use gpool_driver_abi::cuda::*;

/// What a copy within the device or a memset takes besides its bytes.
const START_NS: u64 = 2_000;
/// 1 TB/s. An invention, like the durations of kernels; no product is measured here.
const BYTES_PER_NS: u64 = 1_000;

/// One end of a copy.
#[derive(Clone, Copy)]
pub(crate) enum End {
    Device(CUdeviceptr),
    Host(usize),
}

impl End {
    /// What an address is, as unified addressing tells them apart.
    pub(crate) fn of(objects: &Objects, address: CUdeviceptr) -> Self {
        match objects.holding(address) {
            Some(_) => Self::Device(address),
            None => Self::Host(address as usize),
        }
    }

    /// Fails unless `bytes` from here lie in one allocation, or in the host's memory as far as that can be told.
    fn check(self, objects: &Objects, bytes: usize) -> Outcome {
        match self {
            Self::Device(address) => {
                let (base, length) = objects.reachable(address).ok_or(CUDA_ERROR_INVALID_VALUE)?;
                let left = length as u64 - (address - base);
                if bytes as u64 <= left { Ok(()) } else { Err(CUDA_ERROR_INVALID_VALUE) }
            }
            Self::Host(0) => Err(CUDA_ERROR_INVALID_VALUE),
            Self::Host(_) => Ok(()),
        }
    }

    /// The place `bytes` further on.
    pub(crate) fn plus(self, bytes: usize) -> Outcome<Self> {
        let further = match self {
            Self::Device(address) => address.checked_add(bytes as u64).map(Self::Device),
            // Not a place, however far from it.
            Self::Host(0) => Some(self),
            Self::Host(address) => address.checked_add(bytes).map(Self::Host),
        };
        further.ok_or(CUDA_ERROR_INVALID_VALUE)
    }

    fn address(self) -> *mut u8 {
        match self {
            Self::Device(address) => address as *mut u8,
            Self::Host(address) => address as *mut u8,
        }
    }
}

/// One side of a copy of layers of rows.
#[derive(Clone, Copy)]
pub(crate) struct Block {
    /// The first byte of the first row.
    pub(crate) first: End,
    /// From one row to the next, in bytes.
    pub(crate) pitch: usize,
    /// From one layer to the next, in bytes.
    pub(crate) layer: usize,
}

impl Block {
    /// Fails unless all rows lie in one allocation and none in another's place.
    fn check(&self, objects: &Objects, [width, height, depth]: [usize; 3]) -> Outcome {
        let is_overlapping =
            (height > 1 && self.pitch < width) || (depth > 1 && self.layer < self.pitch.saturating_mul(height));
        let rows = (height - 1).checked_mul(self.pitch);
        let layers = (depth - 1).checked_mul(self.layer);
        let bytes = rows.zip(layers).and_then(|(rows, layers)| rows.checked_add(layers)?.checked_add(width));
        match bytes {
            Some(bytes) if !is_overlapping => self.first.check(objects, bytes),
            _ => Err(CUDA_ERROR_INVALID_VALUE),
        }
    }

    /// A row's first byte.
    fn row(&self, row: usize, layer: usize) -> *mut u8 {
        self.first.address().wrapping_add(row * self.pitch + layer * self.layer)
    }
}

/// What a memset repeats.
#[derive(Clone, Copy)]
pub(crate) enum Pattern {
    Byte(u8),
    Word(u32),
}

/// A copy or a memset.
#[derive(Clone, Copy)]
pub(crate) enum Transfer {
    Copy {
        to: End,
        from: End,
        bytes: usize,
    },
    /// Width in bytes, height in rows, depth in layers.
    Block {
        to: Block,
        from: Block,
        extent: [usize; 3],
    },
    Fill {
        to: CUdeviceptr,
        pattern: Pattern,
        count: usize,
    },
}

impl Transfer {
    /// Fails unless all of it lies in live memory.
    pub(crate) fn check(&self, objects: &Objects) -> Outcome {
        match *self {
            Self::Copy { bytes: 0, .. } | Self::Fill { count: 0, .. } => Ok(()),
            Self::Copy { to, from, bytes } => to.check(objects, bytes).and_then(|()| from.check(objects, bytes)),
            Self::Block { extent, .. } if extent.contains(&0) => Ok(()),
            Self::Block { to, from, extent } => to.check(objects, extent).and_then(|()| from.check(objects, extent)),
            Self::Fill { to, pattern: Pattern::Byte(_), count } => End::Device(to).check(objects, count),
            Self::Fill { to, pattern: Pattern::Word(_), count } => {
                let bytes = count.checked_mul(4).filter(|_| to % 4 == 0).ok_or(CUDA_ERROR_INVALID_VALUE)?;
                End::Device(to).check(objects, bytes)
            }
        }
    }

    /// How long it occupies the multiprocessors. None for copies from and to the host: they keep their place in the
    /// order of work and take no multiprocessor time; the copy engine that a real device has for them is not modelled.
    pub(crate) fn gpu_time_ns(&self) -> Option<u64> {
        let bytes = match *self {
            Self::Copy { to: End::Device(_), from: End::Device(_), bytes } => bytes,
            Self::Block {
                to: Block { first: End::Device(_), .. },
                from: Block { first: End::Device(_), .. },
                extent: [width, height, depth],
            } => width.saturating_mul(height).saturating_mul(depth),
            Self::Copy { .. } | Self::Block { .. } => return None,
            Self::Fill { pattern: Pattern::Byte(_), count, .. } => count,
            Self::Fill { pattern: Pattern::Word(_), count, .. } => count.saturating_mul(4),
        };
        Some(START_NS + bytes as u64 / BYTES_PER_NS)
    }

    /// Moves the bytes.
    ///
    /// # Safety
    ///
    /// [`Transfer::check`] has succeeded on objects that have been locked since, and host memory is valid as the API
    /// demands of its caller.
    pub(crate) unsafe fn apply(&self) {
        match *self {
            Self::Copy { bytes: 0, .. } | Self::Fill { count: 0, .. } => {}
            // SAFETY: both ends are valid for these bytes, as this function's caller promises; they may overlap.
            Self::Copy { to, from, bytes } => unsafe { to.address().copy_from(from.address(), bytes) },
            Self::Block { to, from, extent: [width, height, depth] } => {
                for (layer, row) in (0..depth).flat_map(|layer| (0..height).map(move |row| (layer, row))) {
                    // SAFETY: `check` has seen that both rows lie in their allocations; they may overlap.
                    unsafe { to.row(row, layer).copy_from(from.row(row, layer), width) };
                }
            }
            // SAFETY: the range lies in a live allocation, as this function's caller promises.
            Self::Fill { to, pattern: Pattern::Byte(value), count } => unsafe {
                (to as *mut u8).write_bytes(value, count);
            },
            Self::Fill { to, pattern: Pattern::Word(value), count } => {
                for index in 0..count {
                    // SAFETY: as above, and `check` has seen that the range is aligned.
                    unsafe { (to as *mut u32).add(index).write(value) };
                }
            }
        }
    }
}
