//! What handles stand for: a device, a MIG device, a GPU instance, a compute instance.

use crate::library::{Outcome, look, on_the_bus, visible};
use gpool_driver_abi::nvml::*;
use gpool_simulated_hardware::model::{Device, MigState};
use gpool_simulated_hardware::{Layout, Store, may_monitor_instances, may_use_instance};

/// The handle of the device with minor number 0; the others follow with this distance.
const FIRST: usize = 0x5000_0000;
const DISTANCE: usize = 16;
/// The handles of what the GPU instances of device 0 are: MIG devices, GPU instances, compute instances.
const FIRST_MIG: usize = 0x5100_0000;
const FIRST_GPU_INSTANCE: usize = 0x5200_0000;
const FIRST_COMPUTE_INSTANCE: usize = 0x5300_0000;
/// More than a device has instances.
const INSTANCES: usize = 16;

/// An instance of a device.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Instance {
    pub(crate) minor: u32,
    pub(crate) id: u32,
}

/// A device or a MIG device.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Target {
    Gpu(u32),
    Mig(Instance),
}

impl Instance {
    fn place(self, first: usize) -> usize {
        first + (self.minor as usize * INSTANCES + self.id as usize) * DISTANCE
    }

    /// The instance's handle as a device.
    pub(crate) fn device(self) -> nvmlDevice_t {
        self.place(FIRST_MIG) as nvmlDevice_t
    }

    pub(crate) fn gpu_instance(self) -> nvmlGpuInstance_t {
        self.place(FIRST_GPU_INSTANCE) as nvmlGpuInstance_t
    }

    pub(crate) fn compute_instance(self) -> nvmlComputeInstance_t {
        self.place(FIRST_COMPUTE_INSTANCE) as nvmlComputeInstance_t
    }

    fn at(handle: usize, first: usize) -> Option<Self> {
        let number = handle.checked_sub(first).filter(|offset| offset % DISTANCE == 0)? / DISTANCE;
        let of_all = INSTANCES * INSTANCES;
        (number < of_all).then_some(Self { minor: (number / INSTANCES) as u32, id: (number % INSTANCES) as u32 })
    }
}

pub(crate) fn handle(minor: u32) -> nvmlDevice_t {
    (FIRST + minor as usize * DISTANCE) as nvmlDevice_t
}

/// What a device's handle stands for. Fails for one of nothing that this process may see.
pub(crate) fn target(device: nvmlDevice_t) -> Outcome<Target> {
    if let Some(instance) = Instance::at(device as usize, FIRST_MIG) {
        return match usable(instance.minor)?.contains(&instance) {
            true => Ok(Target::Mig(instance)),
            false => Err(NVML_ERROR_INVALID_ARGUMENT),
        };
    }
    let found = visible()?.into_iter().find(|minor| handle(*minor) == device);
    found.map(Target::Gpu).ok_or(NVML_ERROR_INVALID_ARGUMENT)
}

/// The minor number of the device that a handle stands for; what is asked for is not there of a MIG device.
pub(crate) fn minor(device: nvmlDevice_t) -> Outcome<u32> {
    match target(device)? {
        Target::Gpu(minor) => Ok(minor),
        Target::Mig(_) => Err(NVML_ERROR_NOT_SUPPORTED),
    }
}

/// The GPU instance that a handle stands for.
pub(crate) fn gpu_instance(handle: nvmlGpuInstance_t) -> Outcome<Instance> {
    let found = Instance::at(handle as usize, FIRST_GPU_INSTANCE).ok_or(NVML_ERROR_INVALID_ARGUMENT)?;
    mig(found.minor)?.instance(found.id).map(|_| found).ok_or(NVML_ERROR_INVALID_ARGUMENT)
}

/// The instance whose compute instance a handle stands for.
pub(crate) fn compute_instance(handle: nvmlComputeInstance_t) -> Outcome<Instance> {
    let found = Instance::at(handle as usize, FIRST_COMPUTE_INSTANCE).ok_or(NVML_ERROR_INVALID_ARGUMENT)?;
    let mig = mig(found.minor)?;
    mig.instance(found.id).filter(|one| one.has_compute).map(|_| found).ok_or(NVML_ERROR_INVALID_ARGUMENT)
}

/// What a visible device is divided into.
pub(crate) fn mig(minor: u32) -> Outcome<MigState> {
    if !visible()?.contains(&minor) {
        return Err(NVML_ERROR_INVALID_ARGUMENT);
    }
    look(minor, |device| device.mig.clone())
}

/// The instances of a device that this process may use.
pub(crate) fn usable(minor: u32) -> Outcome<Vec<Instance>> {
    let (layout, mig) = (Layout::default(), mig(minor)?);
    let its = mig.instances.iter().filter(|one| one.has_compute && may_use_instance(&layout, minor, one.id));
    Ok(its.map(|one| Instance { minor, id: one.id }).collect())
}

/// Looks at an instance as it is now.
pub(crate) fn look_at_instance<T>(instance: Instance, look: impl FnOnce(&Device) -> T) -> Outcome<T> {
    on_the_bus(instance.minor)?;
    let store = Store::open_instance(Layout::default().root(), (instance.minor, instance.id));
    store.and_then(|store| store.read(look)).map_err(|_| NVML_ERROR_UNKNOWN)
}

/// Looks at what a handle stands for as a device.
pub(crate) fn look_at<T>(device: nvmlDevice_t, wanted: impl FnOnce(&Device) -> T) -> Outcome<T> {
    match target(device)? {
        Target::Gpu(minor) => look(minor, wanted),
        Target::Mig(instance) => look_at_instance(instance, wanted),
    }
}

/// The instances of a divided GPU, for figures of the GPU itself, which only those may see who may see all of them. None
/// of a GPU that is whole.
pub(crate) fn parts(minor: u32) -> Outcome<Option<Vec<Instance>>> {
    let mig = mig(minor)?;
    if !mig.is_on {
        return Ok(None);
    }
    if !may_monitor_instances(&Layout::default()) {
        return Err(NVML_ERROR_NO_PERMISSION);
    }
    let its = mig.instances.iter().filter(|one| one.has_compute);
    Ok(Some(its.map(|one| Instance { minor, id: one.id }).collect()))
}

/// A figure of a GPU must not be asked for while it is divided.
pub(crate) fn whole(device: nvmlDevice_t) -> Outcome<u32> {
    let minor = minor(device)?;
    if mig(minor)?.is_on { Err(NVML_ERROR_NOT_SUPPORTED) } else { Ok(minor) }
}
