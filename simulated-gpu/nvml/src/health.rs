//! What a device says of its health, as somebody has had it say. All of it is the board's: of a MIG device nothing is told, as
//! with NVIDIA's.
//!
//! Source of each signature and of what is supported: nvml.h, at the function of this name.

use crate::library::{Outcome, code, look, on_the_bus, put};
use crate::target::{mig, minor};
use gpool_driver_abi::nvml::*;
use gpool_simulated_hardware::{Health, Layout};
use std::ffi::{c_uint, c_ulonglong};

/// What is said of the device that a handle stands for.
fn said(device: nvmlDevice_t) -> Outcome<Health> {
    let minor = minor(device)?;
    on_the_bus(minor)?;
    let health = Health::read(&Layout::default(), minor);
    if health.unsupported { Err(NVML_ERROR_NOT_SUPPORTED) } else { Ok(health) }
}

/// On a board with MIG instances the number of rows is not supported.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn nvmlDeviceGetRemappedRows(
    device: nvmlDevice_t,
    correctable: *mut c_uint,
    uncorrectable: *mut c_uint,
    is_pending: *mut c_uint,
    has_failed: *mut c_uint,
) -> nvmlReturn_t {
    code(|| {
        let health = said(device)?;
        let mig = mig(minor(device)?)?;
        if mig.is_on && !mig.instances.is_empty() {
            return Err(NVML_ERROR_NOT_SUPPORTED);
        }
        // SAFETY: each is NULL or valid, as the API demands of its caller.
        unsafe {
            put(correctable, health.correctable_rows)?;
            put(uncorrectable, health.uncorrectable_rows)?;
            put(is_pending, health.remap_pending.into())?;
            put(has_failed, health.remap_failure.into())
        }
    })
}

/// None were ever corrected; of the others the volatile and the aggregate counter are the same.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn nvmlDeviceGetTotalEccErrors(
    device: nvmlDevice_t,
    error: nvmlMemoryErrorType_t,
    counter: nvmlEccCounterType_t,
    count: *mut c_ulonglong,
) -> nvmlReturn_t {
    code(|| {
        let health = said(device)?;
        let errors = match (error, counter) {
            (NVML_MEMORY_ERROR_TYPE_CORRECTED, NVML_VOLATILE_ECC | NVML_AGGREGATE_ECC) => 0,
            (NVML_MEMORY_ERROR_TYPE_UNCORRECTED, NVML_VOLATILE_ECC | NVML_AGGREGATE_ECC) => health.uncorrected_errors,
            _ => return Err(NVML_ERROR_INVALID_ARGUMENT),
        };
        // SAFETY: NULL or valid, as the API demands of its caller.
        unsafe { put(count, errors) }
    })
}

/// Its first name; since the driver's branch 535 it is also called `nvmlDeviceGetCurrentClocksEventReasons`.
#[unsafe(no_mangle)]
#[inline(never)]
pub unsafe extern "C" fn nvmlDeviceGetCurrentClocksThrottleReasons(
    device: nvmlDevice_t,
    reasons: *mut c_ulonglong,
) -> nvmlReturn_t {
    // SAFETY: NULL or valid, as the API demands of its caller.
    code(|| said(device).and_then(|health| unsafe { put(reasons, health.clock_reasons) }))
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn nvmlDeviceGetCurrentClocksEventReasons(
    device: nvmlDevice_t,
    reasons: *mut c_ulonglong,
) -> nvmlReturn_t {
    // SAFETY: the same contract.
    unsafe { nvmlDeviceGetCurrentClocksThrottleReasons(device, reasons) }
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn nvmlDeviceGetPcieReplayCounter(device: nvmlDevice_t, count: *mut c_uint) -> nvmlReturn_t {
    // SAFETY: NULL or valid, as the API demands of its caller.
    code(|| said(device).and_then(|health| unsafe { put(count, health.pcie_replays) }))
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn nvmlDeviceGetCurrPcieLinkWidth(device: nvmlDevice_t, lanes: *mut c_uint) -> nvmlReturn_t {
    // SAFETY: NULL or valid, as the API demands of its caller.
    code(|| said(device).and_then(|health| unsafe { put(lanes, health.pcie_lanes) }))
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn nvmlDeviceGetMaxPcieLinkWidth(device: nvmlDevice_t, lanes: *mut c_uint) -> nvmlReturn_t {
    // SAFETY: NULL or valid, as the API demands of its caller.
    code(|| said(device).and_then(|_| unsafe { put(lanes, Health::PCIE_LANES) }))
}

/// There is one sensor.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn nvmlDeviceGetTemperature(
    device: nvmlDevice_t,
    sensor: nvmlTemperatureSensors_t,
    celsius: *mut c_uint,
) -> nvmlReturn_t {
    code(|| {
        let health = said(device)?;
        if sensor != NVML_TEMPERATURE_GPU {
            return Err(NVML_ERROR_INVALID_ARGUMENT);
        }
        // SAFETY: NULL or valid, as the API demands of its caller.
        unsafe { put(celsius, health.celsius) }
    })
}

/// What the board has drawn since it was made, millijoules.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn nvmlDeviceGetTotalEnergyConsumption(
    device: nvmlDevice_t,
    millijoules: *mut c_ulonglong,
) -> nvmlReturn_t {
    code(|| {
        let minor = minor(device)?;
        said(device)?;
        let drawn = look(minor, |device| device.meter().energy_millijoules())?;
        // SAFETY: NULL or valid, as the API demands of its caller.
        unsafe { put(millijoules, drawn) }
    })
}
