//! The library's one instance: nvmlInit makes it, nvmlShutdown ends it.

use gpool_driver_abi::nvml::*;
use gpool_simulated_hardware::{Layout, Store, is_visible, model::Device};
use std::ffi::{CStr, c_char, c_uint};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// What a function gives: nothing, or the code to return.
pub(crate) type Outcome<T = ()> = Result<T, nvmlReturn_t>;

struct Library {
    users: u32,
    store: Option<Arc<Store>>,
}

static LIBRARY: Mutex<Library> = Mutex::new(Library { users: 0, store: None });

fn library() -> MutexGuard<'static, Library> {
    LIBRARY.lock().unwrap_or_else(PoisonError::into_inner)
}

/// The state of the device; an error before nvmlInit.
fn store() -> Outcome<Arc<Store>> {
    let library = library();
    let users = library.users;
    library.store.as_ref().filter(|_| users > 0).cloned().ok_or(NVML_ERROR_UNINITIALIZED)
}

/// Fails before nvmlInit.
pub(crate) fn initialised() -> Outcome {
    store().map(drop)
}

/// Whether this process may use the one device.
pub(crate) fn visible() -> bool {
    is_visible(&Layout::default(), 0)
}

/// Looks at the device as it is now.
pub(crate) fn look<T>(look: impl FnOnce(&Device) -> T) -> Outcome<T> {
    store()?.read(look).map_err(|_| NVML_ERROR_UNKNOWN)
}

/// Turns what `work` gives into the code that a C function returns.
pub(crate) fn code(work: impl FnOnce() -> Outcome) -> nvmlReturn_t {
    work().err().unwrap_or(NVML_SUCCESS)
}

/// Writes to a place that the caller named.
///
/// # Safety
///
/// `place` is NULL or valid for a write.
pub(crate) unsafe fn put<T>(place: *mut T, value: T) -> Outcome {
    if place.is_null() {
        return Err(NVML_ERROR_INVALID_ARGUMENT);
    }
    // SAFETY: not NULL, so valid as the caller promises.
    unsafe { place.write(value) };
    Ok(())
}

/// Writes a text and its zero to a buffer that the caller named, if it fits.
///
/// # Safety
///
/// `place` is NULL or valid for writes of `room` bytes.
pub(crate) unsafe fn put_text(place: *mut c_char, room: c_uint, text: &str) -> Outcome {
    if place.is_null() {
        return Err(NVML_ERROR_INVALID_ARGUMENT);
    }
    if text.len() >= room as usize {
        return Err(NVML_ERROR_INSUFFICIENT_SIZE);
    }
    // SAFETY: not NULL and with room for the text and its zero, as just checked.
    unsafe {
        place.cast::<u8>().copy_from_nonoverlapping(text.as_ptr(), text.len());
        place.add(text.len()).write(0);
    }
    Ok(())
}

/// Refers to no device: there is one flag, to succeed without devices, and that is done anyway.
#[unsafe(no_mangle)]
#[inline(never)]
pub extern "C" fn nvmlInitWithFlags(_flags: c_uint) -> nvmlReturn_t {
    code(|| {
        let mut library = library();
        if library.store.is_none() {
            let opened = Store::open(Layout::default().root()).map_err(|_| NVML_ERROR_DRIVER_NOT_LOADED)?;
            library.store = Some(Arc::new(opened));
        }
        library.users += 1;
        Ok(())
    })
}

#[unsafe(no_mangle)]
#[inline(never)]
pub extern "C" fn nvmlInit_v2() -> nvmlReturn_t {
    nvmlInitWithFlags(0)
}

#[unsafe(no_mangle)]
pub extern "C" fn nvmlInit() -> nvmlReturn_t {
    nvmlInit_v2()
}

#[unsafe(no_mangle)]
pub extern "C" fn nvmlShutdown() -> nvmlReturn_t {
    code(|| {
        let mut library = library();
        library.users = library.users.checked_sub(1).ok_or(NVML_ERROR_UNINITIALIZED)?;
        if library.users == 0 {
            library.store = None;
        }
        Ok(())
    })
}

#[unsafe(no_mangle)]
pub extern "C" fn nvmlErrorString(error: nvmlReturn_t) -> *const c_char {
    let text: &CStr = RESULTS.iter().find(|known| known.0 == error).map_or(c"Unknown Error", |known| known.1);
    text.as_ptr()
}
