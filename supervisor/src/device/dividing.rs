//! Dividing a board through NVML. Sources as in [`super::gpu_instances`].

use super::gpu_instances::{Compute, GpuInstance};
use super::inventory::NvmlInventory;
use super::mig::Board;
use nvml_wrapper::error::{NvmlError, nvml_sym, nvml_try};
use nvml_wrapper_sys::bindings::{nvmlGpuInstance_t, nvmlGpuInstancePlacement_t};

impl NvmlInventory {
    /// Turns MIG on or off; of a board that is so already, takes back what is pending.
    ///
    /// # Errors
    /// NVML's words; also if it has to wait, for a reset or for whoever uses the board. It stays pending then.
    pub fn set_mig(&self, index: u32, is_on: bool) -> Result<(), String> {
        let word = if is_on { "on" } else { "off" };
        let told = |cause: String| format!("MIG cannot be turned {word}: {cause}");
        let device = self.nvml().device_by_index(index).map_err(|cause| told(cause.to_string()))?;
        let activation = device.set_mig_mode(is_on).map_err(|cause| told(cause.to_string()))?;
        let now = self.mig_mode(index).map_err(|cause| told(cause.to_string()))?;
        match (now.is_on == is_on, now.is_pending == is_on) {
            (true, true) => Ok(()),
            (false, _) => {
                Err(told(format!("it waits for a reset of the GPU, or for a process that uses it ({activation})")))
            }
            (true, false) => Err(told(format!("the change that is pending cannot be taken back ({activation})"))),
        }
    }

    /// Takes a GPU instance away.
    ///
    /// # Errors
    /// NVML's words, and which instance.
    pub fn destroy_instance(&self, board: &Board, instance: &GpuInstance) -> Result<(), String> {
        let device = self.nvml().device_by_index(board.index).map_err(|cause| cause.to_string())?;
        let destroyed = self.by_id(&device, instance.id).and_then(|handle| self.destroy(handle));
        destroyed.map_err(|cause| format!("an instance of {} stays: {cause}", instance.profile))
    }

    /// Takes a GPU instance away, its compute instances first.
    fn destroy(&self, instance: nvmlGpuInstance_t) -> Result<(), NvmlError> {
        let lib = self.nvml().lib();
        let destroy_compute = nvml_sym(lib.nvmlComputeInstanceDestroy.as_ref())?;
        for (compute, _) in self.compute_instances(instance)? {
            // SAFETY: the handle is one that the library has just given.
            unsafe { nvml_try(destroy_compute(compute))? };
        }
        let destroy = nvml_sym(lib.nvmlGpuInstanceDestroy.as_ref())?;
        // SAFETY: as above.
        unsafe { nvml_try(destroy(instance)) }
    }

    /// Makes a GPU instance at a start, with one compute instance over all of it or with none.
    ///
    /// # Errors
    /// NVML's words, and which instance; one that was divided further, which gpool does not do.
    pub fn create_instance(
        &self,
        board: &Board,
        profile: &str,
        placement: (u8, u8),
        compute: Compute,
    ) -> Result<(), String> {
        let told = |cause: String| format!("{profile} at {} cannot be made: {cause}", placement.0);
        let id = board.profile_id(profile).ok_or_else(|| told("there is no such profile".to_owned()))?;
        match compute {
            Compute::Whole => self.create(board, id, placement).and_then(|made| self.create_compute(made)),
            Compute::Parts(0) => self.create(board, id, placement).map(drop),
            Compute::Parts(count) => return Err(told(format!("its {count} compute instance(s) were somebody else's"))),
        }
        .map_err(|cause| told(cause.to_string()))
    }

    fn create(&self, board: &Board, id: u32, (start, size): (u8, u8)) -> Result<nvmlGpuInstance_t, NvmlError> {
        let (lib, device) = (self.nvml().lib(), self.nvml().device_by_index(board.index)?);
        let create = nvml_sym(lib.nvmlDeviceCreateGpuInstanceWithPlacement.as_ref())?;
        let placement = nvmlGpuInstancePlacement_t { start: start.into(), size: size.into() };
        let mut made = std::ptr::null_mut();
        // SAFETY: the handle is the library's own, and both places are live.
        unsafe { nvml_try(create(device.handle(), id, &placement, &mut made))? };
        Ok(made)
    }

    /// Makes the compute instance over all of a GPU instance.
    fn create_compute(&self, instance: nvmlGpuInstance_t) -> Result<(), NvmlError> {
        let create = nvml_sym(self.nvml().lib().nvmlGpuInstanceCreateComputeInstance.as_ref())?;
        let largest = self.compute_profiles(instance)?.into_iter().max_by_key(|(_, slices)| *slices);
        let ((id, _), mut made) = (largest.ok_or(NvmlError::NotSupported)?, std::ptr::null_mut());
        // SAFETY: the handle is one that the library has given, and the place is live.
        unsafe { nvml_try(create(instance, id, &mut made)) }
    }
}
