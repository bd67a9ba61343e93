//! Who has a context on the device, as NVIDIA's kernel driver shows it: the processes of the caller's PID namespace, under
//! the pids that they have there. On the host these are all.

use crate::device::minor;
use crate::library::{Outcome, code, look};
use gpool_driver_abi::nvml::*;
use gpool_simulated_hardware::{Layout, visible_pids};
use std::ffi::c_uint;

/// Pid and bytes of each process with a context on this device, in the caller's PID namespace.
pub(crate) fn present(minor: u32) -> Outcome<Vec<(u32, u64)>> {
    let all = look(minor, gpool_simulated_hardware::model::Device::processes)?;
    if all.is_empty() {
        return Ok(all);
    }
    let pids = visible_pids(&Layout::default()).map_err(|_| NVML_ERROR_UNKNOWN)?;
    Ok(all.into_iter().filter_map(|(host_pid, bytes)| Some((*pids.get(&host_pid)?, bytes))).collect())
}

/// Fills the caller's array: INSUFFICIENT_SIZE with the number needed if it is too short or missing.
///
/// # Safety
///
/// `count` is NULL or valid, and `list` is NULL or valid for `*count` elements.
unsafe fn fill<T>(device: nvmlDevice_t, count: *mut c_uint, list: *mut T, describe: fn((u32, u64)) -> T) -> Outcome {
    let minor = minor(device)?;
    if count.is_null() {
        return Err(NVML_ERROR_INVALID_ARGUMENT);
    }
    let processes = present(minor)?;
    // SAFETY: not NULL, and so valid as this function's caller promises.
    let room = unsafe { count.replace(processes.len() as c_uint) };
    if processes.is_empty() {
        return Ok(());
    }
    if list.is_null() || (room as usize) < processes.len() {
        return Err(NVML_ERROR_INSUFFICIENT_SIZE);
    }
    for (index, process) in processes.into_iter().enumerate() {
        // SAFETY: `list` is not NULL and `index` is below the number of elements that the caller gave.
        unsafe { list.add(index).write(describe(process)) };
    }
    Ok(())
}

fn described((pid, bytes): (u32, u64)) -> nvmlProcessInfo_v2_t {
    nvmlProcessInfo_v2_t {
        pid,
        usedGpuMemory: bytes,
        gpuInstanceId: NVML_INSTANCE_NOT_AVAILABLE,
        computeInstanceId: NVML_INSTANCE_NOT_AVAILABLE,
    }
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn nvmlDeviceGetComputeRunningProcesses_v3(
    device: nvmlDevice_t,
    count: *mut c_uint,
    list: *mut nvmlProcessInfo_v2_t,
) -> nvmlReturn_t {
    // SAFETY: the same contract.
    code(|| unsafe { fill(device, count, list, described) })
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn nvmlDeviceGetComputeRunningProcesses_v2(
    device: nvmlDevice_t,
    count: *mut c_uint,
    list: *mut nvmlProcessInfo_v2_t,
) -> nvmlReturn_t {
    // SAFETY: the same contract.
    code(|| unsafe { fill(device, count, list, described) })
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn nvmlDeviceGetComputeRunningProcesses(
    device: nvmlDevice_t,
    count: *mut c_uint,
    list: *mut nvmlProcessInfo_v1_t,
) -> nvmlReturn_t {
    // SAFETY: the same contract.
    code(|| unsafe { fill(device, count, list, |(pid, usedGpuMemory)| nvmlProcessInfo_v1_t { pid, usedGpuMemory }) })
}

/// Nothing draws on a simulated device.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn nvmlDeviceGetGraphicsRunningProcesses_v3(
    device: nvmlDevice_t,
    count: *mut c_uint,
    _list: *mut nvmlProcessInfo_v2_t,
) -> nvmlReturn_t {
    // SAFETY: NULL or valid, as the API demands of its caller.
    code(|| minor(device).and_then(|_| unsafe { crate::library::put(count, 0) }))
}
