//! Devices and what they are.

use crate::library::{Outcome, code, initialised, look, put, put_text, visible};
use gpool_driver_abi::nvml::*;
use std::ffi::{CStr, c_char, c_uint};

/// The handle of the one device.
const DEVICE: usize = 0x5000_0000;

/// Fails unless the handle is the device's.
pub(crate) fn check(device: nvmlDevice_t) -> Outcome {
    initialised()?;
    if device as usize == DEVICE { Ok(()) } else { Err(NVML_ERROR_INVALID_ARGUMENT) }
}

#[unsafe(no_mangle)]
#[inline(never)]
pub unsafe extern "C" fn nvmlDeviceGetCount_v2(count: *mut c_uint) -> nvmlReturn_t {
    // SAFETY: NULL or valid, as the API demands of its caller.
    code(|| initialised().and_then(|()| unsafe { put(count, c_uint::from(visible())) }))
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn nvmlDeviceGetCount(count: *mut c_uint) -> nvmlReturn_t {
    // SAFETY: the same contract.
    unsafe { nvmlDeviceGetCount_v2(count) }
}

#[unsafe(no_mangle)]
#[inline(never)]
pub unsafe extern "C" fn nvmlDeviceGetHandleByIndex_v2(index: c_uint, device: *mut nvmlDevice_t) -> nvmlReturn_t {
    code(|| {
        initialised()?;
        if index != 0 || !visible() {
            return Err(NVML_ERROR_INVALID_ARGUMENT);
        }
        // SAFETY: NULL or valid, as the API demands of its caller.
        unsafe { put(device, DEVICE as nvmlDevice_t) }
    })
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn nvmlDeviceGetHandleByIndex(index: c_uint, device: *mut nvmlDevice_t) -> nvmlReturn_t {
    // SAFETY: the same contract.
    unsafe { nvmlDeviceGetHandleByIndex_v2(index, device) }
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn nvmlDeviceGetHandleByUUID(uuid: *const c_char, device: *mut nvmlDevice_t) -> nvmlReturn_t {
    code(|| {
        if uuid.is_null() {
            return Err(NVML_ERROR_INVALID_ARGUMENT);
        }
        // SAFETY: a text that ends with a zero, as the API demands of its caller.
        let wanted = unsafe { CStr::from_ptr(uuid) };
        if !look(|device| device.parameters().uuid.as_bytes() == wanted.to_bytes())? || !visible() {
            return Err(NVML_ERROR_NOT_FOUND);
        }
        // SAFETY: NULL or valid, as the API demands of its caller.
        unsafe { put(device, DEVICE as nvmlDevice_t) }
    })
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn nvmlDeviceGetIndex(device: nvmlDevice_t, index: *mut c_uint) -> nvmlReturn_t {
    // SAFETY: NULL or valid, as the API demands of its caller.
    code(|| check(device).and_then(|()| unsafe { put(index, 0) }))
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn nvmlDeviceGetMinorNumber(device: nvmlDevice_t, minor: *mut c_uint) -> nvmlReturn_t {
    // SAFETY: NULL or valid, as the API demands of its caller.
    code(|| check(device).and_then(|()| unsafe { put(minor, 0) }))
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn nvmlDeviceGetUUID(device: nvmlDevice_t, uuid: *mut c_char, length: c_uint) -> nvmlReturn_t {
    code(|| {
        check(device)?;
        let text = look(|device| device.parameters().uuid.clone())?;
        // SAFETY: NULL or valid for `length` bytes, as the API demands of its caller.
        unsafe { put_text(uuid, length, &text) }
    })
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn nvmlDeviceGetName(device: nvmlDevice_t, name: *mut c_char, length: c_uint) -> nvmlReturn_t {
    code(|| {
        check(device)?;
        let text = look(|device| device.parameters().name.clone())?;
        // SAFETY: NULL or valid for `length` bytes, as the API demands of its caller.
        unsafe { put_text(name, length, &text) }
    })
}

/// Bus 1, device 0, as libcuda's attributes say.
#[unsafe(no_mangle)]
#[inline(never)]
pub unsafe extern "C" fn nvmlDeviceGetPciInfo_v3(device: nvmlDevice_t, place: *mut nvmlPciInfo_t) -> nvmlReturn_t {
    code(|| {
        check(device)?;
        let mut found = nvmlPciInfo_t {
            busIdLegacy: [0; 16],
            domain: 0,
            bus: 1,
            device: 0,
            pciDeviceId: 0x0000_10de,
            pciSubSystemId: 0x0000_10de,
            busId: [0; 32],
        };
        // SAFETY: both arrays are longer than their text.
        unsafe {
            put_text(found.busIdLegacy.as_mut_ptr(), 16, "0000:01:00.0")?;
            put_text(found.busId.as_mut_ptr(), 32, "00000000:01:00.0")?;
        }
        // SAFETY: NULL or valid, as the API demands of its caller.
        unsafe { put(place, found) }
    })
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn nvmlDeviceGetComputeMode(device: nvmlDevice_t, mode: *mut nvmlComputeMode_t) -> nvmlReturn_t {
    // SAFETY: NULL or valid, as the API demands of its caller.
    code(|| check(device).and_then(|()| unsafe { put(mode, NVML_COMPUTEMODE_DEFAULT) }))
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn nvmlDeviceGetPersistenceMode(
    device: nvmlDevice_t,
    mode: *mut nvmlEnableState_t,
) -> nvmlReturn_t {
    // SAFETY: NULL or valid, as the API demands of its caller.
    code(|| check(device).and_then(|()| unsafe { put(mode, NVML_FEATURE_ENABLED) }))
}
