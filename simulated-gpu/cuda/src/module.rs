//! Modules: programs in a context.

use crate::driver::{code, driver, put};
use crate::image::Contents;
use crate::objects::{Function, Module};
use crate::{function, image, static_data};
use gpool_driver_abi::cuda::*;
use std::ffi::{CStr, c_char, c_int, c_uint, c_void};

#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuModuleLoadData(module: *mut CUmodule, image: *const c_void) -> CUresult {
    code(|| {
        let driver = driver()?;
        if module.is_null() {
            return Err(CUDA_ERROR_INVALID_VALUE);
        }
        // SAFETY: an image, as the API demands of its caller.
        let Contents { kernels, static_bytes } = unsafe { image::read(image) }?;
        let mut objects = driver.objects();
        let (context, found) = objects.current()?;
        static_data::take(driver, found.place, static_bytes)?;
        let handle = objects.new_handle();
        objects.modules.insert(handle, Module { context, kernels, static_bytes });
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
        let gone = objects.modules.remove(&(module as usize)).ok_or(CUDA_ERROR_INVALID_HANDLE)?;
        if let Some(context) = objects.contexts.get(&gone.context) {
            static_data::give_back(driver, context.place, gone.static_bytes)?;
        }
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
        objects.functions.insert(handle, Function { module, spins: function::spins(name) });
        // SAFETY: not NULL, and valid as the API demands of its caller.
        unsafe { put(function, handle as CUfunction) }
    })
}
