//! Nodes of graphs that allocate. They take their memory whenever the graph is launched, from a reserve of the device
//! that grows unseen, so they are refused; a captured allocation is refused in `pools`.

use crate::entry::{index, real};
use core::ffi::{c_uint, c_void};
use gpool_driver_abi::cuda::{
    CU_GRAPH_NODE_TYPE_MEM_ALLOC, CUDA_ERROR_NOT_SUPPORTED, CUgraph, CUgraphNode, CUresult, CuGraphAddNode,
    CuGraphAddNodeV2,
};

/// Refused: see the module.
///
/// # Safety
/// As the driver's function of this name; so for all functions here.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuGraphAddMemAllocNode(
    _node: *mut CUgraphNode,
    _graph: CUgraph,
    _dependencies: *const CUgraphNode,
    _count: usize,
    _parameters: *mut c_void,
) -> CUresult {
    CUDA_ERROR_NOT_SUPPORTED
}

macro_rules! nodes {
    ($($(#[$export:meta])* $name:ident: $kind:ident [$($data:ident: $type:ty)?];)*) => {$(
        /// Refused if it allocates.
        $(#[$export])*
        pub unsafe extern "C" fn $name(
            node: *mut CUgraphNode, graph: CUgraph, dependencies: *const CUgraphNode, $($data: $type,)? count: usize,
            parameters: *mut c_void,
        ) -> CUresult {
            // SAFETY: null, or valid as the driver demands of its caller, and the type of the node comes first.
            if unsafe { parameters.cast::<c_uint>().as_ref() } == Some(&CU_GRAPH_NODE_TYPE_MEM_ALLOC) {
                return CUDA_ERROR_NOT_SUPPORTED;
            }
            // SAFETY: the entry point's type, the caller's arguments.
            unsafe { real::<$kind>(index::$name)(node, graph, dependencies, $($data,)? count, parameters) }
        }
    )*};
}

nodes! {
    #[unsafe(no_mangle)]
    cuGraphAddNode: CuGraphAddNode [];
    // Newer than the oldest driver. In shims of drivers that lack it, it is reached through cuGetProcAddress only.
    #[cfg_attr(driver_550, unsafe(no_mangle))]
    cuGraphAddNode_v2: CuGraphAddNodeV2 [data: *const c_void];
    cuGraphAddNode_v3: CuGraphAddNodeV2 [data: *const c_void];
}
