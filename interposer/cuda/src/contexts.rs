//! Contexts: charged before they are made, with what each of them loads of the libraries that there are.

use crate::accounts::charge;
use crate::entry::{index, real};
use crate::images::LIBRARIES;
use crate::{HANDLES, PROCESS};
use core::ffi::{c_uint, c_void};
use gpool_driver_abi::cuda::*;
use gpool_interposer_logic::futex::{Guard, Mutex};
use gpool_interposer_logic::memory::Call;
use gpool_interposer_logic::memory::{self, Charge};
use gpool_interposer_logic::process::{Change, Place};

/// Devices that a process can see at once.
const DEVICES: usize = 32;

/// Primary contexts by device ordinal.
struct Primaries([CUcontext; DEVICES]);

// SAFETY: opaque handles of the driver, valid on every thread.
unsafe impl Send for Primaries {}

/// Makes "is the primary context there" and "make it" one step among the threads of this process. Locked before
/// `LIBRARIES` where both are.
static PRIMARIES: Mutex<Primaries> = Mutex::new(Primaries([core::ptr::null_mut(); DEVICES]));

/// A context that is charged and not made yet, with the libraries that it will load. Libraries that are loaded meanwhile
/// wait, and find it. The two halves around the driver's call are no generics, so that each way to make a context adds
/// only its call to the library.
struct Begun {
    place: &'static Place,
    gpu: usize,
    libraries: Guard<'static, u64>,
    _change: Change,
}

impl Begun {
    #[cold]
    #[inline(never)]
    fn new(device: CUdevice) -> Result<Self, CUresult> {
        let place = PROCESS.place().ok_or(CUDA_ERROR_NOT_INITIALIZED)?;
        let (gpu, libraries) = (PROCESS.gpu_of(place, Some(device)), LIBRARIES.lock());
        let change = place.change();
        charge(place, gpu, Charge::Context, Call::Context)?;
        if let Err(refused) = charge(place, gpu, Charge::Bytes(*libraries), Call::Context) {
            memory::release(place.slot(), gpu, Charge::Context);
            return Err(refused);
        }
        Ok(Self { place, gpu, libraries, _change: change })
    }

    #[cold]
    #[inline(never)]
    fn end(self, result: CUresult, context: *const CUcontext) -> CUresult {
        let Self { place, gpu, libraries, _change } = self;
        if result == CUDA_SUCCESS {
            // SAFETY: the driver succeeded, so `context` is valid and holds the handle.
            let context = unsafe { *context };
            PROCESS.enter_context(context, gpu);
            PROCESS.note_libraries(place, context, *libraries);
        } else {
            memory::release(place.slot(), gpu, Charge::Context);
            memory::release(place.slot(), gpu, Charge::Bytes(*libraries));
        }
        result
    }
}

/// Makes a context on `device` through `driver`, charged.
pub fn context_created(context: *mut CUcontext, device: CUdevice, driver: impl FnOnce() -> CUresult) -> CUresult {
    match Begun::new(device) {
        Ok(begun) => begun.end(driver(), context),
        Err(refused) => refused,
    }
}

/// Destroys `context` through `driver`, with nothing of ours asked about it meanwhile.
pub fn context_destroyed(context: CUcontext, driver: impl FnOnce() -> CUresult) -> CUresult {
    PROCESS.leave_context(context);
    let _change = PROCESS.place().map(Place::change);
    let result = driver();
    if result == CUDA_SUCCESS {
        context_gone(context);
    } else {
        PROCESS.context_stays(context);
    }
    result
}

/// Counts the uses of a context, which goes with the last of them.
///
/// # Safety
/// As the driver's function of this name; so for all functions here.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuCtxAttach(context: *mut CUcontext, flags: c_uint) -> CUresult {
    // SAFETY: the entry point's type, the caller's arguments; so for all calls of `real` here.
    let result = unsafe { real::<CuCtxAttach>(index::cuCtxAttach)(context, flags) };
    if result == CUDA_SUCCESS {
        // SAFETY: the driver succeeded, so `context` is valid and holds the handle.
        PROCESS.attach_context(unsafe { *context });
    }
    result
}

/// The account lets go of the context with its last use.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuCtxDetach(context: CUcontext) -> CUresult {
    // SAFETY: see cuCtxAttach.
    let detach = || unsafe { real::<CuCtxDetach>(index::cuCtxDetach)(context) };
    if PROCESS.place().is_none() {
        return CUDA_ERROR_NOT_INITIALIZED;
    }
    let mut primaries = PRIMARIES.lock();
    if !context.is_null() && primaries.0.contains(&context) {
        PROCESS.leave_context(context);
        let result = detach();
        primaries_left(&mut primaries);
        return result;
    }
    drop(primaries);
    if !PROCESS.detach_context(context) {
        return context_destroyed(context, detach);
    }
    let result = detach();
    if result != CUDA_SUCCESS {
        PROCESS.attach_context(context);
    }
    result
}

#[cold]
#[inline(never)]
fn context_gone(context: CUcontext) {
    PROCESS.context_gone(context);
    HANDLES.lock().forget_limits(context as u64);
}

