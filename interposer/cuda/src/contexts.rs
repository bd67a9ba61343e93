//! Contexts: charged before they are made, with what each of them loads of the libraries that there are.

use crate::accounts::{answered, are_bound, gone, refused};
use crate::entry::{index, real};
use crate::touched::touch;
use crate::{HANDLES, PROCESS, pool_accounts};
use core::ffi::{c_uint, c_void};
use core::ptr::null_mut;
use core::sync::atomic::{AtomicI32, AtomicPtr, Ordering};
use gpool_driver_abi::cuda::*;
use gpool_interposer_logic::contexts::Beginning;
use gpool_interposer_logic::futex::{Taken, Turn};
use gpool_interposer_logic::memory::{Call, Charge};
use gpool_interposer_logic::process::{Change, Place};

/// Devices that a process can see at once.
const DEVICES: usize = 32;

/// Primary contexts by device ordinal.
static PRIMARIES: [AtomicPtr<c_void>; DEVICES] = [const { AtomicPtr::new(null_mut()) }; DEVICES];

/// Makes "is the primary context there" and "make it" one step among the threads of this process. It is kept while the
/// driver is called. Else of two threads that find no primary context and both charge one, the second might be refused,
/// though there will be one only; and of one that a thread releases while another retains it, it would not be known whether
/// it has been made anew.
static TURN: Turn<()> = Turn::new(());
/// The device whose primary context is being changed by the thread that has the turn; no device is negative.
static CHANGING: AtomicI32 = AtomicI32::new(-1);
/// In the place of a device: any of them may change.
const ALL_DEVICES: CUdevice = -2;

/// The right to change the primary context of a device, see `TURN`.
struct Changing {
    _turn: Option<Taken<'static, ()>>,
    before: CUdevice,
}

impl Changing {
    /// Waits for it. None for a call from within the driver's own on the same primary context, as a profiler's callback
    /// makes one: it is a part of that one, which settles what it looks for itself. A callback that ends what that one makes, or
    /// makes what it ends, leaves a charge too many or too few.
    #[cold]
    #[inline(never)]
    fn begin(device: CUdevice) -> Option<Self> {
        let turn = TURN.take();
        let before = CHANGING.load(Ordering::Relaxed);
        if turn.is_none() && before == device {
            return None;
        }
        CHANGING.store(device, Ordering::Relaxed);
        Some(Self { _turn: turn, before })
    }
}

impl Drop for Changing {
    fn drop(&mut self) {
        CHANGING.store(self.before, Ordering::Relaxed);
    }
}

/// The device of which `context` is the primary one.
fn device_of_primary(context: CUcontext) -> Option<CUdevice> {
    let is_it = |known: &AtomicPtr<c_void>| known.load(Ordering::Relaxed) == context;
    PRIMARIES.iter().position(is_it).filter(|_| !context.is_null()).map(|device| device as CUdevice)
}

/// A context that is charged and not made yet, with the libraries that it will load. The two halves around the driver's
/// call are no generics, so that each way to make a context adds only its call to the library.
struct Begun {
    place: &'static Place,
    gpu: usize,
    context: Beginning,
    _change: Change,
}

impl Begun {
    #[cold]
    #[inline(never)]
    fn new(device: CUdevice) -> Result<Self, CUresult> {
        let place = PROCESS.touched_place().ok_or(CUDA_ERROR_NOT_INITIALIZED)?;
        let (gpu, change) = (PROCESS.gpu_of(place, Some(device)), place.change());
        if !PROCESS.may_be_charged(place) {
            return Err(CUDA_ERROR_OPERATING_SYSTEM);
        }
        let begun = match PROCESS.begin_context(place, gpu) {
            Err(_) if pool_accounts::give_back(place, true) => PROCESS.begin_context(place, gpu),
            begun => begun,
        };
        let context = begun.map_err(|charge| refused(place, gpu, charge, Call::Context))?;
        Ok(Self { place, gpu, context, _change: change })
    }

    #[cold]
    #[inline(never)]
    fn end(self, result: CUresult, context: *const CUcontext) -> CUresult {
        if result == CUDA_SUCCESS {
            // SAFETY: the driver succeeded, so `context` is valid and holds the handle.
            PROCESS.context_made(self.place, self.context, unsafe { *context }, self.gpu);
            return result;
        }
        PROCESS.context_refused(self.place, self.context, self.gpu);
        answered(self.place, self.gpu, Charge::Context, Call::Context, result)
    }
}

/// Makes a context on `device` through `driver`, charged.
#[cold]
#[inline(never)]
pub fn context_created(context: *mut CUcontext, device: CUdevice, driver: &dyn Fn() -> CUresult) -> CUresult {
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
    touch();
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
    if PROCESS.touched_place().is_none() {
        return CUDA_ERROR_NOT_INITIALIZED;
    }
    if let Some(device) = device_of_primary(context) {
        let Some(_changing) = Changing::begin(device) else { return detach() };
        PROCESS.leave_context(context);
        let result = detach();
        primary_left(device);
        return result;
    }
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
    let tag = PROCESS.context_gone(context);
    crate::graph_memory::freed();
    let mut handles = HANDLES.lock();
    handles.forget_limits(context as u64);
    if let Some(tag) = tag.filter(|_| are_bound()) {
        handles.context_gone(tag, gone);
    }
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
    let Some(place) = PROCESS.touched_place() else { return CUDA_ERROR_NOT_INITIALIZED };
    // SAFETY: the entry point's type, the caller's arguments; so for all calls of `real` here.
    let retain = || unsafe { real::<CuDevicePrimaryCtxRetain>(index::cuDevicePrimaryCtxRetain)(context, device) };
    let Some(_changing) = Changing::begin(device) else { return retain() };
    let result = if primary_is_active(device) { retain() } else { context_created(context, device, &retain) };
    if result == CUDA_SUCCESS
        && let Some(known) = PRIMARIES.get(device as usize)
    {
        // SAFETY: the driver succeeded, so `context` is valid and holds the handle.
        let primary = unsafe { *context };
        // One that was there already may have been made past the shim.
        PROCESS.meet_context(place, primary, PROCESS.gpu_of(place, Some(device)));
        known.store(primary, Ordering::Relaxed);
    }
    result
}

