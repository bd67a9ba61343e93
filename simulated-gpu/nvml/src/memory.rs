//! How much memory is held.

use crate::library::{Outcome, code, look, put};
use crate::target::{Target, look_at_instance, parts, target};
use gpool_driver_abi::nvml::*;
use gpool_simulated_hardware::model::Device;

/// All memory that can be had, what the driver keeps beside it, and what is held; of a divided GPU, in all its instances.
fn held(target: Target) -> Outcome<(u64, u64, u64)> {
    let of = |device: &Device| {
        let own = device.parameters();
        (own.memory_bytes, own.reserved_bytes, device.memory_used())
    };
    let minor = match target {
        Target::Mig(instance) => return look_at_instance(instance, of),
        Target::Gpu(minor) => minor,
    };
    let (usable, reserved, mut used) = look(minor, of)?;
    for part in parts(minor)?.unwrap_or_default() {
        used += look_at_instance(part, of)?.2;
    }
    Ok((usable, reserved, used.min(usable)))
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn nvmlDeviceGetMemoryInfo(device: nvmlDevice_t, memory: *mut nvmlMemory_t) -> nvmlReturn_t {
    code(|| {
        let (usable, reserved, used) = held(target(device)?)?;
        // What is reserved is in use here (nvml.h, nvmlMemory_t).
        let found = nvmlMemory_t { total: usable + reserved, free: usable - used, used: used + reserved };
        // SAFETY: NULL or valid, as the API demands of its caller.
        unsafe { put(memory, found) }
    })
}

/// `used` is without `reserved` here (nvml.h, nvmlMemory_v2_t).
#[unsafe(no_mangle)]
#[inline(never)]
pub unsafe extern "C" fn nvmlDeviceGetMemoryInfo_v2(
    device: nvmlDevice_t,
    memory: *mut nvmlMemory_v2_t,
) -> nvmlReturn_t {
    code(|| {
        let target = target(device)?;
        if memory.is_null() {
            return Err(NVML_ERROR_INVALID_ARGUMENT);
        }
        // SAFETY: not NULL, and valid as the API demands of its caller.
        if unsafe { (*memory).version } != NVML_MEMORY_V2 {
            return Err(NVML_ERROR_ARGUMENT_VERSION_MISMATCH);
        }
        let (usable, reserved, used) = held(target)?;
        let (total, free) = (usable + reserved, usable - used);
        let found = nvmlMemory_v2_t { version: NVML_MEMORY_V2, total, reserved, free, used };
        // SAFETY: as above.
        unsafe { put(memory, found) }
    })
}