#[inline(never)]
fn primary_is_active(device: CUdevice) -> bool {
    let (mut flags, mut active) = (0, 0);
    // SAFETY: both places are valid; the entry point has this type.
    unsafe { real::<CuDevicePrimaryCtxGetState>(index::cuDevicePrimaryCtxGetState)(device, &mut flags, &mut active) };
    active != 0
}

/// Retains the primary context into `*context`, charging it when this makes it.
#[cold]
#[inline(never)]
pub fn primary_retained(context: *mut CUcontext, device: CUdevice) -> CUresult {
    if PROCESS.place().is_none() {
        return CUDA_ERROR_NOT_INITIALIZED;
    }
    let mut primaries = PRIMARIES.lock();
    // SAFETY: the entry point's type, the caller's arguments; so for all calls of `real` here.
    let retain = || unsafe { real::<CuDevicePrimaryCtxRetain>(index::cuDevicePrimaryCtxRetain)(context, device) };
    let result = if primary_is_active(device) { retain() } else { context_created(context, device, retain) };
    if result == CUDA_SUCCESS
        && let Some(known) = primaries.0.get_mut(device as usize)
    {
        // SAFETY: the driver succeeded, so `context` is valid and holds the handle.
        *known = unsafe { *context };
    }
    result
}

/// Releases or resets the primary context of `device` through `driver`, taking the charge back when it is gone.
#[cold]
#[inline(never)]
pub fn primary_released(device: CUdevice, driver: CuDevicePrimaryCtxReleaseV2) -> CUresult {
    if PROCESS.place().is_none() {
        return CUDA_ERROR_NOT_INITIALIZED;
    }
    let mut primaries = PRIMARIES.lock();
    let _change = PROCESS.place().map(Place::change);
    let before = primary_is_active(device);
    if before && let Some(known) = primaries.0.get(device as usize) {
        PROCESS.leave_context(*known);
    }
    // SAFETY: the driver's function of this type, which takes any device.
    let result = unsafe { driver(device) };
    if before && let Some(known) = primaries.0.get_mut(device as usize) {
        primary_left(device, known);
    }
    result
}

/// Releases of the primary context that come with another one's end. What the program releases itself is seen by
/// [`primary_released`].
fn primaries_left(primaries: &mut Primaries) {
    for (device, known) in primaries.0.iter_mut().enumerate() {
        primary_left(device as CUdevice, known);
    }
}

/// The primary context of `device`, if it is known, has gone or is still there.
fn primary_left(device: CUdevice, known: &mut CUcontext) {
    if known.is_null() {
        return;
    }
    if primary_is_active(device) {
        PROCESS.context_stays(*known);
    } else {
        context_gone(core::mem::replace(known, core::ptr::null_mut()));
    }
}

/// A part of a GPU, charged as a context, and so is the primary one that comes with it.
///
/// # Safety
/// As the driver's function of this name; so for all functions here.
#[cfg_attr(driver_550, unsafe(no_mangle))]
pub unsafe extern "C" fn cuGreenCtxCreate(
    green: *mut CUcontext,
    resources: CUdevResourceDesc,
    device: CUdevice,
    flags: c_uint,
) -> CUresult {
    let mut primary: CUcontext = core::ptr::null_mut();
    // Made first, so that it is charged as one; our own reference goes again below.
    let result = primary_retained(&mut primary, device);
    if result != CUDA_SUCCESS {
        return result;
    }
    let result = context_created(green, device, || {
        // SAFETY: as above.
        unsafe { real::<CuGreenCtxCreate>(index::cuGreenCtxCreate)(green, resources, device, flags) }
    });
    // SAFETY: as above.
    primary_released(device, unsafe { real(index::cuDevicePrimaryCtxRelease_v2) });
    result
}

/// The account lets go of it, and of the primary context if that goes with it.
#[cfg_attr(driver_550, unsafe(no_mangle))]
pub unsafe extern "C" fn cuGreenCtxDestroy(green: CUcontext) -> CUresult {
    if PROCESS.place().is_none() {
        return CUDA_ERROR_NOT_INITIALIZED;
    }
    let mut primaries = PRIMARIES.lock();
    primaries.0.iter().filter(|known| !known.is_null()).for_each(|known| PROCESS.leave_context(*known));
    // SAFETY: see cuGreenCtxCreate.
    let result = context_destroyed(green, || unsafe { real::<CuGreenCtxDestroy>(index::cuGreenCtxDestroy)(green) });
    primaries_left(&mut primaries);
    result
}

macro_rules! display_contexts {
    ($($name:ident)*) => {$(
        /// Charged before it is made.
        #[unsafe(no_mangle)]
        pub unsafe extern "C" fn $name(
            context: *mut CUcontext, flags: c_uint, device: CUdevice, display: c_uint, functions: *const c_void,
        ) -> CUresult {
            context_created(context, device, || {
                // SAFETY: see cuGreenCtxCreate.
                unsafe { real::<CuVDPAUCtxCreate>(index::$name)(context, flags, device, display, functions) }
            })
        }
    )*};
}

display_contexts! { cuVDPAUCtxCreate cuVDPAUCtxCreate_v2 }
