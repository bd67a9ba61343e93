//! The functions that the shim answers itself.

use crate::entry::{index, real};
use core::ffi::c_uint;
use core::sync::atomic::{AtomicPtr, AtomicU32, Ordering};
use gpool_driver_abi::nvml::{
    NVML_DEVICE_UUID_V2_BUFFER_SIZE, NvmlDeviceGetUuid, nvmlDevice_t, nvmlMemory_t, nvmlMemory_v2_t, nvmlReturn_t,
};
use gpool_interposer_logic::RegionView;
use gpool_interposer_logic::view::uuid_from_text;

static OPENED: AtomicU32 = AtomicU32::new(0);
static VIEW: AtomicPtr<RegionView> = AtomicPtr::new(core::ptr::null_mut());

/// The lease's region, opened at the first use and kept for the life of the process.
fn view() -> Option<&'static RegionView> {
    static mut PLACE: core::mem::MaybeUninit<RegionView> = core::mem::MaybeUninit::uninit();
    // 0 untouched, 1 being opened, 2 done. A thread that comes meanwhile waits for the few system calls that it takes.
    if OPENED.compare_exchange(0, 1, Ordering::AcqRel, Ordering::Acquire).is_ok() {
        if let Ok(opened) = RegionView::open() {
            let place = &raw mut PLACE;
            // SAFETY: only the thread that moved OPENED from 0 to 1 writes, once, before VIEW is published.
            unsafe { (*place).write(opened) };
            VIEW.store(place.cast(), Ordering::Release);
        }
        OPENED.store(2, Ordering::Release);
    }
    while OPENED.load(Ordering::Acquire) == 1 {
        core::hint::spin_loop();
    }
    // SAFETY: null, or the place above, written before it was published and never again.
    unsafe { VIEW.load(Ordering::Acquire).as_ref() }
}

/// (used, total) of the lease on `device`; none if the device or the lease is not ours to speak of.
fn memory_bytes(device: nvmlDevice_t) -> Option<(u64, u64)> {
    view()?.memory_bytes(|| {
        let mut text = [0u8; NVML_DEVICE_UUID_V2_BUFFER_SIZE];
        let name = index::nvmlDeviceGetUUID;
        // SAFETY: the type is this entry point's, and `text` is as long as it is said to be.
        let result = unsafe { real::<NvmlDeviceGetUuid>(name)(device, text.as_mut_ptr().cast(), text.len() as c_uint) };
        let length = text.iter().position(|byte| *byte == 0)?;
        if result == 0 { uuid_from_text(&text[..length]) } else { None }
    })
}

/// Memory of the lease instead of the device's.
///
/// # Safety
/// As the NVML function of this name.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn nvmlDeviceGetMemoryInfo(device: nvmlDevice_t, memory: *mut nvmlMemory_t) -> nvmlReturn_t {
    type Function = unsafe extern "C" fn(nvmlDevice_t, *mut nvmlMemory_t) -> nvmlReturn_t;
    // SAFETY: the type is this entry point's; the arguments are the caller's.
    let result = unsafe { real::<Function>(index::nvmlDeviceGetMemoryInfo)(device, memory) };
    if result == 0
        && let Some((used, total)) = memory_bytes(device)
    {
        // SAFETY: the real function succeeded, so `memory` is valid.
        unsafe {
            (*memory).total = total;
            (*memory).used = used;
            (*memory).free = total - used;
        }
    }
    result
}

/// Memory of the lease instead of the device's, with the driver's reserve shown as none.
///
/// # Safety
/// As the NVML function of this name.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn nvmlDeviceGetMemoryInfo_v2(
    device: nvmlDevice_t,
    memory: *mut nvmlMemory_v2_t,
) -> nvmlReturn_t {
    type Function = unsafe extern "C" fn(nvmlDevice_t, *mut nvmlMemory_v2_t) -> nvmlReturn_t;
    // SAFETY: the type is this entry point's; the arguments are the caller's.
    let result = unsafe { real::<Function>(index::nvmlDeviceGetMemoryInfo_v2)(device, memory) };
    if result == 0
        && let Some((used, total)) = memory_bytes(device)
    {
        // SAFETY: the real function succeeded, so `memory` is valid.
        unsafe {
            (*memory).total = total;
            (*memory).reserved = 0;
            (*memory).used = used;
            (*memory).free = total - used;
        }
    }
    result
}
