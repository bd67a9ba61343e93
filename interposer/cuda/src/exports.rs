//! The functions that the shim answers itself. Each is thin: the logic is in gpool-interposer-logic and `accounts`.

use crate::PROCESS;
use crate::contexts::{context_created, context_destroyed, primary_released, primary_retained};
use crate::entry::{index, real};
use crate::procaddress::substitute;
use crate::touched::touch;
use crate::work_exports::{legacy, per_thread};
use core::ffi::{c_char, c_int, c_uint, c_ulonglong, c_void};
use core::sync::atomic::{AtomicU32, Ordering};
use gpool_driver_abi::cuda::*;
use gpool_interposer_logic::waits::WaitFor;
use gpool_interposer_logic::{Driver, Work};

pub use crate::arrays::*;
pub use crate::contexts::*;
pub use crate::copy_exports::*;
pub use crate::graph_memory::*;
pub use crate::images::*;
pub use crate::limits::*;
pub use crate::memory_exports::*;
pub use crate::pools::*;
pub use crate::sharing::*;
pub use crate::virtual_memory::*;
pub use crate::work_exports::*;

/// The real driver, as the slow path of the gate uses it.
fn driver() -> Driver {
    // SAFETY: each entry point has the type of its field.
    unsafe {
        Driver {
            event_create: real(index::cuEventCreate),
            event_destroy: real(index::cuEventDestroy_v2),
            event_record: real(index::cuEventRecord),
            event_query: real(index::cuEventQuery),
            event_elapsed_time: real(index::cuEventElapsedTime),
            stream_create: real(index::cuStreamCreate),
            stream_destroy: real(index::cuStreamDestroy_v2),
            stream_query: real(index::cuStreamQuery),
            stream_is_capturing: real(index::cuStreamIsCapturing),
            stream_get_ctx: real(index::cuStreamGetCtx),
            exchange_capture_mode: real(index::cuThreadExchangeStreamCaptureMode),
            ctx_get_current: real(index::cuCtxGetCurrent),
            ctx_push_current: real(index::cuCtxPushCurrent_v2),
            ctx_pop_current: real(index::cuCtxPopCurrent_v2),
            ctx_get_device: real(index::cuCtxGetDevice),
            device_get_uuid: real(index::cuDeviceGetUuid),
            pointer_get_attribute: real(index::cuPointerGetAttribute),
        }
    }
}

/// Finds the lease, in which the process takes a place when it first needs one. A process that finds no region gets no
/// driver, so that none runs uncounted.
///
/// # Safety
/// As the driver's function of this name; so for all functions here.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuInit(flags: c_uint) -> CUresult {
    // SAFETY: the entry point's type, the caller's arguments; so for all calls of `real` here.
    let result = unsafe { real::<CuInit>(index::cuInit)(flags) };
    if result != CUDA_SUCCESS {
        return result;
    }
    match PROCESS.begin(driver()) {
        Ok(()) => {
            attend_fork_and_exit();
            CUDA_SUCCESS
        }
        Err(_) => CUDA_ERROR_OPERATING_SYSTEM,
    }
}

/// Hands out our functions where the real ones are hooked.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuGetProcAddress(
    symbol: *const c_char,
    function: *mut *mut c_void,
    version: c_int,
    flags: c_ulonglong,
) -> CUresult {
    // SAFETY: see cuInit.
    let result = unsafe { real::<CuGetProcAddress>(index::cuGetProcAddress)(symbol, function, version, flags) };
    if result != CUDA_SUCCESS {
        return result;
    }
    // SAFETY: the driver succeeded, so both pointers are valid.
    match unsafe { substitute(symbol, *function) } {
        // SAFETY: as above.
        Some(pointer) => unsafe { *function = pointer },
        None => {
            // SAFETY: as above.
            unsafe { *function = core::ptr::null_mut() };
            return CUDA_ERROR_NOT_FOUND;
        }
    }
    CUDA_SUCCESS
}

