//! Handles, structures and constants of NVML.

#![allow(non_camel_case_types, non_snake_case)] // NVIDIA's names

use super::results::nvmlReturn_t;
use core::ffi::{c_char, c_int, c_longlong, c_uint, c_ulonglong, c_void};

/// A device.
pub type nvmlDevice_t = *mut c_void;
/// A set of events that a program waits for.
pub type nvmlEventSet_t = *mut c_void;
/// What has happened to a device.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct nvmlEventData_t {
    /// Which.
    pub device: nvmlDevice_t,
    /// Of what kind it is, a bit of `nvmlEventType*`.
    pub eventType: c_ulonglong,
    /// Of an Xid, its number.
    pub eventData: c_ulonglong,
    /// All ones if it is of no instance.
    pub gpuInstanceId: c_uint,
    /// The same.
    pub computeInstanceId: c_uint,
}

/// Who may use a device; 0 is everybody.
pub type nvmlComputeMode_t = c_int;
/// What two devices can do with each other: read, write, NVLink and so on.
pub type nvmlGpuP2PCapsIndex_t = c_int;
/// Whether they can, or why not.
pub type nvmlGpuP2PStatus_t = c_int;
/// What a path from one device to another goes through at the most.
pub type nvmlGpuTopologyLevel_t = c_int;
/// Off (0) or on (1).
pub type nvmlEnableState_t = c_int;

/// Whether errors of memory could be corrected.
pub type nvmlMemoryErrorType_t = c_int;
/// Since when they are counted.
pub type nvmlEccCounterType_t = c_int;
/// What has a temperature.
pub type nvmlTemperatureSensors_t = c_int;

/// Errors that could be corrected.
pub const NVML_MEMORY_ERROR_TYPE_CORRECTED: nvmlMemoryErrorType_t = 0;
/// Errors that could not.
pub const NVML_MEMORY_ERROR_TYPE_UNCORRECTED: nvmlMemoryErrorType_t = 1;
/// Since the driver was loaded or the device was reset.
pub const NVML_VOLATILE_ECC: nvmlEccCounterType_t = 0;
/// For as long as the device exists.
pub const NVML_AGGREGATE_ECC: nvmlEccCounterType_t = 1;
/// The die.
pub const NVML_TEMPERATURE_GPU: nvmlTemperatureSensors_t = 0;
/// Everybody may use the device.
pub const NVML_COMPUTEMODE_DEFAULT: nvmlComputeMode_t = 0;
/// They reach each other's memory over NVLink.
pub const NVML_P2P_CAPS_INDEX_NVLINK: nvmlGpuP2PCapsIndex_t = 2;
/// The first number that means nothing.
pub const NVML_P2P_CAPS_INDEX_UNKNOWN: nvmlGpuP2PCapsIndex_t = 5;
/// They can.
pub const NVML_P2P_STATUS_OK: nvmlGpuP2PStatus_t = 0;
/// They cannot.
pub const NVML_P2P_STATUS_NOT_SUPPORTED: nvmlGpuP2PStatus_t = 5;
/// Host bridges of one processor.
pub const NVML_TOPOLOGY_NODE: nvmlGpuTopologyLevel_t = 40;
/// What joins processors.
pub const NVML_TOPOLOGY_SYSTEM: nvmlGpuTopologyLevel_t = 50;
/// Off.
pub const NVML_FEATURE_DISABLED: nvmlEnableState_t = 0;
/// On.
pub const NVML_FEATURE_ENABLED: nvmlEnableState_t = 1;
/// In place of a number that is not known, in 64 bits.
pub const NVML_VALUE_NOT_AVAILABLE: c_ulonglong = c_ulonglong::MAX;
/// In place of the id of a MIG instance where there is none.
pub const NVML_INSTANCE_NOT_AVAILABLE: c_uint = c_uint::MAX;
/// Room that nvmlSystemGetDriverVersion needs.
pub const NVML_SYSTEM_DRIVER_VERSION_BUFFER_SIZE: usize = 80;
/// Room that nvmlDeviceGetUUID needs.
pub const NVML_DEVICE_UUID_V2_BUFFER_SIZE: usize = 96;
/// Room that nvmlDeviceGetName needs.
pub const NVML_DEVICE_NAME_V2_BUFFER_SIZE: usize = 96;
/// Flag of nvmlInitWithFlags: success without a device.
pub const NVML_INIT_FLAG_NO_GPUS: c_uint = 1;
/// What `version` of [`nvmlMemory_v2_t`] has to hold: the size and the version, shifted by 24.
pub const NVML_MEMORY_V2: c_uint = size_of::<nvmlMemory_v2_t>() as c_uint | (2 << 24);

/// Memory of a device, in bytes.
#[repr(C)]
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct nvmlMemory_t {
    /// All of it.
    pub total: c_ulonglong,
    /// What nobody holds.
    pub free: c_ulonglong,
    /// What is held, and what the driver keeps.
    pub used: c_ulonglong,
}

