//! Finding functions by name, as cuGetProcAddress does, and the names of results.

use crate::driver::{Outcome, code_at_once, put};
use crate::program_entries;
use crate::{
    array::*, block_copy::*, capture::*, checkpoint::*, context::*, copy::*, device::*, driver::*, event::*, graph::*,
    graph_memory::*, launch::*, memory::*, per_thread::*, pointer::*, pool::*, pool_sharing::*, sharing::*, stream::*,
    virtual_memory::*,
};
use gpool_driver_abi::cuda::*;
use std::ffi::{CStr, c_char, c_int, c_ulonglong, c_void};
use std::ptr::null_mut;

pub(crate) struct Entry {
    /// The name without its version.
    pub(crate) base: &'static str,
    pub(crate) symbol: &'static str,
    /// The first version of the API with it.
    pub(crate) since: c_int,
    pub(crate) address: *mut c_void,
}

macro_rules! table {
    ($($base:literal $since:literal $symbol:ident;)*) => {
        [$($crate::lookup::Entry { base: $base, symbol: stringify!($symbol), since: $since, address: $symbol as *mut std::ffi::c_void }),*]
    };
}

pub(crate) use table;

/// Every function of this library but those in `program_entries`. The versions are those of NVIDIA's cudaTypedefs.h; where
/// only one variant is here, its version decides nothing.
fn entries() -> [Entry; 168] {
    table! {
        "cuInit" 2000 cuInit;
        "cuDriverGetVersion" 2020 cuDriverGetVersion;
        "cuGetErrorName" 6000 cuGetErrorName;
        "cuGetErrorString" 6000 cuGetErrorString;
        "cuGetProcAddress" 11030 cuGetProcAddress;
        "cuGetProcAddress" 12000 cuGetProcAddress_v2;
        "cuGetExportTable" 3000 cuGetExportTable;
        "cuDeviceGet" 2000 cuDeviceGet;
        "cuDeviceGetCount" 2000 cuDeviceGetCount;
        "cuDeviceGetName" 2000 cuDeviceGetName;
        "cuDeviceGetUuid" 9020 cuDeviceGetUuid;
        "cuDeviceGetUuid" 11040 cuDeviceGetUuid_v2;
        "cuDeviceTotalMem" 3020 cuDeviceTotalMem_v2;
        "cuDeviceGetAttribute" 2000 cuDeviceGetAttribute;
        "cuCtxCreate" 3020 cuCtxCreate_v2;
        "cuCtxCreate" 11040 cuCtxCreate_v3;
        "cuCtxDestroy" 4000 cuCtxDestroy_v2;
        "cuDevicePrimaryCtxRetain" 7000 cuDevicePrimaryCtxRetain;
        "cuDevicePrimaryCtxRelease" 11000 cuDevicePrimaryCtxRelease_v2;
        "cuDevicePrimaryCtxReset" 11000 cuDevicePrimaryCtxReset_v2;
        "cuDevicePrimaryCtxGetState" 7000 cuDevicePrimaryCtxGetState;
        "cuDevicePrimaryCtxSetFlags" 11000 cuDevicePrimaryCtxSetFlags_v2;
        "cuCtxGetCurrent" 4000 cuCtxGetCurrent;
        "cuCtxSetCurrent" 4000 cuCtxSetCurrent;
        "cuCtxPushCurrent" 4000 cuCtxPushCurrent_v2;
        "cuCtxPopCurrent" 4000 cuCtxPopCurrent_v2;
        "cuCtxGetDevice" 2000 cuCtxGetDevice;
        "cuCtxSynchronize" 2000 cuCtxSynchronize;
        "cuCtxGetStreamPriorityRange" 5050 cuCtxGetStreamPriorityRange;
        "cuMemGetInfo" 3020 cuMemGetInfo_v2;
        "cuMemAlloc" 3020 cuMemAlloc_v2;
        "cuMemAllocPitch" 3020 cuMemAllocPitch_v2;
        "cuMemAllocManaged" 6000 cuMemAllocManaged;
        "cuMemAllocAsync" 11020 cuMemAllocAsync;
        "cuMemAllocAsync" 11020 cuMemAllocAsync_ptsz;
        "cuMemAllocFromPoolAsync" 11020 cuMemAllocFromPoolAsync;
        "cuMemAllocFromPoolAsync" 11020 cuMemAllocFromPoolAsync_ptsz;
        "cuMemFree" 3020 cuMemFree_v2;
        "cuMemFreeAsync" 11020 cuMemFreeAsync;
        "cuMemFreeAsync" 11020 cuMemFreeAsync_ptsz;
        "cuMemGetAddressRange" 3020 cuMemGetAddressRange_v2;
        "cuPointerGetAttribute" 4000 cuPointerGetAttribute;
        "cuDeviceGetDefaultMemPool" 11020 cuDeviceGetDefaultMemPool;
        "cuDeviceGetMemPool" 11020 cuDeviceGetMemPool;
        "cuDeviceSetMemPool" 11020 cuDeviceSetMemPool;
        "cuMemPoolCreate" 11020 cuMemPoolCreate;
        "cuMemPoolDestroy" 11020 cuMemPoolDestroy;
        "cuMemPoolTrimTo" 11020 cuMemPoolTrimTo;
        "cuMemPoolGetAttribute" 11020 cuMemPoolGetAttribute;
        "cuMemPoolSetAttribute" 11020 cuMemPoolSetAttribute;
        "cuMemPoolExportToShareableHandle" 11020 cuMemPoolExportToShareableHandle;
        "cuMemPoolImportFromShareableHandle" 11020 cuMemPoolImportFromShareableHandle;
        "cuMemPoolExportPointer" 11020 cuMemPoolExportPointer;
        "cuMemPoolImportPointer" 11020 cuMemPoolImportPointer;
        "cuMemGetAllocationGranularity" 10020 cuMemGetAllocationGranularity;
        "cuMemCreate" 10020 cuMemCreate;
        "cuMemRelease" 10020 cuMemRelease;
        "cuMemRetainAllocationHandle" 11000 cuMemRetainAllocationHandle;
        "cuMemAddressReserve" 10020 cuMemAddressReserve;
        "cuMemAddressFree" 10020 cuMemAddressFree;
        "cuMemMap" 10020 cuMemMap;
        "cuMemUnmap" 10020 cuMemUnmap;
        "cuMemSetAccess" 10020 cuMemSetAccess;
        "cuArrayCreate" 3020 cuArrayCreate_v2;
        "cuArray3DCreate" 3020 cuArray3DCreate_v2;
        "cuArrayDestroy" 2000 cuArrayDestroy;
        "cuMipmappedArrayCreate" 5000 cuMipmappedArrayCreate;
        "cuMipmappedArrayDestroy" 5000 cuMipmappedArrayDestroy;
        "cuMemcpy" 4000 cuMemcpy;
        "cuMemcpy" 7000 cuMemcpy_ptds;
        "cuMemcpyHtoD" 3020 cuMemcpyHtoD_v2;
        "cuMemcpyHtoD" 7000 cuMemcpyHtoD_v2_ptds;
        "cuMemcpyDtoH" 3020 cuMemcpyDtoH_v2;
        "cuMemcpyDtoH" 7000 cuMemcpyDtoH_v2_ptds;
        "cuMemcpyDtoD" 3020 cuMemcpyDtoD_v2;
        "cuMemcpyDtoD" 7000 cuMemcpyDtoD_v2_ptds;
        "cuMemcpyAsync" 4000 cuMemcpyAsync;
        "cuMemcpyAsync" 7000 cuMemcpyAsync_ptsz;
        "cuMemcpyHtoDAsync" 3020 cuMemcpyHtoDAsync_v2;
        "cuMemcpyHtoDAsync" 7000 cuMemcpyHtoDAsync_v2_ptsz;
        "cuMemcpyDtoHAsync" 3020 cuMemcpyDtoHAsync_v2;
        "cuMemcpyDtoHAsync" 7000 cuMemcpyDtoHAsync_v2_ptsz;
        "cuMemcpyDtoDAsync" 3020 cuMemcpyDtoDAsync_v2;
        "cuMemcpyDtoDAsync" 7000 cuMemcpyDtoDAsync_v2_ptsz;
        "cuMemcpy2D" 3020 cuMemcpy2D_v2;
        "cuMemcpy2D" 7000 cuMemcpy2D_v2_ptds;
        "cuMemcpy2DUnaligned" 3020 cuMemcpy2DUnaligned_v2;
        "cuMemcpy2DUnaligned" 7000 cuMemcpy2DUnaligned_v2_ptds;
        "cuMemcpy2DAsync" 3020 cuMemcpy2DAsync_v2;
        "cuMemcpy2DAsync" 7000 cuMemcpy2DAsync_v2_ptsz;
        "cuMemcpy3D" 3020 cuMemcpy3D_v2;
        "cuMemcpy3D" 7000 cuMemcpy3D_v2_ptds;
        "cuMemcpy3DAsync" 3020 cuMemcpy3DAsync_v2;
        "cuMemcpy3DAsync" 7000 cuMemcpy3DAsync_v2_ptsz;
        "cuMemcpy3DPeer" 4000 cuMemcpy3DPeer;
        "cuMemcpy3DPeer" 7000 cuMemcpy3DPeer_ptds;
        "cuMemcpy3DPeerAsync" 4000 cuMemcpy3DPeerAsync;
        "cuMemcpy3DPeerAsync" 7000 cuMemcpy3DPeerAsync_ptsz;
        "cuMemcpyPeer" 4000 cuMemcpyPeer;
        "cuMemcpyPeer" 7000 cuMemcpyPeer_ptds;
        "cuMemcpyPeerAsync" 4000 cuMemcpyPeerAsync;
        "cuMemcpyPeerAsync" 7000 cuMemcpyPeerAsync_ptsz;
        "cuMemsetD8" 3020 cuMemsetD8_v2;
        "cuMemsetD8" 7000 cuMemsetD8_v2_ptds;
        "cuMemsetD8Async" 3020 cuMemsetD8Async;
        "cuMemsetD8Async" 7000 cuMemsetD8Async_ptsz;
        "cuMemsetD32" 3020 cuMemsetD32_v2;
        "cuMemsetD32" 7000 cuMemsetD32_v2_ptds;
        "cuMemsetD32Async" 3020 cuMemsetD32Async;
        "cuMemsetD32Async" 7000 cuMemsetD32Async_ptsz;
        "cuMemExportToShareableHandle" 10020 cuMemExportToShareableHandle;
        "cuMemImportFromShareableHandle" 10020 cuMemImportFromShareableHandle;
        "cuMemGetAllocationPropertiesFromHandle" 10020 cuMemGetAllocationPropertiesFromHandle;
        "cuIpcGetMemHandle" 4010 cuIpcGetMemHandle;
        "cuIpcOpenMemHandle" 11000 cuIpcOpenMemHandle_v2;
        "cuIpcCloseMemHandle" 4010 cuIpcCloseMemHandle;
        "cuImportExternalMemory" 10000 cuImportExternalMemory;
        "cuExternalMemoryGetMappedBuffer" 10000 cuExternalMemoryGetMappedBuffer;
        "cuDestroyExternalMemory" 10000 cuDestroyExternalMemory;
        "cuStreamCreate" 2000 cuStreamCreate;
        "cuStreamCreateWithPriority" 5050 cuStreamCreateWithPriority;
        "cuStreamDestroy" 4000 cuStreamDestroy_v2;
        "cuStreamSynchronize" 2000 cuStreamSynchronize;
        "cuStreamQuery" 2000 cuStreamQuery;
        "cuStreamBeginCapture" 10010 cuStreamBeginCapture_v2;
        "cuStreamEndCapture" 10000 cuStreamEndCapture;
        "cuStreamIsCapturing" 10000 cuStreamIsCapturing;
        "cuStreamGetCaptureInfo" 11030 cuStreamGetCaptureInfo_v2;
        "cuThreadExchangeStreamCaptureMode" 10010 cuThreadExchangeStreamCaptureMode;
        "cuEventCreate" 2000 cuEventCreate;
        "cuEventRecord" 2000 cuEventRecord;
        "cuEventRecordWithFlags" 11010 cuEventRecordWithFlags;
        "cuEventQuery" 2000 cuEventQuery;
        "cuEventSynchronize" 2000 cuEventSynchronize;
        "cuEventElapsedTime" 2000 cuEventElapsedTime;
        "cuEventDestroy" 4000 cuEventDestroy_v2;
        "cuLaunchKernel" 4000 cuLaunchKernel;
        "cuLaunchKernel" 7000 cuLaunchKernel_ptsz;
        "cuLaunchKernelEx" 11060 cuLaunchKernelEx;
        "cuLaunchKernelEx" 11060 cuLaunchKernelEx_ptsz;
        "cuLaunchCooperativeKernel" 9000 cuLaunchCooperativeKernel;
        "cuLaunchCooperativeKernel" 9000 cuLaunchCooperativeKernel_ptsz;
        "cuCheckpointProcessGetState" 12080 cuCheckpointProcessGetState;
        "cuCheckpointProcessGetRestoreThreadId" 12080 cuCheckpointProcessGetRestoreThreadId;
        "cuCheckpointProcessLock" 12080 cuCheckpointProcessLock;
        "cuCheckpointProcessCheckpoint" 12080 cuCheckpointProcessCheckpoint;
        "cuCheckpointProcessRestore" 12080 cuCheckpointProcessRestore;
        "cuCheckpointProcessUnlock" 12080 cuCheckpointProcessUnlock;
        "cuDeviceGetGraphMemAttribute" 11040 cuDeviceGetGraphMemAttribute;
        "cuDeviceGraphMemTrim" 11040 cuDeviceGraphMemTrim;
        "cuGraphCreate" 10000 cuGraphCreate;
        "cuGraphAddMemAllocNode" 11040 cuGraphAddMemAllocNode;
        "cuGraphAddMemFreeNode" 11040 cuGraphAddMemFreeNode;
        "cuStreamGetId" 12000 cuStreamGetId;
        "cuGraphMemFreeNodeGetParams" 11040 cuGraphMemFreeNodeGetParams;
        "cuGraphMemAllocNodeGetParams" 11040 cuGraphMemAllocNodeGetParams;
        "cuGraphGetNodes" 10000 cuGraphGetNodes;
        "cuGraphNodeGetType" 10000 cuGraphNodeGetType;
        "cuGraphInstantiate" 11000 cuGraphInstantiate_v2;
        "cuGraphInstantiateWithFlags" 11040 cuGraphInstantiateWithFlags;
        "cuGraphInstantiateWithParams" 12000 cuGraphInstantiateWithParams;
        "cuGraphInstantiateWithParams" 12000 cuGraphInstantiateWithParams_ptsz;
        "cuGraphUpload" 11010 cuGraphUpload;
        "cuGraphUpload" 11010 cuGraphUpload_ptsz;
        "cuGraphLaunch" 10000 cuGraphLaunch;
        "cuGraphLaunch" 10000 cuGraphLaunch_ptsz;
        "cuGraphExecDestroy" 10000 cuGraphExecDestroy;
        "cuGraphDestroy" 10000 cuGraphDestroy;
    }
}

