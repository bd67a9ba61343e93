//! Memory and contexts of this process, between the exports and the lease's account.

use crate::PROCESS;
use crate::entry::{index, real};
use core::sync::atomic::Ordering;
use gpool_driver_abi::cuda::{
    CUDA_ERROR_NOT_INITIALIZED, CUDA_ERROR_OUT_OF_MEMORY, CUDA_SUCCESS, CUcontext, CUdevice, CUdeviceptr, CUresult,
    CuDevicePrimaryCtxGetState, CuMemGetAddressRangeV2,
};
use gpool_interposer_logic::futex::Mutex;
use gpool_interposer_logic::memory::{self, Charge};

/// Devices that a process can see at once.
const DEVICES: usize = 32;

/// Primary contexts by device ordinal.
struct Primaries([CUcontext; DEVICES]);

// SAFETY: opaque handles of the driver, valid on every thread.
unsafe impl Send for Primaries {}

/// Makes "is the primary context there" and "make it" one step among the threads of this process.
static PRIMARIES: Mutex<Primaries> = Mutex::new(Primaries([core::ptr::null_mut(); DEVICES]));

/// Charges, asks the driver, and takes the charge back if the driver refused.
pub fn charged(charge: Charge, driver: impl FnOnce() -> CUresult) -> CUresult {
    let Some(place) = PROCESS.place() else { return CUDA_ERROR_NOT_INITIALIZED };
    if !memory::reserve(&place.region, place.slot(), charge) {
        // The cause goes out of band; the program gets what the driver would say.
        place.ring();
        return CUDA_ERROR_OUT_OF_MEMORY;
    }
    let result = driver();
    if result != CUDA_SUCCESS {
        memory::release(place.slot(), charge);
    }
    result
}

/// Size of the allocation that starts at `pointer`, as the driver knows it; 0 if it is none.
pub fn allocation_bytes(pointer: CUdeviceptr) -> u64 {
    let (mut base, mut bytes) = (0, 0usize);
    // SAFETY: both places are valid; the entry point has this type.
    let result =
        unsafe { real::<CuMemGetAddressRangeV2>(index::cuMemGetAddressRange_v2)(&mut base, &mut bytes, pointer) };
    if result == CUDA_SUCCESS && base == pointer { bytes as u64 } else { 0 }
}

/// Frees through `driver`, then takes the charge of `pointer` back.
pub fn freed(pointer: CUdeviceptr, driver: impl FnOnce() -> CUresult) -> CUresult {
    let Some(place) = PROCESS.place() else { return CUDA_ERROR_NOT_INITIALIZED };
    let bytes = if pointer == 0 { 0 } else { allocation_bytes(pointer) };
    let result = driver();
    if result == CUDA_SUCCESS && bytes > 0 {
        memory::release(place.slot(), Charge::Bytes(memory::rounded_bytes(bytes)));
    }
    result
}

/// One context less. Its memory goes with it; with the last one nothing can be left.
fn context_gone() {
    let Some(place) = PROCESS.place() else { return };
    let slot = place.slot();
    memory::release(slot, Charge::Context);
    if slot.contexts.load(Ordering::Acquire) == 0 {
        slot.allocated_bytes.store(0, Ordering::Release);
    }
}

/// Destroys `context` through `driver`, with our own handles in it gone before.
pub fn context_destroyed(context: CUcontext, driver: impl FnOnce() -> CUresult) -> CUresult {
    PROCESS.leave_context(context);
    let result = driver();
    if result == CUDA_SUCCESS {
        context_gone();
    }
    result
}

fn primary_is_active(device: CUdevice) -> bool {
    let (mut flags, mut active) = (0, 0);
    // SAFETY: both places are valid; the entry point has this type.
    unsafe { real::<CuDevicePrimaryCtxGetState>(index::cuDevicePrimaryCtxGetState)(device, &mut flags, &mut active) };
    active != 0
}

/// Retains the primary context into `*context`, charging it when this makes it.
pub fn primary_retained(context: *mut CUcontext, device: CUdevice, driver: impl FnOnce() -> CUresult) -> CUresult {
    if PROCESS.place().is_none() {
        return CUDA_ERROR_NOT_INITIALIZED;
    }
    let mut primaries = PRIMARIES.lock();
    let result = if primary_is_active(device) { driver() } else { charged(Charge::Context, driver) };
    if result == CUDA_SUCCESS
        && let Some(known) = primaries.0.get_mut(device as usize)
    {
        // SAFETY: the driver succeeded, so `context` is valid and holds the handle.
        *known = unsafe { *context };
    }
    result
}

/// Releases or resets the primary context of `device`, taking the charge back when it is gone.
pub fn primary_released(device: CUdevice, driver: impl FnOnce() -> CUresult) -> CUresult {
    if PROCESS.place().is_none() {
        return CUDA_ERROR_NOT_INITIALIZED;
    }
    let mut primaries = PRIMARIES.lock();
    let before = primary_is_active(device);
    if let Some(known) = primaries.0.get_mut(device as usize)
        && !known.is_null()
    {
        PROCESS.leave_context(*known);
    }
    let result = driver();
    if before && !primary_is_active(device) {
        context_gone();
        if let Some(known) = primaries.0.get_mut(device as usize) {
            *known = core::ptr::null_mut();
        }
    }
    result
}
