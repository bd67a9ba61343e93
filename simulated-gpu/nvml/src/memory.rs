//! How much memory is held.

use crate::device::minor;
use crate::library::{code, look, put};
use gpool_driver_abi::nvml::*;

#[unsafe(no_mangle)]
pub unsafe extern "C" fn nvmlDeviceGetMemoryInfo(device: nvmlDevice_t, memory: *mut nvmlMemory_t) -> nvmlReturn_t {
    code(|| {
        let found = look(minor(device)?, |device| nvmlMemory_t {
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
        let minor = minor(device)?;
        if memory.is_null() {
            return Err(NVML_ERROR_INVALID_ARGUMENT);
        }
        // SAFETY: not NULL, and valid as the API demands of its caller.
        if unsafe { (*memory).version } != NVML_MEMORY_V2 {
            return Err(NVML_ERROR_ARGUMENT_VERSION_MISMATCH);
        }
        let found = look(minor, |device| nvmlMemory_v2_t {
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
