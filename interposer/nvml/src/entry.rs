//! The real libnvidia-ml's entry points.

/// What a function that the real driver lacks answers: NVML_ERROR_FUNCTION_NOT_FOUND.
const MISSING: i32 = 13;
/// Where the runtime mounts the real library.
const REAL_LIBRARY: &core::ffi::CStr = c"/dev/gpool/real/libnvidia-ml.so.1";

/// Nothing looks functions up by their addresses.
fn note(_index: usize, _address: *mut c_void) {}

include!("../../shim_entry.rs");
