//! Handles and structures of the CUDA driver API.

use core::ffi::{c_int, c_uint, c_ulonglong, c_void};

/// The ordinal of a device.
pub type CUdevice = c_int;
/// An address in device memory.
pub type CUdeviceptr = u64;
/// A context.
pub type CUcontext = *mut c_void;
/// A stream; NULL is the default stream.
pub type CUstream = *mut c_void;
/// An event.
pub type CUevent = *mut c_void;
/// A kernel.
pub type CUfunction = *mut c_void;
/// A module.
pub type CUmodule = *mut c_void;
/// A program that belongs to no context.
pub type CUlibrary = *mut c_void;
/// A kernel of such a program.
pub type CUkernel = *mut c_void;
/// The driver's linker.
pub type CUlinkState = *mut c_void;
/// A graph.
pub type CUgraph = *mut c_void;
/// A node of a graph.
pub type CUgraphNode = *mut c_void;
/// A graph made ready for launching.
pub type CUgraphExec = *mut c_void;
/// A pool of stream-ordered memory.
pub type CUmemoryPool = *mut c_void;
/// Physical memory without an address, as made by cuMemCreate.
pub type CUmemGenericAllocationHandle = c_ulonglong;

/// A universally unique identifier, as bytes.
#[repr(C)]
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct CUuuid {
    /// The bytes in the order in which they are printed.
    pub bytes: [u8; 16],
}

/// An attribute of a launch. The value's meaning depends on the id.
#[repr(C)]
#[derive(Debug, Clone, Copy)]
pub struct CUlaunchAttribute {
    /// Which attribute.
    pub id: c_uint,
    /// Fills up to the alignment of the value.
    pub pad: [u8; 4],
    /// A union of 64 bytes in C.
    pub value: [u64; 8],
}

/// How an instantiation of a graph ended.
pub type CUgraphInstantiateResult = c_uint;
/// It succeeded.
pub const CUDA_GRAPH_INSTANTIATE_SUCCESS: CUgraphInstantiateResult = 0;
/// It failed for a reason that the function's own result tells.
pub const CUDA_GRAPH_INSTANTIATE_ERROR: CUgraphInstantiateResult = 1;

/// What cuGraphInstantiateWithParams takes and gives back. Source: cuda.h of CUDA 12.0, CUDA_GRAPH_INSTANTIATE_PARAMS.
#[repr(C)]
#[derive(Debug, Clone, Copy)]
#[allow(non_snake_case, non_camel_case_types)] // NVIDIA's names
pub struct CUDA_GRAPH_INSTANTIATE_PARAMS {
    /// As those of cuGraphInstantiateWithFlags.
    pub flags: c_ulonglong,
    /// Where the graph is uploaded if a flag asks for it.
    pub hUploadStream: CUstream,
    /// The node at fault, written by the driver.
    pub hErrNode_out: CUgraphNode,
    /// Written by the driver.
    pub result_out: CUgraphInstantiateResult,
}

/// What cuLaunchKernelEx takes in place of single arguments.
#[repr(C)]
#[derive(Debug, Clone, Copy)]
#[allow(non_snake_case, missing_docs)] // the names of cuda.h say it all
pub struct CUlaunchConfig {
    pub gridDimX: c_uint,
    pub gridDimY: c_uint,
    pub gridDimZ: c_uint,
    pub blockDimX: c_uint,
    pub blockDimY: c_uint,
    pub blockDimZ: c_uint,
    pub sharedMemBytes: c_uint,
    pub hStream: CUstream,
    pub attrs: *mut CUlaunchAttribute,
    pub numAttrs: c_uint,
}
