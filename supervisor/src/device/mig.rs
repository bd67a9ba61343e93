//! MIG through NVML: what a board can be divided into, and the MIG devices of one that is.
//!
//! What nvml-wrapper has no names for is called through its function table. Source of each call: nvml.h, "Multi Instance
//! GPU Management".

use super::inventory::{Gpu, Kind, MigInstance, NvmlInventory, unanswered};
use super::inventory_error::InventoryError;
use super::memory::allocatable;
use gpool_policy::mig::{DriverProfile, Model};
use gpool_protocol::{GpuUuid, HostPid};
use nvml_wrapper::Device;
use nvml_wrapper::error::{NvmlError, nvml_sym, nvml_try};
use nvml_wrapper::struct_wrappers::device::DeviceAttributes;
use nvml_wrapper_sys::bindings::{
    NVML_GPU_INSTANCE_PROFILE_COUNT, nvmlGpuInstancePlacement_t, nvmlGpuInstanceProfileInfo_v2_t,
};
use std::collections::{BTreeMap, BTreeSet};
use std::ffi::{CStr, c_uint};

/// The most placements of one profile, or instances of one board, that are listed.
pub(super) const LISTED: usize = 64;

/// Whether MIG is on, and whether it is to be.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct MigMode {
    /// It is on.
    pub is_on: bool,
    /// It is to be on after a reset, or when nobody uses the board any more.
    pub is_pending: bool,
}

/// What a board can be divided into, as its driver says.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Board {
    /// NVML's index.
    pub index: u32,
    /// Its model, made of what follows.
    pub model: &'static Model,
    /// By the id of the profile, in the order of the model's profiles.
    pub(super) profile_ids: Vec<u32>,
}

impl Board {
    /// The name of the profile with this id.
    pub(super) fn profile_name(&self, id: u32) -> String {
        let place = self.profile_ids.iter().position(|known| *known == id);
        place.map_or_else(|| format!("profile {id}"), |place| self.model.profiles[place].name.to_owned())
    }

    pub(super) fn profile_id(&self, name: &str) -> Option<u32> {
        let place = self.model.profiles.iter().position(|profile| profile.name == name)?;
        self.profile_ids.get(place).copied()
    }
}

/// `MIG 1g.10gb`, as drivers name profiles, without the first word.
fn plain_name(name: &str) -> String {
    name.trim().trim_start_matches("MIG ").to_owned()
}

/// Whether a MIG device, which is a compute instance, is all of its GPU instance. NVIDIA's names leave the compute slices out by
/// the same rule (`1c.3g.40gb` beside `3g.40gb`; MIG user guide, "MIG Device Names").
fn is_whole(slices: &DeviceAttributes) -> bool {
    slices.compute_instance_slice_count == slices.gpu_instance_slice_count
}

/// The MIG devices that there are on a board; they are numbered with gaps.
fn mig_devices<'nvml>(device: &Device<'nvml>) -> Result<Vec<Device<'nvml>>, InventoryError> {
    let most = device.mig_device_count().map_err(unanswered("the number of MIG devices"))?;
    let mut found = Vec::new();
    for number in 0..most {
        match device.mig_device_by_index(number) {
            Ok(instance) => found.push(instance),
            Err(NvmlError::NotFound) => {}
            Err(cause) => return Err(unanswered("a MIG device by its number")(cause)),
        }
    }
    Ok(found)
}

/// What boards say to a question about MIG that have none, and libraries that are older than the question. Any other error says nothing of
/// that.
fn if_it_has_mig<T>(answer: Result<T, NvmlError>) -> Result<Option<T>, NvmlError> {
    match answer {
        Ok(answer) => Ok(Some(answer)),
        Err(
            NvmlError::NotSupported
            | NvmlError::NotFound
            | NvmlError::FunctionNotFound
            | NvmlError::FailedToLoadSymbol(_)
            | NvmlError::InvalidArg,
        ) => Ok(None),
        Err(other) => Err(other),
    }
}

