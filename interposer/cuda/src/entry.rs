//! The real libcuda's entry points.

/// What a function that the real driver lacks answers: CUDA_ERROR_NOT_FOUND.
const MISSING: i32 = 500;
/// Where the runtime mounts the real library.
const REAL_LIBRARY: &core::ffi::CStr = c"/dev/gpool/real/libcuda.so.1";

include!("../../shim_entry.rs");
