//! A driver that does nothing, and a process at an open gate in front of it: what is left is gpool's own cost.

use gpool_driver_abi::cuda::{CUcontext, CUevent, CUresult, CUstream};
use gpool_interposer_logic::clock::now_ns;
use gpool_interposer_logic::process::Place;
use gpool_interposer_logic::region::Region;
use gpool_interposer_logic::registration::Registration;
use gpool_interposer_logic::{Driver, Process};
use gpool_shared_region::{CONTROL_BYTES, Control, GateWord, REPORT_BYTES};
use std::ffi::c_uint;
use std::ptr::{NonNull, without_provenance_mut};
use std::sync::atomic::Ordering;

/// How long a burst seems to have taken on the device.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Bursts {
    /// No time: launches seem so cheap that thousands share a burst.
    Endless,
    /// A millisecond: every launch seems to fill a burst of its own, and takes the slow path.
    OneLaunch,
}

/// Milliseconds of GPU time of a burst of [`Bursts::OneLaunch`], as long as the supervisor wants bursts to be.
const BURST_MS: f32 = 1.0;
/// The same in nanoseconds.
const BURST_NS: u64 = 1_000_000;
/// Long after the end of any measurement.
const HOUR_NS: u64 = 3_600_000_000_000;

/// A registered process whose gate is open for an hour. It is never freed: its watcher thread may look at it for ever.
pub fn process(bursts: Bursts) -> &'static Process {
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
    process.adopt(Place { region, registration: Registration { slot: 0, process_id }, driver: driver(bursts) });
    process
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

fn driver(bursts: Bursts) -> Driver {
    Driver {
        event_create,
        event_destroy,
        event_record,
        event_query: event_done,
        event_synchronize: event_done,
        event_elapsed_time: match bursts {
            Bursts::Endless => no_time,
            Bursts::OneLaunch => one_burst,
        },
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

unsafe extern "C" fn no_time(milliseconds: *mut f32, _from: CUevent, _to: CUevent) -> CUresult {
    // SAFETY: see event_create.
    unsafe { *milliseconds = 0.0 };
    0
}

unsafe extern "C" fn one_burst(milliseconds: *mut f32, _from: CUevent, _to: CUevent) -> CUresult {
    // SAFETY: see event_create.
    unsafe { *milliseconds = BURST_MS };
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
    use gpool_interposer_logic::Admission;

    #[test]
    fn the_gate_is_open_and_bursts_hold_what_they_should() {
        for (bursts, most) in [(Bursts::Endless, 1000), (Bursts::OneLaunch, 9999)] {
            let process = process(bursts);
            let stream = without_provenance_mut::<u8>(1).cast();
            assert!((0..10_000).all(|_| process.admit(stream) == Admission::Pass));
            let slot = process.place().map(|place| place.slot()).unwrap();
            let written = slot.burst_count.load(Ordering::Relaxed);
            assert!((1..=most).contains(&written), "{bursts:?}: {written} bursts for 10,000 launches");
        }
    }
}
