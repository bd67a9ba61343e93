//! Memory and contexts of this process, between the exports and the lease's account.

use crate::entry::{index, real};
use crate::pools;
use crate::{HANDLES, PROCESS};
use core::ffi::c_void;
use gpool_driver_abi::cuda::{
    CUDA_ERROR_NOT_INITIALIZED, CUDA_ERROR_OUT_OF_MEMORY, CUDA_SUCCESS, CUcontext, CUdevice, CUdeviceptr, CUresult,
    CuArrayDestroy, CuDevicePrimaryCtxGetState, CuDevicePrimaryCtxReleaseV2, CuMemGetAddressRangeV2,
};
use gpool_interposer_logic::futex::Mutex;
use gpool_interposer_logic::handles::{Held, Kind};
use gpool_interposer_logic::memory::{self, Charge};
use gpool_interposer_logic::process::Place;

/// Devices that a process can see at once.
const DEVICES: usize = 32;

/// Primary contexts by device ordinal.
struct Primaries([CUcontext; DEVICES]);

// SAFETY: opaque handles of the driver, valid on every thread.
unsafe impl Send for Primaries {}

/// Makes "is the primary context there" and "make it" one step among the threads of this process.
static PRIMARIES: Mutex<Primaries> = Mutex::new(Primaries([core::ptr::null_mut(); DEVICES]));

/// Charges on GPU `gpu` before the driver is asked, if need be after pools have given back what they keep without
/// need; what to answer if there is no room.
fn charge(place: &Place, gpu: usize, charge: Charge) -> Result<(), CUresult> {
    let reserve = || memory::try_reserve(&place.region, place.slot(), gpu, charge);
    if reserve() || pools::give_back(place, true) && reserve() {
        return Ok(());
    }
    Err(refused(place, charge))
}

/// The cause goes out of band; the program gets what the driver would say.
pub fn refused(place: &Place, charge: Charge) -> CUresult {
    memory::refuse(&place.region, place.slot(), charge);
    place.ring();
    CUDA_ERROR_OUT_OF_MEMORY
}

/// An allocation that is charged and not made yet. The two halves around the driver's call are no generics, so that
/// each allocator adds only its call to the library.
struct Reserved {
    place: &'static Place,
    gpu: usize,
    bytes: u64,
}

impl Reserved {
    #[inline(never)]
    fn new(bytes: u64) -> Result<Self, CUresult> {
        let place = PROCESS.place().ok_or(CUDA_ERROR_NOT_INITIALIZED)?;
        let (gpu, bytes) = (PROCESS.current_gpu(place), memory::rounded_bytes(bytes));
        charge(place, gpu, Charge::Bytes(bytes))?;
        Ok(Self { place, gpu, bytes })
    }

    /// Keeps the charge if the driver allocated, takes it back if it refused.
    #[inline(never)]
    fn settle(self, result: CUresult) {
        if result == CUDA_SUCCESS {
            PROCESS.allocated(self.place, self.bytes);
        } else {
            memory::release(self.place.slot(), self.gpu, Charge::Bytes(self.bytes));
        }
    }
}

/// Allocates `bytes` in the current context through `driver`, charged.
pub fn allocated(bytes: u64, driver: impl FnOnce() -> CUresult) -> CUresult {
    match Reserved::new(bytes) {
        Ok(reserved) => {
            let result = driver();
            reserved.settle(result);
            result
        }
        Err(refused) => refused,
    }
}

/// The same for memory that belongs to a GPU of the lease and to no context.
#[inline(never)]
fn charge_device(place: &Place, gpu: usize, bytes: u64) -> Result<(), CUresult> {
    let reserve = || PROCESS.reserve_on_device(place, gpu, bytes);
    if reserve() || pools::give_back(place, true) && reserve() {
        return Ok(());
    }
    Err(refused(place, Charge::Bytes(bytes)))
}

/// Allocates `bytes` that belong to GPU `gpu` of the lease and to no context through `driver`, charged.
pub fn allocated_on(place: &Place, gpu: usize, bytes: u64, driver: impl FnOnce() -> CUresult) -> CUresult {
    if let Err(refused) = charge_device(place, gpu, bytes) {
        return refused;
    }
    let result = driver();
    if result != CUDA_SUCCESS {
        PROCESS.release_on_device(place, gpu, bytes);
    }
    result
}

/// Allocates through `driver` what takes `bytes` at most, charged.
pub fn allocated_at_most(bytes: u64, driver: impl FnOnce() -> CUresult) -> CUresult {
    if let Some(place) = PROCESS.place() {
        // Before the charge, so that nobody takes that for exact.
        place.note_inexact();
    }
    allocated(bytes, driver)
}

