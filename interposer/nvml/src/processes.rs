//! Who uses the device, and how much: the lease's own processes, under the pids that they have in the container, and
//! utilisation as a part of what the lease is entitled to.

use crate::entry::{index, real};
use crate::lease::lease_on;
use core::ffi::{c_uint, c_ulonglong};
use gpool_driver_abi::nvml::{
    NVML_ERROR_INSUFFICIENT_SIZE, NVML_ERROR_INVALID_ARGUMENT, NVML_ERROR_NOT_FOUND, NVML_INSTANCE_NOT_AVAILABLE,
    NVML_SUCCESS, NvmlDeviceGetProcessUtilization, NvmlDeviceGetUtilizationRates, nvmlDevice_t, nvmlProcessInfo_v1_t,
    nvmlProcessInfo_v2_t, nvmlProcessUtilizationSample_t, nvmlReturn_t, nvmlUtilization_t,
};
use gpool_interposer_logic::RegionView;
use gpool_interposer_logic::view::Member;

/// Fills the caller's array with the members that `describe` gives something for.
///
/// # Safety
/// `count` is NULL or valid, and `list` is NULL or valid for `*count` elements.
unsafe fn fill<T>(
    (view, gpu): (&RegionView, usize),
    count: *mut c_uint,
    list: *mut T,
    describe: impl Fn(Member) -> Option<T>,
) -> nvmlReturn_t {
    if count.is_null() {
        return NVML_ERROR_INVALID_ARGUMENT;
    }
    // SAFETY: not NULL.
    let room = if list.is_null() { 0 } else { unsafe { *count } };
    let mut found = 0;
    view.each_member(gpu, |member| {
        let Some(described) = describe(member) else { return };
        if found < room {
            // SAFETY: below the number of elements that the caller gave.
            unsafe { list.add(found as usize).write(described) };
        }
        found += 1;
    });
    // SAFETY: not NULL.
    unsafe { *count = found };
    if found > room { NVML_ERROR_INSUFFICIENT_SIZE } else { NVML_SUCCESS }
}

/// Whether the real function, asked with no room for an answer, has nothing to say against the device.
fn is_answered(result: nvmlReturn_t) -> bool {
    [NVML_SUCCESS, NVML_ERROR_INSUFFICIENT_SIZE, NVML_ERROR_NOT_FOUND].contains(&result)
}

/// Answers a version of nvmlDeviceGetComputeRunningProcesses, which is entry point `name` and lists `T`s.
unsafe fn compute_processes<T>(
    name: usize,
    (device, count, list): (nvmlDevice_t, *mut c_uint, *mut T),
    describe: impl Fn(Member) -> T,
) -> nvmlReturn_t {
    type Function<T> = unsafe extern "C" fn(nvmlDevice_t, *mut c_uint, *mut T) -> nvmlReturn_t;
    let Some(lease) = lease_on(device) else {
        // SAFETY: this entry point's type and the caller's arguments; so for all calls of `real` here.
        return unsafe { real::<Function<T>>(name)(device, count, list) };
    };
    let mut none = 0;
    // SAFETY: as above, with room for nothing.
    let result = unsafe { real::<Function<T>>(name)(device, &mut none, core::ptr::null_mut()) };
    if !is_answered(result) {
        return result;
    }
    // SAFETY: the same contract.
    unsafe { fill(lease, count, list, |member| Some(describe(member))) }
}

fn described_v1(member: Member) -> nvmlProcessInfo_v1_t {
    nvmlProcessInfo_v1_t { pid: member.process_id, usedGpuMemory: member.bytes }
}

/// Versions 2 and 3 have the GPU instance and the compute instance that a process is in: those of `device` if it is a MIG
/// device.
fn described_v2(device: nvmlDevice_t) -> impl Fn(Member) -> nvmlProcessInfo_v2_t {
    let (gpuInstanceId, computeInstanceId) =
        (instance(index::nvmlDeviceGetGpuInstanceId, device), instance(index::nvmlDeviceGetComputeInstanceId, device));
    move |member| nvmlProcessInfo_v2_t {
        pid: member.process_id,
        usedGpuMemory: member.bytes,
        gpuInstanceId,
        computeInstanceId,
    }
}