/// Hands out our functions where the real ones are hooked.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuGetProcAddress_v2(
    symbol: *const c_char,
    function: *mut *mut c_void,
    version: c_int,
    flags: c_ulonglong,
    status: *mut CUdriverProcAddressQueryResult,
) -> CUresult {
    let name = index::cuGetProcAddress_v2;
    // SAFETY: see cuInit.
    let result = unsafe { real::<CuGetProcAddressV2>(name)(symbol, function, version, flags, status) };
    // SAFETY: the driver succeeded, so `function` is valid.
    if result != CUDA_SUCCESS || unsafe { (*function).is_null() } {
        return result;
    }
    // SAFETY: as above.
    match unsafe { substitute(symbol, *function) } {
        // SAFETY: as above.
        Some(pointer) => unsafe { *function = pointer },
        None => {
            // SAFETY: as above; `status` may be null.
            unsafe {
                *function = core::ptr::null_mut();
                if let Some(status) = status.as_mut() {
                    *status = CU_GET_PROC_ADDRESS_VERSION_NOT_SUFFICIENT;
                }
            }
            return CUDA_ERROR_NOT_FOUND;
        }
    }
    CUDA_SUCCESS
}

macro_rules! left_streams {
    ($left:ident, $after:expr; $($(#[$export:meta])* $name:ident ($($argument:ident: $kind:ty),*) $meant:ident;)*) => {$(
        /// The open burst on the stream ends first.
        $(#[$export])*
        pub unsafe extern "C" fn $name(stream: CUstream, $($argument: $kind),*) -> CUresult {
            PROCESS.$left($meant(stream));
            type Function = unsafe extern "C" fn(CUstream, $($kind),*) -> CUresult;
            // SAFETY: see cuInit.
            let result = unsafe { real::<Function>(index::$name)(stream, $($argument),*) };
            if result == CUDA_SUCCESS {
                $after();
            }
            result
        }
    )*};
}

macro_rules! destroyed_streams {
    ($($name:ident)*) => {$(
        /// The open burst on the stream ends first; where it cannot now, the stream goes when it can.
        #[unsafe(no_mangle)]
        pub unsafe extern "C" fn $name(stream: CUstream) -> CUresult {
            if !PROCESS.leave_stream(legacy(stream)) {
                return CUDA_SUCCESS;
            }
            // SAFETY: see cuInit.
            unsafe { real::<CuStreamDestroyV2>(index::$name)(stream) }
        }
    )*};
}

destroyed_streams! { cuStreamDestroy cuStreamDestroy_v2 }

macro_rules! capture_ends {
    ($($name:ident $meant:ident;)*) => {$(
        /// From then on its streams are no part of a capture.
        #[unsafe(no_mangle)]
        pub unsafe extern "C" fn $name(stream: CUstream, graph: *mut CUgraph) -> CUresult {
            // SAFETY: see cuInit.
            PROCESS.end_capture($meant(stream), || unsafe { real::<CuStreamEndCapture>(index::$name)(stream, graph) })
        }
    )*};
}

capture_ends! { cuStreamEndCapture legacy; cuStreamEndCapture_ptsz per_thread; }

left_streams! {
    leave_for_join, || ();
    #[unsafe(no_mangle)]
    cuStreamWaitEvent(event: CUevent, flags: c_uint) legacy;
    #[unsafe(no_mangle)]
    cuStreamWaitEvent_ptsz(event: CUevent, flags: c_uint) per_thread;
}

left_streams! {
    leave_for_capture, || PROCESS.capture_begun();
    #[unsafe(no_mangle)]
    cuStreamBeginCapture() legacy;
    #[unsafe(no_mangle)]
    cuStreamBeginCapture_ptsz() per_thread;
    #[unsafe(no_mangle)]
    cuStreamBeginCapture_v2(mode: CUstreamCaptureMode) legacy;
    #[unsafe(no_mangle)]
    cuStreamBeginCapture_v2_ptsz(mode: CUstreamCaptureMode) per_thread;
    // Newer than the oldest driver. Source: cudaTypedefs.h of CUDA 13.5.
    #[cfg_attr(driver_550, unsafe(no_mangle))]
    cuStreamBeginCaptureToGraph(
        graph: CUgraph, nodes: *const CUgraphNode, edges: *const c_void, count: usize, mode: CUstreamCaptureMode
    ) legacy;
    #[cfg_attr(driver_550, unsafe(no_mangle))]
    cuStreamBeginCaptureToGraph_ptsz(
        graph: CUgraph, nodes: *const CUgraphNode, edges: *const c_void, count: usize, mode: CUstreamCaptureMode
    ) per_thread;
    cuStreamBeginRecaptureToGraph(
        mode: CUstreamCaptureMode, graph: CUgraph, callback: *const c_void, data: *mut c_void
    ) legacy;
    cuStreamBeginRecaptureToGraph_ptsz(
        mode: CUstreamCaptureMode, graph: CUgraph, callback: *const c_void, data: *mut c_void
    ) per_thread;
}

left_streams! {
    // Into a command list of a graphics library, which no other stream joins.
    leave_for_capture, || ();
    cuStreamBeginCaptureToCig(parameters: *mut c_void) legacy;
    cuStreamBeginCaptureToCig_ptsz(parameters: *mut c_void) per_thread;
}

macro_rules! waits {
    ($($name:ident: $kind:ident ($($argument:ident: $type:ty),*) $what:expr;)*) => {$(
        /// What has ended counts no longer. Pools may have given something back afterwards.
        #[unsafe(no_mangle)]
        pub unsafe extern "C" fn $name($($argument: $type),*) -> CUresult {
            touch();
            // SAFETY: see cuInit.
            let result = PROCESS.wait($what, || unsafe { real::<$kind>(index::$name)($($argument),*) });
            crate::pool_accounts::waited();
            result
        }
    )*};
}

waits! {
    cuCtxSynchronize: CuCtxSynchronize () WaitFor::Context(core::ptr::null_mut());
    cuStreamSynchronize: CuStreamSynchronize (stream: CUstream) WaitFor::Stream(legacy(stream));
    cuStreamSynchronize_ptsz: CuStreamSynchronize (stream: CUstream) WaitFor::Stream(per_thread(stream));
    cuEventSynchronize: CuEventSynchronize (event: CUevent) WaitFor::Event(event);
}

macro_rules! polls {
    ($($name:ident: $kind:ident ($argument:ident: $type:ty) $what:expr;)*) => {$(
        /// A program that asks until its work has ended has waited for it.
        #[unsafe(no_mangle)]
        pub unsafe extern "C" fn $name($argument: $type) -> CUresult {
            touch();
            // SAFETY: see cuInit.
            let result = unsafe { real::<$kind>(index::$name)($argument) };
            if result == CUDA_SUCCESS {
                PROCESS.found_ended($what);
            }
            result
        }
    )*};
}

polls! {
    cuStreamQuery: CuStreamQuery (stream: CUstream) WaitFor::Stream(legacy(stream));
    cuStreamQuery_ptsz: CuStreamQuery (stream: CUstream) WaitFor::Stream(per_thread(stream));
    cuEventQuery: CuEventQuery (event: CUevent) WaitFor::Event(event);
}

macro_rules! records {
    ($($name:ident ($($argument:ident: $type:ty),*);)*) => {$(
        /// Noted, so that it is known what a wait for it says.
        #[unsafe(no_mangle)]
        pub unsafe extern "C" fn $name(event: CUevent, stream: CUstream, $($argument: $type),*) -> CUresult {
            touch();
            PROCESS.note_record(event);
            type Function = unsafe extern "C" fn(CUevent, CUstream, $($type),*) -> CUresult;
            // SAFETY: see cuInit.
            unsafe { real::<Function>(index::$name)(event, stream, $($argument),*) }
        }
    )*};
}

records! {
    cuEventRecord();
    cuEventRecord_ptsz();
    cuEventRecordWithFlags(flags: c_uint);
    cuEventRecordWithFlags_ptsz(flags: c_uint);
}

/// As cuCtxSynchronize. Newer than driver 555.
#[cfg_attr(driver_580, unsafe(no_mangle))]
pub unsafe extern "C" fn cuCtxSynchronize_v2(context: CUcontext) -> CUresult {
    touch();
    // SAFETY: see cuInit.
    let wait = || unsafe { real::<CuCtxSynchronizeV2>(index::cuCtxSynchronize_v2)(context) };
    let result = PROCESS.wait(WaitFor::Context(context), wait);
    crate::pool_accounts::waited();
    result
}

macro_rules! contexts {
    ($($(#[$export:meta])* $name:ident: $kind:ident [$($argument:ident: $type:ty),*];)*) => {$(
        /// Charged before it is made.
        $(#[$export])*
        pub unsafe extern "C" fn $name(
            context: *mut CUcontext, $($argument: $type,)* flags: c_uint, device: CUdevice,
        ) -> CUresult {
            context_created(context, device, &|| {
                // SAFETY: see cuInit.
                unsafe { real::<$kind>(index::$name)(context, $($argument,)* flags, device) }
            })
        }
    )*};
}

contexts! {
    #[unsafe(no_mangle)]
    cuCtxCreate: CuCtxCreateV2 [];
    #[unsafe(no_mangle)]
    cuCtxCreate_v2: CuCtxCreateV2 [];
    #[unsafe(no_mangle)]
    cuCtxCreate_v3: CuCtxCreateV3 [affinities: *mut c_void, count: c_int];
    // Newer than the oldest driver. In shims of drivers that lack it, it is reached through cuGetProcAddress only.
    #[cfg_attr(driver_555, unsafe(no_mangle))]
    cuCtxCreate_v4: CuCtxCreateV4 [parameters: *mut c_void];
    #[unsafe(no_mangle)]
    cuGLCtxCreate: CuCtxCreateV2 [];
    #[unsafe(no_mangle)]
    cuGLCtxCreate_v2: CuCtxCreateV2 [];
}

/// The handle may come back as another graph's.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuGraphExecDestroy(graph: CUgraphExec) -> CUresult {
    touch();
    PROCESS.forget(Work::handle(graph));
    crate::graph_memory::gone(graph);
    // SAFETY: see cuInit.
    unsafe { real::<CuGraphExecDestroy>(index::cuGraphExecDestroy)(graph) }
}

/// The account lets go of the context and its memory.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuCtxDestroy(context: CUcontext) -> CUresult {
    touch();
    // SAFETY: see cuInit.
    context_destroyed(context, || unsafe { real::<CuCtxDestroyV2>(index::cuCtxDestroy)(context) })
}

/// The account lets go of the context and its memory.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuCtxDestroy_v2(context: CUcontext) -> CUresult {
    touch();
    // SAFETY: see cuInit.
    context_destroyed(context, || unsafe { real::<CuCtxDestroyV2>(index::cuCtxDestroy_v2)(context) })
}

/// Charged when this makes it.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuDevicePrimaryCtxRetain(context: *mut CUcontext, device: CUdevice) -> CUresult {
    primary_retained(context, device)
}

