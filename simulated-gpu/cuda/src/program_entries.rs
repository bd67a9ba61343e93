//! The functions that deal with programs, and what libraries that compile them call besides, for look-ups by name. The
//! versions are those of NVIDIA's cudaTypedefs.h.

use crate::lookup::{Entry, table};
use crate::{
    device::cuDeviceGetPCIBusId, function::*, host_memory::*, kernel::*, library::*, linker::*, module::*,
    occupancy::*, pointer::*, stream::*,
};

pub(crate) fn entries() -> [Entry; 46] {
    table! {
        "cuDeviceGetPCIBusId" 4010 cuDeviceGetPCIBusId;
        "cuStreamWaitEvent" 3020 cuStreamWaitEvent;
        "cuStreamGetFlags" 5050 cuStreamGetFlags;
        "cuStreamGetPriority" 5050 cuStreamGetPriority;
        "cuStreamGetCtx" 9020 cuStreamGetCtx;
        "cuMemAllocHost" 3020 cuMemAllocHost_v2;
        "cuMemHostAlloc" 2020 cuMemHostAlloc;
        "cuMemFreeHost" 2000 cuMemFreeHost;
        "cuMemHostRegister" 6050 cuMemHostRegister_v2;
        "cuMemHostUnregister" 4000 cuMemHostUnregister;
        "cuMemHostGetDevicePointer" 3020 cuMemHostGetDevicePointer_v2;
        "cuPointerGetAttributes" 7000 cuPointerGetAttributes;
        "cuFuncGetAttribute" 2020 cuFuncGetAttribute;
        "cuFuncSetAttribute" 9000 cuFuncSetAttribute;
        "cuFuncSetCacheConfig" 3000 cuFuncSetCacheConfig;
        "cuKernelGetAttribute" 12000 cuKernelGetAttribute;
        "cuKernelSetAttribute" 12000 cuKernelSetAttribute;
        "cuKernelGetFunction" 12000 cuKernelGetFunction;
        "cuKernelGetLibrary" 12050 cuKernelGetLibrary;
        "cuKernelGetName" 12030 cuKernelGetName;
        "cuModuleLoad" 2000 cuModuleLoad;
        "cuModuleLoadData" 2000 cuModuleLoadData;
        "cuModuleLoadDataEx" 2010 cuModuleLoadDataEx;
        "cuModuleUnload" 2000 cuModuleUnload;
        "cuModuleGetFunction" 2000 cuModuleGetFunction;
        "cuModuleGetGlobal" 3020 cuModuleGetGlobal_v2;
        "cuModuleGetLoadingMode" 11070 cuModuleGetLoadingMode;
        "cuLibraryLoadData" 12000 cuLibraryLoadData;
        "cuLibraryLoadFromFile" 12000 cuLibraryLoadFromFile;
        "cuLibraryUnload" 12000 cuLibraryUnload;
        "cuLibraryGetGlobal" 12000 cuLibraryGetGlobal;
        "cuLibraryGetManaged" 12000 cuLibraryGetManaged;
        "cuLibraryGetKernel" 12000 cuLibraryGetKernel;
        "cuLibraryGetKernelCount" 12040 cuLibraryGetKernelCount;
        "cuLibraryEnumerateKernels" 12040 cuLibraryEnumerateKernels;
        "cuLinkCreate" 6050 cuLinkCreate_v2;
        "cuLinkAddData" 6050 cuLinkAddData_v2;
        "cuLinkAddFile" 6050 cuLinkAddFile_v2;
        "cuLinkComplete" 5050 cuLinkComplete;
        "cuLinkDestroy" 5050 cuLinkDestroy;
        "cuOccupancyMaxActiveBlocksPerMultiprocessor" 6050 cuOccupancyMaxActiveBlocksPerMultiprocessor;
        "cuOccupancyMaxActiveBlocksPerMultiprocessorWithFlags" 7000
            cuOccupancyMaxActiveBlocksPerMultiprocessorWithFlags;
        "cuOccupancyMaxPotentialBlockSize" 6050 cuOccupancyMaxPotentialBlockSize;
        "cuOccupancyMaxPotentialBlockSizeWithFlags" 7000 cuOccupancyMaxPotentialBlockSizeWithFlags;
        "cuOccupancyAvailableDynamicSMemPerBlock" 10020 cuOccupancyAvailableDynamicSMemPerBlock;
        "cuOccupancyMaxActiveClusters" 11070 cuOccupancyMaxActiveClusters;
    }
}
