//! Modules: the names of the kernels in a PTX text.

use crate::device::THREADS_PER_BLOCK;
use crate::driver::{Outcome, code, driver, put};
use crate::objects::{Function, Module};
use gpool_driver_abi::cuda::*;
use std::ffi::{CStr, c_char, c_int, c_uint, c_void};

/// Kernels whose name starts like this take their GPU time in nanoseconds as their first parameter, a u64.
const SPIN_PREFIX: &str = "spin_ns";

/// First byte of binary images: ELF (cubin), and the two kinds of fat binary. No PTX text starts with one.
const BINARY_STARTS: [u8; 3] = [0x7f, 0x50, 0xb1];

/// Names of the kernels in a PTX text: what follows `.entry`.
fn kernels(text: &str) -> Outcome<Vec<String>> {
    if !text.contains(".version") || !text.contains(".target") {
        return Err(CUDA_ERROR_INVALID_PTX);
    }
    let name = |rest: &str| -> String {
        let legal = |letter: &char| letter.is_ascii_alphanumeric() || matches!(letter, '_' | '$' | '%');
        rest.trim_start().chars().take_while(legal).collect()
    };
    Ok(text.split(".entry").skip(1).map(name).filter(|name| !name.is_empty()).collect())
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuModuleLoadData(module: *mut CUmodule, image: *const c_void) -> CUresult {
    code(|| {
        let driver = driver()?;
        if module.is_null() || image.is_null() {
            return Err(CUDA_ERROR_INVALID_VALUE);
        }
        // SAFETY: neither an image nor a text is empty: even the shortest text has its zero.
        let first = unsafe { image.cast::<u8>().read() };
        if BINARY_STARTS.contains(&first) {
            return Err(CUDA_ERROR_NO_BINARY_FOR_GPU);
        }
        // SAFETY: not a binary, so a text that ends with a zero, as the API demands of its caller.
        let text = unsafe { CStr::from_ptr(image.cast()) }.to_str().map_err(|_| CUDA_ERROR_INVALID_PTX)?;
        let kernels = kernels(text)?;
        let mut objects = driver.objects();
        let (context, _) = objects.current()?;
        let handle = objects.new_handle();
        objects.modules.insert(handle, Module { context, kernels });
        // SAFETY: not NULL, and valid as the API demands of its caller.
        unsafe { put(module, handle as CUmodule) }
    })
}

/// Options of the compiler are accepted and make no difference.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuModuleLoadDataEx(
    module: *mut CUmodule,
    image: *const c_void,
    _count: c_uint,
    _options: *mut c_int,
    _values: *mut *mut c_void,
) -> CUresult {
    // SAFETY: the same contract.
    unsafe { cuModuleLoadData(module, image) }
}

#[unsafe(no_mangle)]
pub extern "C" fn cuModuleUnload(module: CUmodule) -> CUresult {
    code(|| {
        let driver = driver()?;
        let mut objects = driver.objects();
        objects.modules.remove(&(module as usize)).ok_or(CUDA_ERROR_INVALID_HANDLE)?;
        objects.functions.retain(|_, function| function.module != module as usize);
        Ok(())
    })
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuModuleGetFunction(
    function: *mut CUfunction,
    module: CUmodule,
    name: *const c_char,
) -> CUresult {
    code(|| {
        let driver = driver()?;
        if function.is_null() || name.is_null() {
            return Err(CUDA_ERROR_INVALID_VALUE);
        }
        // SAFETY: a text that ends with a zero, as the API demands of its caller.
        let name = unsafe { CStr::from_ptr(name) }.to_str().map_err(|_| CUDA_ERROR_NOT_FOUND)?;
        let module = module as usize;
        let mut objects = driver.objects();
        let found = objects.modules.get(&module).ok_or(CUDA_ERROR_INVALID_HANDLE)?;
        if !found.kernels.iter().any(|kernel| kernel == name) {
            return Err(CUDA_ERROR_NOT_FOUND);
        }
        let handle = objects.new_handle();
        objects.functions.insert(handle, Function { module, spins: name.starts_with(SPIN_PREFIX) });
        // SAFETY: not NULL, and valid as the API demands of its caller.
        unsafe { put(function, handle as CUfunction) }
    })
}

/// Plausible attributes: 0 is CU_FUNC_ATTRIBUTE_MAX_THREADS_PER_BLOCK, 4 is NUM_REGS, 5 and 6 are versions.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuFuncGetAttribute(value: *mut c_int, attribute: c_int, function: CUfunction) -> CUresult {
    code(|| {
        let driver = driver()?;
        if !driver.objects().functions.contains_key(&(function as usize)) {
            return Err(CUDA_ERROR_INVALID_HANDLE);
        }
        let found = match attribute {
            0 => THREADS_PER_BLOCK as c_int,
            4 => 32,
            5 | 6 => 80,
            _ => 0,
        };
        // SAFETY: NULL or valid, as the API demands of its caller.
        unsafe { put(value, found) }
    })
}
