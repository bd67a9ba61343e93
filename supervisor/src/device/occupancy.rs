//! Who is on a GPU, and whom it lets in.

use super::inventory::{Gpu, Kind, NvmlInventory, unanswered};
use super::inventory_error::InventoryError;
use gpool_policy::mechanism::ComputeMode;
use gpool_protocol::HostPid;
use nvml_wrapper::Device;
use nvml_wrapper::enum_wrappers::device::ComputeMode as NvmlComputeMode;
use nvml_wrapper::enums::device::UsedGpuMemory;
use std::collections::{BTreeMap, BTreeSet};

/// Who holds what of a GPU's memory at one moment.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Occupancy {
    /// All memory in use.
    pub used_bytes: u64,
    /// By process, contexts included. Processes whose memory NVML does not tell are left out.
    pub by_process: BTreeMap<HostPid, u64>,
    /// All processes that have a context.
    pub present: BTreeSet<HostPid>,
    /// How many may have one.
    pub compute_mode: ComputeMode,
}

/// A GPU's compute mode. One that cannot be read, as on MIG instances, keeps nobody out.
fn compute_mode(device: &Device<'_>) -> ComputeMode {
    match device.compute_mode() {
        Ok(NvmlComputeMode::ExclusiveProcess | NvmlComputeMode::ExclusiveThread) => ComputeMode::ExclusiveProcess,
        Ok(NvmlComputeMode::Prohibited) => ComputeMode::Prohibited,
        Ok(NvmlComputeMode::Default) | Err(_) => ComputeMode::Default,
    }
}

impl NvmlInventory {
    /// Who holds what on a GPU or MIG instance now.
    ///
    /// # Errors
    /// Names the query that failed.
    pub fn occupancy(&self, gpu: &Gpu) -> Result<Occupancy, InventoryError> {
        let device = match &gpu.kind {
            Kind::Instance(_) => self.nvml().device_by_uuid(gpu.uuid.0.as_str()),
            Kind::Whole | Kind::Divided | Kind::Gone => self.nvml().device_by_index(gpu.index),
        };
        let device = device.map_err(unanswered("a GPU by its index or UUID"))?;
        let used_bytes = device.memory_info().map_err(unanswered("a GPU's memory"))?.used;
        let processes = device.running_compute_processes().map_err(unanswered("a GPU's processes"))?;
        let present = processes.iter().map(|process| HostPid(process.pid)).collect();
        let known = processes.into_iter().filter_map(|process| match process.used_gpu_memory {
            UsedGpuMemory::Used(bytes) => Some((HostPid(process.pid), bytes)),
            UsedGpuMemory::Unavailable => None,
        });
        let compute_mode = compute_mode(&device);
        Ok(Occupancy { used_bytes, by_process: known.collect(), present, compute_mode })
    }
}
