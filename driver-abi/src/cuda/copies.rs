//! What copies of several rows, of arrays, between GPUs and in batches take. Sizes and offsets are those of cuda.h of
//! CUDA 13.5 for x86-64, which are those of 3.2 (rows), 4.0 (peer) and 12.8 (batches).

use super::{CUcontext, CUdeviceptr};
use core::ffi::{c_int, c_uint, c_void};

/// An array in device memory, whose layout only the driver knows.
pub type CUarray = *mut c_void;

/// Where one side of a copy lies.
pub type CUmemorytype = c_uint;
/// Host memory.
pub const CU_MEMORYTYPE_HOST: CUmemorytype = 1;
/// Device memory.
pub const CU_MEMORYTYPE_DEVICE: CUmemorytype = 2;
/// An array.
pub const CU_MEMORYTYPE_ARRAY: CUmemorytype = 3;
/// An address that only the driver can tell.
pub const CU_MEMORYTYPE_UNIFIED: CUmemorytype = 4;

/// Rows at a pitch, with the arguments of cuMemcpy2D_v2.
#[repr(C)]
#[derive(Debug, Clone, Copy)]
#[allow(non_snake_case, non_camel_case_types, missing_docs)] // the names of cuda.h say it all
pub struct CUDA_MEMCPY2D {
    pub srcXInBytes: usize,
    pub srcY: usize,
    pub srcMemoryType: CUmemorytype,
    pub srcHost: *const c_void,
    pub srcDevice: CUdeviceptr,
    pub srcArray: CUarray,
    pub srcPitch: usize,
    pub dstXInBytes: usize,
    pub dstY: usize,
    pub dstMemoryType: CUmemorytype,
    pub dstHost: *mut c_void,
    pub dstDevice: CUdeviceptr,
    pub dstArray: CUarray,
    pub dstPitch: usize,
    pub WidthInBytes: usize,
    pub Height: usize,
}

/// Layers of rows, with the arguments of cuMemcpy3D_v2.
#[repr(C)]
#[derive(Debug, Clone, Copy)]
#[allow(non_snake_case, non_camel_case_types, missing_docs)] // the names of cuda.h say it all
pub struct CUDA_MEMCPY3D {
    pub srcXInBytes: usize,
    pub srcY: usize,
    pub srcZ: usize,
    pub srcLOD: usize,
    pub srcMemoryType: CUmemorytype,
    pub srcHost: *const c_void,
    pub srcDevice: CUdeviceptr,
    pub srcArray: CUarray,
    /// Null.
    pub reserved0: CUcontext,
    pub srcPitch: usize,
    pub srcHeight: usize,
    pub dstXInBytes: usize,
    pub dstY: usize,
    pub dstZ: usize,
    pub dstLOD: usize,
    pub dstMemoryType: CUmemorytype,
    pub dstHost: *mut c_void,
    pub dstDevice: CUdeviceptr,
    pub dstArray: CUarray,
    /// Null.
    pub reserved1: CUcontext,
    pub dstPitch: usize,
    pub dstHeight: usize,
    pub WidthInBytes: usize,
    pub Height: usize,
    pub Depth: usize,
}

/// As [`CUDA_MEMCPY3D`], for cuMemcpy3DPeer: the reserved fields are the contexts of both sides.
#[allow(non_camel_case_types)] // the name of cuda.h
pub type CUDA_MEMCPY3D_PEER = CUDA_MEMCPY3D;

/// One side of a copy in a batch. `place` is a union of 32 bytes in C, which nothing here reads.
#[repr(C)]
#[derive(Debug, Clone, Copy)]
#[allow(missing_docs)]
pub struct CUmemcpy3DOperand {
    pub kind: c_int,
    pub place: [u64; 4],
}

/// An address, in [`CUmemcpy3DOperand`].
pub const CU_MEMCPY_OPERAND_TYPE_POINTER: c_int = 1;
/// An array, in [`CUmemcpy3DOperand`].
pub const CU_MEMCPY_OPERAND_TYPE_ARRAY: c_int = 2;

/// One copy of cuMemcpy3DBatchAsync.
#[repr(C)]
#[derive(Debug, Clone, Copy)]
#[allow(non_snake_case, non_camel_case_types, missing_docs)] // the names of cuda.h say it all
pub struct CUDA_MEMCPY3D_BATCH_OP {
    pub src: CUmemcpy3DOperand,
    pub dst: CUmemcpy3DOperand,
    /// Width, height and depth in elements; these are bytes unless a side is an array.
    pub extent: [usize; 3],
    pub srcAccessOrder: c_uint,
    pub flags: c_uint,
}

/// One piece of cuMemBatchDecompressAsync (cuda.h of CUDA 12.8).
#[repr(C)]
#[derive(Debug, Clone, Copy)]
#[allow(non_snake_case, missing_docs)] // the names of cuda.h say it all
pub struct CUmemDecompressParams {
    pub srcNumBytes: usize,
    /// What is expected; may be left 0.
    pub dstNumBytes: usize,
    pub dstActBytes: *mut c_uint,
    pub src: *const c_void,
    pub dst: *mut c_void,
    pub algo: c_uint,
    pub padding: [u8; 20],
}