impl NvmlInventory {
    /// What the board `index` can be divided into; none if it has no MIG. Drivers answer with MIG off, too.
    ///
    /// # Errors
    /// Names the query that failed, so that nothing is known of it.
    pub fn board(&self, index: u32) -> Result<Option<Board>, InventoryError> {
        let device = self.nvml().device_by_index(index).map_err(unanswered("a GPU by its index"))?;
        if if_it_has_mig(device.mig_mode()).map_err(unanswered("a GPU's MIG mode"))?.is_none() {
            return Ok(None);
        }
        let (mut profiles, mut profile_ids) = (Vec::new(), Vec::new());
        for number in 0..NVML_GPU_INSTANCE_PROFILE_COUNT {
            // Drivers have various words for profiles that a board does not have.
            let info = match self.profile(&device, number) {
                Err(NvmlError::GpuLost) => return Err(unanswered("a GPU's MIG profiles")(NvmlError::GpuLost)),
                info => info,
            };
            let Ok(info) = info else { continue };
            let Ok(placements) = self.placements(&device, info.id) else { continue };
            // SAFETY: the driver ends the name with a zero within the array, which began as zeroes.
            let name = unsafe { CStr::from_ptr(info.name.as_ptr()) }.to_string_lossy();
            let small = |value: c_uint| u8::try_from(value).unwrap_or(u8::MAX);
            let Some(first) = placements.first() else { continue };
            let mut starts: Vec<u8> = placements.iter().map(|placement| small(placement.start)).collect();
            starts.sort_unstable();
            profile_ids.push(info.id);
            profiles.push(DriverProfile {
                name: plain_name(&name),
                compute_slices: small(info.sliceCount),
                memory_slices: small(first.size),
                starts,
                most: small(info.instanceCount),
                memory_mib: u32::try_from(info.memorySizeMB).unwrap_or(u32::MAX),
            });
        }
        if profiles.is_empty() {
            return Ok(None);
        }
        let memory_mib = device.memory_info().map_or(0, |memory| memory.total >> 20);
        let name = device.name().map_err(unanswered("a GPU's name"))?;
        let model = Model::of_driver(&name, u32::try_from(memory_mib).unwrap_or(u32::MAX), &profiles);
        Ok(Some(Board { index, model, profile_ids }))
    }

    /// Whether a board is divided, of which it is not known that it can be.
    ///
    /// # Errors
    /// Names the query that failed.
    pub(super) fn has_mig_on(&self, index: u32) -> Result<bool, InventoryError> {
        let device = self.nvml().device_by_index(index).map_err(unanswered("a GPU by its index"))?;
        let mode = if_it_has_mig(device.mig_mode()).map_err(unanswered("a GPU's MIG mode"))?;
        Ok(mode.is_some_and(|mode| mode.current != 0))
    }

    /// NVML's PCI device and vendor id of a board.
    ///
    /// # Errors
    /// Names the query that failed.
    pub fn pci_device_id(&self, index: u32) -> Result<u32, InventoryError> {
        let device = self.nvml().device_by_index(index).map_err(unanswered("a GPU by its index"))?;
        Ok(device.pci_info().map_err(unanswered("a GPU's place on the bus"))?.pci_device_id)
    }

    fn profile(&self, device: &Device<'_>, number: u32) -> Result<nvmlGpuInstanceProfileInfo_v2_t, NvmlError> {
        let call = nvml_sym(self.nvml().lib().nvmlDeviceGetGpuInstanceProfileInfoV.as_ref())?;
        // SAFETY: numbers and an array of characters, for which zeroes are valid.
        let mut info: nvmlGpuInstanceProfileInfo_v2_t = unsafe { std::mem::zeroed() };
        info.version = size_of::<nvmlGpuInstanceProfileInfo_v2_t>() as c_uint | (2 << 24);
        // SAFETY: the handle is the library's own, and the structure says its size and version.
        unsafe { nvml_try(call(device.handle(), number, &mut info))? };
        Ok(info)
    }

    fn placements(&self, device: &Device<'_>, id: u32) -> Result<Vec<nvmlGpuInstancePlacement_t>, NvmlError> {
        let call = nvml_sym(self.nvml().lib().nvmlDeviceGetGpuInstancePossiblePlacements_v2.as_ref())?;
        let mut list = vec![nvmlGpuInstancePlacement_t { start: 0, size: 0 }; LISTED];
        let mut count = LISTED as c_uint;
        // SAFETY: the handle is the library's own, and the list has as many elements as `count` says.
        unsafe { nvml_try(call(device.handle(), id, list.as_mut_ptr(), &mut count))? };
        list.truncate(count as usize);
        Ok(list)
    }

    /// Whether MIG is on.
    ///
    /// # Errors
    /// Names the query that failed.
    pub fn mig_mode(&self, index: u32) -> Result<MigMode, InventoryError> {
        let device = self.nvml().device_by_index(index).map_err(unanswered("a GPU by its index"))?;
        let mode = device.mig_mode().map_err(unanswered("a GPU's MIG mode"))?;
        Ok(MigMode { is_on: mode.current != 0, is_pending: mode.pending != 0 })
    }