/// Makes a thing of `bytes` in the current context through `driver`, charged, and remembers it by the handle that the
/// driver writes to `handle`. A thing that the table has no room for stays charged until its context goes.
pub fn held(kind: Kind, handle: *mut *mut c_void, bytes: u64, driver: impl FnOnce() -> CUresult) -> CUresult {
    if bytes == 0 {
        let result = driver();
        if result == CUDA_SUCCESS {
            // The handle may have meant something that went with its context.
            // SAFETY: the driver succeeded, so `handle` is valid and holds the handle.
            HANDLES.lock().take(kind, unsafe { *handle } as u64);
        }
        return result;
    }
    let result = allocated_at_most(bytes, driver);
    if result == CUDA_SUCCESS {
        // SAFETY: the driver succeeded, so `handle` is valid and holds the handle.
        remember(kind, unsafe { *handle }, bytes);
    }
    result
}

#[inline(never)]
fn remember(kind: Kind, handle: *mut c_void, bytes: u64) {
    let Some(place) = PROCESS.place() else { return };
    let owner = place.driver.current_context() as u64;
    HANDLES.lock().put(Held { owner, ..Held::new(kind, handle as u64, memory::rounded_bytes(bytes)) });
}

/// Lets go of what [`held`] has made through `driver`, then takes its charge back.
#[inline(never)]
pub fn let_go(kind: Kind, handle: *mut c_void, driver: CuArrayDestroy) -> CUresult {
    let Some(place) = PROCESS.place() else { return CUDA_ERROR_NOT_INITIALIZED };
    // Forgotten first: once it is gone, the driver may give its handle to another thread.
    let thing = HANDLES.lock().take(kind, handle as u64);
    // SAFETY: the driver's function of this type, which checks the handle.
    let result = unsafe { driver(handle) };
    if let Some(thing) = thing {
        if result == CUDA_SUCCESS {
            // With its context it was given back already, and the handle meant something else since.
            if PROCESS.has_context(thing.owner as CUcontext) {
                PROCESS.freed(place, thing.owner as CUcontext, thing.bytes);
            }
        } else {
            HANDLES.lock().put(thing);
        }
    }
    result
}

/// Makes a context on `device` through `driver`, charged.
pub fn context_created(context: *mut CUcontext, device: CUdevice, driver: impl FnOnce() -> CUresult) -> CUresult {
    let Some(place) = PROCESS.place() else { return CUDA_ERROR_NOT_INITIALIZED };
    let gpu = PROCESS.gpu_of(place, Some(device));
    if let Err(refused) = charge(place, gpu, Charge::Context) {
        return refused;
    }
    let result = driver();
    if result == CUDA_SUCCESS {
        // SAFETY: the driver succeeded, so `context` is valid and holds the handle.
        PROCESS.enter_context(unsafe { *context }, gpu);
    } else {
        memory::release(place.slot(), gpu, Charge::Context);
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
    if pools::is_pooled(place, pointer) {
        return pools::freed(place, driver);
    }
    let bytes = if pointer == 0 { 0 } else { allocation_bytes(pointer) };
    let owner = PROCESS.owner_of(place, pointer);
    let result = driver();
    if result == CUDA_SUCCESS && bytes > 0 {
        PROCESS.freed(place, owner, memory::rounded_bytes(bytes));
    }
    result
}

/// Destroys `context` through `driver`, with our own handles in it gone before.
pub fn context_destroyed(context: CUcontext, driver: impl FnOnce() -> CUresult) -> CUresult {
    PROCESS.leave_context(context);
    let result = driver();
    if result == CUDA_SUCCESS {
        context_gone(context);
    }
    result
}

fn context_gone(context: CUcontext) {
    PROCESS.context_gone(context);
    HANDLES.lock().forget_limits(context as u64);
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
    let is_new = !primary_is_active(device);
    let result = if is_new { context_created(context, device, driver) } else { driver() };
    if result == CUDA_SUCCESS
        && let Some(known) = primaries.0.get_mut(device as usize)
    {
        // SAFETY: the driver succeeded, so `context` is valid and holds the handle.
        *known = unsafe { *context };
    }
    result
}

/// Releases or resets the primary context of `device` through `driver`, taking the charge back when it is gone.
pub fn primary_released(device: CUdevice, driver: CuDevicePrimaryCtxReleaseV2) -> CUresult {
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
    // SAFETY: the driver's function of this type, which takes any device.
    let result = unsafe { driver(device) };
    if before
        && !primary_is_active(device)
        && let Some(known) = primaries.0.get_mut(device as usize)
    {
        context_gone(core::mem::replace(known, core::ptr::null_mut()));
    }
    result
}
