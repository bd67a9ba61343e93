//! Modules and libraries, charged by their images before the driver loads them, see `images` of the logic.
//!
//! A module belongs to the context in which it is loaded. A library belongs to none, and each context loads it when it is
//! first used there, so it is charged in each. The driver says neither when that happens nor how much it takes. Code that
//! it loads as late as at the first launch is not charged here: it shows as a part of what a context costs.

use crate::PROCESS;
use crate::accounts::{answered, held, inexact, let_go, refused, remember};
use crate::entry::{index, real};
use crate::pool_accounts;
use crate::touched::touch;
use core::ffi::{c_char, c_int, c_uint, c_void};
use gpool_driver_abi::cuda::*;
use gpool_interposer_logic::handles::{Held, Kind};
use gpool_interposer_logic::images::{self, Architectures, Image, Need};
use gpool_interposer_logic::memory::Call;
use gpool_interposer_logic::memory::{self, Charge};
use gpool_interposer_logic::process::{Change, Place};

type Library = *mut c_void;

/// What is charged for an image that takes `need`.
fn charged(need: &Need) -> u64 {
    let mut mode = 0;
    // SAFETY: the entry point's type; there is a place for the answer.
    unsafe { real::<unsafe extern "C" fn(*mut c_int) -> CUresult>(index::cuModuleGetLoadingMode)(&mut mode) };
    let code = if need.is_choice && mode == CU_MODULE_LAZY_LOADING { 0 } else { need.code };
    need.data.saturating_add(code)
}

/// What the devices that this process has run.
fn architectures() -> Architectures {
    let mut count = 0;
    // SAFETY: the entry point's type; there is a place for the answer. So for the others here.
    let result = unsafe { real::<CuDeviceGetCount>(index::cuDeviceGetCount)(&mut count) };
    if result != CUDA_SUCCESS || count == 0 {
        return Architectures::ANY;
    }
    let mut devices = Architectures::NONE;
    for ordinal in 0..count {
        let (mut device, mut major, mut minor) = (0, 0, 0);
        // SAFETY: as above.
        let known = unsafe {
            let of = real::<CuDeviceGetAttribute>(index::cuDeviceGetAttribute);
            real::<CuDeviceGet>(index::cuDeviceGet)(&mut device, ordinal) == CUDA_SUCCESS
                && of(&mut major, CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR, device) == CUDA_SUCCESS
                && of(&mut minor, CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR, device) == CUDA_SUCCESS
        };
        if !known {
            return Architectures::ANY;
        }
        devices = devices.with(major as u32, minor as u32);
    }
    devices
}

/// What an image takes, with which the entry points begin: the driver is asked for its devices.
#[cold]
#[inline(never)]
fn need_at(image: *const c_void) -> Need {
    touch();
    images::need(Image::at(image as usize), architectures())
}

/// What the image in a file takes; nothing, if the driver will not be able to read it either.
#[cold]
#[inline(never)]
fn need_of_file(path: *const c_char) -> Need {
    touch();
    let mut need = Need::default();
    if path.is_null() {
        return need;
    }
    // SAFETY: a terminated string, as the driver demands of its caller.
    let fd = unsafe { libc::open(path, libc::O_RDONLY | libc::O_CLOEXEC) };
    // SAFETY: the descriptor is ours, and fails to be one at worst.
    let bytes = unsafe { libc::lseek(fd, 0, libc::SEEK_END) };
    if let Some(length) = usize::try_from(bytes).ok().filter(|length| *length > 0) {
        // SAFETY: a new private mapping, which is read through the kernel and goes below.
        unsafe {
            let start = libc::mmap(core::ptr::null_mut(), length, libc::PROT_READ, libc::MAP_PRIVATE, fd, 0);
            if start != libc::MAP_FAILED {
                need = images::need(Image::of(core::slice::from_raw_parts(start.cast(), length)), architectures());
                libc::munmap(start, length);
            }
        }
    }
    // SAFETY: as above.
    unsafe { libc::close(fd) };
    need
}

/// What a module of this image is charged. Of one that could not be read NVML shows the rest: no figure of the device does, where
/// others allocate meanwhile, and to them it must not be charged.
#[cold]
#[inline(never)]
fn charged_module(need: Need) -> u64 {
    if !need.is_whole {
        inexact();
    }
    charged(&need)
}

