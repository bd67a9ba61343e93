//! Memory of the lease instead of the device's.

use crate::entry::{index, real};
use crate::lease::lease_on;
use gpool_driver_abi::nvml::{nvmlDevice_t, nvmlMemory_t, nvmlMemory_v2_t, nvmlReturn_t};

/// (used, total) of the lease on `device`.
fn memory_bytes(device: nvmlDevice_t) -> Option<(u64, u64)> {
    lease_on(device).map(|(view, gpu)| view.memory_bytes(gpu))
}

/// Memory of the lease instead of the device's.
///
/// # Safety
/// As the NVML function of this name.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn nvmlDeviceGetMemoryInfo(device: nvmlDevice_t, memory: *mut nvmlMemory_t) -> nvmlReturn_t {
    type Function = unsafe extern "C" fn(nvmlDevice_t, *mut nvmlMemory_t) -> nvmlReturn_t;
    // SAFETY: the type is this entry point's; the arguments are the caller's.
    let result = unsafe { real::<Function>(index::nvmlDeviceGetMemoryInfo)(device, memory) };
    if result == 0
        && let Some((used, total)) = memory_bytes(device)
    {
        // SAFETY: the real function succeeded, so `memory` is valid.
        unsafe {
            (*memory).total = total;
            (*memory).used = used;
            (*memory).free = total - used;
        }
    }
    result
}

/// Memory of the lease instead of the device's, with the driver's reserve shown as none.
///
/// # Safety
/// As the NVML function of this name.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn nvmlDeviceGetMemoryInfo_v2(
    device: nvmlDevice_t,
    memory: *mut nvmlMemory_v2_t,
) -> nvmlReturn_t {
    type Function = unsafe extern "C" fn(nvmlDevice_t, *mut nvmlMemory_v2_t) -> nvmlReturn_t;
    // SAFETY: the type is this entry point's; the arguments are the caller's.
    let result = unsafe { real::<Function>(index::nvmlDeviceGetMemoryInfo_v2)(device, memory) };
    if result == 0
        && let Some((used, total)) = memory_bytes(device)
    {
        // SAFETY: the real function succeeded, so `memory` is valid.
        unsafe {
            (*memory).total = total;
            (*memory).reserved = 0;
            (*memory).used = used;
            (*memory).free = total - used;
        }
    }
    result
}
