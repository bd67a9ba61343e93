//! What is known of functions and kernels: plausible values of a compiled kernel without shared memory.

use crate::device::THREADS_PER_BLOCK;
use crate::driver::{Outcome, code, driver, put};
use crate::objects::Objects;
use gpool_driver_abi::cuda::*;
use std::collections::HashMap;
use std::ffi::c_int;

/// Kernels whose name starts like this take their GPU time in nanoseconds as their first parameter, a u64.
const SPIN_PREFIX: &str = "spin_ns";
/// Registers of each thread of any kernel.
pub(crate) const REGISTERS: u32 = 32;
/// A block's shared memory that needs no consent, in bytes.
const SHARED_BYTES: c_int = 48 << 10;

/// Whether a kernel's first parameter says how long it runs.
pub(crate) fn spins(name: &str) -> bool {
    name.starts_with(SPIN_PREFIX)
}

/// What programs have set, by function and attribute.
pub(crate) type Settings = HashMap<(usize, c_int), c_int>;

/// Fails unless the handle is a function's or a kernel's.
fn refuse_unknown(objects: &Objects, function: usize) -> Outcome {
    let is_known = objects.functions.contains_key(&function) || objects.libraries.kernels.contains_key(&function);
    if is_known { Ok(()) } else { Err(CUDA_ERROR_INVALID_HANDLE) }
}

fn attribute(objects: &Objects, attribute: c_int, function: usize) -> Outcome<c_int> {
    refuse_unknown(objects, function)?;
    if !(0..CU_FUNC_ATTRIBUTE_MAX).contains(&attribute) {
        return Err(CUDA_ERROR_INVALID_VALUE);
    }
    let usual = match attribute {
        CU_FUNC_ATTRIBUTE_MAX_THREADS_PER_BLOCK => THREADS_PER_BLOCK as c_int,
        CU_FUNC_ATTRIBUTE_NUM_REGS => REGISTERS as c_int,
        CU_FUNC_ATTRIBUTE_PTX_VERSION | CU_FUNC_ATTRIBUTE_BINARY_VERSION => 80,
        CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES => SHARED_BYTES,
        CU_FUNC_ATTRIBUTE_PREFERRED_SHARED_MEMORY_CARVEOUT => -1,
        _ => 0,
    };
    Ok(objects.settings.get(&(function, attribute)).copied().unwrap_or(usual))
}

/// Those from the maximum of dynamic shared memory on may be set; they make no difference.
fn set_attribute(objects: &mut Objects, attribute: c_int, function: usize, value: c_int) -> Outcome {
    refuse_unknown(objects, function)?;
    if !(CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES..CU_FUNC_ATTRIBUTE_MAX).contains(&attribute) {
        return Err(CUDA_ERROR_INVALID_VALUE);
    }
    objects.settings.insert((function, attribute), value);
    Ok(())
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuFuncGetAttribute(value: *mut c_int, asked: c_int, function: CUfunction) -> CUresult {
    code(|| {
        let found = attribute(&driver()?.objects(), asked, function as usize)?;
        // SAFETY: NULL or valid, as the API demands of its caller.
        unsafe { put(value, found) }
    })
}

#[unsafe(no_mangle)]
pub extern "C" fn cuFuncSetAttribute(function: CUfunction, named: c_int, value: c_int) -> CUresult {
    code(|| set_attribute(&mut driver()?.objects(), named, function as usize, value))
}

/// How on-chip memory is divided makes no difference.
#[unsafe(no_mangle)]
pub extern "C" fn cuFuncSetCacheConfig(function: CUfunction, _division: c_int) -> CUresult {
    code(|| refuse_unknown(&driver()?.objects(), function as usize))
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuKernelGetAttribute(
    value: *mut c_int,
    asked: c_int,
    kernel: CUkernel,
    device: CUdevice,
) -> CUresult {
    code(|| {
        let driver = driver()?;
        driver.gpu(device)?;
        let found = attribute(&driver.objects(), asked, kernel as usize)?;
        // SAFETY: NULL or valid, as the API demands of its caller.
        unsafe { put(value, found) }
    })
}

#[unsafe(no_mangle)]
pub extern "C" fn cuKernelSetAttribute(named: c_int, value: c_int, kernel: CUkernel, device: CUdevice) -> CUresult {
    code(|| {
        let driver = driver()?;
        driver.gpu(device)?;
        set_attribute(&mut driver.objects(), named, kernel as usize, value)
    })
}
