//! What a simulated device does not have: sensors, clocks, codecs, ECC, MIG. Asked for it, NVML says that the device
//! does not support it, and monitoring programs show nothing there.

use crate::device::minor;
use crate::library::code;
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
    nvmlDeviceGetBAR1MemoryInfo
    nvmlDeviceGetClockInfo
    nvmlDeviceGetDecoderUtilization
    nvmlDeviceGetDisplayActive
    nvmlDeviceGetDisplayMode
    nvmlDeviceGetDriverModel
    nvmlDeviceGetEccMode
    nvmlDeviceGetEncoderUtilization
    nvmlDeviceGetEnforcedPowerLimit
    nvmlDeviceGetFanSpeed
    nvmlDeviceGetMaxClockInfo
    nvmlDeviceGetMigMode
    nvmlDeviceGetPcieThroughput
    nvmlDeviceGetPerformanceState
    nvmlDeviceGetPowerManagementLimit
    nvmlDeviceGetPowerUsage
    nvmlDeviceGetTemperature
    nvmlDeviceGetTotalEccErrors
}
