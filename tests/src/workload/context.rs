//! A context on a GPU: the kernel, the buffers, and what is done with them.

use super::driver::{DEVICE_MEMORY, Driver, Rows, Side};
use super::{check, say};
use serde_json::json;
use std::ffi::{CStr, c_int, c_void};
use std::ptr::null_mut;

/// Buffers are whole MiB, so whole rows.
const ROW_BYTES: usize = 4096;

/// Spins until %globaltimer has advanced by `ns`.
const PTX: &CStr = c".version 6.0
.target sm_50
.address_size 64
.visible .entry spin_ns(.param .u64 ns)
{
    .reg .pred %p;
    .reg .u64 %start, %now, %end;
    ld.param.u64 %end, [ns];
    mov.u64 %start, %globaltimer;
    add.u64 %end, %end, %start;
again:
    mov.u64 %now, %globaltimer;
    setp.lt.u64 %p, %now, %end;
    @%p bra again;
    ret;
}
";

/// Flag of cuStreamCreate: does not wait for the default stream.
const NON_BLOCKING: u32 = 1;
/// CUDA_ERROR_NOT_READY.
const NOT_READY: i32 = 600;
/// Mode of cuStreamBeginCapture: other threads may allocate meanwhile.
const CAPTURE_THREAD_LOCAL: c_int = 1;

/// A place to launch from. Its handles are kept as numbers, since threads share it.
pub(super) struct Context<'a> {
    driver: &'a Driver,
    /// The ordinal of its GPU.
    pub(super) gpu: c_int,
    handle: usize,
    kernel: usize,
    /// Two of them with their size, if there is something to copy.
    buffers: Option<([u64; 2], usize)>,
    /// Whether copies are all that it does.
    only_copies: bool,
}

impl<'a> Context<'a> {
    /// Makes a context on the GPU with this ordinal, current to the calling thread, with two buffers of `copy_bytes`.
    pub(super) fn create(driver: &'a Driver, gpu: c_int, copy_bytes: Option<usize>, only_copies: bool) -> Self {
        let (mut device, mut handle, mut module, mut kernel) = (0, null_mut(), null_mut(), null_mut());
        // SAFETY: all results go to live locals, and the PTX and the name end with a zero.
        unsafe {
            check("cuDeviceGet", (driver.device_get)(&mut device, gpu));
            check("cuCtxCreate", (driver.context_create)(&mut handle, 0, device));
            check("cuModuleLoadData", (driver.module_load)(&mut module, PTX.as_ptr().cast()));
            check("cuModuleGetFunction", (driver.module_function)(&mut kernel, module, c"spin_ns".as_ptr()));
        }
        let buffers = copy_bytes.map(|bytes| {
            let mut addresses = [0; 2];
            for address in &mut addresses {
                // SAFETY: the result goes to a live local.
                check("cuMemAlloc", unsafe { (driver.allocate)(address, bytes) });
            }
            (addresses, bytes)
        });
        Self { driver, gpu, handle: handle as usize, kernel: kernel as usize, buffers, only_copies }
    }

    /// Makes it current to the calling thread.
    pub(super) fn enter(&self) {
        // SAFETY: it has not been destroyed.
        check("cuCtxSetCurrent", unsafe { (self.driver.context_set)(self.handle as *mut c_void) });
    }

    /// Has it go, with all that is in it. It is of no use afterwards.
    pub(super) fn destroy(&self) {
        // SAFETY: it was made, and is destroyed once.
        check("cuCtxDestroy", unsafe { (self.driver.context_destroy)(self.handle as *mut c_void) });
    }

    /// Says what cuMemGetInfo shows in the current context.
    pub(super) fn report_memory(&self) {
        let (mut free, mut total) = (0, 0);
        // SAFETY: both results go to live locals.
        check("cuMemGetInfo", unsafe { (self.driver.memory_info)(&mut free, &mut total) });
        say(&json!({"event": "memory", "gpu": self.gpu, "total": total, "free": free}));
    }