    /// The instances of a board that containers can use, each as a GPU of its own, by their starts. GPU instances that are divided
    /// further are left out: a lease is of all of one, and CUDA shows a program no more than one compute instance.
    ///
    /// # Errors
    /// Names the query that failed.
    pub fn instances(&self, whole: &Gpu, board: &Board) -> Result<Vec<Gpu>, InventoryError> {
        let device = self.nvml().device_by_index(whole.index).map_err(unanswered("a GPU by its index"))?;
        let mut found = Vec::new();
        for instance in mig_devices(&device)? {
            let slices = instance.attributes().map_err(unanswered("a MIG device's attributes"))?;
            if is_whole(&slices) {
                found.push(self.instance(whole, board, &device, &instance)?);
            }
        }
        found.sort_by_key(|gpu| gpu.instance().map(|instance| instance.start));
        Ok(found)
    }

    /// Who uses a board: by the UUID of each of its MIG devices, or by its own while MIG is off. These are the processes that
    /// have a context.
    ///
    /// # Errors
    /// Names the query that failed.
    pub fn processes_by_device(&self, index: u32) -> Result<BTreeMap<GpuUuid, BTreeSet<HostPid>>, InventoryError> {
        let device = self.nvml().device_by_index(index).map_err(unanswered("a GPU by its index"))?;
        let devices = if self.mig_mode(index)?.is_on { mig_devices(&device)? } else { vec![device] };
        let its = |device: Device<'_>| {
            let uuid = device.uuid().map_err(unanswered("a GPU's or a MIG device's UUID"))?;
            let processes = device.running_compute_processes().map_err(unanswered("a GPU's processes"))?;
            Ok((GpuUuid(uuid), processes.into_iter().map(|process| HostPid(process.pid)).collect()))
        };
        devices.into_iter().map(its).collect()
    }

    fn instance(
        &self,
        whole: &Gpu,
        board: &Board,
        device: &Device<'_>,
        instance: &Device<'_>,
    ) -> Result<Gpu, InventoryError> {
        let unread = |cause| unanswered("a MIG device's instance")(cause);
        let (gpu_instance, compute_instance) = self.numbers(instance).map_err(unread)?;
        let info = self.info(self.by_id(device, gpu_instance).map_err(unread)?).map_err(unread)?;
        let small = |value: c_uint| u8::try_from(value).unwrap_or(u8::MAX);
        let memory = instance.memory_info().map_err(unanswered("a MIG device's memory"))?;
        Ok(Gpu {
            uuid: GpuUuid(instance.uuid().map_err(unanswered("a MIG device's UUID"))?),
            name: instance.name().map_err(unanswered("a MIG device's name"))?,
            memory_total_bytes: allocatable(&memory) - self.served.headroom_of(&memory),
            memory_reserved_bytes: memory.reserved,
            memory_headroom_bytes: self.served.headroom_of(&memory),
            kind: Kind::Instance(MigInstance {
                board: whole.uuid.clone(),
                profile: board.profile_name(info.profileId),
                gpu_instance,
                compute_instance,
                start: small(info.placement.start),
                size: small(info.placement.size),
            }),
            ..whole.clone()
        })
    }

    /// The numbers of the GPU instance and the compute instance of a MIG device.
    fn numbers(&self, instance: &Device<'_>) -> Result<(u32, u32), NvmlError> {
        let lib = self.nvml().lib();
        let gpu = nvml_sym(lib.nvmlDeviceGetGpuInstanceId.as_ref())?;
        let compute = nvml_sym(lib.nvmlDeviceGetComputeInstanceId.as_ref())?;
        let mut numbers = (0, 0);
        // SAFETY: the handle is the library's own, and both places are live.
        unsafe {
            nvml_try(gpu(instance.handle(), &mut numbers.0))?;
            nvml_try(compute(instance.handle(), &mut numbers.1))?;
        }
        Ok(numbers)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_what_a_board_without_mig_says_means_that_it_has_none() {
        let none = [NvmlError::NotSupported, NvmlError::NotFound, NvmlError::FailedToLoadSymbol("x".into())];
        assert!(none.into_iter().all(|error| if_it_has_mig::<()>(Err(error)).is_ok_and(|its| its.is_none())));
        let nothing_known = [NvmlError::GpuLost, NvmlError::Unknown, NvmlError::ResetRequired, NvmlError::Timeout];
        assert!(nothing_known.into_iter().all(|error| if_it_has_mig::<()>(Err(error)).is_err()));
        assert!(if_it_has_mig(Ok(1)).is_ok_and(|its| its == Some(1)));
    }
}
