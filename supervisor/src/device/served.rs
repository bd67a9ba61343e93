//! Which boards are served. Of the others nothing is shown.

use super::inventory::Gpu;
use super::memory::allocatable;
use gpool_configuration::{Driver, Gpus};
use nvml_wrapper::struct_wrappers::device::MemoryInfo;

/// What `[driver] gpus`, `min_memory` and `headroom_bytes` say.
#[derive(Debug, Clone, Default)]
pub struct Served {
    gpus: Gpus,
    least_bytes: u64,
    headroom_bytes: u64,
}

impl Served {
    /// As it is configured.
    pub fn of(driver: &Driver) -> Self {
        Self {
            gpus: driver.gpus.clone(),
            least_bytes: driver.min_memory.map_or(0, |memory| memory.bytes),
            headroom_bytes: driver.headroom_bytes,
        }
    }

    /// The UUIDs of those that are named.
    pub fn named(&self) -> &[String] {
        self.gpus.named()
    }

    /// What is sold to nobody of a GPU with this memory.
    pub fn headroom_of(&self, memory: &MemoryInfo) -> u64 {
        self.headroom_bytes.min(allocatable(memory))
    }

    /// Whether a board is. Its memory is all of it, as GPUs are sold, what the driver keeps for itself included. One that is named is served
    /// whatever it has.
    pub fn serve(&self, board: &Gpu) -> bool {
        let bytes = board.memory_all_bytes();
        self.gpus.serve(&board.uuid.0) && (!self.named().is_empty() || bytes >= self.least_bytes)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use gpool_configuration::MemoryAmount;
    use gpool_protocol::GpuUuid;

    #[test]
    fn a_small_board_is_served_where_it_is_named_alone() {
        const UUID: &str = "GPU-51313131-0000-4000-8000-000000000000";
        const OTHER: &str = "GPU-51313131-0000-4000-8000-000000000001";
        let mut driver = Driver { min_memory: Some(MemoryAmount { bytes: 8 << 30 }), ..Driver::default() };
        let serves = |driver: &Driver, uuid: &str, mib: u64| {
            let (all, reserved) = (mib << 20, 200 << 20);
            let memory = Gpu { memory_total_bytes: all - reserved, memory_reserved_bytes: reserved, ..Gpu::sample(0) };
            Served::of(driver).serve(&Gpu { uuid: GpuUuid(uuid.into()), ..memory })
        };
        assert!(serves(&driver, UUID, 8192) && !serves(&driver, UUID, 8191));
        driver.gpus = vec![UUID.to_owned()].try_into().unwrap();
        assert!(serves(&driver, UUID, 4096) && !serves(&driver, OTHER, 81920));
        assert!(serves(&Driver::default(), OTHER, 256), "all are, by default");
    }

    #[test]
    fn what_is_sold_to_nobody_is_no_part_of_a_gpu() {
        let memory = |free: u64| MemoryInfo { total: free, reserved: 0, free, used: 0, version: 0 };
        let served = Served::of(&Driver::default());
        assert_eq!(served.headroom_of(&memory(24 << 30)), 64 << 20);
        assert_eq!(served.headroom_of(&memory(1 << 20)), 1 << 20, "no more than there is");
        let gpu = Gpu { memory_headroom_bytes: 64 << 20, memory_reserved_bytes: 1 << 20, ..Gpu::sample(0) };
        let had_bytes = gpu.memory_total_bytes + (64 << 20);
        assert_eq!((gpu.memory_had_bytes(), gpu.memory_all_bytes()), (had_bytes, had_bytes + (1 << 20)));
    }
}
