//! The region as somebody reads it who takes no part: NVML in the container.

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

    /// (used, total) of the lease in bytes, contexts included.
    pub fn memory_bytes(&self) -> (u64, u64) {
        let cap = memory::cap_bytes(&self.0);
        (memory::used_bytes(&self.0).min(cap), cap)
    }
}
