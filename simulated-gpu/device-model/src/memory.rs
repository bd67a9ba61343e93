//! How memory is rounded and refused.

use std::fmt;

const LARGE_BYTES: u64 = 1 << 20;
const LARGE_GRANULARITY_BYTES: u64 = 2 << 20;
const SMALL_GRANULARITY_BYTES: u64 = 512;

/// What an allocation of `bytes` really takes: multiples of 2 MiB from 1 MiB on, of 512 bytes below that.
/// Sizes too large to round are returned as they are; no device holds them.
pub fn rounded_bytes(bytes: u64) -> u64 {
    let granularity = if bytes >= LARGE_BYTES { LARGE_GRANULARITY_BYTES } else { SMALL_GRANULARITY_BYTES };
    bytes.checked_next_multiple_of(granularity).unwrap_or(bytes)
}

/// The device does not have the memory that was asked for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct OutOfMemory {
    /// What was asked for, after rounding.
    pub requested_bytes: u64,
    /// What the device had left.
    pub free_bytes: u64,
}

impl fmt::Display for OutOfMemory {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} bytes asked for and {} bytes free on the simulated device", self.requested_bytes, self.free_bytes)
    }
}

impl std::error::Error for OutOfMemory {}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_are_rounded_as_the_driver_rounds_them() {
        assert_eq!(rounded_bytes(1), 512);
        assert_eq!(rounded_bytes(512), 512);
        assert_eq!(rounded_bytes(513), 1024);
        assert_eq!(rounded_bytes((1 << 20) - 1), 1 << 20);
        assert_eq!(rounded_bytes(1 << 20), 2 << 20);
        assert_eq!(rounded_bytes((2 << 20) + 1), 4 << 20);
        assert_eq!(rounded_bytes(u64::MAX), u64::MAX);
    }
}