/// The newest variant of `name` up to `version`, or the function with exactly that name.
fn find(name: &str, version: c_int, flags: c_ulonglong) -> (*mut c_void, CUdriverProcAddressQueryResult) {
    let per_thread = flags & CU_GET_PROC_ADDRESS_PER_THREAD_DEFAULT_STREAM != 0;
    let (entries, of_programs) = (entries(), program_entries::entries());
    let variants = || entries.iter().chain(&of_programs).filter(|entry| entry.base == name || entry.symbol == name);
    // Of equal versions the last wins, and the variants for per-thread default streams are listed last.
    let fitting = variants().filter(|entry| {
        let is_plain = !entry.symbol.ends_with("_ptsz") && !entry.symbol.ends_with("_ptds");
        entry.since <= version && (per_thread || is_plain || entry.symbol == name)
    });
    match fitting.max_by_key(|entry| entry.since) {
        Some(entry) => (entry.address, CU_GET_PROC_ADDRESS_SUCCESS),
        None if variants().next().is_some() => (null_mut(), CU_GET_PROC_ADDRESS_VERSION_NOT_SUFFICIENT),
        None => (null_mut(), CU_GET_PROC_ADDRESS_SYMBOL_NOT_FOUND),
    }
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuGetProcAddress(
    name: *const c_char,
    address: *mut *mut c_void,
    version: c_int,
    flags: c_ulonglong,
) -> CUresult {
    // SAFETY: the same contract; no status is asked for.
    unsafe { cuGetProcAddress_v2(name, address, version, flags, null_mut()) }
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuGetProcAddress_v2(
    name: *const c_char,
    address: *mut *mut c_void,
    version: c_int,
    flags: c_ulonglong,
    status: *mut CUdriverProcAddressQueryResult,
) -> CUresult {
    code_at_once(|| {
        if name.is_null() || address.is_null() {
            return Err(CUDA_ERROR_INVALID_VALUE);
        }
        // SAFETY: a text that ends with a zero, as the API demands of its caller.
        let name = unsafe { CStr::from_ptr(name) }.to_str().unwrap_or_default();
        let (found, answer) = find(name, version.min(crate::driver::version()), flags);
        // SAFETY: not NULL, and valid as the API demands of its caller.
        unsafe { put(address, found) }?;
        if !status.is_null() {
            // SAFETY: as above. A caller that asks for the status gets the reason there.
            unsafe { put(status, answer) }?;
        }
        if found.is_null() { Err(CUDA_ERROR_NOT_FOUND) } else { Ok(()) }
    })
}

/// Private tables are refused, as NVIDIA's driver refuses one that it does not know.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuGetExportTable(table: *mut *const c_void, _id: *const CUuuid) -> CUresult {
    // SAFETY: NULL or valid, as the API demands of its caller.
    code_at_once(|| unsafe { put(table, std::ptr::null()) }.and(Err(CUDA_ERROR_INVALID_VALUE)))
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuGetErrorName(error: CUresult, text: *mut *const c_char) -> CUresult {
    // SAFETY: the same contract.
    code_at_once(|| unsafe { put_text(error, text, |(_, name, _)| name) })
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuGetErrorString(error: CUresult, text: *mut *const c_char) -> CUresult {
    // SAFETY: the same contract.
    code_at_once(|| unsafe { put_text(error, text, |(_, _, description)| description) })
}

type Known = (CUresult, &'static CStr, &'static CStr);

/// # Safety
///
/// `text` is NULL or valid for a write.
unsafe fn put_text(error: CUresult, text: *mut *const c_char, choose: fn(&Known) -> &'static CStr) -> Outcome {
    let found = RESULTS.iter().find(|known| known.0 == error);
    // SAFETY: as this function's caller promises.
    unsafe { put(text, found.map_or(std::ptr::null(), |known| choose(known).as_ptr())) }?;
    found.map(|_| ()).ok_or(CUDA_ERROR_INVALID_VALUE)
}