macro_rules! primary_releases {
    ($($name:ident)*) => {$(
        /// The account lets go of the primary context when this was its last use.
        #[unsafe(no_mangle)]
        pub unsafe extern "C" fn $name(device: CUdevice) -> CUresult {
            // SAFETY: see cuInit.
            primary_released(device, unsafe { real::<CuDevicePrimaryCtxReleaseV2>(index::$name) })
        }
    )*};
}

primary_releases! {
    cuDevicePrimaryCtxRelease cuDevicePrimaryCtxRelease_v2 cuDevicePrimaryCtxReset cuDevicePrimaryCtxReset_v2
}

unsafe extern "C" {
    /// What pthread_atfork calls; in libc.so itself since glibc 2.3.2.
    fn __register_atfork(
        prepare: *const c_void,
        parent: *const c_void,
        child: extern "C" fn(),
        library: *const c_void,
    ) -> c_int;
    /// What atexit calls.
    fn __cxa_atexit(function: extern "C" fn(*mut c_void), argument: *mut c_void, library: *const c_void) -> c_int;
}

/// Once for each process, after the driver's own cuInit: handlers run in reverse order, so ours come first.
fn attend_fork_and_exit() {
    static DONE: AtomicU32 = AtomicU32::new(0);
    if DONE.swap(1, Ordering::AcqRel) == 0 {
        // SAFETY: both functions live as long as this library, which is never unloaded.
        unsafe {
            __register_atfork(core::ptr::null(), core::ptr::null(), forked, core::ptr::null());
            __cxa_atexit(leave, core::ptr::null_mut(), core::ptr::null());
        }
    }
}

extern "C" fn forked() {
    PROCESS.forked();
}

extern "C" fn leave(_: *mut c_void) {
    PROCESS.stop();
}
