//! Libraries: programs that belong to no context. Each context loads one when it needs it first, or, where
//! CUDA_MODULE_LOADING says so, all contexts do at once, those that come later included. Source: "Library Management" of
//! the CUDA Driver API reference.

use crate::driver::{Driver, Outcome, code, driver, put};
use crate::image::{self, Contents};
use crate::kernel::Kernel;
use crate::objects::Objects;
use crate::static_data::{Placed, Variable, answer, asked};
use gpool_driver_abi::cuda::*;
use std::collections::HashMap;
use std::ffi::{c_char, c_int, c_uint, c_void};

/// A library of this process.
struct Library {
    /// The handles of its kernels.
    kernels: Vec<usize>,
    variables: Vec<Variable>,
    /// What it takes of each context that has loaded it.
    static_bytes: u64,
    /// Its variables in each context that has loaded it, by the context's handle.
    instances: HashMap<usize, Placed>,
    /// Those that all contexts share, once one has loaded it, which pays for them.
    managed: Option<Placed>,
}

/// All libraries of this process and their kernels, by their handles.
#[derive(Default)]
pub(crate) struct Libraries {
    libraries: HashMap<usize, Library>,
    pub(crate) kernels: HashMap<usize, Kernel>,
}

impl Libraries {
    /// The kernels of a library.
    pub(crate) fn kernels_of(&self, library: CUlibrary) -> Outcome<&[usize]> {
        Ok(&self.find(library as usize)?.kernels)
    }

    /// A context is gone: what libraries had in it.
    pub(crate) fn forget_context(&mut self, context: usize) -> Vec<Placed> {
        let gone = |library: &mut Library| {
            library.managed.iter_mut().for_each(|managed| managed.leave(context));
            library.instances.remove(&context)
        };
        self.libraries.values_mut().filter_map(gone).collect()
    }

    fn find(&self, library: usize) -> Outcome<&Library> {
        self.libraries.get(&library).ok_or(CUDA_ERROR_INVALID_HANDLE)
    }
}

/// Whether a library is loaded where it is needed first. The driver's default since CUDA 12.2.
pub(crate) fn are_lazy() -> bool {
    std::env::var_os("CUDA_MODULE_LOADING").is_none_or(|mode| mode != "EAGER")
}

/// Loads a library in a context, unless it is there.
pub(crate) fn load_into(driver: &Driver, objects: &mut Objects, library: usize, context: usize) -> Outcome {
    let found = objects.libraries.find(library)?;
    if found.instances.contains_key(&context) {
        return Ok(());
    }
    let (bytes, variables) = (found.static_bytes, found.variables.clone());
    let mut managed = None;
    if found.managed.is_none() {
        let shared = || variables.iter().filter(|variable| variable.is_managed);
        let bytes = shared().fold(0_u64, |sum, variable| sum.saturating_add(variable.bytes));
        managed = Some(Placed::new(driver, objects, context, shared(), bytes)?);
    }
    let own = variables.iter().filter(|variable| !variable.is_managed);
    match (Placed::new(driver, objects, context, own, bytes), managed) {
        (Ok(instance), managed) => {
            let found = objects.libraries.libraries.get_mut(&library).ok_or(CUDA_ERROR_INVALID_HANDLE)?;
            found.instances.insert(context, instance);
            found.managed = found.managed.take().or(managed);
            Ok(())
        }
        (Err(refused), managed) => {
            managed.map_or(Ok(()), |managed| managed.remove(driver, objects))?;
            Err(refused)
        }
    }
}

/// Loads all libraries in a new context, where they are not loaded later.
pub(crate) fn load_all_into(driver: &Driver, objects: &mut Objects, context: usize) -> Outcome {
    if are_lazy() {
        return Ok(());
    }
    let all: Vec<usize> = objects.libraries.libraries.keys().copied().collect();
    all.into_iter().try_for_each(|library| load_into(driver, objects, library, context))
}

