//! What NVML shows.

use super::driver::open_library;
use super::{check, fail, say};
use serde_json::json;
use std::ffi::{CString, c_int, c_uint, c_void};
use std::mem::transmute_copy;
use std::ptr::null_mut;

/// Says what NVML shows of the first device's memory.
pub(super) fn report() {
    let library = open_library(c"libnvidia-ml.so.1");
    let find = |name: &str| {
        let text = CString::new(name).unwrap_or_default();
        // SAFETY: the name ends with a zero.
        let address = unsafe { libc::dlsym(library, text.as_ptr()) };
        if address.is_null() {
            fail(name, -1);
        }
        address
    };
    let mut device: *mut c_void = null_mut();
    let mut memory = [0_u64; 3];
    // SAFETY: NVML's functions of these names have these types, and all results go to live locals.
    unsafe {
        let init: unsafe extern "C" fn() -> c_int = transmute_copy(&find("nvmlInit_v2"));
        let handle: unsafe extern "C" fn(c_uint, *mut *mut c_void) -> c_int =
            transmute_copy(&find("nvmlDeviceGetHandleByIndex_v2"));
        let information: unsafe extern "C" fn(*mut c_void, *mut u64) -> c_int =
            transmute_copy(&find("nvmlDeviceGetMemoryInfo"));
        check("nvmlInit_v2", init());
        check("nvmlDeviceGetHandleByIndex_v2", handle(0, &mut device));
        check("nvmlDeviceGetMemoryInfo", information(device, memory.as_mut_ptr()));
    }
    let [total, _, used] = memory;
    say(&json!({"event": "nvml", "total": total, "used": used}));
}
