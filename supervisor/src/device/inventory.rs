//! GPUs through NVML.

use gpool_policy::honesty::Sample;
use gpool_protocol::{GpuUuid, HostPid};
use nvml_wrapper::Nvml;
use nvml_wrapper::enum_wrappers::device::GpuVirtualizationMode;
use nvml_wrapper::enums::device::UsedGpuMemory;
use nvml_wrapper::struct_wrappers::device::ProcessUtilizationSample;
use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

/// NVML that cannot be used; the text names the library and the call.
#[derive(Debug, thiserror::Error)]
pub enum InventoryError {
    /// The library is not there or does not start.
    #[error("NVML ({library}) cannot be used: {cause}")]
    Unusable {
        /// The configured library.
        library: String,
        /// NVML's own words.
        cause: String,
    },
    /// A query failed.
    #[error("NVML does not answer {query}: {cause}")]
    Unanswered {
        /// What was asked.
        query: &'static str,
        /// NVML's own words.
        cause: String,
    },
}

fn unanswered(query: &'static str) -> impl FnOnce(nvml_wrapper::error::NvmlError) -> InventoryError {
    move |cause| InventoryError::Unanswered { query, cause: cause.to_string() }
}

/// A GPU, as it stays while the driver is loaded.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Gpu {
    /// NVML's index.
    pub index: u32,
    /// Stable identity.
    pub uuid: GpuUuid,
    /// Product name.
    pub name: String,
    /// N of /dev/nvidiaN; not the index.
    pub minor: u32,
    /// All memory.
    pub memory_total_bytes: u64,
    /// Version of the driver.
    pub driver_version: String,
    /// It is a virtual one: a part of a GPU that another host gives to this virtual machine.
    pub is_virtual: bool,
}

/// Who holds what of a GPU's memory at one moment.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Occupancy {
    /// All memory in use.
    pub used_bytes: u64,
    /// By process, contexts included. Processes whose memory NVML does not tell are left out.
    pub by_process: BTreeMap<HostPid, u64>,
    /// All processes that have a context.
    pub present: BTreeSet<HostPid>,
}

/// The NVML library, loaded by an explicit path so that it can never be our own shim.
pub struct NvmlInventory {
    nvml: Nvml,
}

impl NvmlInventory {
    /// Loads and starts NVML.
    ///
    /// # Errors
    /// [`InventoryError::Unusable`].
    pub fn open(library: &Path) -> Result<Self, InventoryError> {
        let nvml = Nvml::builder().lib_path(library.as_os_str()).init();
        nvml.map(|nvml| Self { nvml }).map_err(|cause| InventoryError::Unusable {
            library: library.display().to_string(),
            cause: cause.to_string(),
        })
    }

    /// All GPUs, by index.
    ///
    /// # Errors
    /// Names the query that failed.
    pub fn gpus(&self) -> Result<Vec<Gpu>, InventoryError> {
        let driver_version = self.nvml.sys_driver_version().map_err(unanswered("the driver's version"))?;
        let count = self.nvml.device_count().map_err(unanswered("the number of GPUs"))?;
        let gpu = |index| {
            let device = self.nvml.device_by_index(index).map_err(unanswered("a GPU by its index"))?;
            Ok(Gpu {
                index,
                uuid: GpuUuid(device.uuid().map_err(unanswered("a GPU's UUID"))?),
                name: device.name().map_err(unanswered("a GPU's name"))?,
                minor: device.minor_number().map_err(unanswered("a GPU's minor number"))?,
                memory_total_bytes: device.memory_info().map_err(unanswered("a GPU's memory"))?.total,
                driver_version: driver_version.clone(),
                // Drivers without virtual GPUs do not know the question.
                is_virtual: device.virtualization_mode().is_ok_and(|mode| mode == GpuVirtualizationMode::Vgpu),
            })
        };
        (0..count).map(gpu).collect()
    }

    /// Who holds what on the GPU `index` now.
    ///
    /// # Errors
    /// Names the query that failed.
    pub fn occupancy(&self, index: u32) -> Result<Occupancy, InventoryError> {
        let device = self.nvml.device_by_index(index).map_err(unanswered("a GPU by its index"))?;
        let used_bytes = device.memory_info().map_err(unanswered("a GPU's memory"))?.used;
        let processes = device.running_compute_processes().map_err(unanswered("a GPU's processes"))?;
        let present = processes.iter().map(|process| HostPid(process.pid)).collect();
        let known = processes.into_iter().filter_map(|process| match process.used_gpu_memory {
            UsedGpuMemory::Used(bytes) => Some((HostPid(process.pid), bytes)),
            UsedGpuMemory::Unavailable => None,
        });
        Ok(Occupancy { used_bytes, by_process: known.collect(), present })
    }

    /// How busy each process kept the GPU `index` in the sampling periods that ended after `since_us` of NVML's clock.
    /// Nothing where NVML has no such figures: on MIG instances, on old GPUs, and while nobody works.
    pub fn process_use(&self, index: u32, since_us: u64) -> Vec<Sample> {
        let device = self.nvml.device_by_index(index);
        let samples = device.and_then(|device| device.process_utilization_stats(since_us)).unwrap_or_default();
        let sample = |sample: ProcessUtilizationSample| Sample {
            process: sample.pid,
            at_us: sample.timestamp,
            busy_percent: sample.sm_util,
        };
        samples.into_iter().map(sample).collect()
    }
}
