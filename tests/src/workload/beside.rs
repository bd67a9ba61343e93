//! Memory that the program takes through another of the driver's libraries than the one that it was started with.

use super::driver::{Driver, open_library};
use super::{check, fail, say};
use serde_json::json;
use std::ffi::{CString, c_int};
use std::mem::transmute_copy;
use std::time::Duration;

/// Looks at the driver's figures, and between two of them.
const LOOKS: u32 = 2000;
const PAUSE: Duration = Duration::from_millis(5);

/// Allocates `bytes` in the current context through `library`, and waits until the usual one tells of most of it as taken.
pub(super) fn take(driver: &Driver, library: &str, bytes: usize) {
    let free_before = free_bytes(driver);
    let library = open_library(&CString::new(library).unwrap_or_else(|_| fail("--beside", -1)));
    // SAFETY: a live handle and a terminated name.
    let allocate = unsafe { libc::dlsym(library, c"cuMemAlloc_v2".as_ptr()) };
    if allocate.is_null() {
        fail("dlsym cuMemAlloc_v2", -1);
    }
    let mut address = 0_u64;
    // SAFETY: the driver's function of this name has this type; the result goes to a live local.
    let code = unsafe {
        let allocate: unsafe extern "C" fn(*mut u64, usize) -> c_int = transmute_copy(&allocate);
        allocate(&mut address, bytes)
    };
    check("cuMemAlloc", code);
    // What a context costs may not be known exactly before.
    let is_told = (0..LOOKS).any(|_| {
        std::thread::sleep(PAUSE);
        free_bytes(driver) <= free_before.saturating_sub(bytes / 2)
    });
    say(&json!({"event": "beside", "bytes": bytes, "told": is_told}));
}

fn free_bytes(driver: &Driver) -> usize {
    let (mut free, mut total) = (0, 0);
    // SAFETY: the results go to live locals.
    check("cuMemGetInfo", unsafe { (driver.memory_info)(&mut free, &mut total) });
    free
}
