//! Devices. Their ordinals count what this process sees.

use crate::driver::{Outcome, code_at_once, driver, put};
use gpool_driver_abi::cuda::*;
use std::ffi::{c_char, c_int};

/// Streaming multiprocessors that kernels without a time of their own are reckoned with, each with room for
/// [`THREADS_PER_MULTIPROCESSOR`]; a board says how many it has itself.
pub(crate) const MULTIPROCESSORS: u32 = 80;
pub(crate) const THREADS_PER_MULTIPROCESSOR: u32 = 2048;
pub(crate) const THREADS_PER_BLOCK: u32 = 1024;

#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuDeviceGetCount(count: *mut c_int) -> CUresult {
    code_at_once(|| {
        let driver = driver()?;
        // SAFETY: NULL or valid, as the API demands of its caller.
        unsafe { put(count, driver.gpu_count() as c_int) }
    })
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuDeviceGet(device: *mut CUdevice, ordinal: c_int) -> CUresult {
    code_at_once(|| {
        driver()?.gpu(ordinal)?;
        // SAFETY: NULL or valid, as the API demands of its caller.
        unsafe { put(device, ordinal) }
    })
}

/// Writes a text and its zero, cut short if there is no room for all of it.
///
/// # Safety
///
/// `place` is NULL or valid for writes of `length` bytes.
unsafe fn put_text(place: *mut c_char, length: c_int, text: &str) -> Outcome {
    let room = usize::try_from(length).unwrap_or(0);
    if place.is_null() || room == 0 {
        return Err(CUDA_ERROR_INVALID_VALUE);
    }
    let length = text.len().min(room - 1);
    // SAFETY: the caller gives room for `room` bytes, and at most that many are written.
    unsafe {
        place.cast::<u8>().copy_from_nonoverlapping(text.as_ptr(), length);
        place.add(length).write(0);
    }
    Ok(())
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuDeviceGetName(name: *mut c_char, length: c_int, device: CUdevice) -> CUresult {
    // SAFETY: the same contract.
    code_at_once(|| unsafe { put_text(name, length, &driver()?.gpu(device)?.parameters.name) })
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuDeviceGetUuid(uuid: *mut CUuuid, device: CUdevice) -> CUresult {
    code_at_once(|| {
        let gpu = driver()?.gpu(device)?;
        let text = gpu.parameters.uuid.trim_start_matches("GPU-").trim_start_matches("MIG-").replace('-', "");
        let number = u128::from_str_radix(&text, 16).map_err(|_| CUDA_ERROR_UNKNOWN)?;
        // SAFETY: NULL or valid, as the API demands of its caller.
        unsafe { put(uuid, CUuuid { bytes: number.to_be_bytes() }) }
    })
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuDeviceGetUuid_v2(uuid: *mut CUuuid, device: CUdevice) -> CUresult {
    // SAFETY: the same contract.
    unsafe { cuDeviceGetUuid(uuid, device) }
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuDeviceTotalMem_v2(bytes: *mut usize, device: CUdevice) -> CUresult {
    code_at_once(|| {
        let gpu = driver()?.gpu(device)?;
        // SAFETY: NULL or valid, as the API demands of its caller.
        unsafe { put(bytes, gpu.parameters.memory_bytes as usize) }
    })
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuDeviceGetAttribute(
    value: *mut c_int,
    attribute: CUdeviceAttribute,
    device: CUdevice,
) -> CUresult {
    code_at_once(|| {
        let gpu = driver()?.gpu(device)?;
        let found = match attribute {
            CU_DEVICE_ATTRIBUTE_PCI_BUS_ID => gpu.parameters.pci_bus as c_int,
            CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT => gpu.parameters.multiprocessors as c_int,
            other => attribute_value(other),
        };
        // SAFETY: NULL or valid, as the API demands of its caller.
        unsafe { put(value, found) }
    })
}

/// What all devices have in common: values of a plausible device of compute capability 8.0. What is not listed is 0:
/// absent or off.
fn attribute_value(attribute: CUdeviceAttribute) -> c_int {
    match attribute {
        CU_DEVICE_ATTRIBUTE_MAX_THREADS_PER_BLOCK
        | CU_DEVICE_ATTRIBUTE_MAX_BLOCK_DIM_X
        | CU_DEVICE_ATTRIBUTE_MAX_BLOCK_DIM_Y => THREADS_PER_BLOCK as c_int,
        CU_DEVICE_ATTRIBUTE_MAX_BLOCK_DIM_Z => 64,
        CU_DEVICE_ATTRIBUTE_MAX_GRID_DIM_X | CU_DEVICE_ATTRIBUTE_MAX_PITCH => c_int::MAX,
        CU_DEVICE_ATTRIBUTE_MAX_GRID_DIM_Y | CU_DEVICE_ATTRIBUTE_MAX_GRID_DIM_Z => 65_535,
        CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_BLOCK => 48 << 10,
        CU_DEVICE_ATTRIBUTE_TOTAL_CONSTANT_MEMORY
        | CU_DEVICE_ATTRIBUTE_MAX_REGISTERS_PER_BLOCK
        | CU_DEVICE_ATTRIBUTE_MAX_REGISTERS_PER_MULTIPROCESSOR => 64 << 10,
        CU_DEVICE_ATTRIBUTE_WARP_SIZE => 32,
        CU_DEVICE_ATTRIBUTE_CLOCK_RATE => 1_400_000,
        CU_DEVICE_ATTRIBUTE_MEMORY_CLOCK_RATE => 1_200_000,
        CU_DEVICE_ATTRIBUTE_TEXTURE_ALIGNMENT => 512,
        CU_DEVICE_ATTRIBUTE_GLOBAL_MEMORY_BUS_WIDTH => 4096,
        CU_DEVICE_ATTRIBUTE_L2_CACHE_SIZE => 32 << 20,
        CU_DEVICE_ATTRIBUTE_MAX_THREADS_PER_MULTIPROCESSOR => THREADS_PER_MULTIPROCESSOR as c_int,
        CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_MULTIPROCESSOR => 164 << 10,
        CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_BLOCK_OPTIN => 163 << 10,
        CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR => 8,
        CU_DEVICE_ATTRIBUTE_GPU_OVERLAP
        | CU_DEVICE_ATTRIBUTE_ASYNC_ENGINE_COUNT
        | CU_DEVICE_ATTRIBUTE_UNIFIED_ADDRESSING
        | CU_DEVICE_ATTRIBUTE_CAN_MAP_HOST_MEMORY
        | CU_DEVICE_ATTRIBUTE_STREAM_PRIORITIES_SUPPORTED
        | CU_DEVICE_ATTRIBUTE_MANAGED_MEMORY
        | CU_DEVICE_ATTRIBUTE_COMPUTE_PREEMPTION_SUPPORTED
        | CU_DEVICE_ATTRIBUTE_COOPERATIVE_LAUNCH
        | CU_DEVICE_ATTRIBUTE_MEMORY_POOLS_SUPPORTED => 1,
        _ => 0,
    }
}

/// The address on the bus with a domain of four digits, cut short if there is no room for it.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuDeviceGetPCIBusId(text: *mut c_char, length: c_int, device: CUdevice) -> CUresult {
    code_at_once(|| {
        let address = format!("0000:{:02X}:00.0", driver()?.gpu(device)?.parameters.pci_bus);
        // SAFETY: the same contract.
        unsafe { put_text(text, length, &address) }
    })
}