/// Memory of a device, in bytes, with the driver's own part apart.
#[repr(C)]
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct nvmlMemory_v2_t {
    /// [`NVML_MEMORY_V2`], set by the caller.
    pub version: c_uint,
    /// All of it.
    pub total: c_ulonglong,
    /// What the driver keeps.
    pub reserved: c_ulonglong,
    /// What nobody holds.
    pub free: c_ulonglong,
    /// What is held.
    pub used: c_ulonglong,
}

/// The hard limit of a cgroup that has none.
pub const NVML_DEVICE_MEMORY_LIMIT_MAX: c_ulonglong = c_ulonglong::MAX;

/// The memory of a device that the processes of a cgroup may have, in bytes; of NVML 13.615, of driver 615.
#[repr(C)]
#[derive(Debug, Clone, Copy)]
pub struct nvmlSetMemoryLimits_v1_t {
    /// Path of the cgroup's directory, of version 2.
    pub nameSpace: *const c_char,
    /// So much is not taken back from them when others want it.
    pub softLimit: c_ulonglong,
    /// What would go above it is refused.
    pub hardLimit: c_ulonglong,
}

/// The same as it is, in bytes.
#[repr(C)]
#[derive(Debug, Clone, Copy)]
pub struct nvmlGetMemoryLimits_v1_t {
    /// Path of the cgroup's directory, set by the caller.
    pub nameSpace: *const c_char,
    /// See [`nvmlSetMemoryLimits_v1_t`].
    pub softLimit: c_ulonglong,
    /// [`NVML_DEVICE_MEMORY_LIMIT_MAX`] where there is none.
    pub hardLimit: c_ulonglong,
    /// What its processes have.
    pub currentUsed: c_ulonglong,
}

/// Utilization over the last sample period, in percent.
#[repr(C)]
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct nvmlUtilization_t {
    /// Time in which a kernel executed.
    pub gpu: c_uint,
    /// Time in which device memory was read or written.
    pub memory: c_uint,
}

/// How busy a process kept a device on average since the time that was asked about, in percent. Source: nvml.h,
/// nvmlProcessUtilizationSample_t; that it is a mean was seen with driver 580.159.04.
#[repr(C)]
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct nvmlProcessUtilizationSample_t {
    /// The process id.
    pub pid: c_uint,
    /// When its last sample was taken, in microseconds of CLOCK_REALTIME.
    pub timeStamp: c_ulonglong,
    /// Multiprocessors.
    pub smUtil: c_uint,
    /// Device memory.
    pub memUtil: c_uint,
    /// Video encoder.
    pub encUtil: c_uint,
    /// Video decoder.
    pub decUtil: c_uint,
}

/// A process with a context, as nvmlDeviceGetComputeRunningProcesses gave it before its second version.
#[repr(C)]
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct nvmlProcessInfo_v1_t {
    /// The process id.
    pub pid: c_uint,
    /// Memory held, in bytes.
    pub usedGpuMemory: c_ulonglong,
}

/// A process with a context, of nvmlDeviceGetComputeRunningProcesses_v2 and _v3.
#[repr(C)]
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct nvmlProcessInfo_v2_t {
    /// The process id.
    pub pid: c_uint,
    /// Memory held, in bytes.
    pub usedGpuMemory: c_ulonglong,
    /// The GPU instance (MIG) or [`NVML_INSTANCE_NOT_AVAILABLE`].
    pub gpuInstanceId: c_uint,
    /// The compute instance (MIG) or [`NVML_INSTANCE_NOT_AVAILABLE`].
    pub computeInstanceId: c_uint,
}

/// One of nvmlDeviceGetFieldValues' questions and its answer. Source: nvml.h, nvmlFieldValue_t.
#[repr(C)]
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct nvmlFieldValue_t {
    /// What is asked for; set by the caller, as the next one.
    pub fieldId: c_uint,
    /// Which of several such things.
    pub scopeId: c_uint,
    /// When the answer was found, in microseconds of CLOCK_REALTIME.
    pub timestamp: c_longlong,
    /// How long that took, in microseconds.
    pub latencyUsec: c_longlong,
    /// The type of `value`.
    pub valueType: c_uint,
    /// Whether there is an answer.
    pub nvmlReturn: nvmlReturn_t,
    /// The answer, of any type up to 64 bits.
    pub value: c_ulonglong,
}

/// Where a device is on the PCI bus.
#[repr(C)]
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct nvmlPciInfo_t {
    /// The address with a domain of four digits, as text.
    pub busIdLegacy: [c_char; 16],
    /// The domain.
    pub domain: c_uint,
    /// The bus.
    pub bus: c_uint,
    /// The device.
    pub device: c_uint,
    /// Device id (high half) and vendor id.
    pub pciDeviceId: c_uint,
    /// The same of the subsystem.
    pub pciSubSystemId: c_uint,
    /// The address with a domain of eight digits, as text.
    pub busId: [c_char; 32],
}
