//! What distinguishes one simulated GPU from another.

use crate::mig::{MigModel, MigProfile};
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
    /// All of the device's memory that can be had.
    pub memory_bytes: u64,
    /// What the driver keeps for itself beside it: NVML's total has it, and nobody can allocate it.
    pub reserved_bytes: u64,
    /// What is in use of the memory while no process is there.
    pub held_bytes: u64,
    /// What a context itself takes from the memory.
    pub context_bytes: u64,
    /// The part of that which NVML lists for no process.
    pub unlisted_bytes: u64,
    /// How long a context keeps the GPU while another one has work.
    pub time_slice_ns: u64,
    /// How long it takes to put another context on the GPU. No kernel runs during that time.
    pub switch_cost_ns: u64,
    /// Streaming multiprocessors that it says it has. How long kernels take is another matter, see `compute`.
    pub multiprocessors: u32,
    /// The board with MIG that it is, see [`MIG_MODELS`](crate::MIG_MODELS); empty: it has no MIG.
    pub model: String,
    /// Of a MIG instance, its compute slices and those of the board: kernels take as much longer. 1 of 1 otherwise.
    pub compute: (u8, u8),
}

impl DeviceParameters {
    /// How long a context keeps the GPU where nothing else is said: the default of the driver 580 on an H100.
    pub const TIME_SLICE_NS: u64 = 2_048_000;

    /// The `index`th device of a host with the usual values: 24 GiB, 256 MiB for a context, slices of 2.048 ms and
    /// 50 us for a switch. The switch is a parameter of the model, not a measurement of a product.
    pub fn standard(index: u32) -> Self {
        Self {
            uuid: format!("GPU-51313131-0000-4000-8000-{index:012x}"),
            name: "NVIDIA simulated GPU (gpool)".to_owned(),
            pci_bus: index + 1,
            memory_bytes: 24 << 30,
            reserved_bytes: 0,
            held_bytes: 0,
            context_bytes: 256 << 20,
            unlisted_bytes: 0,
            time_slice_ns: Self::TIME_SLICE_NS,
            switch_cost_ns: 50_000,
            multiprocessors: 80,
            model: String::new(),
            compute: (1, 1),
        }
    }

    /// The same as a board with MIG, with its memory.
    #[must_use]
    pub fn with_model(self, model: &MigModel) -> Self {
        Self {
            name: format!("NVIDIA {} simulated GPU (gpool)", model.family),
            memory_bytes: u64::from(model.memory_mib) << 20,
            multiprocessors: model.multiprocessors * u32::from(model.compute_slices),
            model: model.name.to_owned(),
            ..self
        }
    }

    /// The board that it is, if it has MIG.
    pub fn mig_model(&self) -> Option<&'static MigModel> {
        MigModel::named(&self.model)
    }

    /// What an instance of this board has. Its UUID is the board's with its number in the second group: the same
    /// place has the same one again.
    #[must_use]
    pub fn of_instance(&self, model: &MigModel, profile: &MigProfile, id: u32) -> Self {
        let own: Vec<&str> = self.uuid.trim_start_matches("GPU-").split('-').collect();
        let group = |index: usize| own.get(index).copied().unwrap_or("0000");
        Self {
            uuid: format!("MIG-{}-{id:04x}-{}-{}-{}", group(0), group(2), group(3), group(4)),
            name: format!("{} MIG {}", self.name, profile.name),
            memory_bytes: u64::from(profile.memory_mib) << 20,
            reserved_bytes: 0,
            held_bytes: 0,
            multiprocessors: model.multiprocessors * u32::from(profile.compute_slices),
            model: String::new(),
            compute: (profile.compute_slices, model.compute_slices),
            ..self.clone()
        }
    }
}

impl Default for DeviceParameters {
    fn default() -> Self {
        Self::standard(0)
    }
}
