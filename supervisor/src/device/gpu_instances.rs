//! The GPU instances of a board through NVML, also those that no program can use.
//!
//! What nvml-wrapper has no names for is called through its function table. Source of each call: nvml.h, "Multi Instance
//! GPU Management".

use super::inventory::{NvmlInventory, unanswered};
use super::inventory_error::InventoryError;
use super::mig::{Board, LISTED};
use nvml_wrapper::Device;
use nvml_wrapper::error::{NvmlError, nvml_sym, nvml_try};
use nvml_wrapper_sys::bindings::{
    NVML_COMPUTE_INSTANCE_ENGINE_PROFILE_SHARED, NVML_COMPUTE_INSTANCE_PROFILE_COUNT, nvmlComputeInstance_t,
    nvmlGpuInstance_t, nvmlGpuInstanceInfo_t,
};
use std::ffi::c_uint;

/// How a GPU instance is divided further.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Compute {
    /// One compute instance over all of it.
    Whole,
    /// So many compute instances, none or one among them, which do not cover it each.
    Parts(usize),
}

impl Compute {
    /// Of a GPU instance with compute instances of these slices, where one over all of it has `all`.
    fn of(slices: &[u32], all: u32) -> Self {
        match slices {
            [only] if *only >= all => Self::Whole,
            parts => Self::Parts(parts.len()),
        }
    }
}

/// A GPU instance.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct GpuInstance {
    /// Its number on the board.
    pub id: u32,
    /// NVIDIA's name of its profile.
    pub profile: String,
    /// The first of its memory slices.
    pub start: u8,
    /// How many.
    pub size: u8,
    /// What of it programs can use.
    pub compute: Compute,
}

impl NvmlInventory {
    /// The GPU instances of a board whose MIG is on, by their starts.
    ///
    /// # Errors
    /// Names the query that failed.
    pub fn gpu_instances(&self, board: &Board) -> Result<Vec<GpuInstance>, InventoryError> {
        self.all_of(board).map_err(unanswered("a board's GPU instances"))
    }

    fn all_of(&self, board: &Board) -> Result<Vec<GpuInstance>, NvmlError> {
        let device = self.nvml().device_by_index(board.index)?;
        let small = |value: c_uint| u8::try_from(value).unwrap_or(u8::MAX);
        let mut found = Vec::new();
        for profile in &board.profile_ids {
            for instance in self.of_profile(&device, *profile)? {
                let info = self.info(instance)?;
                found.push(GpuInstance {
                    id: info.id,
                    profile: board.profile_name(*profile),
                    start: small(info.placement.start),
                    size: small(info.placement.size),
                    compute: self.compute(instance)?,
                });
            }
        }
        found.sort_by_key(|instance| instance.start);
        Ok(found)
    }

    pub(super) fn by_id(&self, device: &Device<'_>, id: u32) -> Result<nvmlGpuInstance_t, NvmlError> {
        let call = nvml_sym(self.nvml().lib().nvmlDeviceGetGpuInstanceById.as_ref())?;
        let mut found = std::ptr::null_mut();
        // SAFETY: the handle is the library's own, and the place is live.
        unsafe { nvml_try(call(device.handle(), id, &mut found))? };
        Ok(found)
    }

    pub(super) fn info(&self, instance: nvmlGpuInstance_t) -> Result<nvmlGpuInstanceInfo_t, NvmlError> {
        let call = nvml_sym(self.nvml().lib().nvmlGpuInstanceGetInfo.as_ref())?;
        // SAFETY: numbers and a pointer, for which zeroes are valid.
        let mut info: nvmlGpuInstanceInfo_t = unsafe { std::mem::zeroed() };
        // SAFETY: the handle is one that the library has given, and the place is live.
        unsafe { nvml_try(call(instance, &mut info))? };
        Ok(info)
    }

    fn of_profile(&self, device: &Device<'_>, id: u32) -> Result<Vec<nvmlGpuInstance_t>, NvmlError> {
        let call = nvml_sym(self.nvml().lib().nvmlDeviceGetGpuInstances.as_ref())?;
        let (mut list, mut count) = (vec![std::ptr::null_mut(); LISTED], LISTED as c_uint);
        // SAFETY: the handle is the library's own, and the list has as many elements as `count` says.
        unsafe { nvml_try(call(device.handle(), id, list.as_mut_ptr(), &mut count))? };
        list.truncate(count as usize);
        Ok(list)
    }

    fn compute(&self, instance: nvmlGpuInstance_t) -> Result<Compute, NvmlError> {
        let slices: Vec<u32> = self.compute_instances(instance)?.into_iter().map(|(_, slices)| slices).collect();
        let all = self.compute_profiles(instance)?.into_iter().map(|(_, slices)| slices).max();
        Ok(Compute::of(&slices, all.unwrap_or(u32::MAX)))
    }

    /// The compute instances of a GPU instance, with their slices.
    pub(super) fn compute_instances(
        &self,
        instance: nvmlGpuInstance_t,
    ) -> Result<Vec<(nvmlComputeInstance_t, u32)>, NvmlError> {
        let call = nvml_sym(self.nvml().lib().nvmlGpuInstanceGetComputeInstances.as_ref())?;
        let mut found = Vec::new();
        for (id, slices) in self.compute_profiles(instance)? {
            let (mut list, mut count) = (vec![std::ptr::null_mut(); LISTED], LISTED as c_uint);
            // SAFETY: the handle is the library's own, and the list has as many elements as `count` says.
            unsafe { nvml_try(call(instance, id, list.as_mut_ptr(), &mut count))? };
            found.extend(list.into_iter().take(count as usize).map(|compute| (compute, slices)));
        }
        Ok(found)
    }

    /// Ids and slices of the compute instance profiles of a GPU instance.
    pub(super) fn compute_profiles(&self, instance: nvmlGpuInstance_t) -> Result<Vec<(u32, u32)>, NvmlError> {
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
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_one_compute_instance_over_all_of_it_makes_a_gpu_instance_whole() {
        assert_eq!(Compute::of(&[3], 3), Compute::Whole);
        assert_eq!(Compute::of(&[], 3), Compute::Parts(0));
        assert_eq!(Compute::of(&[1], 3), Compute::Parts(1));
        assert_eq!(Compute::of(&[1, 2], 3), Compute::Parts(2));
    }
}