/// Releases or resets the primary context of `device` through `driver`, taking the charge back when it is gone.
#[cold]
#[inline(never)]
pub fn primary_released(device: CUdevice, driver: CuDevicePrimaryCtxReleaseV2) -> CUresult {
    if PROCESS.touched_place().is_none() {
        return CUDA_ERROR_NOT_INITIALIZED;
    }
    // SAFETY: the driver's function of this type, which takes any device.
    let release = || unsafe { driver(device) };
    let Some(_changing) = Changing::begin(device) else { return release() };
    let _change = PROCESS.place().map(Place::change);
    let before = PRIMARIES.get(device as usize).filter(|_| primary_is_active(device));
    if let Some(known) = before {
        PROCESS.leave_context(known.load(Ordering::Relaxed));
    }
    let result = release();
    if before.is_some() {
        primary_left(device);
    }
    result
}

/// The primary context of `device`, if it is known, has gone or is still there.
fn primary_left(device: CUdevice) {
    let Some(primary) = PRIMARIES.get(device as usize) else { return };
    let known = primary.load(Ordering::Relaxed);
    if known.is_null() {
        return;
    }
    if primary_is_active(device) {
        PROCESS.context_stays(known);
    } else {
        primary.store(null_mut(), Ordering::Relaxed);
        context_gone(known);
    }
}

/// The context that a green one can be used as; null if there is none.
#[cfg(driver_550)]
fn context_of_green(green: CUcontext) -> CUcontext {
    let mut context = null_mut();
    // SAFETY: the entry point's type; there is a place for the handle, and the driver checks the other.
    unsafe { real::<CuCtxFromGreenCtx>(index::cuCtxFromGreenCtx)(&mut context, green) };
    context
}

/// Drivers before 550 have no green contexts.
#[cfg(not(driver_550))]
fn context_of_green(_: CUcontext) -> CUcontext {
    null_mut()
}

/// A part of the primary context with some of the GPU's multiprocessors. It has no memory of its own: what is allocated
/// in it belongs to the primary one, also when it has gone (cuCtxFromGreenCtx, cuGreenCtxDestroy). So only the primary
/// context that comes with it is charged.
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
    let mut primary: CUcontext = null_mut();
    // Made first, so that it is charged as one; our own reference goes again below.
    let result = primary_retained(&mut primary, device);
    if result != CUDA_SUCCESS {
        return result;
    }
    // SAFETY: as above.
    let result = unsafe { real::<CuGreenCtxCreate>(index::cuGreenCtxCreate)(green, resources, device, flags) };
    if result == CUDA_SUCCESS {
        // SAFETY: the driver succeeded, so `green` is valid and holds the handle.
        PROCESS.enter_part(context_of_green(unsafe { *green }), primary);
    }
    // SAFETY: as above.
    primary_released(device, unsafe { real(index::cuDevicePrimaryCtxRelease_v2) });
    result
}

/// The account lets go of the primary context if that goes with it.
#[cfg_attr(driver_550, unsafe(no_mangle))]
pub unsafe extern "C" fn cuGreenCtxDestroy(green: CUcontext) -> CUresult {
    let Some(place) = PROCESS.touched_place() else { return CUDA_ERROR_NOT_INITIALIZED };
    let part = context_of_green(green);
    let primary = PROCESS.whole_of(part);
    let device = primary.and_then(device_of_primary);
    // Of one that is not known any primary context may go with it.
    let changing = Changing::begin(device.unwrap_or(ALL_DEVICES));
    let _change = place.change();
    [Some(part), primary].into_iter().flatten().for_each(|context| PROCESS.leave_context(context));
    // SAFETY: see cuGreenCtxCreate.
    let result = unsafe { real::<CuGreenCtxDestroy>(index::cuGreenCtxDestroy)(green) };
    if result == CUDA_SUCCESS {
        PROCESS.part_gone(part);
        HANDLES.lock().forget_limits(part as u64);
    } else {
        PROCESS.context_stays(part);
    }
    match device {
        _ if changing.is_none() => {}
        Some(device) => primary_left(device),
        None => (0..DEVICES as CUdevice).for_each(primary_left),
    }
    result
}

macro_rules! display_contexts {
    ($($name:ident)*) => {$(
        /// Charged before it is made.
        #[unsafe(no_mangle)]
        pub unsafe extern "C" fn $name(
            context: *mut CUcontext, flags: c_uint, device: CUdevice, display: c_uint, functions: *const c_void,
        ) -> CUresult {
            context_created(context, device, &|| {
                // SAFETY: see cuGreenCtxCreate.
                unsafe { real::<CuVDPAUCtxCreate>(index::$name)(context, flags, device, display, functions) }
            })
        }
    )*};
}

display_contexts! { cuVDPAUCtxCreate cuVDPAUCtxCreate_v2 }
