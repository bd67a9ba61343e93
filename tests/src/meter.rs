//! The simulated hardware's own meter, which neither the supervisor nor the shims can write.

use crate::failure::{Context, Result};
use gpool_device_model::{Meter, OwnerUsage};
use gpool_simulated_hardware::Store;
use std::path::Path;
use std::sync::Arc;

pub use gpool_simulated_hardware::now_ns;

/// Reads the meter, as often as wanted and from any thread.
#[derive(Debug, Clone)]
pub struct MeterReader {
    store: Arc<Store>,
}

impl MeterReader {
    /// Opens the simulated GPU whose directory is `directory`.
    pub fn open(directory: &Path) -> Result<Self> {
        Self::open_device(directory, 0)
    }

    /// Opens the device with this index of the simulated GPUs whose directory is `directory`.
    pub fn open_device(directory: &Path, index: u32) -> Result<Self> {
        let store = Store::open_device(directory, index).context(format!("simulated GPU {index} cannot be opened"))?;
        Ok(Self { store: Arc::new(store) })
    }

    /// Opens a MIG instance, by its GPU and its number.
    pub fn open_instance(directory: &Path, instance: (u32, u32)) -> Result<Self> {
        let store = Store::open_instance(directory, instance).context(format!("MIG instance {instance:?}"))?;
        Ok(Self { store: Arc::new(store) })
    }

    /// The meter now. Its times are those of [`now_ns`].
    pub fn read(&self) -> Result<Meter> {
        self.store.read(|device| device.meter().clone()).context("the meter cannot be read")
    }

    /// All memory of the device that anybody holds, in bytes.
    pub fn memory_used_bytes(&self) -> Result<u64> {
        self.store.read(|device| device.memory_used()).context("the device cannot be read")
    }

    /// Contexts on the device, as host process and bytes.
    pub fn processes(&self) -> Result<Vec<(u32, u64)>> {
        self.store.read(|device| device.processes()).context("the device cannot be read")
    }
}

/// What the container with this engine's id has had; nothing if it never used the device.
///
/// The hardware accounts by cgroup path, which holds the id whatever the engine's cgroup driver is.
pub fn usage_of(meter: &Meter, container_id: &str) -> OwnerUsage {
    let mut sum = OwnerUsage::default();
    for (_, usage) in meter.owners.iter().filter(|(path, _)| path.contains(container_id)) {
        sum.busy_ns += usage.busy_ns;
        sum.kernels += usage.kernels;
        sum.bytes_now += usage.bytes_now;
        sum.bytes_peak += usage.bytes_peak;
    }
    sum
}
