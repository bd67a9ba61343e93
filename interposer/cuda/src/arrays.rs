//! Arrays, whose size follows from their description, and memory of other APIs, whose size the program names.

use crate::PROCESS;
use crate::accounts::{held, inexact, let_go, named};
use crate::entry::{index, real};
use crate::touched::touch;
use core::ffi::{c_int, c_uint, c_void};
use gpool_driver_abi::cuda::*;
use gpool_interposer_logic::arrays;
use gpool_interposer_logic::handles::Kind;
use gpool_interposer_logic::memory::Call;
use gpool_interposer_logic::names;
use gpool_interposer_logic::process::Place;

/// The 32-bit arrays of CUDA 2 are not accounted for, so they are refused.
///
/// # Safety
/// As the driver's function of this name; so for all functions here.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuArrayCreate(_array: *mut CUarray, _descriptor: *const c_void) -> CUresult {
    CUDA_ERROR_NOT_SUPPORTED
}

/// See [`cuArrayCreate`].
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuArray3DCreate(_array: *mut CUarray, _descriptor: *const c_void) -> CUresult {
    CUDA_ERROR_NOT_SUPPORTED
}

/// Charged by its description.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuArrayCreate_v2(array: *mut CUarray, descriptor: *const CUDA_ARRAY_DESCRIPTOR) -> CUresult {
    touch();
    // SAFETY: null, or valid as the driver demands of its caller.
    let bytes = unsafe { descriptor.as_ref() }.map_or(0, |flat| {
        let CUDA_ARRAY_DESCRIPTOR { Width, Height, Format, NumChannels } = *flat;
        arrays::bytes(&CUDA_ARRAY3D_DESCRIPTOR { Width, Height, Depth: 0, Format, NumChannels, Flags: 0 }, 1)
    });
    inexact();
    held(Kind::Array, Call::ArrayCreate, array, bytes, || {
        // SAFETY: the entry point's type, the caller's arguments; so for all calls of `real` here.
        unsafe { real::<CuArrayCreateV2>(index::cuArrayCreate_v2)(array, descriptor) }
    })
}

/// Charged by its description.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuArray3DCreate_v2(
    array: *mut CUarray,
    descriptor: *const CUDA_ARRAY3D_DESCRIPTOR,
) -> CUresult {
    touch();
    // SAFETY: null, or valid as the driver demands of its caller.
    let bytes = unsafe { descriptor.as_ref() }.map_or(0, |descriptor| arrays::bytes(descriptor, 1));
    inexact();
    held(Kind::Array, Call::ArrayCreate, array, bytes, || {
        // SAFETY: see cuArrayCreate_v2.
        unsafe { real::<CuArray3DCreateV2>(index::cuArray3DCreate_v2)(array, descriptor) }
    })
}

/// Charged by its description, all levels together.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuMipmappedArrayCreate(
    array: *mut CUarray,
    descriptor: *const CUDA_ARRAY3D_DESCRIPTOR,
    levels: c_uint,
) -> CUresult {
    touch();
    // SAFETY: null, or valid as the driver demands of its caller.
    let bytes = unsafe { descriptor.as_ref() }.map_or(0, |descriptor| arrays::bytes(descriptor, levels));
    inexact();
    held(Kind::Array, Call::MipmappedArrayCreate, array, bytes, || {
        // SAFETY: see cuArrayCreate_v2.
        unsafe { real::<CuMipmappedArrayCreate>(index::cuMipmappedArrayCreate)(array, descriptor, levels) }
    })
}

/// Charged with the piece of the lease that it is, or by the size that the program names, whoever made the memory.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuImportExternalMemory(
    memory: *mut CUexternalMemory,
    descriptor: *const CUDA_EXTERNAL_MEMORY_HANDLE_DESC,
) -> CUresult {
    touch();
    // SAFETY: null, or valid as the driver demands of its caller.
    let given = unsafe { descriptor.as_ref() };
    let bytes = given.map_or(0, |given| given.size);
    inexact();
    let _change = PROCESS.place().map(Place::change);
    // SAFETY: see cuArrayCreate_v2.
    let import = || unsafe { real::<CuImportExternalMemory>(index::cuImportExternalMemory)(memory, descriptor) };
    let name = given.filter(|given| given.kind == CU_EXTERNAL_MEMORY_HANDLE_TYPE_OPAQUE_FD);
    let name = name.and_then(|given| names::of_descriptor(given.handle[0] as c_int));
    match named(Kind::External, Call::ImportExternal, name, memory.cast(), &import) {
        Some(result) => result,
        None => held(Kind::External, Call::ImportExternal, memory, bytes, import),
    }
}

macro_rules! ends {
    ($($name:ident: $kind:ident;)*) => {$(
        /// Takes the charge back.
        #[unsafe(no_mangle)]
        pub unsafe extern "C" fn $name(handle: *mut c_void) -> CUresult {
            // SAFETY: the entry point's type: each takes a handle.
            let_go(Kind::$kind, handle, unsafe { real::<CuArrayDestroy>(index::$name) })
        }
    )*};
}

ends! {
    cuArrayDestroy: Array;
    cuMipmappedArrayDestroy: Array;
    cuDestroyExternalMemory: External;
}
