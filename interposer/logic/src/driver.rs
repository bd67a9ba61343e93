//! The real driver's functions that the shim calls on its own account.

// Handles are the driver's opaque numbers in pointer type: passed on, never followed.
#![allow(clippy::not_unsafe_ptr_arg_deref)]

use gpool_driver_abi::cuda::{
    self, CUcontext, CUdevice, CUdeviceptr, CUevent, CUmemoryPool, CUresult, CUstream, CUstreamCaptureMode, CUuuid,
};

/// Success of a driver call.
pub const CUDA_SUCCESS: CUresult = 0;
/// An event has not happened yet.
pub const CUDA_ERROR_NOT_READY: CUresult = 600;
/// Creation flags of our events: with timing. Nobody waits for them; for one whose waiters sleep (CU_EVENT_BLOCKING_SYNC) the device
/// interrupts the host each time, and a thread of the driver's wakes up.
const EVENT_FLAGS: u32 = 0;
/// A stream that does not synchronise with the legacy default stream.
const STREAM_NON_BLOCKING: u32 = 1;
/// CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL (cuda.h, CUpointer_attribute).
const POINTER_ATTRIBUTE_DEVICE_ORDINAL: i32 = 9;
/// Capture mode in which no call of this thread is forbidden while somebody captures.
const CAPTURE_MODE_RELAXED: CUstreamCaptureMode = 2;

/// Whether the driver is told to return from launches only when their work has ended, which it reads when it is initialised
/// (CUDA_LAUNCH_BLOCKING; CUDA C++ Programming Guide, environment variables).
pub fn launches_block() -> bool {
    // SAFETY: a terminated name; the answer, if any, is a terminated string.
    unsafe {
        let value = libc::getenv(c"CUDA_LAUNCH_BLOCKING".as_ptr());
        !value.is_null() && libc::atoi(value) != 0
    }
}

/// Pointers into the real libcuda, never to our own exports.
#[derive(Clone, Copy)]
#[allow(missing_docs)] // each field is the driver function of that name
pub struct Driver {
    pub event_create: cuda::CuEventCreate,
    pub event_destroy: cuda::CuEventDestroyV2,
    pub event_record: cuda::CuEventRecord,
    pub event_query: cuda::CuEventQuery,
    pub event_elapsed_time: cuda::CuEventElapsedTime,
    pub stream_create: cuda::CuStreamCreate,
    pub stream_destroy: cuda::CuStreamDestroyV2,
    pub stream_query: cuda::CuStreamQuery,
    pub stream_is_capturing: cuda::CuStreamIsCapturing,
    pub stream_get_ctx: cuda::CuStreamGetCtx,
    pub exchange_capture_mode: cuda::CuThreadExchangeStreamCaptureMode,
    pub ctx_get_current: cuda::CuCtxGetCurrent,
    pub ctx_push_current: cuda::CuCtxPushCurrentV2,
    pub ctx_pop_current: cuda::CuCtxPopCurrentV2,
    pub ctx_get_device: cuda::CuCtxGetDevice,
    pub device_get_uuid: cuda::CuDeviceGetUuid,
    pub pointer_get_attribute: cuda::CuPointerGetAttribute,
}

impl Driver {
    /// A new timing event of the current context; null on failure.
    pub fn new_event(&self) -> CUevent {
        let mut event = core::ptr::null_mut();
        // SAFETY: `event` is a valid place for the handle.
        let result = unsafe { (self.event_create)(&mut event, EVENT_FLAGS) };
        if result == CUDA_SUCCESS { event } else { core::ptr::null_mut() }
    }

    /// A new stream of the current context; null on failure.
    pub fn new_stream(&self) -> CUstream {
        let mut stream = core::ptr::null_mut();
        // SAFETY: `stream` is a valid place for the handle.
        let result = unsafe { (self.stream_create)(&mut stream, STREAM_NON_BLOCKING) };
        if result == CUDA_SUCCESS { stream } else { core::ptr::null_mut() }
    }

    /// Gives an event of ours back, or null.
    pub fn destroy_event(&self, event: CUevent) {
        if !event.is_null() {
            // SAFETY: our own event, which nobody names any more.
            unsafe { (self.event_destroy)(event) };
        }
    }

    /// Gives a stream back, or null; what stands in it still happens.
    pub fn destroy_stream(&self, stream: CUstream) {
        if !stream.is_null() {
            // SAFETY: our own stream, or one that the program has destroyed: nobody names it any more.
            unsafe { (self.stream_destroy)(stream) };
        }
    }

    /// Records `event` on `stream`.
    pub fn record(&self, event: CUevent, stream: CUstream) -> CUresult {
        // SAFETY: handles come from the driver; the driver checks them.
        unsafe { (self.event_record)(event, stream) }
    }

    /// Whether `event` has happened: success, not ready, or an error.
    pub fn query(&self, event: CUevent) -> CUresult {
        // SAFETY: as above.
        unsafe { (self.event_query)(event) }
    }

    /// Nanoseconds from `from` to `to`, negative when `to` came first. The driver answers in a 32-bit float of
    /// milliseconds with about half a microsecond of resolution.
    pub fn elapsed_ns(&self, from: CUevent, to: CUevent) -> Option<i64> {
        let mut milliseconds = 0f32;
        // SAFETY: `milliseconds` is a valid place for the answer.
        let result = unsafe { (self.event_elapsed_time)(&mut milliseconds, from, to) };
        (result == CUDA_SUCCESS).then(|| (f64::from(milliseconds) * 1e6) as i64)
    }

