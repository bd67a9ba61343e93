//! Result codes of NVML.

#![allow(non_camel_case_types)] // NVIDIA's names

use core::ffi::{CStr, c_int};

/// What every NVML function returns.
pub type nvmlReturn_t = c_int;

macro_rules! results {
    ($($name:ident = $code:literal, $text:literal;)*) => {
        $(#[doc = $text] pub const $name: nvmlReturn_t = $code;)*

        /// Code and description of every result known here, by code.
        pub const RESULTS: &[(nvmlReturn_t, &CStr)] = &[$((
            $code,
            match CStr::from_bytes_with_nul(concat!($text, "\0").as_bytes()) {
                Ok(text) => text,
                Err(_) => panic!("a description holds a zero"),
            },
        )),*];
    };
}

results! {
    NVML_SUCCESS = 0, "Success";
    NVML_ERROR_UNINITIALIZED = 1, "Uninitialized";
    NVML_ERROR_INVALID_ARGUMENT = 2, "Invalid Argument";
    NVML_ERROR_NOT_SUPPORTED = 3, "Not Supported";
    NVML_ERROR_NO_PERMISSION = 4, "Insufficient Permissions";
    NVML_ERROR_ALREADY_INITIALIZED = 5, "Already Initialized";
    NVML_ERROR_NOT_FOUND = 6, "Not Found";
    NVML_ERROR_INSUFFICIENT_SIZE = 7, "Insufficient Size";
    NVML_ERROR_INSUFFICIENT_POWER = 8, "Insufficient External Power";
    NVML_ERROR_DRIVER_NOT_LOADED = 9, "Driver Not Loaded";
    NVML_ERROR_TIMEOUT = 10, "Timeout";
    NVML_ERROR_IRQ_ISSUE = 11, "Interrupt Request Issue";
    NVML_ERROR_LIBRARY_NOT_FOUND = 12, "NVML Shared Library Not Found";
    NVML_ERROR_FUNCTION_NOT_FOUND = 13, "Function Not Found";
    NVML_ERROR_CORRUPTED_INFOROM = 14, "Corrupted infoROM";
    NVML_ERROR_GPU_IS_LOST = 15, "GPU is lost";
    NVML_ERROR_RESET_REQUIRED = 16, "GPU requires reset";
    NVML_ERROR_OPERATING_SYSTEM = 17, "GPU access blocked by the operating system";
    NVML_ERROR_LIB_RM_VERSION_MISMATCH = 18, "Driver/library version mismatch";
    NVML_ERROR_IN_USE = 19, "In use by another client";
    NVML_ERROR_MEMORY = 20, "Insufficient Memory";
    NVML_ERROR_NO_DATA = 21, "No data";
    NVML_ERROR_INSUFFICIENT_RESOURCES = 23, "Insufficient Resources";
    NVML_ERROR_FREQ_NOT_SUPPORTED = 24, "Frequency not supported";
    NVML_ERROR_ARGUMENT_VERSION_MISMATCH = 25, "Argument version mismatch";
    NVML_ERROR_DEPRECATED = 26, "Deprecated";
    NVML_ERROR_NOT_READY = 27, "System not ready";
    NVML_ERROR_GPU_NOT_FOUND = 28, "No GPUs found";
    NVML_ERROR_INVALID_STATE = 29, "Invalid state";
    NVML_ERROR_UNKNOWN = 999, "Unknown Error";
}