/// What the entry point `name` says of a MIG device; of another device the number that stands for none.
fn instance(name: usize, device: nvmlDevice_t) -> c_uint {
    type Function = unsafe extern "C" fn(nvmlDevice_t, *mut c_uint) -> nvmlReturn_t;
    let mut id = NVML_INSTANCE_NOT_AVAILABLE;
    // SAFETY: both entry points are of this type, and `id` is a valid place.
    match unsafe { real::<Function>(name)(device, &mut id) } {
        NVML_SUCCESS => id,
        _ => NVML_INSTANCE_NOT_AVAILABLE,
    }
}

/// The lease's processes with a context on the device.
///
/// # Safety
/// As the NVML function of this name; so for all functions here.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn nvmlDeviceGetComputeRunningProcesses(
    device: nvmlDevice_t,
    count: *mut c_uint,
    list: *mut nvmlProcessInfo_v1_t,
) -> nvmlReturn_t {
    let name = index::nvmlDeviceGetComputeRunningProcesses;
    // SAFETY: the same contract; so below.
    unsafe { compute_processes(name, (device, count, list), described_v1) }
}

/// The lease's processes with a context on the device.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn nvmlDeviceGetComputeRunningProcesses_v2(
    device: nvmlDevice_t,
    count: *mut c_uint,
    list: *mut nvmlProcessInfo_v2_t,
) -> nvmlReturn_t {
    let name = index::nvmlDeviceGetComputeRunningProcesses_v2;
    // SAFETY: the same contract.
    unsafe { compute_processes(name, (device, count, list), described_v2(device)) }
}

/// The lease's processes with a context on the device.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn nvmlDeviceGetComputeRunningProcesses_v3(
    device: nvmlDevice_t,
    count: *mut c_uint,
    list: *mut nvmlProcessInfo_v2_t,
) -> nvmlReturn_t {
    let name = index::nvmlDeviceGetComputeRunningProcesses_v3;
    // SAFETY: the same contract.
    unsafe { compute_processes(name, (device, count, list), described_v2(device)) }
}

/// One sample of each of the lease's busy processes, taken now.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn nvmlDeviceGetProcessUtilization(
    device: nvmlDevice_t,
    list: *mut nvmlProcessUtilizationSample_t,
    count: *mut c_uint,
    last_seen_us: c_ulonglong,
) -> nvmlReturn_t {
    type Function = NvmlDeviceGetProcessUtilization;
    let name = index::nvmlDeviceGetProcessUtilization;
    let Some(lease) = lease_on(device) else {
        // SAFETY: see above.
        return unsafe { real::<Function>(name)(device, list, count, last_seen_us) };
    };
    let mut none = 0;
    // SAFETY: see above.
    let result = unsafe { real::<Function>(name)(device, core::ptr::null_mut(), &mut none, 0) };
    if !is_answered(result) {
        return result;
    }
    let now_us = wall_clock_us();
    let describe = |member: Member| {
        let sample = nvmlProcessUtilizationSample_t {
            pid: member.process_id,
            timeStamp: now_us,
            smUtil: member.percent,
            ..nvmlProcessUtilizationSample_t::default()
        };
        (member.percent > 0 && now_us > last_seen_us).then_some(sample)
    };
    // SAFETY: the same contract.
    match unsafe { fill(lease, count, list, describe) } {
        // SAFETY: `fill` has written to it.
        NVML_SUCCESS if unsafe { *count } == 0 => NVML_ERROR_NOT_FOUND,
        other => other,
    }
}

/// How busy the lease keeps its part of the device: 100 % when it has all that it is entitled to. Memory traffic is the
/// device's, of which the lease's can be no more than its kernels' time.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn nvmlDeviceGetUtilizationRates(
    device: nvmlDevice_t,
    utilization: *mut nvmlUtilization_t,
) -> nvmlReturn_t {
    let name = index::nvmlDeviceGetUtilizationRates;
    // SAFETY: see above.
    let result = unsafe { real::<NvmlDeviceGetUtilizationRates>(name)(device, utilization) };
    if result == NVML_SUCCESS
        && let Some((view, gpu)) = lease_on(device)
    {
        let percent = view.percent(gpu);
        // SAFETY: the real function succeeded, so it is valid.
        unsafe {
            (*utilization).gpu = percent;
            (*utilization).memory = (*utilization).memory.min(percent);
        }
    }
    result
}

/// Microseconds of CLOCK_REALTIME, the clock of NVML's samples.
fn wall_clock_us() -> u64 {
    let mut time = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: a valid place for the answer; the call cannot fail for this clock.
    unsafe { libc::clock_gettime(libc::CLOCK_REALTIME, &mut time) };
    time.tv_sec as u64 * 1_000_000 + time.tv_nsec as u64 / 1000
}
