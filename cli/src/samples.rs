//! What tests begin with.

use gpool_protocol::{GpuUuid, GpuView};

/// A GPU that nobody uses.
pub fn gpu(index: u32, name: &str, memory_total_bytes: u64) -> GpuView {
    GpuView {
        index,
        uuid: GpuUuid(format!("GPU-{index}")),
        name: name.into(),
        driver_version: "580.95.05".into(),
        memory_total_bytes,
        memory_headroom_bytes: 0,
        memory_used_bytes: 0,
        memory_outside_bytes: 0,
        memory_leased_bytes: 0,
        fraction_leased_permille: 0,
        leases: 0,
        divided: false,
        mechanism: None,
        time_slices: None,
        memory_limits: None,
        compute_mode: None,
        nvlink_island: None,
        processor: None,
        drained: None,
        silent: false,
        closed_for: None,
        health: None,
        kernel_ns: 0,
    }
}
