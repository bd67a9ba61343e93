//! Flags and enumerators of the CUDA driver API.

use core::ffi::{c_int, c_uint, c_ulonglong};

macro_rules! constants {
    ($($doc:literal $kind:ty { $($name:ident = $value:expr;)* })*) => {
        $($(#[doc = concat!("`", stringify!($name), "`, ", $doc)] pub const $name: $kind = $value;)*)*
    };
}

/// State of a stream's capture.
pub type CUstreamCaptureStatus = c_int;
/// What a capture forbids to other calls.
pub type CUstreamCaptureMode = c_int;
/// A property of a device.
pub type CUdeviceAttribute = c_int;
/// Why cuGetProcAddress_v2 answered as it did.
pub type CUdriverProcAddressQueryResult = c_int;

constants! {
    "flag of cuCtxCreate and cuDevicePrimaryCtxSetFlags."
    c_uint {
        CU_CTX_SCHED_AUTO = 0;
        CU_CTX_SCHED_SPIN = 1;
        CU_CTX_SCHED_YIELD = 2;
        CU_CTX_SCHED_BLOCKING_SYNC = 4;
        CU_CTX_MAP_HOST = 8;
    }
    "flag of cuEventCreate."
    c_uint {
        CU_EVENT_DEFAULT = 0;
        CU_EVENT_BLOCKING_SYNC = 1;
        CU_EVENT_DISABLE_TIMING = 2;
        CU_EVENT_INTERPROCESS = 4;
    }
    "flag of cuEventRecordWithFlags."
    c_uint {
        CU_EVENT_RECORD_DEFAULT = 0;
        CU_EVENT_RECORD_EXTERNAL = 1;
    }
    "flag of cuStreamCreate."
    c_uint {
        CU_STREAM_DEFAULT = 0;
        CU_STREAM_NON_BLOCKING = 1;
    }
    "stream handle with a meaning of its own."
    usize {
        CU_STREAM_LEGACY = 1;
        CU_STREAM_PER_THREAD = 2;
    }
    "flag of cuMemAllocManaged."
    c_uint {
        CU_MEM_ATTACH_GLOBAL = 1;
        CU_MEM_ATTACH_HOST = 2;
        CU_MEM_ATTACH_SINGLE = 4;
    }
    "flag of cuMemHostAlloc."
    c_uint {
        CU_MEMHOSTALLOC_PORTABLE = 1;
        CU_MEMHOSTALLOC_DEVICEMAP = 2;
    }
    "answer of cuModuleGetLoadingMode."
    c_int {
        CU_MODULE_EAGER_LOADING = 1;
        CU_MODULE_LAZY_LOADING = 2;
    }
    "answer of cuStreamIsCapturing."
    CUstreamCaptureStatus {
        CU_STREAM_CAPTURE_STATUS_NONE = 0;
        CU_STREAM_CAPTURE_STATUS_ACTIVE = 1;
        CU_STREAM_CAPTURE_STATUS_INVALIDATED = 2;
    }
    "mode of cuStreamBeginCapture and cuThreadExchangeStreamCaptureMode."
    CUstreamCaptureMode {
        CU_STREAM_CAPTURE_MODE_GLOBAL = 0;
        CU_STREAM_CAPTURE_MODE_THREAD_LOCAL = 1;
        CU_STREAM_CAPTURE_MODE_RELAXED = 2;
    }
    "flag of cuGetProcAddress."
    c_ulonglong {
        CU_GET_PROC_ADDRESS_DEFAULT = 0;
        CU_GET_PROC_ADDRESS_LEGACY_STREAM = 1;
        CU_GET_PROC_ADDRESS_PER_THREAD_DEFAULT_STREAM = 2;
    }
    "answer of cuGetProcAddress_v2."
    CUdriverProcAddressQueryResult {
        CU_GET_PROC_ADDRESS_SUCCESS = 0;
        CU_GET_PROC_ADDRESS_SYMBOL_NOT_FOUND = 1;
        CU_GET_PROC_ADDRESS_VERSION_NOT_SUFFICIENT = 2;
    }
    "entry of cuLaunchKernel's `extra`."
    usize {
        CU_LAUNCH_PARAM_END = 0;
        CU_LAUNCH_PARAM_BUFFER_POINTER = 1;
        CU_LAUNCH_PARAM_BUFFER_SIZE = 2;
    }
    "function attribute."
    c_int {
        CU_FUNC_ATTRIBUTE_MAX_THREADS_PER_BLOCK = 0;
        CU_FUNC_ATTRIBUTE_NUM_REGS = 4;
        CU_FUNC_ATTRIBUTE_PTX_VERSION = 5;
        CU_FUNC_ATTRIBUTE_BINARY_VERSION = 6;
        CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES = 8;
        CU_FUNC_ATTRIBUTE_PREFERRED_SHARED_MEMORY_CARVEOUT = 9;
        CU_FUNC_ATTRIBUTE_MAX = 16;
    }
    "kind of what the driver's linker takes."
    c_int {
        CU_JIT_INPUT_PTX = 1;
    }
    "device attribute."
    CUdeviceAttribute {
        CU_DEVICE_ATTRIBUTE_MAX_THREADS_PER_BLOCK = 1;
        CU_DEVICE_ATTRIBUTE_MAX_BLOCK_DIM_X = 2;
        CU_DEVICE_ATTRIBUTE_MAX_BLOCK_DIM_Y = 3;
        CU_DEVICE_ATTRIBUTE_MAX_BLOCK_DIM_Z = 4;
        CU_DEVICE_ATTRIBUTE_MAX_GRID_DIM_X = 5;
        CU_DEVICE_ATTRIBUTE_MAX_GRID_DIM_Y = 6;
        CU_DEVICE_ATTRIBUTE_MAX_GRID_DIM_Z = 7;
        CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_BLOCK = 8;
        CU_DEVICE_ATTRIBUTE_TOTAL_CONSTANT_MEMORY = 9;
        CU_DEVICE_ATTRIBUTE_WARP_SIZE = 10;
        CU_DEVICE_ATTRIBUTE_MAX_PITCH = 11;
        CU_DEVICE_ATTRIBUTE_MAX_REGISTERS_PER_BLOCK = 12;
        CU_DEVICE_ATTRIBUTE_CLOCK_RATE = 13;
        CU_DEVICE_ATTRIBUTE_TEXTURE_ALIGNMENT = 14;
        CU_DEVICE_ATTRIBUTE_GPU_OVERLAP = 15;
        CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT = 16;
        CU_DEVICE_ATTRIBUTE_KERNEL_EXEC_TIMEOUT = 17;
        CU_DEVICE_ATTRIBUTE_INTEGRATED = 18;
        CU_DEVICE_ATTRIBUTE_CAN_MAP_HOST_MEMORY = 19;
        CU_DEVICE_ATTRIBUTE_COMPUTE_MODE = 20;
        CU_DEVICE_ATTRIBUTE_CONCURRENT_KERNELS = 31;
        CU_DEVICE_ATTRIBUTE_ECC_ENABLED = 32;
        CU_DEVICE_ATTRIBUTE_PCI_BUS_ID = 33;
        CU_DEVICE_ATTRIBUTE_PCI_DEVICE_ID = 34;
        CU_DEVICE_ATTRIBUTE_TCC_DRIVER = 35;
        CU_DEVICE_ATTRIBUTE_MEMORY_CLOCK_RATE = 36;
        CU_DEVICE_ATTRIBUTE_GLOBAL_MEMORY_BUS_WIDTH = 37;
        CU_DEVICE_ATTRIBUTE_L2_CACHE_SIZE = 38;
        CU_DEVICE_ATTRIBUTE_MAX_THREADS_PER_MULTIPROCESSOR = 39;
        CU_DEVICE_ATTRIBUTE_ASYNC_ENGINE_COUNT = 40;
        CU_DEVICE_ATTRIBUTE_UNIFIED_ADDRESSING = 41;
        CU_DEVICE_ATTRIBUTE_PCI_DOMAIN_ID = 50;
        CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR = 75;
        CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR = 76;
        CU_DEVICE_ATTRIBUTE_STREAM_PRIORITIES_SUPPORTED = 78;
        CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_MULTIPROCESSOR = 81;
        CU_DEVICE_ATTRIBUTE_MAX_REGISTERS_PER_MULTIPROCESSOR = 82;
        CU_DEVICE_ATTRIBUTE_MANAGED_MEMORY = 83;
        CU_DEVICE_ATTRIBUTE_CONCURRENT_MANAGED_ACCESS = 89;
        CU_DEVICE_ATTRIBUTE_COMPUTE_PREEMPTION_SUPPORTED = 90;
        CU_DEVICE_ATTRIBUTE_COOPERATIVE_LAUNCH = 95;
        CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_BLOCK_OPTIN = 97;
        CU_DEVICE_ATTRIBUTE_MEMORY_POOLS_SUPPORTED = 115;
    }
}
