//! A driver that does nothing, and a process at an open gate in front of it: what is left is gpool's own cost.

use gpool_driver_abi::cuda::{CUcontext, CUevent, CUresult, CUstream};
use gpool_interposer_logic::clock::now_ns;
use gpool_interposer_logic::process::Place;
use gpool_interposer_logic::region::Region;
use gpool_interposer_logic::registration::Registration;
use gpool_interposer_logic::{Admission, Driver, Process};
use gpool_shared_region::{CONTROL_BYTES, Control, GateWord, REPORT_BYTES};
use std::ffi::c_uint;
use std::ptr::{NonNull, without_provenance_mut};
use std::sync::atomic::{AtomicU32, Ordering};

/// GPU time that a burst seems to take, as long as the supervisor wants bursts to be.
const BURST_MS: f32 = 1.0;
/// The same in nanoseconds.
const BURST_NS: u64 = 1_000_000;
/// Long after the end of any measurement.
const HOUR_NS: u64 = 3_600_000_000_000;

/// Milliseconds that the first burst seems to take, as bits; taken once. It holds one launch, and so decides what a
/// launch is taken to cost and how many share a burst from then on.
static FIRST_BURST_MS: AtomicU32 = AtomicU32::new(0);

/// A registered process whose gate is open for an hour, with so many launches in each burst. It is never freed: its
/// watcher thread may look at it for ever.
///
/// One process is to be made at a time.
pub fn process(launches_per_burst: u16) -> &'static Process {
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
    process.adopt(Place { region, registration: Registration { slot: 0, process_id }, driver: driver() });
    FIRST_BURST_MS.store((BURST_MS / f32::from(launches_per_burst)).to_bits(), Ordering::Relaxed);
    for _ in 0..2 * u32::from(launches_per_burst) {
        launch(process, without_provenance_mut::<u8>(HANDLE).cast());
    }
    process
}

/// What the shim does around a launch on `stream`; there is no launch in it.
#[inline(always)]
pub fn launch(process: &Process, stream: CUstream) {
    match process.admit(stream) {
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
        event_synchronize: event_done,
        event_elapsed_time,
        stream_create,
        stream_is_capturing,
        exchange_capture_mode,
        ctx_get_current,
        ctx_push_current,
        ctx_pop_current: ctx_get_current,
    }
}

/// Any handle that is not null.
const HANDLE: usize = 64;

unsafe extern "C" fn event_create(event: *mut CUevent, _flags: c_uint) -> CUresult {
    // SAFETY: the caller gives a place for the handle; so for all functions here that give an answer.
    unsafe { *event = without_provenance_mut::<u8>(HANDLE).cast() };
    0
}

unsafe extern "C" fn event_destroy(_event: CUevent) -> CUresult {
    0
}

unsafe extern "C" fn event_record(_event: CUevent, _stream: CUstream) -> CUresult {
    0
}

unsafe extern "C" fn event_done(_event: CUevent) -> CUresult {
    0
}

unsafe extern "C" fn event_elapsed_time(milliseconds: *mut f32, _from: CUevent, _to: CUevent) -> CUresult {
    let first_ms = f32::from_bits(FIRST_BURST_MS.swap(0, Ordering::Relaxed));
    // SAFETY: see event_create.
    unsafe { *milliseconds = if first_ms > 0.0 { first_ms } else { BURST_MS } };
    0
}

unsafe extern "C" fn stream_create(stream: *mut CUstream, _flags: c_uint) -> CUresult {
    // SAFETY: see event_create.
    unsafe { *stream = without_provenance_mut::<u8>(HANDLE).cast() };
    0
}

unsafe extern "C" fn stream_is_capturing(_stream: CUstream, status: *mut i32) -> CUresult {
    // SAFETY: see event_create.
    unsafe { *status = 0 };
    0
}

unsafe extern "C" fn exchange_capture_mode(_mode: *mut i32) -> CUresult {
    0
}

unsafe extern "C" fn ctx_get_current(context: *mut CUcontext) -> CUresult {
    // SAFETY: see event_create.
    unsafe { *context = without_provenance_mut::<u8>(HANDLE).cast() };
    0
}

unsafe extern "C" fn ctx_push_current(_context: CUcontext) -> CUresult {
    0
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_gate_is_open_and_bursts_hold_what_they_should() {
        for launches in [1, 400, 4000] {
            let process = process(launches);
            let slot = process.place().map(|place| place.slot()).unwrap();
            let before = slot.burst_count.load(Ordering::Relaxed);
            let stream = without_provenance_mut::<u8>(HANDLE).cast();
            let calls = 100 * u64::from(launches);
            (0..calls).for_each(|_| launch(process, stream));
            let bursts = slot.burst_count.load(Ordering::Relaxed) - before;
            assert!((95..=300).contains(&bursts), "{bursts} bursts of {launches} launches for {calls} calls");
        }
    }
}
