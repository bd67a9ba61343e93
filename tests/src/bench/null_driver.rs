//! A driver that does nothing, and a process at an open gate in front of it: what is left is gpool's own cost.

use gpool_driver_abi::cuda::{
    CUDA_ERROR_INVALID_VALUE, CUcontext, CUdevice, CUdeviceptr, CUevent, CUresult, CUstream, CUuuid,
};
use gpool_interposer_logic::clock::now_ns;
use gpool_interposer_logic::process::Place;
use gpool_interposer_logic::region::Region;
use gpool_interposer_logic::registration::Registration;
use gpool_interposer_logic::waits::WaitFor;
use gpool_interposer_logic::{Admission, Bytes, Driver, Process, Work};
use gpool_shared_region::{CONTROL_BYTES, Control, GateWord, REPORT_BYTES};
use std::ffi::{c_uint, c_void};
use std::ptr::{self, NonNull, without_provenance_mut};
use std::sync::atomic::{AtomicU64, Ordering};

/// GPU time that the supervisor wants a burst to hold.
const BURST_NS: u64 = 1_000_000;
/// Long after the end of any measurement.
const HOUR_NS: u64 = 3_600_000_000_000;

/// A stream that counts its launches, alone on its cache line: what a driver does at least.
#[derive(Debug)]
#[repr(align(128))]
pub struct Stream {
    launch_ns: u64,
    launches: AtomicU64,
}

impl Stream {
    /// A stream on which each launch takes so long that a burst holds `launches_per_burst`. It is never freed: a
    /// watcher thread may look at it for ever.
    pub fn new(launches_per_burst: u16) -> &'static Self {
        let launch_ns = BURST_NS / u64::from(launches_per_burst.max(1));
        Box::leak(Box::new(Self { launch_ns, launches: AtomicU64::new(0) }))
    }

    fn handle(&self) -> CUstream {
        ptr::from_ref(self).cast_mut().cast()
    }

    /// GPU time of all launches so far.
    fn busy_ns(&self) -> u64 {
        self.launches.load(Ordering::Relaxed) * self.launch_ns
    }
}

/// A registered process whose gate is open for an hour. It is never freed: its watcher thread may look at it for ever.
pub fn process() -> &'static Process {
    let process: &'static Process = Box::leak(Box::new(Process::new()));
    let (control, report) = region();
    control.heartbeat_ns.store(now_ns() + HOUR_NS, Ordering::Relaxed);
    control.burst_ns.store(BURST_NS, Ordering::Relaxed);
    control.depth_ns.store(3 * BURST_NS, Ordering::Relaxed);
    control.until_ns.store(now_ns() + HOUR_NS, Ordering::Relaxed);
    control.gate.store(GateWord(0).next(true).0, Ordering::Release);
    // SAFETY: `region` gives REPORT_BYTES zeroed bytes, aligned to 64, that are never freed.
    let region = unsafe { Region::in_memory(control, report.as_ptr(), -1) };
    let process_id = i32::try_from(std::process::id()).unwrap_or(0);
    process.adopt(Place::new(region, Registration { slot: 0, process_id, number: 1 }, driver()));
    process
}

/// A launch without gpool.
#[inline(always)]
pub fn launch_natively(stream: &Stream) {
    stream.launches.store(stream.launches.load(Ordering::Relaxed) + 1, Ordering::Relaxed);
}

/// The work with this number: a function or a graph, as far as the gate is concerned.
pub fn work(number: u16) -> Work {
    Work::handle(without_provenance_mut::<u8>(0x10_0000 + usize::from(number) * 256).cast())
}

/// A launch of `work` with what the shim does around it.
#[inline(always)]
pub fn launch(process: &Process, stream: &Stream, work: Work) {
    issue(process, stream, process.admit(stream.handle(), work));
}

/// A launch of `work`, and a wait for it that returns at once, with what the shim does around them.
#[inline(always)]
pub fn launch_and_wait(process: &Process, stream: &Stream, work: Work) {
    launch(process, stream, work);
    process.wait(WaitFor::Stream(stream.handle()), || 0);
}

/// A copy of `bytes` on the device with what the shim does around it.
#[inline(always)]
pub fn copy(process: &Process, stream: &Stream, bytes: u64) {
    issue(process, stream, process.admit_bytes(stream.handle(), Bytes::Copy, bytes));
}

#[inline(always)]
fn issue(process: &Process, stream: &Stream, admission: Admission) {
    launch_natively(stream);
    match admission {
        Admission::Pass => {}
        Admission::PassAlone(burst) => process.launched_alone(burst),
        Admission::NotInitialized => unreachable!("the process is registered"),
    }
}

#[repr(C, align(4096))]
struct Page([u8; CONTROL_BYTES]);

