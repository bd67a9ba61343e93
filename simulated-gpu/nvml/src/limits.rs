//! Limits of the memory that the processes of a cgroup may have, which drivers from 615 on have.
//!
//! Source: nvml.h of CUDA 13.4 as the documentation of NVML and nvidia-ml-py 13.615 have it, and "MPS v3 memory partitioning"
//! (docs.nvidia.com/deploy/mps). Where nothing holds for a cgroup, what is told is no limit. `nvmlDeviceGetMemoryInfo_v2` of a
//! process within a limit is not narrowed here, as a driver's is.

use crate::library::{Outcome, code, look, stores};
use crate::target::minor;
use gpool_driver_abi::nvml::*;
use gpool_simulated_hardware::{Layout, LimitError, Limits, Store};
use std::ffi::{CStr, c_char};

fn with<T>(minor: u32, work: impl FnOnce(&Limits<'_>) -> Result<T, LimitError>) -> Outcome<T> {
    // Fails for a device that is lost.
    look(minor, |_| ())?;
    let (stores, layout) = (stores()?, Layout::default());
    let store: &Store = stores.get(minor as usize).ok_or(NVML_ERROR_INVALID_ARGUMENT)?;
    work(&Limits { layout: &layout, store }).map_err(|error| match error {
        LimitError::NoFunction => NVML_ERROR_FUNCTION_NOT_FOUND,
        LimitError::NotSupported => NVML_ERROR_NOT_SUPPORTED,
        LimitError::NotFound => NVML_ERROR_NOT_FOUND,
        LimitError::Failed => NVML_ERROR_UNKNOWN,
    })
}

/// # Safety
///
/// `name` is NULL or a C string.
unsafe fn directory(name: *const c_char) -> Outcome<String> {
    if name.is_null() {
        return Err(NVML_ERROR_INVALID_ARGUMENT);
    }
    // SAFETY: not NULL, and a C string as the caller promises.
    let name = unsafe { CStr::from_ptr(name) };
    name.to_str().map(str::to_owned).map_err(|_| NVML_ERROR_INVALID_ARGUMENT)
}

/// Only root may.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn nvmlDeviceSetMemoryLimits_v1(
    device: nvmlDevice_t,
    limits: *mut nvmlSetMemoryLimits_v1_t,
) -> nvmlReturn_t {
    code(|| {
        let minor = minor(device)?;
        // SAFETY: NULL or valid, as the API demands of its caller.
        let limits = unsafe { limits.as_ref() }.ok_or(NVML_ERROR_INVALID_ARGUMENT)?;
        // SAFETY: asks who this process is, and cannot fail.
        if unsafe { libc::geteuid() } != 0 {
            return Err(NVML_ERROR_NO_PERMISSION);
        }
        // SAFETY: as the API demands.
        let directory = unsafe { directory(limits.nameSpace) }?;
        let limit = Some((limits.softLimit, limits.hardLimit));
        let limit = limit.filter(|_| limits.hardLimit != NVML_DEVICE_MEMORY_LIMIT_MAX);
        if limits.softLimit > limits.hardLimit {
            return Err(NVML_ERROR_INVALID_ARGUMENT);
        }
        with(minor, |all| all.set(&directory, limit))
    })
}

/// Anybody may.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn nvmlDeviceGetMemoryLimits_v1(
    device: nvmlDevice_t,
    limits: *mut nvmlGetMemoryLimits_v1_t,
) -> nvmlReturn_t {
    code(|| {
        let minor = minor(device)?;
        // SAFETY: NULL or valid, as the API demands of its caller, who is told nothing before all is known.
        let limits = unsafe { limits.as_mut() }.ok_or(NVML_ERROR_INVALID_ARGUMENT)?;
        // SAFETY: as the API demands.
        let directory = unsafe { directory(limits.nameSpace) }?;
        let found = with(minor, |all| all.get(&directory))?;
        limits.softLimit = found.map_or(0, |limit| limit.soft_bytes);
        limits.hardLimit = found.map_or(NVML_DEVICE_MEMORY_LIMIT_MAX, |limit| limit.hard_bytes);
        limits.currentUsed = found.map_or(0, |limit| limit.used_bytes);
        Ok(())
    })
}
