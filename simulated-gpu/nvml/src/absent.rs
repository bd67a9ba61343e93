//! What a simulated device does not have: clocks, codecs, sensors but one. Asked for it, NVML says that the device
//! does not support it, and monitoring programs show nothing there.

use crate::library::code;
use crate::target::minor;
use gpool_driver_abi::nvml::*;

macro_rules! absent {
    ($($name:ident)*) => {$(
        // The arguments behind the device differ; none of them is looked at.
        #[unsafe(no_mangle)]
        pub extern "C" fn $name(device: nvmlDevice_t) -> nvmlReturn_t {
            code(|| minor(device).and(Err(NVML_ERROR_NOT_SUPPORTED)))
        }
    )*};
}

absent! {
    nvmlDeviceGetAccountingBufferSize
    nvmlDeviceGetAccountingMode
    nvmlDeviceGetApplicationsClock
    nvmlDeviceGetArchitecture
    nvmlDeviceGetAutoBoostedClocksEnabled
    nvmlDeviceGetBAR1MemoryInfo
    nvmlDeviceGetBoardId
    nvmlDeviceGetBoardPartNumber
    nvmlDeviceGetBrand
    nvmlDeviceGetBridgeChipInfo
    nvmlDeviceGetClock
    nvmlDeviceGetClockInfo
    nvmlDeviceGetConfComputeProtectedMemoryUsage
    nvmlDeviceGetCpuAffinity
    nvmlDeviceGetCurrPcieLinkGeneration
    nvmlDeviceGetDecoderUtilization
    nvmlDeviceGetDefaultApplicationsClock
    nvmlDeviceGetDisplayActive
    nvmlDeviceGetDisplayMode
    nvmlDeviceGetDriverModel
    nvmlDeviceGetEccMode
    nvmlDeviceGetEncoderStats
    nvmlDeviceGetEncoderUtilization
    nvmlDeviceGetEnforcedPowerLimit
    nvmlDeviceGetFBCStats
    nvmlDeviceGetFanSpeed
    nvmlDeviceGetGpuMaxPcieLinkGeneration
    nvmlDeviceGetGpuOperationMode
    nvmlDeviceGetGridLicensableFeatures_v4
    nvmlDeviceGetGspFirmwareVersion
    nvmlDeviceGetHostVgpuMode
    nvmlDeviceGetInforomImageVersion
    nvmlDeviceGetInforomVersion
    nvmlDeviceGetJpgUtilization
    nvmlDeviceGetLastBBXFlushTime
    nvmlDeviceGetMaxClockInfo
    nvmlDeviceGetMaxPcieLinkGeneration
    nvmlDeviceGetMemoryAffinity
    nvmlDeviceGetMemoryErrorCounter
    nvmlDeviceGetModuleId
    nvmlDeviceGetMultiGpuBoard
    nvmlDeviceGetOfaUtilization
    nvmlDeviceGetPcieThroughput
    nvmlDeviceGetPerformanceState
    nvmlDeviceGetPowerManagementLimit
    nvmlDeviceGetPowerUsage
    nvmlDeviceGetRetiredPages
    nvmlDeviceGetRetiredPagesPendingStatus
    nvmlDeviceGetSerial
    nvmlDeviceGetSramEccErrorStatus
    nvmlDeviceGetSupportedClocksThrottleReasons
    nvmlDeviceGetTemperatureThreshold
    nvmlDeviceGetVbiosVersion
    nvmlDeviceGetVirtualizationMode
    nvmlDeviceValidateInforom
}