macro_rules! modules {
    ($($name:ident $need:ident ($image:ident: $type:ty $(, $argument:ident: $kind:ty)*);)*) => {$(
        /// Charged by its image.
        ///
        /// # Safety
        /// As the driver's function of this name; so for all functions here.
        #[unsafe(no_mangle)]
        pub unsafe extern "C" fn $name(module: *mut CUmodule, $image: $type $(, $argument: $kind)*) -> CUresult {
            type Load = unsafe extern "C" fn(*mut CUmodule, $type $(, $kind)*) -> CUresult;
            // SAFETY: the entry point's type, the caller's arguments; so for all calls of `real` here.
            held(Kind::Module, Call::ModuleLoad, module, charged_module($need($image)), || unsafe {
                real::<Load>(index::$name)(module, $image $(, $argument)*)
            })
        }
    )*};
}

modules! {
    cuModuleLoad need_of_file (path: *const c_char);
    cuModuleLoadData need_at (image: *const c_void);
    cuModuleLoadDataEx need_at (
        image: *const c_void, count: c_uint, options: *mut c_int, values: *mut *mut c_void
    );
    cuModuleLoadFatBinary need_at (image: *const c_void);
}

/// Takes the charge back.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuModuleUnload(module: CUmodule) -> CUresult {
    // SAFETY: see the modules above.
    let_go(Kind::Module, module, unsafe { real::<CuModuleUnload>(index::cuModuleUnload) })
}

/// A library that is charged in each context that there is or comes, and not loaded yet.
struct BegunLibrary {
    place: &'static Place,
    bytes: u64,
    _change: Change,
}

impl BegunLibrary {
    #[cold]
    #[inline(never)]
    fn new(need: Need) -> Result<Self, CUresult> {
        let place = PROCESS.place().ok_or(CUDA_ERROR_NOT_INITIALIZED)?;
        let bytes = match charged(&need) {
            0 => 0,
            bytes => memory::rounded_bytes(bytes),
        };
        let change = place.change();
        let charge = || PROCESS.charge_contexts(place, bytes);
        if charge() || pool_accounts::give_back(place, true) && charge() {
            return Ok(Self { place, bytes, _change: change });
        }
        Err(refused(place, PROCESS.current_gpu(place), Charge::Bytes(bytes), Call::LibraryLoad))
    }

    #[cold]
    #[inline(never)]
    fn end(self, result: CUresult, library: *const Library) -> CUresult {
        if result == CUDA_SUCCESS {
            // SAFETY: the driver succeeded, so `library` is valid and holds the handle.
            remember(self.place, Held::new(Kind::Library, unsafe { *library } as u64, self.bytes));
        } else {
            PROCESS.release_contexts(self.place, self.bytes);
        }
        let (place, charge) = (self.place, Charge::Bytes(self.bytes));
        answered(place, PROCESS.current_gpu(place), charge, Call::LibraryLoad, result)
    }
}

/// Loads a library through `driver`, charged in each context.
#[inline(always)]
fn library_loaded(library: *mut Library, need: Need, driver: impl FnOnce() -> CUresult) -> CUresult {
    match BegunLibrary::new(need) {
        Ok(begun) => begun.end(driver(), library),
        Err(refused) => refused,
    }
}

macro_rules! libraries {
    ($($name:ident $need:ident ($image:ident: $type:ty);)*) => {$(
        /// Charged by its image in each context.
        #[unsafe(no_mangle)]
        pub unsafe extern "C" fn $name(
            library: *mut Library,
            $image: $type,
            compiler: *mut c_int,
            compiler_values: *mut *mut c_void,
            compiler_count: c_uint,
            options: *mut c_int,
            values: *mut *mut c_void,
            count: c_uint,
        ) -> CUresult {
            type Load = unsafe extern "C" fn(
                *mut Library, $type, *mut c_int, *mut *mut c_void, c_uint, *mut c_int, *mut *mut c_void, c_uint,
            ) -> CUresult;
            library_loaded(library, $need($image), || {
                let load = index::$name;
                // SAFETY: see the modules above.
                unsafe {
                    real::<Load>(load)(
                        library, $image, compiler, compiler_values, compiler_count, options, values, count,
                    )
                }
            })
        }
    )*};
}

libraries! {
    cuLibraryLoadData need_at (image: *const c_void);
    cuLibraryLoadFromFile need_of_file (path: *const c_char);
}

/// Takes the charge back from each context.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuLibraryUnload(library: Library) -> CUresult {
    // SAFETY: see the modules above.
    let_go(Kind::Library, library, unsafe { real(index::cuLibraryUnload) })
}
