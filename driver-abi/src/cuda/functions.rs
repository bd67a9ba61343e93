//! Types of pointers to the functions of the CUDA driver API.

use super::{
    CUDA_GRAPH_INSTANTIATE_PARAMS, CUDA_MEMCPY2D, CUDA_MEMCPY3D, CUDA_MEMCPY3D_BATCH_OP, CUDA_MEMCPY3D_PEER, CUarray,
    CUcontext, CUdevice, CUdeviceAttribute, CUdeviceptr, CUdriverProcAddressQueryResult, CUevent, CUfunction, CUgraph,
    CUgraphExec, CUgraphNode, CUlaunchConfig, CUmemDecompressParams, CUmemoryPool, CUmodule, CUresult, CUstream,
    CUstreamCaptureMode, CUstreamCaptureStatus, CUuuid,
};
use core::ffi::{c_char, c_int, c_uchar, c_uint, c_ulonglong, c_ushort, c_void};

macro_rules! functions {
    ($($name:ident, $symbol:literal ($($argument:ty),*);)*) => {
        $(#[doc = concat!("`", $symbol, "`")] pub type $name = unsafe extern "C" fn($($argument),*) -> CUresult;)*
    };
}

functions! {
    CuInit, "cuInit"(c_uint);
    CuDriverGetVersion, "cuDriverGetVersion"(*mut c_int);
    CuGetErrorName, "cuGetErrorName"(CUresult, *mut *const c_char);
    CuGetErrorString, "cuGetErrorString"(CUresult, *mut *const c_char);
    CuGetProcAddress, "cuGetProcAddress"(*const c_char, *mut *mut c_void, c_int, c_ulonglong);
    CuGetProcAddressV2, "cuGetProcAddress_v2"(
        *const c_char, *mut *mut c_void, c_int, c_ulonglong, *mut CUdriverProcAddressQueryResult
    );
    CuGetExportTable, "cuGetExportTable"(*mut *const c_void, *const CUuuid);

    CuDeviceGet, "cuDeviceGet"(*mut CUdevice, c_int);
    CuDeviceGetCount, "cuDeviceGetCount"(*mut c_int);
    CuDeviceGetName, "cuDeviceGetName"(*mut c_char, c_int, CUdevice);
    CuDeviceGetUuid, "cuDeviceGetUuid"(*mut CUuuid, CUdevice);
    CuDeviceGetUuidV2, "cuDeviceGetUuid_v2"(*mut CUuuid, CUdevice);
    CuDeviceTotalMemV2, "cuDeviceTotalMem_v2"(*mut usize, CUdevice);
    CuDeviceGetAttribute, "cuDeviceGetAttribute"(*mut c_int, CUdeviceAttribute, CUdevice);

    CuCtxCreateV2, "cuCtxCreate_v2"(*mut CUcontext, c_uint, CUdevice);
    CuCtxCreateV3, "cuCtxCreate_v3"(*mut CUcontext, *mut c_void, c_int, c_uint, CUdevice);
    CuCtxCreateV4, "cuCtxCreate_v4"(*mut CUcontext, *mut c_void, c_uint, CUdevice);
    CuCtxDestroyV2, "cuCtxDestroy_v2"(CUcontext);
    CuCtxAttach, "cuCtxAttach"(*mut CUcontext, c_uint);
    CuCtxDetach, "cuCtxDetach"(CUcontext);
    CuDevicePrimaryCtxRetain, "cuDevicePrimaryCtxRetain"(*mut CUcontext, CUdevice);
    CuDevicePrimaryCtxReleaseV2, "cuDevicePrimaryCtxRelease_v2"(CUdevice);
    CuDevicePrimaryCtxResetV2, "cuDevicePrimaryCtxReset_v2"(CUdevice);
    CuDevicePrimaryCtxGetState, "cuDevicePrimaryCtxGetState"(CUdevice, *mut c_uint, *mut c_int);
    CuDevicePrimaryCtxSetFlagsV2, "cuDevicePrimaryCtxSetFlags_v2"(CUdevice, c_uint);
    CuCtxGetCurrent, "cuCtxGetCurrent"(*mut CUcontext);
    CuCtxSetCurrent, "cuCtxSetCurrent"(CUcontext);
    CuCtxPushCurrentV2, "cuCtxPushCurrent_v2"(CUcontext);
    CuCtxPopCurrentV2, "cuCtxPopCurrent_v2"(*mut CUcontext);
    CuCtxGetDevice, "cuCtxGetDevice"(*mut CUdevice);
    CuCtxSynchronize, "cuCtxSynchronize"();
    CuCtxSynchronizeV2, "cuCtxSynchronize_v2"(CUcontext);

    CuMemGetInfoV2, "cuMemGetInfo_v2"(*mut usize, *mut usize);
    CuMemAllocV2, "cuMemAlloc_v2"(*mut CUdeviceptr, usize);
    CuMemAllocPitchV2, "cuMemAllocPitch_v2"(*mut CUdeviceptr, *mut usize, usize, usize, c_uint);
    CuMemAllocManaged, "cuMemAllocManaged"(*mut CUdeviceptr, usize, c_uint);
    CuMemAllocAsync, "cuMemAllocAsync"(*mut CUdeviceptr, usize, CUstream);
    CuMemAllocFromPoolAsync, "cuMemAllocFromPoolAsync"(*mut CUdeviceptr, usize, CUmemoryPool, CUstream);
    CuMemHostAlloc, "cuMemHostAlloc"(*mut *mut c_void, usize, c_uint);
    CuMemFreeHost, "cuMemFreeHost"(*mut c_void);
    CuMemFreeV2, "cuMemFree_v2"(CUdeviceptr);
    CuMemFreeAsync, "cuMemFreeAsync"(CUdeviceptr, CUstream);
    CuMemGetAddressRangeV2, "cuMemGetAddressRange_v2"(*mut CUdeviceptr, *mut usize, CUdeviceptr);
    CuPointerGetAttribute, "cuPointerGetAttribute"(*mut c_void, c_int, CUdeviceptr);
    CuMemcpyHtoDV2, "cuMemcpyHtoD_v2"(CUdeviceptr, *const c_void, usize);
    CuMemcpyDtoHV2, "cuMemcpyDtoH_v2"(*mut c_void, CUdeviceptr, usize);
    CuMemcpyDtoDV2, "cuMemcpyDtoD_v2"(CUdeviceptr, CUdeviceptr, usize);
    CuMemcpyHtoDAsyncV2, "cuMemcpyHtoDAsync_v2"(CUdeviceptr, *const c_void, usize, CUstream);
    CuMemcpyDtoHAsyncV2, "cuMemcpyDtoHAsync_v2"(*mut c_void, CUdeviceptr, usize, CUstream);
    CuMemcpyDtoDAsyncV2, "cuMemcpyDtoDAsync_v2"(CUdeviceptr, CUdeviceptr, usize, CUstream);
    CuMemcpy, "cuMemcpy"(CUdeviceptr, CUdeviceptr, usize);
    CuMemcpyAsync, "cuMemcpyAsync"(CUdeviceptr, CUdeviceptr, usize, CUstream);
    CuMemcpyAtoAV2, "cuMemcpyAtoA_v2"(CUarray, usize, CUarray, usize, usize);
    CuMemcpyAtoHV2, "cuMemcpyAtoH_v2"(*mut c_void, CUarray, usize, usize);
    CuMemcpyAtoDV2, "cuMemcpyAtoD_v2"(CUdeviceptr, CUarray, usize, usize);
    CuMemcpyDtoAV2, "cuMemcpyDtoA_v2"(CUarray, usize, CUdeviceptr, usize);
    CuMemcpy2DV2, "cuMemcpy2D_v2"(*const CUDA_MEMCPY2D);
    CuMemcpy2DUnalignedV2, "cuMemcpy2DUnaligned_v2"(*const CUDA_MEMCPY2D);
    CuMemcpy2DAsyncV2, "cuMemcpy2DAsync_v2"(*const CUDA_MEMCPY2D, CUstream);
    CuMemcpy3DV2, "cuMemcpy3D_v2"(*const CUDA_MEMCPY3D);
    CuMemcpy3DAsyncV2, "cuMemcpy3DAsync_v2"(*const CUDA_MEMCPY3D, CUstream);
    CuMemcpy3DPeer, "cuMemcpy3DPeer"(*const CUDA_MEMCPY3D_PEER);
    CuMemcpy3DPeerAsync, "cuMemcpy3DPeerAsync"(*const CUDA_MEMCPY3D_PEER, CUstream);
    CuMemcpyPeer, "cuMemcpyPeer"(CUdeviceptr, CUcontext, CUdeviceptr, CUcontext, usize);
    CuMemcpyPeerAsync, "cuMemcpyPeerAsync"(CUdeviceptr, CUcontext, CUdeviceptr, CUcontext, usize, CUstream);
    CuMemcpyBatchAsync, "cuMemcpyBatchAsync"(
        *mut CUdeviceptr, *mut CUdeviceptr, *mut usize, usize, *mut c_void, *mut usize, usize, *mut usize, CUstream
    );
    CuMemcpyBatchAsyncV2, "cuMemcpyBatchAsync_v2"(
        *mut CUdeviceptr, *mut CUdeviceptr, *mut usize, usize, *mut c_void, *mut usize, usize, CUstream
    );
    CuMemBatchDecompressAsync, "cuMemBatchDecompressAsync"(
        *mut CUmemDecompressParams, usize, c_uint, *mut usize, CUstream
    );
    CuMemcpy3DBatchAsync, "cuMemcpy3DBatchAsync"(
        usize, *mut CUDA_MEMCPY3D_BATCH_OP, *mut usize, c_ulonglong, CUstream
    );
    CuMemcpy3DBatchAsyncV2, "cuMemcpy3DBatchAsync_v2"(usize, *mut CUDA_MEMCPY3D_BATCH_OP, c_ulonglong, CUstream);
    CuMemcpyWithAttributesAsync, "cuMemcpyWithAttributesAsync"(
        CUdeviceptr, CUdeviceptr, usize, *mut c_void, CUstream
    );
    CuMemcpy3DWithAttributesAsync, "cuMemcpy3DWithAttributesAsync"(
        *mut CUDA_MEMCPY3D_BATCH_OP, c_ulonglong, CUstream
    );
    CuMemsetD8V2, "cuMemsetD8_v2"(CUdeviceptr, c_uchar, usize);
    CuMemsetD8Async, "cuMemsetD8Async"(CUdeviceptr, c_uchar, usize, CUstream);
    CuMemsetD32V2, "cuMemsetD32_v2"(CUdeviceptr, c_uint, usize);
    CuMemsetD32Async, "cuMemsetD32Async"(CUdeviceptr, c_uint, usize, CUstream);
    CuMemsetD16V2, "cuMemsetD16_v2"(CUdeviceptr, c_ushort, usize);
    CuMemsetD16Async, "cuMemsetD16Async"(CUdeviceptr, c_ushort, usize, CUstream);
    CuMemsetD2D8V2, "cuMemsetD2D8_v2"(CUdeviceptr, usize, c_uchar, usize, usize);
    CuMemsetD2D16V2, "cuMemsetD2D16_v2"(CUdeviceptr, usize, c_ushort, usize, usize);
    CuMemsetD2D32V2, "cuMemsetD2D32_v2"(CUdeviceptr, usize, c_uint, usize, usize);
    CuMemsetD2D8Async, "cuMemsetD2D8Async"(CUdeviceptr, usize, c_uchar, usize, usize, CUstream);
    CuMemsetD2D16Async, "cuMemsetD2D16Async"(CUdeviceptr, usize, c_ushort, usize, usize, CUstream);
    CuMemsetD2D32Async, "cuMemsetD2D32Async"(CUdeviceptr, usize, c_uint, usize, usize, CUstream);

    CuStreamCreate, "cuStreamCreate"(*mut CUstream, c_uint);
    CuStreamCreateWithPriority, "cuStreamCreateWithPriority"(*mut CUstream, c_uint, c_int);
    CuStreamDestroyV2, "cuStreamDestroy_v2"(CUstream);
    CuStreamSynchronize, "cuStreamSynchronize"(CUstream);
    CuStreamQuery, "cuStreamQuery"(CUstream);
    CuStreamBeginCaptureV2, "cuStreamBeginCapture_v2"(CUstream, CUstreamCaptureMode);
    CuStreamEndCapture, "cuStreamEndCapture"(CUstream, *mut CUgraph);
    CuStreamIsCapturing, "cuStreamIsCapturing"(CUstream, *mut CUstreamCaptureStatus);
    CuThreadExchangeStreamCaptureMode, "cuThreadExchangeStreamCaptureMode"(*mut CUstreamCaptureMode);

    CuEventCreate, "cuEventCreate"(*mut CUevent, c_uint);
    CuEventRecord, "cuEventRecord"(CUevent, CUstream);
    CuEventRecordWithFlags, "cuEventRecordWithFlags"(CUevent, CUstream, c_uint);
    CuEventQuery, "cuEventQuery"(CUevent);
    CuEventSynchronize, "cuEventSynchronize"(CUevent);
    CuEventElapsedTime, "cuEventElapsedTime"(*mut f32, CUevent, CUevent);
    CuEventDestroyV2, "cuEventDestroy_v2"(CUevent);

    CuModuleLoadData, "cuModuleLoadData"(*mut CUmodule, *const c_void);
    CuModuleLoadDataEx, "cuModuleLoadDataEx"(*mut CUmodule, *const c_void, c_uint, *mut c_int, *mut *mut c_void);
    CuModuleUnload, "cuModuleUnload"(CUmodule);
    CuModuleGetFunction, "cuModuleGetFunction"(*mut CUfunction, CUmodule, *const c_char);

    CuLaunchKernel, "cuLaunchKernel"(
        CUfunction, c_uint, c_uint, c_uint, c_uint, c_uint, c_uint, c_uint, CUstream, *mut *mut c_void, *mut *mut c_void
    );
    CuLaunchKernelEx, "cuLaunchKernelEx"(*const CUlaunchConfig, CUfunction, *mut *mut c_void, *mut *mut c_void);
    CuLaunch, "cuLaunch"(CUfunction);
    CuLaunchGrid, "cuLaunchGrid"(CUfunction, c_int, c_int);
    CuLaunchGridAsync, "cuLaunchGridAsync"(CUfunction, c_int, c_int, CUstream);
    CuLaunchCooperativeKernel, "cuLaunchCooperativeKernel"(
        CUfunction, c_uint, c_uint, c_uint, c_uint, c_uint, c_uint, c_uint, CUstream, *mut *mut c_void
    );

    CuGraphInstantiateV2, "cuGraphInstantiate_v2"(*mut CUgraphExec, CUgraph, *mut CUgraphNode, *mut c_char, usize);
    CuGraphInstantiateWithFlags, "cuGraphInstantiateWithFlags"(*mut CUgraphExec, CUgraph, c_ulonglong);
    CuGraphInstantiateWithParams, "cuGraphInstantiateWithParams"(
        *mut CUgraphExec, CUgraph, *mut CUDA_GRAPH_INSTANTIATE_PARAMS
    );
    CuGraphUpload, "cuGraphUpload"(CUgraphExec, CUstream);
    CuGraphLaunch, "cuGraphLaunch"(CUgraphExec, CUstream);
    CuGraphExecDestroy, "cuGraphExecDestroy"(CUgraphExec);
    CuGraphDestroy, "cuGraphDestroy"(CUgraph);
}