/// Zeroed pages for the control page and the report, never freed.
fn region() -> (&'static Control, NonNull<u8>) {
    let pages = vec![const { Page([0; CONTROL_BYTES]) }; 1 + REPORT_BYTES.div_ceil(CONTROL_BYTES)];
    let base = NonNull::from(Box::leak(pages.into_boxed_slice())).cast::<u8>();
    // SAFETY: the first page is as long as Control and aligned, all zeros are a valid Control, and the box is leaked;
    // the report starts inside the same allocation.
    unsafe { (base.cast::<Control>().as_ref(), base.add(CONTROL_BYTES)) }
}

impl Clone for Page {
    fn clone(&self) -> Self {
        Self(self.0)
    }
}

fn driver() -> Driver {
    Driver {
        event_create,
        event_destroy,
        event_record,
        event_query: event_done,
        event_elapsed_time,
        stream_create,
        // Streams are never freed.
        stream_destroy: stream_query,
        stream_query,
        stream_is_capturing,
        stream_get_ctx,
        exchange_capture_mode,
        ctx_get_current,
        ctx_push_current,
        ctx_pop_current: ctx_get_current,
        ctx_get_device,
        device_get_uuid,
        pointer_get_attribute,
    }
}

/// The context's handle: any that is not null.
const CONTEXT: usize = 64;

unsafe extern "C" fn event_create(event: *mut CUevent, _flags: c_uint) -> CUresult {
    // SAFETY: the caller gives a place for the handle; so for all functions here that give an answer. An event is the
    // GPU time of its stream at which it was recorded.
    unsafe { *event = Box::into_raw(Box::new(AtomicU64::new(0))).cast() };
    0
}

unsafe extern "C" fn event_destroy(event: CUevent) -> CUresult {
    // SAFETY: made by event_create, and used no more.
    drop(unsafe { Box::from_raw(event.cast::<AtomicU64>()) });
    0
}

unsafe extern "C" fn event_record(event: CUevent, stream: CUstream) -> CUresult {
    // SAFETY: made by event_create; streams are made by Stream::new and never freed.
    let (event, stream) = unsafe { (&*event.cast::<AtomicU64>(), &*stream.cast::<Stream>()) };
    event.store(stream.busy_ns(), Ordering::Relaxed);
    0
}

unsafe extern "C" fn event_done(_event: CUevent) -> CUresult {
    0
}

unsafe extern "C" fn event_elapsed_time(milliseconds: *mut f32, from: CUevent, to: CUevent) -> CUresult {
    // SAFETY: both made by event_create.
    let at_ns = |event: CUevent| unsafe { &*event.cast::<AtomicU64>() }.load(Ordering::Relaxed);
    let elapsed_ns = at_ns(to) as f64 - at_ns(from) as f64;
    // SAFETY: see event_create.
    unsafe { *milliseconds = (elapsed_ns / 1e6) as f32 };
    0
}

unsafe extern "C" fn stream_create(stream: *mut CUstream, _flags: c_uint) -> CUresult {
    // SAFETY: see event_create.
    unsafe { *stream = Stream::new(1).handle() };
    0
}

unsafe extern "C" fn stream_query(_stream: CUstream) -> CUresult {
    0
}

unsafe extern "C" fn stream_is_capturing(_stream: CUstream, status: *mut i32) -> CUresult {
    // SAFETY: see event_create.
    unsafe { *status = 0 };
    0
}

unsafe extern "C" fn stream_get_ctx(_stream: CUstream, context: *mut CUcontext) -> CUresult {
    // SAFETY: see event_create.
    unsafe { ctx_get_current(context) }
}

unsafe extern "C" fn exchange_capture_mode(_mode: *mut i32) -> CUresult {
    0
}

unsafe extern "C" fn ctx_get_current(context: *mut CUcontext) -> CUresult {
    // SAFETY: see event_create.
    unsafe { *context = without_provenance_mut::<u8>(CONTEXT).cast() };
    0
}

unsafe extern "C" fn ctx_push_current(_context: CUcontext) -> CUresult {
    0
}

unsafe extern "C" fn ctx_get_device(device: *mut CUdevice) -> CUresult {
    // SAFETY: see event_create.
    unsafe { *device = 0 };
    0
}

unsafe extern "C" fn device_get_uuid(uuid: *mut CUuuid, _device: CUdevice) -> CUresult {
    // SAFETY: see event_create.
    unsafe { (*uuid).bytes = [1; 16] };
    0
}

/// Nothing is allocated here, so no address is known.
unsafe extern "C" fn pointer_get_attribute(_answer: *mut c_void, _attribute: i32, _pointer: CUdeviceptr) -> CUresult {
    CUDA_ERROR_INVALID_VALUE
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_gate_is_open_and_bursts_hold_what_they_should() {
        for launches in [1, 400, 4000] {
            let (process, stream) = (process(), Stream::new(launches));
            let slot = process.place().map(|place| place.slot()).unwrap();
            let calls = 100 * u64::from(launches);
            (0..calls).for_each(|_| launch(process, stream, work(1)));
            let bursts = slot.burst_count.load(Ordering::Relaxed);
            assert!((95..=300).contains(&bursts), "{bursts} bursts of {launches} launches for {calls} calls");
        }
    }
}
