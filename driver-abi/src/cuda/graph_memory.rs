//! Nodes of graphs that allocate and free. Source of the layouts and numbers: cuda.h of CUDA 12.2.

use super::{
    CUdevice, CUdeviceptr, CUgraph, CUgraphExec, CUgraphNode, CUmemAccessDesc, CUmemPoolProps, CUresult, CUstream,
};
use core::ffi::{c_char, c_int, c_uint, c_ulonglong, c_void};

/// What a node of a graph does.
pub type CUgraphNodeType = c_uint;
/// It is another graph.
pub const CU_GRAPH_NODE_TYPE_GRAPH: CUgraphNodeType = 4;
/// It does nothing.
pub const CU_GRAPH_NODE_TYPE_EMPTY: CUgraphNodeType = 5;
/// It allocates.
pub const CU_GRAPH_NODE_TYPE_MEM_ALLOC: CUgraphNodeType = 10;
/// It frees.
pub const CU_GRAPH_NODE_TYPE_MEM_FREE: CUgraphNodeType = 11;

/// What a launch of the graph has allocated and not freed is freed by the next one.
pub const CUDA_GRAPH_INSTANTIATE_FLAG_AUTO_FREE_ON_LAUNCH: c_ulonglong = 1;
/// It is uploaded as soon as it is there.
pub const CUDA_GRAPH_INSTANTIATE_FLAG_UPLOAD: c_ulonglong = 2;

/// A figure of what graphs hold of a device, eight bytes.
#[allow(non_camel_case_types)] // NVIDIA's name
pub type CUgraphMem_attribute = c_int;
/// What of it some graph has mapped, in bytes: between its launches as well.
pub const CU_GRAPH_MEM_ATTR_USED_MEM_CURRENT: CUgraphMem_attribute = 0;
/// What the device has set aside for them, in bytes.
pub const CU_GRAPH_MEM_ATTR_RESERVED_MEM_CURRENT: CUgraphMem_attribute = 2;

/// What a node allocates, and where.
#[repr(C)]
#[derive(Debug, Clone, Copy)]
#[allow(non_snake_case, non_camel_case_types)] // NVIDIA's names
pub struct CUDA_MEM_ALLOC_NODE_PARAMS {
    /// Where its memory lies; it cannot be exported.
    pub poolProps: CUmemPoolProps,
    /// Which other devices get access.
    pub accessDescs: *const CUmemAccessDesc,
    /// How many.
    pub accessDescCount: usize,
    /// How much, in bytes.
    pub bytesize: usize,
    /// Its address, written by the driver: the same at each launch.
    pub dptr: CUdeviceptr,
}

macro_rules! functions {
    ($($name:ident, $symbol:literal ($($argument:ty),*);)*) => {
        $(#[doc = concat!("`", $symbol, "`")] pub type $name = unsafe extern "C" fn($($argument),*) -> CUresult;)*
    };
}

functions! {
    CuDeviceGetGraphMemAttribute, "cuDeviceGetGraphMemAttribute"(CUdevice, CUgraphMem_attribute, *mut c_void);
    CuDeviceGraphMemTrim, "cuDeviceGraphMemTrim"(CUdevice);
    CuGraphAddMemAllocNode, "cuGraphAddMemAllocNode"(
        *mut CUgraphNode, CUgraph, *const CUgraphNode, usize, *mut CUDA_MEM_ALLOC_NODE_PARAMS
    );
    CuGraphAddNode, "cuGraphAddNode"(*mut CUgraphNode, CUgraph, *const CUgraphNode, usize, *mut c_void);
    CuGraphAddNodeV2, "cuGraphAddNode_v2"(
        *mut CUgraphNode, CUgraph, *const CUgraphNode, *const c_void, usize, *mut c_void
    );
    CuGraphGetNodes, "cuGraphGetNodes"(CUgraph, *mut CUgraphNode, *mut usize);
    CuGraphNodeGetType, "cuGraphNodeGetType"(CUgraphNode, *mut CUgraphNodeType);
    CuGraphMemAllocNodeGetParams, "cuGraphMemAllocNodeGetParams"(CUgraphNode, *mut CUDA_MEM_ALLOC_NODE_PARAMS);
    CuGraphMemFreeNodeGetParams, "cuGraphMemFreeNodeGetParams"(CUgraphNode, *mut CUdeviceptr);
    CuStreamGetId, "cuStreamGetId"(CUstream, *mut c_ulonglong);
    CuGraphChildGraphNodeGetGraph, "cuGraphChildGraphNodeGetGraph"(CUgraphNode, *mut CUgraph);
    CuGraphInstantiate, "cuGraphInstantiate"(*mut CUgraphExec, CUgraph, *mut CUgraphNode, *mut c_char, usize);
}
