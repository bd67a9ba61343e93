//! MIG through NVML: what a board can be divided into, what it is divided into, and dividing it.
//!
//! What nvml-wrapper has no names for is called through its function table. Source of each call: nvml.h, "Multi Instance
//! GPU Management".

use super::inventory::{Gpu, InventoryError, Kind, MigInstance, NvmlInventory, unanswered};
use super::memory::allocatable;
use gpool_policy::mig::{DriverProfile, Model};
use gpool_protocol::GpuUuid;
use nvml_wrapper::Device;
use nvml_wrapper::error::{NvmlError, nvml_sym, nvml_try};
use nvml_wrapper_sys::bindings::{
    NVML_COMPUTE_INSTANCE_ENGINE_PROFILE_SHARED, NVML_COMPUTE_INSTANCE_PROFILE_COUNT, NVML_GPU_INSTANCE_PROFILE_COUNT,
    nvmlComputeInstance_t, nvmlGpuInstance_t, nvmlGpuInstanceInfo_t, nvmlGpuInstancePlacement_t,
    nvmlGpuInstanceProfileInfo_v2_t,
};
use std::ffi::{CStr, c_uint};

/// The most placements of one profile, or instances of one board, that are listed.
const LISTED: usize = 64;

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
    profile_ids: Vec<u32>,
}

impl Board {
    /// The name of the profile with this id.
    fn profile_name(&self, id: u32) -> String {
        let place = self.profile_ids.iter().position(|known| *known == id);
        place.map_or_else(|| format!("profile {id}"), |place| self.model.profiles[place].name.to_owned())
    }

    fn profile_id(&self, name: &str) -> Option<u32> {
        let place = self.model.profiles.iter().position(|profile| profile.name == name)?;
        self.profile_ids.get(place).copied()
    }
}

/// `MIG 1g.10gb`, as drivers name profiles, without the first word.
fn plain_name(name: &str) -> String {
    name.trim().trim_start_matches("MIG ").to_owned()
}

