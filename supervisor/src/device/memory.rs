//! How much of a GPU's memory can be had.

use super::inventory::Gpu;
use nvml_wrapper::struct_wrappers::device::MemoryInfo;

/// The bytes that programs can have altogether: NVML's total less what the driver keeps for itself, of an idle board some
/// hundred MiB. NVML counts that neither as used nor as free (nvml.h, `nvmlMemory_v2_t`), and shares of it would be sold
/// that the last tenant cannot have.
pub fn allocatable(memory: &MemoryInfo) -> u64 {
    memory.total.saturating_sub(memory.reserved)
}

impl Gpu {
    /// All the memory that programs can have, sold or not.
    pub fn memory_had_bytes(&self) -> u64 {
        self.memory_total_bytes.saturating_add(self.memory_headroom_bytes)
    }

    /// The same with what the driver keeps for itself: as boards are sold.
    pub fn memory_all_bytes(&self) -> u64 {
        self.memory_had_bytes().saturating_add(self.memory_reserved_bytes)
    }
}

#[cfg(test)]
impl Gpu {
    /// A whole GPU with 24 GiB, called by its index.
    pub fn sample(index: u32) -> Self {
        Self {
            index,
            uuid: gpool_protocol::GpuUuid(format!("GPU-{index}")),
            name: "a GPU".into(),
            minor: index,
            memory_total_bytes: 24 << 30,
            memory_reserved_bytes: 0,
            memory_headroom_bytes: 0,
            driver_version: "1".into(),
            is_virtual: false,
            kind: super::inventory::Kind::Whole,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_the_driver_keeps_is_nobodys() {
        // An idle board with 48 GB: 49140 MiB in all, 569 of them reserved.
        let memory = MemoryInfo { total: 49140, reserved: 569, free: 48571, used: 0, version: 0 };
        assert_eq!(allocatable(&memory), memory.free);
        assert_eq!(allocatable(&MemoryInfo { reserved: 50000, ..memory }), 0);
    }
}
