//! Kernels of libraries. They run in whichever context is current.

use crate::driver::{code, driver, put};
use crate::library;
use gpool_driver_abi::cuda::*;
use std::ffi::{CStr, CString, c_char, c_uint};

/// A kernel of a library. Its handle is a function's as well, since functions here know nothing of contexts.
pub(crate) struct Kernel {
    /// The handle of its library.
    pub(crate) library: usize,
    /// Ends with a zero, for whoever asks for it.
    pub(crate) name: CString,
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuLibraryGetKernel(
    kernel: *mut CUkernel,
    library: CUlibrary,
    name: *const c_char,
) -> CUresult {
    code(|| {
        let driver = driver()?;
        if name.is_null() {
            return Err(CUDA_ERROR_INVALID_VALUE);
        }
        // SAFETY: a text that ends with a zero, as the API demands of its caller.
        let name = unsafe { CStr::from_ptr(name) };
        let libraries = &driver.objects().libraries;
        let mut handles = libraries.kernels_of(library)?.iter();
        let is_wanted = |handle: &&usize| libraries.kernels.get(handle).is_some_and(|kernel| *kernel.name == *name);
        let found = *handles.find(is_wanted).ok_or(CUDA_ERROR_NOT_FOUND)?;
        // SAFETY: NULL or valid, as the API demands of its caller.
        unsafe { put(kernel, found as CUkernel) }
    })
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuLibraryGetKernelCount(count: *mut c_uint, library: CUlibrary) -> CUresult {
    code(|| {
        let number = driver()?.objects().libraries.kernels_of(library)?.len() as c_uint;
        // SAFETY: NULL or valid, as the API demands of its caller.
        unsafe { put(count, number) }
    })
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuLibraryEnumerateKernels(
    kernels: *mut CUkernel,
    room: c_uint,
    library: CUlibrary,
) -> CUresult {
    code(|| {
        let driver = driver()?;
        if kernels.is_null() {
            return Err(CUDA_ERROR_INVALID_VALUE);
        }
        let objects = driver.objects();
        for (index, handle) in objects.libraries.kernels_of(library)?.iter().take(room as usize).enumerate() {
            // SAFETY: not NULL, and valid for `room` elements, as the API demands of its caller.
            unsafe { kernels.add(index).write(*handle as CUkernel) };
        }
        Ok(())
    })
}

/// The kernel itself, for the context that is current, which loads its library.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuKernelGetFunction(function: *mut CUfunction, kernel: CUkernel) -> CUresult {
    code(|| {
        let driver = driver()?;
        let mut objects = driver.objects();
        let (context, _) = objects.current()?;
        let library = objects.libraries.kernels.get(&(kernel as usize)).ok_or(CUDA_ERROR_INVALID_HANDLE)?.library;
        library::load_into(driver, &mut objects, library, context)?;
        // SAFETY: NULL or valid, as the API demands of its caller.
        unsafe { put(function, kernel) }
    })
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuKernelGetLibrary(library: *mut CUlibrary, kernel: CUkernel) -> CUresult {
    code(|| {
        let driver = driver()?;
        let found = driver.objects().libraries.kernels.get(&(kernel as usize)).map(|kernel| kernel.library);
        // SAFETY: NULL or valid, as the API demands of its caller.
        unsafe { put(library, found.ok_or(CUDA_ERROR_INVALID_HANDLE)? as CUlibrary) }
    })
}

/// The text lives as long as the library.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuKernelGetName(name: *mut *const c_char, kernel: CUkernel) -> CUresult {
    code(|| {
        let driver = driver()?;
        let objects = driver.objects();
        let found = objects.libraries.kernels.get(&(kernel as usize)).ok_or(CUDA_ERROR_INVALID_HANDLE)?;
        // SAFETY: NULL or valid, as the API demands of its caller.
        unsafe { put(name, found.name.as_ptr()) }
    })
}
