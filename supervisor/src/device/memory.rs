//! How much of a GPU's memory can be had.

use nvml_wrapper::struct_wrappers::device::MemoryInfo;

/// The bytes that programs can have altogether: NVML's total less what the driver keeps for itself, of an idle board some
/// hundred MiB. NVML counts that neither as used nor as free (nvml.h, `nvmlMemory_v2_t`), and shares of it would be sold
/// that the last tenant cannot have.
pub fn allocatable(memory: &MemoryInfo) -> u64 {
    memory.total.saturating_sub(memory.reserved)
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