    /// The driver that it was made through.
    pub(super) fn driver(&self) -> &'a Driver {
        self.driver
    }

    /// Waits for all work of the current context.
    pub(super) fn synchronize(&self) {
        // SAFETY: no arguments; a context is current to this thread.
        check("cuCtxSynchronize", unsafe { (self.driver.synchronize)() });
    }

    /// Waits for all work on the default stream of the current context by copying a byte of device memory to the host.
    pub(super) fn copy_to_host(&self, from: u64) {
        let mut byte = 0_u8;
        // SAFETY: one byte of a live allocation goes to a live local.
        check("cuMemcpyDtoH", unsafe { (self.driver.to_host)((&raw mut byte).cast(), from, 1) });
    }

    /// A piece of device memory.
    pub(super) fn allocate(&self, bytes: usize) -> u64 {
        let mut address = 0;
        // SAFETY: the result goes to a live local.
        check("cuMemAlloc", unsafe { (self.driver.allocate)(&mut address, bytes) });
        address
    }

    /// The same, if there is room.
    pub(super) fn try_to_allocate(&self, bytes: usize) -> Option<u64> {
        let mut address = 0;
        // SAFETY: the result goes to a live local.
        let code = unsafe { (self.driver.allocate)(&mut address, bytes) };
        (code == 0).then_some(address)
    }

    /// Gives a piece back.
    pub(super) fn free(&self, address: u64) {
        // SAFETY: it is one that was allocated, and nobody uses it.
        check("cuMemFree", unsafe { (self.driver.free)(address) });
    }

    /// Asks until all work on the default stream of the current context has ended.
    pub(super) fn query_until_ended(&self) {
        // SAFETY: the default stream's handle.
        while unsafe { (self.driver.stream_query)(null_mut()) } == NOT_READY {
            std::hint::spin_loop();
        }
    }

    /// A new stream in the current context.
    pub(super) fn create_stream(&self) -> *mut c_void {
        let mut stream = null_mut();
        // SAFETY: the result goes to a live local.
        check("cuStreamCreate", unsafe { (self.driver.stream_create)(&mut stream, NON_BLOCKING) });
        stream
    }

    /// Launches the kernel, and what comes behind it, or copies alone.
    pub(super) fn launch(&self, stream: *mut c_void, mut duration_ns: u64) {
        if let Some(([to, from], bytes)) = self.buffers.filter(|_| self.only_copies) {
            return self.copy(stream, to, from, bytes);
        }
        let mut parameters = [(&raw mut duration_ns).cast::<c_void>()];
        let (kernel, list) = (self.kernel as *mut c_void, parameters.as_mut_ptr());
        // SAFETY: the kernel takes one u64, which outlives the call.
        let code = unsafe { (self.driver.launch)(kernel, 1, 1, 1, 1, 1, 1, 0, stream, list, null_mut()) };
        check("cuLaunchKernel", code);
        if let Some(([to, from], bytes)) = self.buffers {
            // SAFETY: both buffers are live and hold so many bytes.
            unsafe {
                check("cuMemcpyDtoDAsync", (self.driver.copy_async)(to, from, bytes, stream));
                check("cuMemsetD8Async", (self.driver.set_async)(from, 0xa5, bytes, stream));
            }
        }
    }

    /// Copies all of it as rows, and as if the other buffer were another GPU's.
    fn copy(&self, stream: *mut c_void, to: u64, from: u64, bytes: usize) {
        let side = |device| Side { memory_type: DEVICE_MEMORY, device, pitch_bytes: ROW_BYTES, ..Side::default() };
        let rows = Rows { from: side(from), to: side(to), width_bytes: ROW_BYTES, height: bytes / ROW_BYTES };
        let context = self.handle as *mut c_void;
        // SAFETY: both buffers are live and hold so many bytes; the context is never destroyed.
        unsafe {
            check("cuMemcpy2DAsync", (self.driver.rows_async)(&rows, stream));
            check("cuMemcpyPeerAsync", (self.driver.peer_async)(to, context, from, context, bytes, stream));
        }
    }

    /// A graph of what `launches` puts on the stream.
    pub(super) fn capture(&self, stream: *mut c_void, launches: impl FnOnce()) -> *mut c_void {
        let (mut graph, mut executable) = (null_mut(), null_mut());
        // SAFETY: the stream is live; all results go to live locals; no log is asked for.
        unsafe {
            check("cuStreamBeginCapture", (self.driver.capture_begin)(stream, CAPTURE_THREAD_LOCAL));
            launches();
            check("cuStreamEndCapture", (self.driver.capture_end)(stream, &mut graph));
            let code = (self.driver.graph_instantiate)(&mut executable, graph, null_mut(), null_mut(), 0);
            check("cuGraphInstantiate", code);
        }
        executable
    }

    /// Launches a graph that [`Context::capture`] made.
    pub(super) fn launch_graph(&self, executable: *mut c_void, stream: *mut c_void) {
        // SAFETY: both are live.
        check("cuGraphLaunch", unsafe { (self.driver.graph_launch)(executable, stream) });
    }
}
