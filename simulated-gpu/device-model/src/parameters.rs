//! What distinguishes one simulated GPU from another.

use serde::{Deserialize, Serialize};

/// The fixed properties of a simulated GPU.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct DeviceParameters {
    /// The identity as NVML prints it, `GPU-` and 32 hexadecimal digits in groups of 8-4-4-4-12.
    pub uuid: String,
    /// The name as NVML and the driver print it. Always says that the device is simulated.
    pub name: String,
    /// Its bus in PCI domain 0, where it is device 0.
    pub pci_bus: u32,
    /// All of the device's memory.
    pub memory_bytes: u64,
    /// What a context itself takes from the memory.
    pub context_bytes: u64,
    /// How long a context keeps the GPU while another one has work.
    pub time_slice_ns: u64,
    /// How long it takes to put another context on the GPU. No kernel runs during that time.
    pub switch_cost_ns: u64,
}

impl DeviceParameters {
    /// The `index`th device of a host with the usual values: 24 GiB, 256 MiB for a context, slices of 2 ms and
    /// 50 us for a switch. Slice and switch are parameters of the model, not measurements of a product.
    pub fn standard(index: u32) -> Self {
        Self {
            uuid: format!("GPU-51313131-0000-4000-8000-{index:012x}"),
            name: "NVIDIA simulated GPU (gpool)".to_owned(),
            pci_bus: index + 1,
            memory_bytes: 24 << 30,
            context_bytes: 256 << 20,
            time_slice_ns: 2_000_000,
            switch_cost_ns: 50_000,
        }
    }
}

impl Default for DeviceParameters {
    fn default() -> Self {
        Self::standard(0)
    }
}
