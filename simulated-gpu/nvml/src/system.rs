//! Versions, and names of processes.

use crate::library::{Outcome, code, initialised, put, put_text};
use gpool_driver_abi::nvml::*;
use gpool_simulated_hardware::{DriverVersion, Layout};
use std::ffi::{c_char, c_int, c_uint};

fn driver_version() -> Outcome<DriverVersion> {
    DriverVersion::read(&Layout::default()).map_err(|_| NVML_ERROR_UNKNOWN)
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn nvmlSystemGetDriverVersion(version: *mut c_char, length: c_uint) -> nvmlReturn_t {
    code(|| {
        initialised()?;
        // SAFETY: NULL or valid for `length` bytes, as the API demands of its caller.
        unsafe { put_text(version, length, &driver_version()?.to_string()) }
    })
}

/// The major version of NVML's interface, which is CUDA's, and the driver's.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn nvmlSystemGetNVMLVersion(version: *mut c_char, length: c_uint) -> nvmlReturn_t {
    code(|| {
        let driver = driver_version()?;
        // SAFETY: NULL or valid for `length` bytes, as the API demands of its caller.
        unsafe { put_text(version, length, &format!("{}.{driver}", driver.cuda() / 1000)) }
    })
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn nvmlSystemGetCudaDriverVersion(version: *mut c_int) -> nvmlReturn_t {
    code(|| {
        let driver = driver_version()?;
        // SAFETY: NULL or valid, as the API demands of its caller.
        unsafe { put(version, driver.cuda()) }
    })
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn nvmlSystemGetCudaDriverVersion_v2(version: *mut c_int) -> nvmlReturn_t {
    // SAFETY: the same contract.
    unsafe { nvmlSystemGetCudaDriverVersion(version) }
}

/// What a process was started as. None if this process's /proc does not show it.
pub(crate) fn process_name(pid: u32) -> Option<String> {
    let command = std::fs::read(format!("/proc/{pid}/cmdline")).ok()?;
    let first = command.split(|byte| *byte == 0).next().filter(|name| !name.is_empty())?;
    Some(String::from_utf8_lossy(first).into_owned())
}

/// Of a process that has the caller's PID namespace. Cut short if the buffer is.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn nvmlSystemGetProcessName(pid: c_uint, name: *mut c_char, length: c_uint) -> nvmlReturn_t {
    code(|| {
        initialised()?;
        if length == 0 {
            return Err(NVML_ERROR_INVALID_ARGUMENT);
        }
        let mut text = process_name(pid).ok_or(NVML_ERROR_NOT_FOUND)?;
        while text.len() >= length as usize {
            text.pop();
        }
        // SAFETY: NULL or valid for `length` bytes, as the API demands of its caller.
        unsafe { put_text(name, length, &text) }
    })
}
