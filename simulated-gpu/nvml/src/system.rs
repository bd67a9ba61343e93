//! Versions.

use crate::library::{code, initialised, put, put_text};
use gpool_driver_abi::nvml::*;
use std::ffi::{c_char, c_int, c_uint};

#[unsafe(no_mangle)]
pub unsafe extern "C" fn nvmlSystemGetDriverVersion(version: *mut c_char, length: c_uint) -> nvmlReturn_t {
    // SAFETY: NULL or valid for `length` bytes, as the API demands of its caller.
    code(|| initialised().and_then(|()| unsafe { put_text(version, length, "535.000.00-simulated") }))
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn nvmlSystemGetNVMLVersion(version: *mut c_char, length: c_uint) -> nvmlReturn_t {
    // SAFETY: NULL or valid for `length` bytes, as the API demands of its caller.
    code(|| unsafe { put_text(version, length, "12.535.000.00-simulated") })
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn nvmlSystemGetCudaDriverVersion(version: *mut c_int) -> nvmlReturn_t {
    // SAFETY: NULL or valid, as the API demands of its caller.
    code(|| unsafe { put(version, 12020) })
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn nvmlSystemGetCudaDriverVersion_v2(version: *mut c_int) -> nvmlReturn_t {
    // SAFETY: the same contract.
    unsafe { nvmlSystemGetCudaDriverVersion(version) }
}
