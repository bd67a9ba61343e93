//! The region as somebody reads it who takes no part: NVML in the container.

use crate::contexts;
use crate::memory;
use crate::region::{Region, RegionError};

/// A read-only use of the lease's region.
pub struct RegionView(Region);

impl RegionView {
    /// Opens the region.
    ///
    /// # Errors
    /// As [`Region::open`].
    pub fn open() -> Result<Self, RegionError> {
        Region::open().map(Self)
    }

    /// (used, total) of the lease in bytes on the GPU with `uuid`, contexts included; none if that is not the lease's.
    /// `uuid` is only asked for where the lease has several GPUs.
    pub fn memory_bytes(&self, uuid: impl FnOnce() -> Option<[u8; 16]>) -> Option<(u64, u64)> {
        let control = self.0.control();
        let gpu = match contexts::gpus(control) {
            1 => 0,
            _ => contexts::gpu_of_uuid(control, &uuid()?)?,
        };
        let cap = memory::cap_bytes(&self.0);
        Some((memory::used_bytes(&self.0, gpu).min(cap), cap))
    }
}

/// The bytes of a UUID as NVML writes it: `GPU-` and 32 hexadecimal digits with dashes between.
pub fn uuid_from_text(text: &[u8]) -> Option<[u8; 16]> {
    let digits = text.strip_prefix(b"GPU-")?;
    let mut bytes = [0u8; 16];
    let mut count = 0;
    for digit in digits.iter().filter(|byte| **byte != b'-') {
        let value = (*digit as char).to_digit(16)? as u8;
        *bytes.get_mut(count / 2)? |= value << (4 * (1 - count % 2));
        count += 1;
    }
    (count == 32).then_some(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nvmls_uuids_are_read() {
        let bytes = uuid_from_text(b"GPU-01020304-0506-0708-090a-0b0c0d0e0fff").unwrap();
        assert_eq!((bytes[0], bytes[9], bytes[15]), (1, 10, 255));
        for wrong in [&b"MIG-01020304-0506-0708-090a-0b0c0d0e0f10"[..], b"GPU-0102", b"GPU-zz", b""] {
            assert_eq!(uuid_from_text(wrong), None);
        }
    }
}
