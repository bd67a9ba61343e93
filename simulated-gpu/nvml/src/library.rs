//! The library's one instance: nvmlInit makes it, nvmlShutdown ends it.

use gpool_driver_abi::nvml::*;
use gpool_simulated_hardware::{Layout, Store, is_visible, model::Device};
use std::ffi::{CStr, c_char, c_uint};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

/// What a function gives: nothing, or the code to return.
pub(crate) type Outcome<T = ()> = Result<T, nvmlReturn_t>;

struct Library {
    users: u32,
    /// The host's devices by minor number, once they are known.
    stores: Option<Arc<[Store]>>,
}

static LIBRARY: Mutex<Library> = Mutex::new(Library { users: 0, stores: None });

fn library() -> MutexGuard<'static, Library> {
    LIBRARY.lock().unwrap_or_else(PoisonError::into_inner)
}

/// The states of the host's devices; an error before nvmlInit.
pub(crate) fn stores() -> Outcome<Arc<[Store]>> {
    let library = library();
    let users = library.users;
    library.stores.as_ref().filter(|_| users > 0).cloned().ok_or(NVML_ERROR_UNINITIALIZED)
}

/// Fails before nvmlInit.
pub(crate) fn initialised() -> Outcome {
    stores().map(drop)
}

/// Minor numbers of the devices that this process may use, which are also the order of their indices.
pub(crate) fn visible() -> Outcome<Vec<u32>> {
    let layout = Layout::default();
    Ok((0..stores()?.len() as u32).filter(|minor| is_visible(&layout, *minor)).collect())
}

/// Between two looks whether a device still hangs.
const HANG_PERIOD: Duration = Duration::from_millis(20);

/// Fails for a device that has fallen off its bus, and does not come back while it hangs.
pub(crate) fn on_the_bus(minor: u32) -> Outcome {
    while Layout::default().hung(minor).exists() {
        std::thread::sleep(HANG_PERIOD);
    }
    if Layout::default().lost(minor).exists() { Err(NVML_ERROR_GPU_IS_LOST) } else { Ok(()) }
}

/// Looks at the device with this minor number as it is now.
pub(crate) fn look<T>(minor: u32, look: impl FnOnce(&Device) -> T) -> Outcome<T> {
    on_the_bus(minor)?;
    let stores = stores()?;
    let store = stores.get(minor as usize).ok_or(NVML_ERROR_INVALID_ARGUMENT)?;
    store.read(look).map_err(|_| NVML_ERROR_UNKNOWN)
}

/// The states of all devices. There is no driver without one.
fn open() -> Outcome<Arc<[Store]>> {
    let layout = Layout::default();
    let devices = 0..layout.device_count();
    let opened = devices.map(|minor| Store::open_device(layout.root(), minor)).collect::<Result<Arc<[Store]>, _>>();
    opened.ok().filter(|stores| !stores.is_empty()).ok_or(NVML_ERROR_DRIVER_NOT_LOADED)
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
        if library.stores.is_none() {
            library.stores = Some(open()?);
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
            library.stores = None;
        }
        Ok(())
    })
}

#[unsafe(no_mangle)]
pub extern "C" fn nvmlErrorString(error: nvmlReturn_t) -> *const c_char {
    let text: &CStr = RESULTS.iter().find(|known| known.0 == error).map_or(c"Unknown Error", |known| known.1);
    text.as_ptr()
}
