//! MIG devices: what a program sees of instances.

use crate::library::{code, look, put, put_text};
use crate::target::{Instance, Target, handle, look_at, look_at_instance, mig, minor, target, usable};
use gpool_driver_abi::nvml::*;
use gpool_simulated_hardware::model::Device;
use std::ffi::{c_char, c_uint};

/// The instance that a MIG device's handle stands for; another device has none.
fn instance(device: nvmlDevice_t) -> Result<Instance, nvmlReturn_t> {
    match target(device)? {
        Target::Mig(instance) => Ok(instance),
        Target::Gpu(_) => Err(NVML_ERROR_INVALID_ARGUMENT),
    }
}

fn board(device: nvmlDevice_t) -> Result<u32, nvmlReturn_t> {
    let minor = minor(device)?;
    match look(minor, |device| device.parameters().mig_model().is_some())? {
        true => Ok(minor),
        false => Err(NVML_ERROR_NOT_SUPPORTED),
    }
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn nvmlDeviceGetMigMode(
    device: nvmlDevice_t,
    current: *mut c_uint,
    pending: *mut c_uint,
) -> nvmlReturn_t {
    code(|| {
        let mig = mig(board(device)?)?;
        // SAFETY: NULL or valid, as the API demands of its caller.
        unsafe {
            put(current, mig.is_on.into())?;
            put(pending, mig.is_pending.into())
        }
    })
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn nvmlDeviceGetMaxMigDeviceCount(device: nvmlDevice_t, count: *mut c_uint) -> nvmlReturn_t {
    code(|| {
        let slices = look(minor(device)?, |device| device.parameters().mig_model().map(|model| model.compute_slices))?;
        // SAFETY: NULL or valid, as the API demands of its caller.
        unsafe { put(count, slices.unwrap_or(0).into()) }
    })
}

/// Those that this process may use, by their numbers.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn nvmlDeviceGetMigDeviceHandleByIndex(
    device: nvmlDevice_t,
    index: c_uint,
    place: *mut nvmlDevice_t,
) -> nvmlReturn_t {
    code(|| {
        let minor = board(device)?;
        if !mig(minor)?.is_on {
            return Err(NVML_ERROR_NOT_SUPPORTED);
        }
        let found = *usable(minor)?.get(index as usize).ok_or(NVML_ERROR_NOT_FOUND)?;
        // SAFETY: NULL or valid, as the API demands of its caller.
        unsafe { put(place, found.device()) }
    })
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn nvmlDeviceIsMigDeviceHandle(device: nvmlDevice_t, answer: *mut c_uint) -> nvmlReturn_t {
    code(|| {
        let is_instance = matches!(target(device)?, Target::Mig(_));
        // SAFETY: NULL or valid, as the API demands of its caller.
        unsafe { put(answer, is_instance.into()) }
    })
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn nvmlDeviceGetDeviceHandleFromMigDeviceHandle(
    device: nvmlDevice_t,
    place: *mut nvmlDevice_t,
) -> nvmlReturn_t {
    // SAFETY: NULL or valid, as the API demands of its caller.
    code(|| instance(device).and_then(|instance| unsafe { put(place, handle(instance.minor)) }))
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn nvmlDeviceGetGpuInstanceId(device: nvmlDevice_t, id: *mut c_uint) -> nvmlReturn_t {
    // SAFETY: NULL or valid, as the API demands of its caller.
    code(|| instance(device).and_then(|instance| unsafe { put(id, instance.id) }))
}

/// There is one to a GPU instance.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn nvmlDeviceGetComputeInstanceId(device: nvmlDevice_t, id: *mut c_uint) -> nvmlReturn_t {
    // SAFETY: NULL or valid, as the API demands of its caller.
    code(|| instance(device).and_then(|_| unsafe { put(id, 0) }))
}

/// Engines for copies and video are not simulated.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn nvmlDeviceGetAttributes_v2(
    device: nvmlDevice_t,
    place: *mut nvmlDeviceAttributes_t,
) -> nvmlReturn_t {
    code(|| {
        let found = look_at_instance(instance(device)?, |device: &Device| {
            let parameters = device.parameters();
            let slices = parameters.compute.0.into();
            nvmlDeviceAttributes_t {
                multiprocessorCount: parameters.multiprocessors,
                gpuInstanceSliceCount: slices,
                computeInstanceSliceCount: slices,
                memorySizeMB: parameters.memory_bytes >> 20,
                ..nvmlDeviceAttributes_t::default()
            }
        })?;
        // SAFETY: NULL or valid, as the API demands of its caller.
        unsafe { put(place, found) }
    })
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn nvmlDeviceGetUUID(device: nvmlDevice_t, uuid: *mut c_char, length: c_uint) -> nvmlReturn_t {
    code(|| {
        let text = look_at(device, |device| device.parameters().uuid.clone())?;
        // SAFETY: NULL or valid for `length` bytes, as the API demands of its caller.
        unsafe { put_text(uuid, length, &text) }
    })
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn nvmlDeviceGetName(device: nvmlDevice_t, name: *mut c_char, length: c_uint) -> nvmlReturn_t {
    code(|| {
        let text = look_at(device, |device| device.parameters().name.clone())?;
        // SAFETY: NULL or valid for `length` bytes, as the API demands of its caller.
        unsafe { put_text(name, length, &text) }
    })
}
