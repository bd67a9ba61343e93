//! The functions that the shim answers itself.

use crate::entry::{index, real};
use core::sync::atomic::{AtomicPtr, AtomicU32, Ordering};
use gpool_driver_abi::nvml::{nvmlDevice_t, nvmlMemory_t, nvmlMemory_v2_t, nvmlReturn_t};
use gpool_interposer_logic::RegionView;

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
        && let Some(view) = view()
    {
        let (used, total) = view.memory_bytes();
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
        && let Some(view) = view()
    {
        let (used, total) = view.memory_bytes();
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
