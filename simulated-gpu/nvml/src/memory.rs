//! How much memory is held, and how busy the device is.

use crate::device::check;
use crate::library::{code, look, put};
use gpool_driver_abi::nvml::*;

#[unsafe(no_mangle)]
pub unsafe extern "C" fn nvmlDeviceGetMemoryInfo(device: nvmlDevice_t, memory: *mut nvmlMemory_t) -> nvmlReturn_t {
    code(|| {
        check(device)?;
        let found = look(|device| nvmlMemory_t {
            total: device.parameters().memory_bytes,
            free: device.memory_free(),
            used: device.memory_used(),
        })?;
        // SAFETY: NULL or valid, as the API demands of its caller.
        unsafe { put(memory, found) }
    })
}

/// The simulated driver keeps nothing for itself, so `reserved` is 0.
#[unsafe(no_mangle)]
#[inline(never)]
pub unsafe extern "C" fn nvmlDeviceGetMemoryInfo_v2(
    device: nvmlDevice_t,
    memory: *mut nvmlMemory_v2_t,
) -> nvmlReturn_t {
    code(|| {
        check(device)?;
        if memory.is_null() {
            return Err(NVML_ERROR_INVALID_ARGUMENT);
        }
        // SAFETY: not NULL, and valid as the API demands of its caller.
        if unsafe { (*memory).version } != NVML_MEMORY_V2 {
            return Err(NVML_ERROR_ARGUMENT_VERSION_MISMATCH);
        }
        let found = look(|device| nvmlMemory_v2_t {
            version: NVML_MEMORY_V2,
            total: device.parameters().memory_bytes,
            reserved: 0,
            free: device.memory_free(),
            used: device.memory_used(),
        })?;
        // SAFETY: as above.
        unsafe { put(memory, found) }
    })
}

/// Busy time in the last whole second of CLOCK_MONOTONIC. Memory traffic is not simulated.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn nvmlDeviceGetUtilizationRates(
    device: nvmlDevice_t,
    utilization: *mut nvmlUtilization_t,
) -> nvmlReturn_t {
    code(|| {
        check(device)?;
        let permille = look(|device| device.meter().recent_busy_permille())?;
        // SAFETY: NULL or valid, as the API demands of its caller.
        unsafe { put(utilization, nvmlUtilization_t { gpu: permille.div_ceil(10), memory: 0 }) }
    })
}