fn load(driver: &Driver, contents: Contents) -> Outcome<usize> {
    let mut objects = driver.objects();
    let Contents { kernels: names, variables, static_bytes, .. } = contents;
    let library = objects.new_handle();
    let mut kernels = Vec::new();
    for name in names {
        let handle = objects.new_handle();
        // A name comes from a text that ends with a zero.
        let name = std::ffi::CString::new(name).unwrap_or_default();
        objects.libraries.kernels.insert(handle, Kernel { library, name });
        kernels.push(handle);
    }
    let managed = variables.iter().filter(|variable| variable.is_managed);
    let managed_bytes = managed.fold(0_u64, |sum, variable| sum.saturating_add(variable.bytes));
    let static_bytes = static_bytes.saturating_sub(managed_bytes);
    let made = Library { kernels, variables, static_bytes, instances: HashMap::new(), managed: None };
    objects.libraries.libraries.insert(library, made);
    if !are_lazy() {
        let contexts: Vec<usize> = objects.contexts.keys().copied().collect();
        let loaded = contexts.into_iter().try_for_each(|context| load_into(driver, &mut objects, library, context));
        if loaded.is_err() {
            unload(driver, &mut objects, library)?;
        }
        loaded?;
    }
    Ok(library)
}

fn unload(driver: &Driver, objects: &mut Objects, library: usize) -> Outcome {
    let gone = objects.libraries.libraries.remove(&library).ok_or(CUDA_ERROR_INVALID_HANDLE)?;
    objects.libraries.kernels.retain(|_, kernel| kernel.library != library);
    gone.instances.into_values().chain(gone.managed).try_for_each(|placed| placed.remove(driver, objects))
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
        // SAFETY: an image, and not NULL and valid, as the API demands of its caller.
        unsafe { put(library, load(driver, image::read(image)?)? as CUlibrary) }
    })
}

/// Options as above.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuLibraryLoadFromFile(
    library: *mut CUlibrary,
    path: *const c_char,
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
        // SAFETY: NULL or a text that ends with a zero, and not NULL and valid, as the API demands of its caller.
        unsafe { put(library, load(driver, image::read_file(path)?)? as CUlibrary) }
    })
}

#[unsafe(no_mangle)]
pub extern "C" fn cuLibraryUnload(library: CUlibrary) -> CUresult {
    code(|| {
        let driver = driver()?;
        unload(driver, &mut driver.objects(), library as usize)
    })
}

/// The variable of the current context, which loads the library for it.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuLibraryGetGlobal(
    address: *mut CUdeviceptr,
    bytes: *mut usize,
    library: CUlibrary,
    name: *const c_char,
) -> CUresult {
    code(|| {
        let driver = driver()?;
        // SAFETY: NULL or a text that ends with a zero, as the API demands of its caller.
        let name = unsafe { asked(name) }?;
        let mut objects = driver.objects();
        let (context, _) = objects.current()?;
        load_into(driver, &mut objects, library as usize, context)?;
        let instance = objects.libraries.find(library as usize)?.instances.get(&context);
        let found = instance.ok_or(CUDA_ERROR_NOT_FOUND)?.find(name)?;
        // SAFETY: NULL or valid, as the API demands of its caller.
        unsafe { answer(found, address, bytes) }
    })
}

/// The one variable of all contexts. If no context has loaded the library yet, the current one does.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuLibraryGetManaged(
    address: *mut CUdeviceptr,
    bytes: *mut usize,
    library: CUlibrary,
    name: *const c_char,
) -> CUresult {
    code(|| {
        let driver = driver()?;
        // SAFETY: NULL or a text that ends with a zero, as the API demands of its caller.
        let name = unsafe { asked(name) }?;
        let mut objects = driver.objects();
        if objects.libraries.find(library as usize)?.managed.is_none() {
            let (context, _) = objects.current()?;
            load_into(driver, &mut objects, library as usize, context)?;
        }
        let managed = &objects.libraries.find(library as usize)?.managed;
        let found = managed.as_ref().ok_or(CUDA_ERROR_NOT_FOUND)?.find(name)?;
        // SAFETY: NULL or valid, as the API demands of its caller.
        unsafe { answer(found, address, bytes) }
    })
}
