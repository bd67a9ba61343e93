//! The lease that this process belongs to.

use crate::entry::{index, real};
use core::ffi::c_uint;
use core::sync::atomic::{AtomicPtr, AtomicU32, Ordering};
use gpool_driver_abi::nvml::{NVML_DEVICE_UUID_V2_BUFFER_SIZE, NvmlDeviceGetUuid, nvmlDevice_t};
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

/// The lease, and which of its GPUs `device` is; none if the device or the lease is not ours to speak of.
pub fn lease_on(device: nvmlDevice_t) -> Option<(&'static RegionView, usize)> {
    let view = view()?;
    let gpu = view.gpu(|| {
        let mut text = [0u8; NVML_DEVICE_UUID_V2_BUFFER_SIZE];
        let name = index::nvmlDeviceGetUUID;
        // SAFETY: the type is this entry point's, and `text` is as long as it is said to be.
        let result = unsafe { real::<NvmlDeviceGetUuid>(name)(device, text.as_mut_ptr().cast(), text.len() as c_uint) };
        let length = text.iter().position(|byte| *byte == 0)?;
        if result == 0 { uuid_from_text(&text[..length]) } else { None }
    })?;
    Some((view, gpu))
}
