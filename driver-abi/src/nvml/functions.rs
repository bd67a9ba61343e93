//! Types of pointers to the functions of NVML.

use super::{
    nvmlComputeMode_t, nvmlDevice_t, nvmlEnableState_t, nvmlGetMemoryLimits_v1_t, nvmlGpuP2PCapsIndex_t,
    nvmlGpuP2PStatus_t, nvmlGpuTopologyLevel_t, nvmlMemory_t, nvmlMemory_v2_t, nvmlPciInfo_t, nvmlProcessInfo_v1_t,
    nvmlProcessInfo_v2_t, nvmlProcessUtilizationSample_t, nvmlReturn_t, nvmlSetMemoryLimits_v1_t, nvmlUtilization_t,
};
use core::ffi::{c_char, c_int, c_uint, c_ulonglong};

/// `nvmlErrorString`, the only function that returns no code.
pub type NvmlErrorString = unsafe extern "C" fn(nvmlReturn_t) -> *const c_char;

macro_rules! functions {
    ($($name:ident, $symbol:literal ($($argument:ty),*);)*) => {
        $(#[doc = concat!("`", $symbol, "`")] pub type $name = unsafe extern "C" fn($($argument),*) -> nvmlReturn_t;)*
    };
}

functions! {
    NvmlInit, "nvmlInit"();
    NvmlInitV2, "nvmlInit_v2"();
    NvmlInitWithFlags, "nvmlInitWithFlags"(c_uint);
    NvmlShutdown, "nvmlShutdown"();

    NvmlSystemGetDriverVersion, "nvmlSystemGetDriverVersion"(*mut c_char, c_uint);
    NvmlSystemGetNvmlVersion, "nvmlSystemGetNVMLVersion"(*mut c_char, c_uint);
    NvmlSystemGetCudaDriverVersion, "nvmlSystemGetCudaDriverVersion"(*mut c_int);
    NvmlSystemGetCudaDriverVersionV2, "nvmlSystemGetCudaDriverVersion_v2"(*mut c_int);

    NvmlDeviceGetCountV2, "nvmlDeviceGetCount_v2"(*mut c_uint);
    NvmlDeviceGetHandleByIndexV2, "nvmlDeviceGetHandleByIndex_v2"(c_uint, *mut nvmlDevice_t);
    NvmlDeviceGetHandleByUuid, "nvmlDeviceGetHandleByUUID"(*const c_char, *mut nvmlDevice_t);
    NvmlDeviceGetHandleByPciBusIdV2, "nvmlDeviceGetHandleByPciBusId_v2"(*const c_char, *mut nvmlDevice_t);
    NvmlDeviceGetIndex, "nvmlDeviceGetIndex"(nvmlDevice_t, *mut c_uint);
    NvmlDeviceGetUuid, "nvmlDeviceGetUUID"(nvmlDevice_t, *mut c_char, c_uint);
    NvmlDeviceGetName, "nvmlDeviceGetName"(nvmlDevice_t, *mut c_char, c_uint);
    NvmlDeviceGetMinorNumber, "nvmlDeviceGetMinorNumber"(nvmlDevice_t, *mut c_uint);
    NvmlDeviceGetPciInfoV3, "nvmlDeviceGetPciInfo_v3"(nvmlDevice_t, *mut nvmlPciInfo_t);
    NvmlDeviceGetComputeMode, "nvmlDeviceGetComputeMode"(nvmlDevice_t, *mut nvmlComputeMode_t);
    NvmlDeviceGetP2PStatus, "nvmlDeviceGetP2PStatus"(
        nvmlDevice_t, nvmlDevice_t, nvmlGpuP2PCapsIndex_t, *mut nvmlGpuP2PStatus_t
    );
    NvmlDeviceGetTopologyCommonAncestor, "nvmlDeviceGetTopologyCommonAncestor"(
        nvmlDevice_t, nvmlDevice_t, *mut nvmlGpuTopologyLevel_t
    );
    NvmlDeviceGetPersistenceMode, "nvmlDeviceGetPersistenceMode"(nvmlDevice_t, *mut nvmlEnableState_t);

    NvmlDeviceGetMemoryInfo, "nvmlDeviceGetMemoryInfo"(nvmlDevice_t, *mut nvmlMemory_t);
    NvmlDeviceGetMemoryInfoV2, "nvmlDeviceGetMemoryInfo_v2"(nvmlDevice_t, *mut nvmlMemory_v2_t);
    NvmlDeviceSetMemoryLimitsV1, "nvmlDeviceSetMemoryLimits_v1"(nvmlDevice_t, *mut nvmlSetMemoryLimits_v1_t);
    NvmlDeviceGetMemoryLimitsV1, "nvmlDeviceGetMemoryLimits_v1"(nvmlDevice_t, *mut nvmlGetMemoryLimits_v1_t);
    NvmlDeviceGetUtilizationRates, "nvmlDeviceGetUtilizationRates"(nvmlDevice_t, *mut nvmlUtilization_t);
    NvmlDeviceGetProcessUtilization, "nvmlDeviceGetProcessUtilization"(
        nvmlDevice_t, *mut nvmlProcessUtilizationSample_t, *mut c_uint, c_ulonglong
    );
    NvmlDeviceGetComputeRunningProcesses, "nvmlDeviceGetComputeRunningProcesses"(
        nvmlDevice_t, *mut c_uint, *mut nvmlProcessInfo_v1_t
    );
    NvmlDeviceGetComputeRunningProcessesV2, "nvmlDeviceGetComputeRunningProcesses_v2"(
        nvmlDevice_t, *mut c_uint, *mut nvmlProcessInfo_v2_t
    );
    NvmlDeviceGetComputeRunningProcessesV3, "nvmlDeviceGetComputeRunningProcesses_v3"(
        nvmlDevice_t, *mut c_uint, *mut nvmlProcessInfo_v2_t
    );
    NvmlDeviceGetGraphicsRunningProcessesV3, "nvmlDeviceGetGraphicsRunningProcesses_v3"(
        nvmlDevice_t, *mut c_uint, *mut nvmlProcessInfo_v2_t
    );
}
