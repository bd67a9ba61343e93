//! The variants for programs that are built with per-thread default streams. All streams of a context share one queue
//! here, so they do what the plain functions do.

use crate::{block_copy::*, copy::*, graph::*, launch::*};
use gpool_driver_abi::cuda::*;
use std::ffi::{c_uchar, c_uint, c_void};

macro_rules! variants {
    ($($name:ident = $plain:ident($($argument:ident: $of:ty),*);)*) => {$(
        #[unsafe(no_mangle)]
        pub unsafe extern "C" fn $name($($argument: $of),*) -> CUresult {
            // Some of the plain functions are safe.
            #[allow(unused_unsafe)]
            // SAFETY: the same contract.
            unsafe { $plain($($argument),*) }
        }
    )*};
}

variants! {
    cuMemcpy_ptds = cuMemcpy(to: CUdeviceptr, from: CUdeviceptr, bytes: usize);
    cuMemcpyHtoD_v2_ptds = cuMemcpyHtoD_v2(to: CUdeviceptr, from: *const c_void, bytes: usize);
    cuMemcpyDtoH_v2_ptds = cuMemcpyDtoH_v2(to: *mut c_void, from: CUdeviceptr, bytes: usize);
    cuMemcpyDtoD_v2_ptds = cuMemcpyDtoD_v2(to: CUdeviceptr, from: CUdeviceptr, bytes: usize);
    cuMemcpyAsync_ptsz = cuMemcpyAsync(to: CUdeviceptr, from: CUdeviceptr, bytes: usize, stream: CUstream);
    cuMemcpyHtoDAsync_v2_ptsz = cuMemcpyHtoDAsync_v2(
        to: CUdeviceptr, from: *const c_void, bytes: usize, stream: CUstream
    );
    cuMemcpyDtoHAsync_v2_ptsz = cuMemcpyDtoHAsync_v2(
        to: *mut c_void, from: CUdeviceptr, bytes: usize, stream: CUstream
    );
    cuMemcpyDtoDAsync_v2_ptsz = cuMemcpyDtoDAsync_v2(
        to: CUdeviceptr, from: CUdeviceptr, bytes: usize, stream: CUstream
    );
    cuMemcpy2D_v2_ptds = cuMemcpy2D_v2(description: *const CUDA_MEMCPY2D);
    cuMemcpy2DUnaligned_v2_ptds = cuMemcpy2DUnaligned_v2(description: *const CUDA_MEMCPY2D);
    cuMemcpy2DAsync_v2_ptsz = cuMemcpy2DAsync_v2(description: *const CUDA_MEMCPY2D, stream: CUstream);
    cuMemcpy3D_v2_ptds = cuMemcpy3D_v2(description: *const CUDA_MEMCPY3D);
    cuMemcpy3DAsync_v2_ptsz = cuMemcpy3DAsync_v2(description: *const CUDA_MEMCPY3D, stream: CUstream);
    cuMemcpy3DPeer_ptds = cuMemcpy3DPeer(description: *const CUDA_MEMCPY3D_PEER);
    cuMemcpy3DPeerAsync_ptsz = cuMemcpy3DPeerAsync(description: *const CUDA_MEMCPY3D_PEER, stream: CUstream);
    cuMemcpyPeer_ptds = cuMemcpyPeer(
        to: CUdeviceptr, to_context: CUcontext, from: CUdeviceptr, from_context: CUcontext, bytes: usize
    );
    cuMemcpyPeerAsync_ptsz = cuMemcpyPeerAsync(
        to: CUdeviceptr, to_context: CUcontext, from: CUdeviceptr, from_context: CUcontext, bytes: usize,
        stream: CUstream
    );
    cuMemsetD8_v2_ptds = cuMemsetD8_v2(to: CUdeviceptr, value: c_uchar, count: usize);
    cuMemsetD8Async_ptsz = cuMemsetD8Async(to: CUdeviceptr, value: c_uchar, count: usize, stream: CUstream);
    cuMemsetD32_v2_ptds = cuMemsetD32_v2(to: CUdeviceptr, value: c_uint, count: usize);
    cuMemsetD32Async_ptsz = cuMemsetD32Async(to: CUdeviceptr, value: c_uint, count: usize, stream: CUstream);
    cuLaunchKernel_ptsz = cuLaunchKernel(
        function: CUfunction, grid_x: c_uint, grid_y: c_uint, grid_z: c_uint, block_x: c_uint, block_y: c_uint,
        block_z: c_uint, shared_bytes: c_uint, stream: CUstream, parameters: *mut *mut c_void, extra: *mut *mut c_void
    );
    cuLaunchKernelEx_ptsz = cuLaunchKernelEx(
        configuration: *const CUlaunchConfig, function: CUfunction, parameters: *mut *mut c_void,
        extra: *mut *mut c_void
    );
    cuLaunchCooperativeKernel_ptsz = cuLaunchCooperativeKernel(
        function: CUfunction, grid_x: c_uint, grid_y: c_uint, grid_z: c_uint, block_x: c_uint, block_y: c_uint,
        block_z: c_uint, shared_bytes: c_uint, stream: CUstream, parameters: *mut *mut c_void
    );
    cuGraphInstantiateWithParams_ptsz = cuGraphInstantiateWithParams(
        executable: *mut CUgraphExec, graph: CUgraph, parameters: *mut CUDA_GRAPH_INSTANTIATE_PARAMS
    );
    cuGraphUpload_ptsz = cuGraphUpload(executable: CUgraphExec, stream: CUstream);
    cuGraphLaunch_ptsz = cuGraphLaunch(executable: CUgraphExec, stream: CUstream);
}
