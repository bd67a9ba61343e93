//! How much memory is held.

use crate::library::{Outcome, code, look, put};
use crate::target::{Target, look_at_instance, parts, target};
use gpool_driver_abi::nvml::*;
use gpool_simulated_hardware::model::Device;

/// All memory, and what is held of it; of a divided GPU, in all its instances.
fn held(target: Target) -> Outcome<(u64, u64)> {
    let of = |device: &Device| (device.parameters().memory_bytes, device.memory_used());
    let minor = match target {
        Target::Mig(instance) => return look_at_instance(instance, of),
        Target::Gpu(minor) => minor,
    };
    let (total, mut used) = look(minor, of)?;
    for part in parts(minor)?.unwrap_or_default() {
        used += look_at_instance(part, of)?.1;
    }
    Ok((total, used.min(total)))
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn nvmlDeviceGetMemoryInfo(device: nvmlDevice_t, memory: *mut nvmlMemory_t) -> nvmlReturn_t {
    code(|| {
        let (total, used) = held(target(device)?)?;
        let found = nvmlMemory_t { total, free: total - used, used };
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
        let target = target(device)?;
        if memory.is_null() {
            return Err(NVML_ERROR_INVALID_ARGUMENT);
        }
        // SAFETY: not NULL, and valid as the API demands of its caller.
        if unsafe { (*memory).version } != NVML_MEMORY_V2 {
            return Err(NVML_ERROR_ARGUMENT_VERSION_MISMATCH);
        }
        let (total, used) = held(target)?;
        let found = nvmlMemory_v2_t { version: NVML_MEMORY_V2, total, reserved: 0, free: total - used, used };
        // SAFETY: as above.
        unsafe { put(memory, found) }
    })
}
