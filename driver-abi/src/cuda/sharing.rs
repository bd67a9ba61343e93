//! Memory of other processes, and contexts that other libraries ask for. Source of the layouts: cuda.h of CUDA 12.2,
//! cudaGL.h and cudaVDPAU.h.

use super::{CUcontext, CUdevice, CUdeviceptr, CUexternalMemory, CUmemoryPool, CUresult};
use core::ffi::{c_uint, c_ulonglong, c_void};

/// Names memory of another process; what it holds is the driver's own.
#[repr(C)]
#[derive(Debug, Clone, Copy)]
pub struct CUipcMemHandle {
    /// Opaque.
    pub reserved: [u8; 64],
}

/// Names memory of another process's pool.
#[repr(C)]
#[derive(Debug, Clone, Copy)]
#[allow(non_camel_case_types)] // NVIDIA's name
pub struct CUmemPoolPtrExportData {
    /// Opaque.
    pub reserved: [u8; 64],
}

/// A part of imported memory.
#[repr(C)]
#[derive(Debug, Clone, Copy)]
#[allow(non_camel_case_types)] // NVIDIA's name
pub struct CUDA_EXTERNAL_MEMORY_BUFFER_DESC {
    /// Where it begins.
    pub offset: c_ulonglong,
    /// Its bytes.
    pub size: c_ulonglong,
    /// Zero.
    pub flags: c_uint,
    /// Zero.
    pub reserved: [c_uint; 16],
}

/// `CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR`: memory is exported as a descriptor.
pub const CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR: c_uint = 1;
/// `CU_MEM_HANDLE_TYPE_FABRIC`: memory is exported as 64 opaque bytes. Since CUDA 12.3.
pub const CU_MEM_HANDLE_TYPE_FABRIC: c_uint = 8;
/// `CU_EXTERNAL_MEMORY_HANDLE_TYPE_OPAQUE_FD`: memory of another API comes as a descriptor.
pub const CU_EXTERNAL_MEMORY_HANDLE_TYPE_OPAQUE_FD: c_uint = 1;

/// The resources of a context that has only a part of the device. Since CUDA 12.4.
pub type CUdevResourceDesc = *mut c_void;

macro_rules! functions {
    ($($name:ident, $symbol:literal ($($argument:ty),*);)*) => {
        $(#[doc = concat!("`", $symbol, "`")] pub type $name = unsafe extern "C" fn($($argument),*) -> CUresult;)*
    };
}

functions! {
    CuIpcGetMemHandle, "cuIpcGetMemHandle"(*mut CUipcMemHandle, CUdeviceptr);
    CuIpcOpenMemHandle, "cuIpcOpenMemHandle"(*mut CUdeviceptr, CUipcMemHandle, c_uint);
    CuIpcCloseMemHandle, "cuIpcCloseMemHandle"(CUdeviceptr);
    CuMemPoolExportToShareableHandle, "cuMemPoolExportToShareableHandle"(
        *mut c_void, CUmemoryPool, c_uint, c_ulonglong
    );
    CuMemPoolImportFromShareableHandle, "cuMemPoolImportFromShareableHandle"(
        *mut CUmemoryPool, *mut c_void, c_uint, c_ulonglong
    );
    CuMemPoolExportPointer, "cuMemPoolExportPointer"(*mut CUmemPoolPtrExportData, CUdeviceptr);
    CuMemPoolImportPointer, "cuMemPoolImportPointer"(*mut CUdeviceptr, CUmemoryPool, *mut CUmemPoolPtrExportData);
    CuMemGetHandleForAddressRange, "cuMemGetHandleForAddressRange"(
        *mut c_void, CUdeviceptr, usize, c_uint, c_ulonglong
    );
    CuExternalMemoryGetMappedBuffer, "cuExternalMemoryGetMappedBuffer"(
        *mut CUdeviceptr, CUexternalMemory, *const CUDA_EXTERNAL_MEMORY_BUFFER_DESC
    );
    CuMemAddressReserve, "cuMemAddressReserve"(*mut CUdeviceptr, usize, usize, CUdeviceptr, c_ulonglong);
    CuMemAddressFree, "cuMemAddressFree"(CUdeviceptr, usize);
    CuVDPAUCtxCreate, "cuVDPAUCtxCreate"(*mut CUcontext, c_uint, CUdevice, c_uint, *const c_void);
    CuGreenCtxCreate, "cuGreenCtxCreate"(*mut CUcontext, CUdevResourceDesc, CUdevice, c_uint);
    CuGreenCtxDestroy, "cuGreenCtxDestroy"(CUcontext);
    CuCtxFromGreenCtx, "cuCtxFromGreenCtx"(*mut CUcontext, CUcontext);
}