impl NvmlInventory {
    /// What the board `index` can be divided into; none if it has no MIG. Drivers answer with MIG off, too.
    pub fn board(&self, index: u32) -> Option<Board> {
        let device = self.nvml().device_by_index(index).ok()?;
        // Boards without MIG do not know the question.
        device.mig_mode().ok()?;
        let (mut profiles, mut profile_ids) = (Vec::new(), Vec::new());
        for number in 0..NVML_GPU_INSTANCE_PROFILE_COUNT {
            let Ok(info) = self.profile(&device, number) else { continue };
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
            return None;
        }
        let memory_mib = device.memory_info().map_or(0, |memory| memory.total >> 20);
        let name = device.name().ok()?;
        let model = Model::of_driver(&name, u32::try_from(memory_mib).unwrap_or(u32::MAX), &profiles);
        Some(Board { index, model, profile_ids })
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

    /// The instances of a board that containers can use, each as a GPU of its own, by their starts.
    ///
    /// # Errors
    /// Names the query that failed.
    pub fn instances(&self, whole: &Gpu, board: &Board) -> Result<Vec<Gpu>, InventoryError> {
        let device = self.nvml().device_by_index(whole.index).map_err(unanswered("a GPU by its index"))?;
        let most = device.mig_device_count().map_err(unanswered("the number of MIG devices"))?;
        let mut found = Vec::new();
        for number in 0..most {
            match device.mig_device_by_index(number) {
                Ok(instance) => found.push(self.instance(whole, board, &device, &instance)?),
                Err(NvmlError::NotFound) => {}
                Err(cause) => return Err(unanswered("a MIG device by its number")(cause)),
            }
        }
        found.sort_by_key(|gpu| gpu.instance().map(|instance| instance.start));
        Ok(found)
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
        Ok(Gpu {
            uuid: GpuUuid(instance.uuid().map_err(unanswered("a MIG device's UUID"))?),
            name: instance.name().map_err(unanswered("a MIG device's name"))?,
            memory_total_bytes: allocatable(&instance.memory_info().map_err(unanswered("a MIG device's memory"))?),
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

    fn by_id(&self, device: &Device<'_>, id: u32) -> Result<nvmlGpuInstance_t, NvmlError> {
        let call = nvml_sym(self.nvml().lib().nvmlDeviceGetGpuInstanceById.as_ref())?;
        let mut found = std::ptr::null_mut();
        // SAFETY: the handle is the library's own, and the place is live.
        unsafe { nvml_try(call(device.handle(), id, &mut found))? };
        Ok(found)
    }

    fn info(&self, instance: nvmlGpuInstance_t) -> Result<nvmlGpuInstanceInfo_t, NvmlError> {
        let call = nvml_sym(self.nvml().lib().nvmlGpuInstanceGetInfo.as_ref())?;
        // SAFETY: numbers and a pointer, for which zeroes are valid.
        let mut info: nvmlGpuInstanceInfo_t = unsafe { std::mem::zeroed() };
        // SAFETY: the handle is one that the library has given, and the place is live.
        unsafe { nvml_try(call(instance, &mut info))? };
        Ok(info)
    }

    /// Turns MIG on or off.
    ///
    /// # Errors
    /// NVML's words; also if it has to wait, for a reset or for whoever uses the board.
    pub fn set_mig(&self, index: u32, is_on: bool) -> Result<(), String> {
        let word = if is_on { "on" } else { "off" };
        let told = |cause: String| format!("MIG cannot be turned {word}: {cause}");
        let device = self.nvml().device_by_index(index).map_err(|cause| told(cause.to_string()))?;
        let activation = device.set_mig_mode(is_on).map_err(|cause| told(cause.to_string()))?;
        let now = self.mig_mode(index).map_err(|cause| told(cause.to_string()))?;
        match now.is_on == is_on {
            true => Ok(()),
            false => {
                Err(told(format!("it waits for a reset of the GPU, or for a process that uses it ({activation})")))
            }
        }
    }

    /// Takes away every instance of a board.
    ///
    /// # Errors
    /// NVML's words, and which instance.
    pub fn destroy_instances(&self, board: &Board) -> Result<(), String> {
        let device = self.nvml().device_by_index(board.index).map_err(|cause| cause.to_string())?;
        for id in &board.profile_ids {
            for instance in self.of_profile(&device, *id).map_err(|cause| cause.to_string())? {
                let name = || board.profile_name(*id);
                self.destroy(instance).map_err(|cause| format!("an instance of {} stays: {cause}", name()))?;
            }
        }
        Ok(())
    }

    fn of_profile(&self, device: &Device<'_>, id: u32) -> Result<Vec<nvmlGpuInstance_t>, NvmlError> {
        let call = nvml_sym(self.nvml().lib().nvmlDeviceGetGpuInstances.as_ref())?;
        let (mut list, mut count) = (vec![std::ptr::null_mut(); LISTED], LISTED as c_uint);
        // SAFETY: the handle is the library's own, and the list has as many elements as `count` says.
        unsafe { nvml_try(call(device.handle(), id, list.as_mut_ptr(), &mut count))? };
        list.truncate(count as usize);
        Ok(list)
    }

    /// Takes a GPU instance away, its compute instances first.
    fn destroy(&self, instance: nvmlGpuInstance_t) -> Result<(), NvmlError> {
        let lib = self.nvml().lib();
        let destroy_compute = nvml_sym(lib.nvmlComputeInstanceDestroy.as_ref())?;
        for compute in self.compute_instances(instance)? {
            // SAFETY: the handle is one that the library has just given.
            unsafe { nvml_try(destroy_compute(compute))? };
        }
        let destroy = nvml_sym(lib.nvmlGpuInstanceDestroy.as_ref())?;
        // SAFETY: as above.
        unsafe { nvml_try(destroy(instance)) }
    }

    fn compute_instances(&self, instance: nvmlGpuInstance_t) -> Result<Vec<nvmlComputeInstance_t>, NvmlError> {
        let call = nvml_sym(self.nvml().lib().nvmlGpuInstanceGetComputeInstances.as_ref())?;
        let mut found = Vec::new();
        for (id, _) in self.compute_profiles(instance)? {
            let (mut list, mut count) = (vec![std::ptr::null_mut(); LISTED], LISTED as c_uint);
            // SAFETY: the handle is the library's own, and the list has as many elements as `count` says.
            unsafe { nvml_try(call(instance, id, list.as_mut_ptr(), &mut count))? };
            found.extend(list.into_iter().take(count as usize));
        }
        Ok(found)
    }

    /// Ids and slices of the compute instance profiles of a GPU instance.
    fn compute_profiles(&self, instance: nvmlGpuInstance_t) -> Result<Vec<(u32, u32)>, NvmlError> {
        let call = nvml_sym(self.nvml().lib().nvmlGpuInstanceGetComputeInstanceProfileInfo.as_ref())?;
        let mut found = Vec::new();
        for number in 0..NVML_COMPUTE_INSTANCE_PROFILE_COUNT {
            // SAFETY: numbers, for which zeroes are valid; the handle is the library's own.
            let answer = unsafe {
                let mut info = std::mem::zeroed();
                let code = call(instance, number, NVML_COMPUTE_INSTANCE_ENGINE_PROFILE_SHARED, &mut info);
                nvml_try(code).map(|()| (info.id, info.sliceCount))
            };
            match answer {
                Ok(profile) => found.push(profile),
                Err(NvmlError::NotSupported | NvmlError::InvalidArg) => {}
                Err(cause) => return Err(cause),
            }
        }
        Ok(found)
    }

    /// Makes a GPU instance at a start with one compute instance over all of it.
    ///
    /// # Errors
    /// NVML's words, and which instance.
    pub fn create_instance(&self, board: &Board, profile: &str, placement: (u8, u8)) -> Result<(), String> {
        let told = |cause: String| format!("{profile} at {} cannot be made: {cause}", placement.0);
        let id = board.profile_id(profile).ok_or_else(|| told("there is no such profile".to_owned()))?;
        self.create(board, id, placement).map_err(|cause| told(cause.to_string()))
    }

    fn create(&self, board: &Board, id: u32, (start, size): (u8, u8)) -> Result<(), NvmlError> {
        let (lib, device) = (self.nvml().lib(), self.nvml().device_by_index(board.index)?);
        let create = nvml_sym(lib.nvmlDeviceCreateGpuInstanceWithPlacement.as_ref())?;
        let create_compute = nvml_sym(lib.nvmlGpuInstanceCreateComputeInstance.as_ref())?;
        let placement = nvmlGpuInstancePlacement_t { start: start.into(), size: size.into() };
        let (mut made, mut compute) = (std::ptr::null_mut(), std::ptr::null_mut());
        // SAFETY: the handle is the library's own, and both places are live.
        unsafe { nvml_try(create(device.handle(), id, &placement, &mut made))? };
        let largest = self.compute_profiles(made)?.into_iter().max_by_key(|(_, slices)| *slices);
        let (id, _) = largest.ok_or(NvmlError::NotSupported)?;
        // SAFETY: the handle has just been given, and the place is live.
        unsafe { nvml_try(create_compute(made, id, &mut compute)) }
    }
}
