//! How busy devices are, and with whose work. NVML says nothing of either for a GPU with MIG.

use crate::library::{code, look, put};
use crate::target::whole;
use gpool_driver_abi::nvml::*;
use gpool_simulated_hardware::model::ProcessSample;
use gpool_simulated_hardware::{means_since, wall_clock_offset_ns};
use std::ffi::{c_uint, c_ulonglong};

/// Busy time in the last whole window of a sixth of a second. Memory traffic is not simulated.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn nvmlDeviceGetUtilizationRates(
    device: nvmlDevice_t,
    utilization: *mut nvmlUtilization_t,
) -> nvmlReturn_t {
    code(|| {
        let permille = look(whole(device)?, |device| device.meter().recent_busy_permille())?;
        // SAFETY: NULL or valid, as the API demands of its caller.
        unsafe { put(utilization, nvmlUtilization_t { gpu: permille.div_ceil(10), memory: 0 }) }
    })
}

/// How busy each process, under its pid on the host, has kept the device since `last_seen_us`, in the last ten seconds at most.
/// NOT_FOUND if none has, and INSUFFICIENT_SIZE with the number needed if the array is
/// too short or missing.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn nvmlDeviceGetProcessUtilization(
    device: nvmlDevice_t,
    list: *mut nvmlProcessUtilizationSample_t,
    count: *mut c_uint,
    last_seen_us: c_ulonglong,
) -> nvmlReturn_t {
    code(|| {
        if count.is_null() {
            return Err(NVML_ERROR_INVALID_ARGUMENT);
        }
        let newer = look(whole(device)?, |device| means_since(device.meter(), wall_clock_offset_ns(), last_seen_us))?;
        // SAFETY: not NULL, and valid as the API demands of its caller.
        let room = unsafe { count.replace(newer.len() as c_uint) };
        if newer.is_empty() {
            return Err(NVML_ERROR_NOT_FOUND);
        }
        if list.is_null() || (room as usize) < newer.len() {
            return Err(NVML_ERROR_INSUFFICIENT_SIZE);
        }
        for (index, sample) in newer.into_iter().enumerate() {
            // SAFETY: `list` is not NULL and `index` is below the number of elements that the caller gave.
            unsafe { list.add(index).write(described(sample)) };
        }
        Ok(())
    })
}

/// Memory traffic, encoder and decoder are not simulated.
fn described((sample, time_us): (ProcessSample, u64)) -> nvmlProcessUtilizationSample_t {
    nvmlProcessUtilizationSample_t {
        pid: sample.process,
        timeStamp: time_us,
        smUtil: sample.percent,
        memUtil: 0,
        encUtil: 0,
        decUtil: 0,
    }
}
