//! Who has a context on the device, as NVIDIA's kernel driver shows it: the processes of the caller's PID namespace, under
//! the pids that they have there. On the host these are all.

use crate::library::{Outcome, code, look};
use crate::target::{Target, look_at_instance, minor, parts, target};
use gpool_driver_abi::nvml::*;
use gpool_simulated_hardware::model::Device;
use gpool_simulated_hardware::{Layout, visible_pids};
use std::ffi::c_uint;

/// A process with a context.
#[derive(Clone, Copy)]
pub(crate) struct Present {
    /// In the caller's PID namespace.
    pub(crate) pid: u32,
    pub(crate) bytes: u64,
    gpu_instance: Option<u32>,
}

impl Present {
    /// The GPU instance and the compute instance that it is in, as NVML writes them.
    pub(crate) fn instances(self) -> (c_uint, c_uint) {
        self.gpu_instance.map_or((NVML_INSTANCE_NOT_AVAILABLE, NVML_INSTANCE_NOT_AVAILABLE), |id| (id, 0))
    }
}

/// Each process with a context on this device, in the caller's PID namespace; of a divided GPU, in all its instances.
pub(crate) fn present(device: nvmlDevice_t) -> Outcome<Vec<Present>> {
    let mut all: Vec<(u32, u64, Option<u32>)> = Vec::new();
    let instances = match target(device)? {
        Target::Mig(instance) => vec![instance],
        Target::Gpu(minor) => {
            let processes = look(minor, Device::processes)?;
            all.extend(processes.into_iter().map(|(pid, bytes)| (pid, bytes, None)));
            parts(minor)?.unwrap_or_default()
        }
    };
    for instance in instances {
        let processes = look_at_instance(instance, Device::processes)?;
        all.extend(processes.into_iter().map(|(pid, bytes)| (pid, bytes, Some(instance.id))));
    }
    if all.is_empty() {
        return Ok(Vec::new());
    }
    let pids = visible_pids(&Layout::default()).map_err(|_| NVML_ERROR_UNKNOWN)?;
    let seen = |(pid, bytes, gpu_instance)| Some(Present { pid: *pids.get(&pid)?, bytes, gpu_instance });
    Ok(all.into_iter().filter_map(seen).collect())
}

/// Fills the caller's array: INSUFFICIENT_SIZE with the number needed if it is too short or missing.
///
/// # Safety
///
/// `count` is NULL or valid, and `list` is NULL or valid for `*count` elements.
unsafe fn fill<T>(device: nvmlDevice_t, count: *mut c_uint, list: *mut T, describe: fn(Present) -> T) -> Outcome {
    target(device)?;
    if count.is_null() {
        return Err(NVML_ERROR_INVALID_ARGUMENT);
    }
    let processes = present(device)?;
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

fn described(process: Present) -> nvmlProcessInfo_v2_t {
    let (gpuInstanceId, computeInstanceId) = process.instances();
    nvmlProcessInfo_v2_t { pid: process.pid, usedGpuMemory: process.bytes, gpuInstanceId, computeInstanceId }
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
    code(|| unsafe {
        fill(device, count, list, |process| nvmlProcessInfo_v1_t { pid: process.pid, usedGpuMemory: process.bytes })
    })
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
