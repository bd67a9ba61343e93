//! What tests begin with.

use gpool_protocol::{ContainerId, GpuUuid, GpuView, GuardedProcess, HostPid, LeaseId};

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

/// A process that is registered, of a container's only lease.
pub fn guarded(pid: u32, container: &str) -> GuardedProcess {
    GuardedProcess {
        lease_id: LeaseId("01J".into()),
        container_id: ContainerId(container.into()),
        pid: HostPid(pid),
        name: "python3".into(),
        is_registered: true,
        libraries: Vec::new(),
        finding: None,
        memory_charged_bytes: None,
        memory_nvml_bytes: None,
    }
}
