//! The driver's functions, as a program finds them.

use super::graphs::{Instantiation, NodeParameters};
use super::{check, fail};
use std::ffi::{CStr, c_char, c_int, c_uchar, c_uint, c_void};
use std::mem::transmute_copy;
use std::ptr::null_mut;

macro_rules! functions {
    ($what:ident of $version:literal: $($field:ident $name:literal ($($argument:ty),*);)*) => {
        /// Functions of the driver, found through its own look-up.
        pub(super) struct $what { $(pub(super) $field: unsafe extern "C" fn($($argument),*) -> c_int),* }

        impl $what {
            pub(super) fn load() -> Self {
                let find = Lookup::open();
                Self { $($field: {
                    let address = find.function($name, $version);
                    // SAFETY: the driver's function of this name has this type.
                    unsafe { transmute_copy(&address) }
                }),* }
            }
        }
    };
}

// The version of the API that is asked for: cuCtxCreate with three arguments is the variant before 11.4,
// cuGraphInstantiate with five the one before 12.0.
functions! {
    Driver of 11030:
    init c"cuInit" (c_uint);
    device_count c"cuDeviceGetCount" (*mut c_int);
    device_get c"cuDeviceGet" (*mut c_int, c_int);
    device_memory c"cuDeviceTotalMem" (*mut usize, c_int);
    context_create c"cuCtxCreate" (*mut *mut c_void, c_uint, c_int);
    context_destroy c"cuCtxDestroy" (*mut c_void);
    context_set c"cuCtxSetCurrent" (*mut c_void);
    synchronize c"cuCtxSynchronize" ();
    stream_query c"cuStreamQuery" (*mut c_void);
    memory_info c"cuMemGetInfo" (*mut usize, *mut usize);
    allocate c"cuMemAlloc" (*mut u64, usize);
    free c"cuMemFree" (u64);
    allocate_rows c"cuMemAllocPitch" (*mut u64, *mut usize, usize, usize, c_uint);
    pointer_attribute c"cuPointerGetAttribute" (*mut c_void, c_int, u64);
    allocate_async c"cuMemAllocAsync" (*mut u64, usize, *mut c_void);
    allocate_from_pool c"cuMemAllocFromPoolAsync" (*mut u64, usize, *mut c_void, *mut c_void);
    free_async c"cuMemFreeAsync" (u64, *mut c_void);
    pool_create c"cuMemPoolCreate" (*mut *mut c_void, *const c_void);
    pool_set c"cuMemPoolSetAttribute" (*mut c_void, c_int, *mut c_void);
    memory_create c"cuMemCreate" (*mut u64, usize, *const c_void, u64);
    memory_release c"cuMemRelease" (u64);
    memory_map c"cuMemMap" (u64, usize, usize, u64, u64);
    memory_unmap c"cuMemUnmap" (u64, usize);
    memory_access c"cuMemSetAccess" (u64, usize, *const c_void, usize);
    address_reserve c"cuMemAddressReserve" (*mut u64, usize, usize, u64, u64);
    memory_export c"cuMemExportToShareableHandle" (*mut c_void, u64, c_uint, u64);
    memory_import c"cuMemImportFromShareableHandle" (*mut u64, *mut c_void, c_uint);
    pool_export c"cuMemPoolExportToShareableHandle" (*mut c_void, *mut c_void, c_uint, u64);
    pool_import c"cuMemPoolImportFromShareableHandle" (*mut *mut c_void, *mut c_void, c_uint, u64);
    pool_export_pointer c"cuMemPoolExportPointer" (*mut IpcHandle, u64);
    pool_import_pointer c"cuMemPoolImportPointer" (*mut u64, *mut c_void, *mut IpcHandle);
    ipc_get c"cuIpcGetMemHandle" (*mut IpcHandle, u64);
    ipc_open c"cuIpcOpenMemHandle" (*mut u64, IpcHandle, c_uint);
    external_import c"cuImportExternalMemory" (*mut *mut c_void, *const c_void);
    external_buffer c"cuExternalMemoryGetMappedBuffer" (*mut u64, *mut c_void, *const c_void);
    array_create c"cuArrayCreate" (*mut *mut c_void, *const c_void);
    array_destroy c"cuArrayDestroy" (*mut c_void);
    to_device c"cuMemcpyHtoD" (u64, *const c_void, usize);
    to_host c"cuMemcpyDtoH" (*mut c_void, u64, usize);
    copy_async c"cuMemcpyDtoDAsync" (u64, u64, usize, *mut c_void);
    rows_async c"cuMemcpy2DAsync" (*const Rows, *mut c_void);
    peer_async c"cuMemcpyPeerAsync" (u64, *mut c_void, u64, *mut c_void, usize, *mut c_void);
    set_async c"cuMemsetD8Async" (u64, c_uchar, usize, *mut c_void);
    module_load c"cuModuleLoadData" (*mut *mut c_void, *const c_void);
    module_unload c"cuModuleUnload" (*mut c_void);
    module_load_file c"cuModuleLoad" (*mut *mut c_void, *const c_char);
    module_global c"cuModuleGetGlobal" (*mut u64, *mut usize, *mut c_void, *const c_char);
    module_function c"cuModuleGetFunction" (*mut *mut c_void, *mut c_void, *const c_char);
    launch c"cuLaunchKernel" (
        *mut c_void, c_uint, c_uint, c_uint, c_uint, c_uint, c_uint, c_uint, *mut c_void, *mut *mut c_void,
        *mut *mut c_void
    );
    stream_create c"cuStreamCreate" (*mut *mut c_void, c_uint);
    capture_begin c"cuStreamBeginCapture" (*mut c_void, c_int);
    capture_end c"cuStreamEndCapture" (*mut c_void, *mut *mut c_void);
    graph_instantiate c"cuGraphInstantiate" (*mut *mut c_void, *mut c_void, *mut *mut c_void, *mut c_char, usize);
    graph_launch c"cuGraphLaunch" (*mut c_void, *mut c_void);
}

