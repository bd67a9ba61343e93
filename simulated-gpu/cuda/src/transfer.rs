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
                let (base, length) = objects.holding(address).ok_or(CUDA_ERROR_INVALID_VALUE)?;
                let left = length as u64 - (address - base);
                if bytes as u64 <= left { Ok(()) } else { Err(CUDA_ERROR_INVALID_VALUE) }
            }
            Self::Host(0) => Err(CUDA_ERROR_INVALID_VALUE),
            Self::Host(_) => Ok(()),
        }
    }

    fn address(self) -> *mut u8 {
        match self {
            Self::Device(address) => address as *mut u8,
            Self::Host(address) => address as *mut u8,
        }
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
    Copy { to: End, from: End, bytes: usize },
    Fill { to: CUdeviceptr, pattern: Pattern, count: usize },
}

impl Transfer {
    /// Fails unless all of it lies in live memory.
    pub(crate) fn check(&self, objects: &Objects) -> Outcome {
        match *self {
            Self::Copy { bytes: 0, .. } | Self::Fill { count: 0, .. } => Ok(()),
            Self::Copy { to, from, bytes } => to.check(objects, bytes).and_then(|()| from.check(objects, bytes)),
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
            Self::Copy { .. } => return None,
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