    /// Whether all that was put into `stream` has ended. Not of one in capture: asking would break that.
    pub fn has_drained(&self, stream: CUstream) -> bool {
        // SAFETY: as above.
        unsafe { (self.stream_query)(stream) == CUDA_SUCCESS }
    }

    /// Whether `stream` is being captured into a graph, or cannot be used as another one is: while a blocking stream is
    /// captured, the legacy default stream answers with an error, and whatever is put into it breaks the capture
    /// (cuStreamIsCapturing). A handle that is none is refused by whatever comes next.
    pub fn is_capturing(&self, stream: CUstream) -> bool {
        let mut status = 0;
        // SAFETY: `status` is a valid place for the answer.
        let result = unsafe { (self.stream_is_capturing)(stream, &mut status) };
        result != CUDA_SUCCESS || status != 0
    }

    /// The context that `stream` is of.
    pub fn context_of(&self, stream: CUstream) -> Option<CUcontext> {
        let mut context = core::ptr::null_mut();
        // SAFETY: `context` is a valid place for the answer.
        let result = unsafe { (self.stream_get_ctx)(stream, &mut context) };
        (result == CUDA_SUCCESS && !context.is_null()).then_some(context)
    }

    /// The calling thread's context, null for none.
    pub fn current_context(&self) -> CUcontext {
        let mut context = core::ptr::null_mut();
        // SAFETY: `context` is a valid place for the handle.
        unsafe { (self.ctx_get_current)(&mut context) };
        context
    }

    /// The device of the calling thread's context.
    pub fn current_device(&self) -> Option<CUdevice> {
        let mut device = 0;
        // SAFETY: `device` is a valid place for the answer.
        let result = unsafe { (self.ctx_get_device)(&mut device) };
        (result == CUDA_SUCCESS).then_some(device)
    }

    /// The UUID of `device`.
    pub fn uuid(&self, device: CUdevice) -> Option<[u8; 16]> {
        let mut uuid = CUuuid { bytes: [0; 16] };
        // SAFETY: `uuid` is a valid place for the answer.
        let result = unsafe { (self.device_get_uuid)(&mut uuid, device) };
        (result == CUDA_SUCCESS).then_some(uuid.bytes)
    }

    /// The device on which the memory at `pointer` lies.
    pub fn device_of(&self, pointer: CUdeviceptr) -> Option<CUdevice> {
        let mut device: CUdevice = 0;
        // SAFETY: the answer to this attribute is an int, for which `device` is a valid place.
        let result = unsafe {
            (self.pointer_get_attribute)((&raw mut device).cast(), POINTER_ATTRIBUTE_DEVICE_ORDINAL, pointer)
        };
        (result == CUDA_SUCCESS).then_some(device)
    }

    /// The pool that the memory at `pointer` came from, if it is from one.
    pub fn pool_of(&self, pointer: CUdeviceptr) -> Option<CUmemoryPool> {
        let mut pool: CUmemoryPool = core::ptr::null_mut();
        // SAFETY: the answer to this attribute is a pool's handle, for which `pool` is a valid place.
        let result = unsafe {
            (self.pointer_get_attribute)((&raw mut pool).cast(), cuda::CU_POINTER_ATTRIBUTE_MEMPOOL_HANDLE, pointer)
        };
        (result == CUDA_SUCCESS && !pool.is_null()).then_some(pool)
    }

    /// As [`Driver::with_context`], and without a detour where the context is current already. The driver may refuse
    /// calls on events with CUDA_ERROR_INVALID_CONTEXT on a thread that has none (cuEventElapsedTime, cuEventSynchronize).
    pub fn in_context<R>(&self, context: CUcontext, work: impl FnOnce() -> R) -> Option<R> {
        if self.current_context() == context { Some(work()) } else { self.with_context(context, work) }
    }

    /// Runs `work` with `context` current on this thread.
    pub fn with_context<R>(&self, context: CUcontext, work: impl FnOnce() -> R) -> Option<R> {
        // SAFETY: the driver checks the handle; a push that succeeds is popped below.
        if unsafe { (self.ctx_push_current)(context) } != CUDA_SUCCESS {
            return None;
        }
        let result = work();
        let mut popped = core::ptr::null_mut();
        // SAFETY: `popped` is a valid place for the handle.
        unsafe { (self.ctx_pop_current)(&mut popped) };
        Some(result)
    }

    /// Lets this thread query and create events while a capture is going on elsewhere, until dropped.
    pub fn relaxed_capture(&self) -> RelaxedCapture<'_> {
        let mut mode = CAPTURE_MODE_RELAXED;
        // SAFETY: `mode` is a valid place that the driver reads and writes.
        unsafe { (self.exchange_capture_mode)(&mut mode) };
        RelaxedCapture { driver: self, before: mode }
    }
}

/// Puts the thread's capture mode back when dropped.
pub struct RelaxedCapture<'a> {
    driver: &'a Driver,
    before: CUstreamCaptureMode,
}

impl Drop for RelaxedCapture<'_> {
    fn drop(&mut self) {
        // SAFETY: `before` is a valid place that the driver reads and writes.
        unsafe { (self.driver.exchange_capture_mode)(&mut self.before) };
    }
}