functions! {
    Graphs of 12000:
    create c"cuGraphCreate" (*mut *mut c_void, c_uint);
    add_allocation c"cuGraphAddMemAllocNode" (
        *mut *mut c_void, *mut c_void, *const *mut c_void, usize, *mut NodeParameters
    );
    add_free c"cuGraphAddMemFreeNode" (*mut *mut c_void, *mut c_void, *const *mut c_void, usize, u64);
    instantiate c"cuGraphInstantiateWithParams" (*mut *mut c_void, *mut c_void, *mut Instantiation);
    destroy c"cuGraphExecDestroy" (*mut c_void);
    attribute c"cuDeviceGetGraphMemAttribute" (c_int, c_int, *mut c_void);
    trim c"cuDeviceGraphMemTrim" (c_int);
    synchronize c"cuStreamSynchronize" (*mut c_void);
}

functions! {
    Libraries of 12000:
    load c"cuLibraryLoadData" (
        *mut *mut c_void, *const c_void, *mut c_int, *mut *mut c_void, c_uint, *mut c_int, *mut *mut c_void, c_uint
    );
    load_file c"cuLibraryLoadFromFile" (
        *mut *mut c_void, *const c_char, *mut c_int, *mut *mut c_void, c_uint, *mut c_int, *mut *mut c_void, c_uint
    );
    unload c"cuLibraryUnload" (*mut c_void);
    global c"cuLibraryGetGlobal" (*mut u64, *mut usize, *mut c_void, *const c_char);
    managed c"cuLibraryGetManaged" (*mut u64, *mut usize, *mut c_void, *const c_char);
}

/// CUipcMemHandle, and CUmemPoolPtrExportData.
#[repr(C)]
pub(super) struct IpcHandle(pub(super) [u8; 64]);

/// CUDA_EXTERNAL_MEMORY_HANDLE_DESC.
#[repr(C)]
pub(super) struct ExternalMemory {
    pub(super) kind: c_uint,
    pub(super) handle: [u64; 2],
    pub(super) bytes: u64,
    pub(super) flags: c_uint,
    pub(super) reserved: [c_uint; 16],
}

/// CUDA_EXTERNAL_MEMORY_BUFFER_DESC.
#[repr(C)]
pub(super) struct BufferPart {
    pub(super) offset: u64,
    pub(super) bytes: u64,
    pub(super) flags: c_uint,
    pub(super) reserved: [c_uint; 16],
}

/// One side of [`Rows`].
#[repr(C)]
#[derive(Default)]
pub(super) struct Side {
    pub(super) x_bytes: usize,
    pub(super) y: usize,
    /// [`DEVICE_MEMORY`], as all that is copied here.
    pub(super) memory_type: c_uint,
    pub(super) host: usize,
    pub(super) device: u64,
    pub(super) array: usize,
    pub(super) pitch_bytes: usize,
}

/// CUDA_MEMCPY2D of cuda.h since CUDA 3.2.
#[repr(C)]
#[derive(Default)]
pub(super) struct Rows {
    pub(super) from: Side,
    pub(super) to: Side,
    pub(super) width_bytes: usize,
    pub(super) height: usize,
}

/// CU_MEMORYTYPE_DEVICE.
pub(super) const DEVICE_MEMORY: c_uint = 2;

type GetProcAddress = unsafe extern "C" fn(*const c_char, *mut *mut c_void, c_int, u64) -> c_int;
type GetProcAddressV2 = unsafe extern "C" fn(*const c_char, *mut *mut c_void, c_int, u64, *mut c_int) -> c_int;

enum Lookup {
    First(GetProcAddress),
    Second(GetProcAddressV2),
}

impl Lookup {
    fn open() -> Self {
        let library = open_library(c"libcuda.so.1");
        // SAFETY: the driver's functions of these names have these types.
        unsafe {
            let second = libc::dlsym(library, c"cuGetProcAddress_v2".as_ptr());
            if !second.is_null() {
                return Self::Second(transmute_copy(&second));
            }
            let first = libc::dlsym(library, c"cuGetProcAddress".as_ptr());
            if first.is_null() {
                fail("dlsym cuGetProcAddress", -1);
            }
            Self::First(transmute_copy(&first))
        }
    }

    fn function(&self, name: &CStr, version: c_int) -> *mut c_void {
        let mut address = null_mut();
        // SAFETY: the name ends with a zero, and the address is written to a live local.
        let code = unsafe {
            match self {
                Self::First(find) => find(name.as_ptr(), &mut address, version, 0),
                Self::Second(find) => find(name.as_ptr(), &mut address, version, 0, null_mut()),
            }
        };
        check(&name.to_string_lossy(), code);
        if address.is_null() {
            fail(&name.to_string_lossy(), 500);
        }
        address
    }
}

/// Loads a library or ends the program.
pub(super) fn open_library(name: &CStr) -> *mut c_void {
    // SAFETY: the name ends with a zero; loading the driver has no preconditions.
    let library = unsafe { libc::dlopen(name.as_ptr(), libc::RTLD_NOW) };
    if library.is_null() {
        fail(&format!("dlopen {}", name.to_string_lossy()), -1);
    }
    library
}
