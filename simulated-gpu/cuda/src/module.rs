//! Modules: programs in a context.

use crate::driver::{Driver, Outcome, code, driver, put};
use crate::image::{self, Contents};
use crate::objects::{Function, Module};
use crate::static_data::{Placed, answer, asked};
use crate::{function, library};
use gpool_driver_abi::cuda::*;
use std::ffi::{c_char, c_int, c_uint, c_void};

fn load(driver: &Driver, contents: Contents) -> Outcome<usize> {
    let mut objects = driver.objects();
    let (context, _) = objects.current()?;
    let Contents { kernels, variables, programs, static_bytes } = contents;
    let data = Placed::new(driver, &mut objects, context, variables.iter(), static_bytes)?;
    let handle = objects.new_handle();
    objects.modules.insert(handle, Module { context, kernels, programs, data });
    Ok(handle)
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuModuleLoadData(module: *mut CUmodule, image: *const c_void) -> CUresult {
    code(|| {
        let driver = driver()?;
        if module.is_null() {
            return Err(CUDA_ERROR_INVALID_VALUE);
        }
        // SAFETY: an image, and not NULL and valid, as the API demands of its caller.
        unsafe { put(module, load(driver, image::read(image)?)? as CUmodule) }
    })
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuModuleLoad(module: *mut CUmodule, path: *const c_char) -> CUresult {
    code(|| {
        let driver = driver()?;
        if module.is_null() {
            return Err(CUDA_ERROR_INVALID_VALUE);
        }
        // SAFETY: NULL or a text that ends with a zero, and not NULL and valid, as the API demands of its caller.
        unsafe { put(module, load(driver, image::read_file(path)?)? as CUmodule) }
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
        objects.functions.retain(|_, function| function.module != module as usize);
        gone.data.remove(driver, &mut objects)
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
        if function.is_null() {
            return Err(CUDA_ERROR_INVALID_VALUE);
        }
        // SAFETY: NULL or a text that ends with a zero, as the API demands of its caller.
        let name = unsafe { asked(name) }?;
        let module = module as usize;
        let mut objects = driver.objects();
        let found = objects.modules.get(&module).ok_or(CUDA_ERROR_INVALID_HANDLE)?;
        if !found.kernels.iter().any(|kernel| kernel == name) {
            return Err(CUDA_ERROR_NOT_FOUND);
        }
        let program = found.programs.get(name).cloned();
        let handle = objects.new_handle();
        objects.functions.insert(handle, Function { module, spins: function::spins(name), program });
        // SAFETY: not NULL, and valid as the API demands of its caller.
        unsafe { put(function, handle as CUfunction) }
    })
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuModuleGetGlobal_v2(
    address: *mut CUdeviceptr,
    bytes: *mut usize,
    module: CUmodule,
    name: *const c_char,
) -> CUresult {
    code(|| {
        let driver = driver()?;
        // SAFETY: NULL or a text that ends with a zero, as the API demands of its caller.
        let name = unsafe { asked(name) }?;
        let objects = driver.objects();
        let module = objects.modules.get(&(module as usize)).ok_or(CUDA_ERROR_INVALID_HANDLE)?;
        // SAFETY: NULL or valid, as the API demands of its caller.
        unsafe { answer(module.data.find(name)?, address, bytes) }
    })
}

/// Only libraries are loaded late here.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuModuleGetLoadingMode(mode: *mut c_int) -> CUresult {
    code(|| {
        driver()?;
        let found = if library::are_lazy() { CU_MODULE_LAZY_LOADING } else { CU_MODULE_EAGER_LOADING };
        // SAFETY: NULL or valid, as the API demands of its caller.
        unsafe { put(mode, found) }
    })
}
