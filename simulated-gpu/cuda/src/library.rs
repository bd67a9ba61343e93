//! Libraries: programs that belong to no context. Their kernels run in whichever context is current.

use crate::driver::{code, driver, put};
use crate::image;
use crate::objects::Objects;
use gpool_driver_abi::cuda::*;
use std::collections::HashMap;
use std::ffi::{CStr, c_char, c_int, c_uint, c_void};

/// A kernel of a library. Its handle is a function's as well, since functions here know nothing of contexts.
pub(crate) struct Kernel {
    /// The handle of its library.
    library: usize,
    /// Ends with a zero, for whoever asks for it.
    pub(crate) name: std::ffi::CString,
}

/// All libraries of this process and their kernels, by their handles.
#[derive(Default)]
pub(crate) struct Libraries {
    /// The handles of each library's kernels.
    libraries: HashMap<usize, Vec<usize>>,
    pub(crate) kernels: HashMap<usize, Kernel>,
}

impl Libraries {
    fn of(&self, library: CUlibrary) -> Result<&[usize], CUresult> {
        self.libraries.get(&(library as usize)).map(Vec::as_slice).ok_or(CUDA_ERROR_INVALID_HANDLE)
    }
}

fn load(objects: &mut Objects, names: Vec<String>) -> usize {
    let library = objects.new_handle();
    let mut kernels = Vec::new();
    for name in names {
        let handle = objects.new_handle();
        // A name comes from a text that ends with a zero.
        let name = std::ffi::CString::new(name).unwrap_or_default();
        objects.libraries.kernels.insert(handle, Kernel { library, name });
        kernels.push(handle);
    }
    objects.libraries.libraries.insert(library, kernels);
    library
}

/// Options of the compiler and of the library are accepted and make no difference.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuLibraryLoadData(
    library: *mut CUlibrary,
    image: *const c_void,
    _compiler_options: *mut c_int,
    _compiler_values: *mut *mut c_void,
    _compiler_count: c_uint,
    _options: *mut c_int,
    _values: *mut *mut c_void,
    _count: c_uint,
) -> CUresult {
    code(|| {
        let driver = driver()?;
        if library.is_null() {
            return Err(CUDA_ERROR_INVALID_VALUE);
        }
        // SAFETY: an image, as the API demands of its caller.
        let names = unsafe { image::read(image) }?.kernels;
        let handle = load(&mut driver.objects(), names);
        // SAFETY: not NULL, and valid as the API demands of its caller.
        unsafe { put(library, handle as CUlibrary) }
    })
}

#[unsafe(no_mangle)]
pub extern "C" fn cuLibraryUnload(library: CUlibrary) -> CUresult {
    code(|| {
        let driver = driver()?;
        let libraries = &mut driver.objects().libraries;
        libraries.libraries.remove(&(library as usize)).ok_or(CUDA_ERROR_INVALID_HANDLE)?;
        libraries.kernels.retain(|_, kernel| kernel.library != library as usize);
        Ok(())
    })
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
        let mut handles = libraries.of(library)?.iter();
        let is_wanted = |handle: &&usize| libraries.kernels.get(handle).is_some_and(|kernel| *kernel.name == *name);
        let found = *handles.find(is_wanted).ok_or(CUDA_ERROR_NOT_FOUND)?;
        // SAFETY: NULL or valid, as the API demands of its caller.
        unsafe { put(kernel, found as CUkernel) }
    })
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuLibraryGetKernelCount(count: *mut c_uint, library: CUlibrary) -> CUresult {
    code(|| {
        let number = driver()?.objects().libraries.of(library)?.len() as c_uint;
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
        for (index, handle) in driver.objects().libraries.of(library)?.iter().take(room as usize).enumerate() {
            // SAFETY: not NULL, and valid for `room` elements, as the API demands of its caller.
            unsafe { kernels.add(index).write(*handle as CUkernel) };
        }
        Ok(())
    })
}

/// The kernel itself, for the context that is current.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuKernelGetFunction(function: *mut CUfunction, kernel: CUkernel) -> CUresult {
    code(|| {
        let driver = driver()?;
        let objects = driver.objects();
        objects.current()?;
        if !objects.libraries.kernels.contains_key(&(kernel as usize)) {
            return Err(CUDA_ERROR_INVALID_HANDLE);
        }
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
