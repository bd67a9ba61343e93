//! A region in memory and a driver whose GPU takes the time that a test says, for tests.

use crate::clock;
use crate::credit::is_per_thread;
use crate::driver::Driver;
use crate::futex::{self, Mutex};
use crate::process::{Place, Process};
use crate::region::Region;
use crate::registration::Registration;
use core::cell::RefCell;
use core::ffi::c_void;
use gpool_driver_abi::cuda::{CUcontext, CUdevice, CUdeviceptr, CUevent, CUresult, CUstream, CUuuid};
use gpool_shared_region::{CONTROL_BYTES, Control, REPORT_BYTES};
use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, AtomicPtr, Ordering};

/// A zeroed region whose bell goes nowhere.
pub fn region() -> Region {
    region_with_bell(-1)
}

/// A zeroed region whose bell is the descriptor `bell_fd`.
pub fn region_with_bell(bell_fd: i32) -> Region {
    let words: &'static mut [u128] = Box::leak(vec![0u128; (CONTROL_BYTES + REPORT_BYTES) / 16 + 8].into_boxed_slice());
    let base = words.as_mut_ptr().cast::<u8>();
    // SAFETY: handles are leaked cells or constants made here, and out-pointers are the caller's.
    let aligned = unsafe { base.add(base.align_offset(64)) };
    // SAFETY: aligned, zeroed, leaked; Control and Slot hold only atomics and zeros.
    unsafe { Region::in_memory(&*aligned.cast::<Control>(), aligned.add(CONTROL_BYTES), bell_fd) }
}

/// The fake device, one for all tests of this program. Behind a lock of this crate: a checker of threads does not see
/// those of the standard library, which is built without it.
pub static DEVICE: Mutex<FakeDevice> = Mutex::new(FakeDevice {
    busy_until_ns: 0,
    beside_ns: None,
    gap_ns: 0,
    neighbour_until_ns: 0,
    records: 0,
    questions: 0,
    handles: 0,
    creations_left: u32::MAX,
});

/// A stream in capture.
pub const CAPTURING: CUstream = 77 as CUstream;
/// Whether a blocking stream is in capture, for which the default stream cannot be used.
pub static IS_BLOCKING_CAPTURE: AtomicBool = AtomicBool::new(false);
/// Whether work has broken its context: every question about an event of it is answered so.
pub static IS_BROKEN: AtomicBool = AtomicBool::new(false);
/// The stream whose queue is full: whoever records an event on it waits until it is another one, or null.
pub static FULL: AtomicPtr<c_void> = AtomicPtr::new(core::ptr::null_mut());
/// Whether somebody waits for that.
pub static IS_HELD: AtomicBool = AtomicBool::new(false);
/// The stream that was destroyed last.
pub static DESTROYED: AtomicPtr<c_void> = AtomicPtr::new(core::ptr::null_mut());
/// What a profiler does whenever an event is recorded, in the thread that records it.
pub static CALLBACK: Mutex<Option<fn()>> = Mutex::new(None);
/// What the shim makes for its anchors.
const OWN_STREAM: CUstream = 9 as CUstream;
/// Two contexts; the first is on device 0 and every thread's at first, the second is on device 1.
pub const CONTEXTS: [CUcontext; 2] = [0x50 as CUcontext, 0x60 as CUcontext];

/// The fake device is one for all tests of this program. Each starts in the first context, on an idle device.
pub fn one_at_a_time() -> std::sync::MutexGuard<'static, ()> {
    static ORDER: std::sync::Mutex<()> = std::sync::Mutex::new(());
    let order = ORDER.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
    set_current(CONTEXTS[0]);
    let mut device = DEVICE.lock();
    (device.neighbour_until_ns, device.creations_left) = (0, u32::MAX);
    (device.beside_ns, device.gap_ns) = (None, 0);
    clock::turn_ns(device.launch(0));
    drop(device);
    order
}

thread_local! {
    static CURRENT: RefCell<Vec<CUcontext>> = RefCell::new(vec![CONTEXTS[0]]);
}

/// An in-order queue, or one for each stream.
pub struct FakeDevice {
    busy_until_ns: u64,
    /// Until when each stream has work, if they run beside each other; of those that each thread has by the same handle, each.
    pub beside_ns: Option<BTreeMap<usize, u64>>,
    /// How long an event takes.
    pub gap_ns: u64,
    /// Until when another process has the device; only our own streams look at it.
    pub neighbour_until_ns: u64,
    /// Events recorded so far.
    pub records: u64,
    /// How often it was asked whether a stream has drained.
    pub questions: u64,
    /// Events and streams that were made and not destroyed.
    pub handles: usize,
    /// Events and streams that can still be made.
    pub creations_left: u32,
}

impl FakeDevice {
    /// Queues one kernel; how much work is then outstanding.
    pub fn launch(&mut self, length_ns: u64) -> u64 {
        let now_ns = clock::now_ns();
        self.busy_until_ns = self.busy_until_ns.max(now_ns) + length_ns;
        self.busy_until_ns - now_ns
    }

    /// Until when the work on `stream` is under way.
    fn busy_on(&mut self, stream: CUstream) -> &mut u64 {
        let thread = if is_per_thread(stream) { futex::this_thread() } else { 0 };
        match &mut self.beside_ns {
            Some(streams) => streams.entry(stream as usize + thread).or_insert(0),
            None => &mut self.busy_until_ns,
        }
    }

    /// Queues one kernel on `stream`; how much work is then outstanding there.
    pub fn launch_on(&mut self, stream: CUstream, length_ns: u64) -> u64 {
        let now_ns = clock::now_ns();
        let until_ns = self.busy_on(stream);
        *until_ns = (*until_ns).max(now_ns) + length_ns;
        *until_ns - now_ns
    }

    /// Makes a handle, if that is possible; CUDA_ERROR_OUT_OF_MEMORY if not.
    fn create(&mut self) -> CUresult {
        if self.creations_left == 0 {
            return OUT_OF_MEMORY;
        }
        self.creations_left -= 1;
        self.handles += 1;
        0
    }

    fn destroy(&mut self) -> CUresult {
        self.handles -= 1;
        0
    }
}

/// Makes `context` current to this thread.
pub fn set_current(context: CUcontext) {
    CURRENT.with_borrow_mut(|stack| *stack = vec![context]);
}

/// The UUID of `device`.
pub fn uuid(device: CUdevice) -> [u8; 16] {
    [device as u8 + 1; 16]
}

/// An event: a leaked cell.
struct Event {
    /// When it happens.
    at_ns: u64,
    /// In which it was made.
    context: CUcontext,
}

/// A context that is a part of the first one.
pub const PART: CUcontext = 0x70 as CUcontext;

/// Whether the part may be made current here: to one thread only, which has it then.
fn has_part() -> bool {
    CURRENT.with_borrow(|stack| stack.first() == Some(&PART))
}

/// The event behind a handle, if it is of the current context. The real driver may refuse the others.
fn event_here<'a>(event: CUevent) -> Option<&'a mut Event> {
    // SAFETY: handles of events are leaked cells made below.
    let event = unsafe { &mut *event.cast::<Event>() };
    let is_here = CURRENT.with_borrow(|stack| stack.last() == Some(&event.context));
    is_here.then_some(event)
}

/// The same of one that is about to be recorded on a default stream: those of a part take the whole one's.
fn event_for<'a>(event: CUevent, stream: CUstream) -> Option<&'a mut Event> {
    let is_in_part = stream as usize <= 2 && CURRENT.with_borrow(|stack| stack.last() == Some(&PART));
    // SAFETY: as above.
    let of = unsafe { (*event.cast::<Event>()).context };
    // SAFETY: as above.
    if is_in_part && of == CONTEXTS[0] { Some(unsafe { &mut *event.cast::<Event>() }) } else { event_here(event) }
}

/// CUDA_ERROR_OUT_OF_MEMORY.
const OUT_OF_MEMORY: CUresult = 2;
/// CUDA_ERROR_LAUNCH_FAILED.
const LAUNCH_FAILED: CUresult = 719;
/// CUDA_ERROR_INVALID_CONTEXT.
const INVALID_CONTEXT: CUresult = 201;

unsafe extern "C" fn event_create(event: *mut CUevent, _flags: u32) -> CUresult {
    let context = CURRENT.with_borrow(|stack| stack.last().copied()).unwrap_or(core::ptr::null_mut());
    let cell: &'static mut Event = Box::leak(Box::new(Event { at_ns: 0, context }));
    // SAFETY: handles are leaked cells or constants made here, and out-pointers are the caller's.
    unsafe { *event = (cell as *mut Event).cast() };
    DEVICE.lock().create()
}

unsafe extern "C" fn event_destroy(event: CUevent) -> CUresult {
    event_here(event).map_or(INVALID_CONTEXT, |_| DEVICE.lock().destroy())
}

unsafe extern "C" fn event_record(event: CUevent, stream: CUstream) -> CUresult {
    while !stream.is_null() && FULL.load(Ordering::Acquire) == stream {
        IS_HELD.store(true, Ordering::Release);
        std::thread::sleep(std::time::Duration::from_micros(20));
    }
    let callback = *CALLBACK.lock();
    callback.into_iter().for_each(|call| call());
    let mut device = DEVICE.lock();
    assert_ne!(stream, CAPTURING, "an event recorded into a capture becomes part of the graph");
    let is_broken = stream.is_null() && IS_BLOCKING_CAPTURE.load(Ordering::Relaxed);
    assert!(!is_broken, "work on the default stream breaks the capture of a blocking one");
    device.records += 1;
    let now_ns = clock::now_ns();
    // Our own streams wait for no work of this process.
    let at = if stream == OWN_STREAM {
        device.neighbour_until_ns.max(now_ns)
    } else {
        let gap_ns = device.gap_ns;
        let until_ns = device.busy_on(stream);
        if gap_ns > 0 {
            *until_ns = (*until_ns).max(now_ns) + gap_ns;
        }
        (*until_ns).max(now_ns)
    };
    event_for(event, stream).map_or(INVALID_CONTEXT, |event| {
        event.at_ns = at;
        0
    })
}

unsafe extern "C" fn event_query(event: CUevent) -> CUresult {
    if IS_BROKEN.load(Ordering::Relaxed) {
        return LAUNCH_FAILED;
    }
    event_here(event).map_or(INVALID_CONTEXT, |event| if event.at_ns <= clock::now_ns() { 0 } else { 600 })
}

unsafe extern "C" fn event_elapsed_time(ms: *mut f32, from: CUevent, to: CUevent) -> CUresult {
    let (Some(from), Some(to)) = (event_here(from), event_here(to)) else { return INVALID_CONTEXT };
    // SAFETY: handles are leaked cells or constants made here, and out-pointers are the caller's.
    unsafe { *ms = (to.at_ns as i64 - from.at_ns as i64) as f32 / 1e6 };
    0
}

unsafe extern "C" fn stream_create(stream: *mut CUstream, _flags: u32) -> CUresult {
    // SAFETY: handles are leaked cells or constants made here, and out-pointers are the caller's.
    unsafe { *stream = OWN_STREAM };
    DEVICE.lock().create()
}

unsafe extern "C" fn stream_destroy(stream: CUstream) -> CUresult {
    DESTROYED.store(stream, Ordering::Release);
    if stream == OWN_STREAM { DEVICE.lock().destroy() } else { 0 }
}

unsafe extern "C" fn stream_query(stream: CUstream) -> CUresult {
    assert_ne!(stream, CAPTURING, "asking about a stream in capture breaks the capture");
    let mut device = DEVICE.lock();
    device.questions += 1;
    if *device.busy_on(stream) <= clock::now_ns() { 0 } else { 600 }
}

unsafe extern "C" fn stream_is_capturing(stream: CUstream, status: *mut i32) -> CUresult {
    if stream.is_null() && IS_BLOCKING_CAPTURE.load(Ordering::Relaxed) {
        return 906;
    }
    // SAFETY: handles are leaked cells or constants made here, and out-pointers are the caller's.
    unsafe { *status = i32::from(stream == CAPTURING) };
    0
}

/// A stream of the second context; all others are of whichever is current.
pub const ELSEWHERE: CUstream = 88 as CUstream;

unsafe extern "C" fn stream_get_ctx(stream: CUstream, context: *mut CUcontext) -> CUresult {
    let current = CURRENT.with_borrow(|stack| stack.last().copied()).unwrap_or(core::ptr::null_mut());
    // SAFETY: handles are leaked cells or constants made here, and out-pointers are the caller's.
    unsafe { *context = if stream == ELSEWHERE { CONTEXTS[1] } else { current } };
    0
}

unsafe extern "C" fn exchange_capture_mode(_mode: *mut i32) -> CUresult {
    0
}

unsafe extern "C" fn ctx_get_current(context: *mut CUcontext) -> CUresult {
    // SAFETY: handles are leaked cells or constants made here, and out-pointers are the caller's.
    unsafe { *context = CURRENT.with_borrow(|stack| stack.last().copied()).unwrap_or(core::ptr::null_mut()) };
    0
}

unsafe extern "C" fn ctx_push_current(context: CUcontext) -> CUresult {
    if context == PART && !has_part() {
        return INVALID_CONTEXT;
    }
    CURRENT.with_borrow_mut(|stack| stack.push(context));
    0
}

unsafe extern "C" fn ctx_pop_current(context: *mut CUcontext) -> CUresult {
    let popped = CURRENT.with_borrow_mut(Vec::pop).unwrap_or(core::ptr::null_mut());
    // SAFETY: handles are leaked cells or constants made here, and out-pointers are the caller's.
    unsafe { *context = popped };
    0
}

unsafe extern "C" fn ctx_get_device(device: *mut CUdevice) -> CUresult {
    let current = CURRENT.with_borrow(|stack| stack.last().copied());
    // SAFETY: handles are leaked cells or constants made here, and out-pointers are the caller's.
    unsafe { *device = CUdevice::from(current == Some(CONTEXTS[1])) };
    0
}

unsafe extern "C" fn device_get_uuid(answer: *mut CUuuid, device: CUdevice) -> CUresult {
    // SAFETY: handles are leaked cells or constants made here, and out-pointers are the caller's.
    unsafe { (*answer).bytes = uuid(device) };
    0
}

/// The upper half of an address is the number of its device; memory of the first half of a device is of its context,
/// that above of no context.
unsafe extern "C" fn pointer_get_attribute(answer: *mut c_void, attribute: i32, pointer: CUdeviceptr) -> CUresult {
    let device = (pointer >> 32) as usize;
    let is_pooled = pointer & 1 << 31 != 0;
    match attribute {
        // SAFETY: handles are leaked cells or constants made here, and out-pointers are the caller's.
        1 if !is_pooled => unsafe { *answer.cast::<CUcontext>() = CONTEXTS[device] },
        // SAFETY: handles are leaked cells or constants made here, and out-pointers are the caller's.
        1 => unsafe { *answer.cast::<CUcontext>() = core::ptr::null_mut() },
        // SAFETY: handles are leaked cells or constants made here, and out-pointers are the caller's.
        9 => unsafe { *answer.cast::<CUdevice>() = device as CUdevice },
        _ => return 1,
    }
    0
}

/// The fake driver.
pub fn driver() -> Driver {
    Driver {
        event_create,
        event_destroy,
        event_record,
        event_query,
        event_elapsed_time,
        stream_create,
        stream_destroy,
        stream_query,
        stream_is_capturing,
        stream_get_ctx,
        exchange_capture_mode,
        ctx_get_current,
        ctx_push_current,
        ctx_pop_current,
        ctx_get_device,
        device_get_uuid,
        pointer_get_attribute,
    }
}

/// All processes of this program that [`process`] has made.
static PROCESSES: Mutex<Vec<&'static Process>> = Mutex::new(Vec::new());

/// Whether no watcher has anything to do before the clock is turned.
pub fn watchers_rest() -> bool {
    PROCESSES.lock().iter().all(|process| process.watcher_rests())
}

/// A registered process in slot 0, with a live supervisor's heartbeat and a closed gate.
pub fn process() -> &'static Process {
    process_behind(region())
}

/// The same in this region.
pub fn process_behind(region: Region) -> &'static Process {
    let process: &'static Process = Box::leak(Box::new(Process::new()));
    let control = region.control();
    control.heartbeat_ns.store(clock::now_ns() + 3_600_000_000_000, Ordering::Relaxed);
    control.fail_open.store(1, Ordering::Relaxed);
    control.burst_ns.store(1_000_000, Ordering::Relaxed);
    control.depth_ns.store(3_000_000, Ordering::Relaxed);
    // SAFETY: handles are leaked cells or constants made here, and out-pointers are the caller's.
    let process_id = unsafe { libc::getpid() };
    process.adopt(Place::new(region, Registration { slot: 0, process_id, number: 1 }, driver()));
    PROCESSES.lock().push(process);
    process
}

/// Has four processes charge 40 and give it back, again and again: the most that they had together, as they know themselves.
pub fn race(charges: impl Fn(usize) -> bool + Sync, gives_back: impl Fn(usize) + Sync) -> u64 {
    let (held, most) = (std::sync::atomic::AtomicU64::new(0), std::sync::atomic::AtomicU64::new(0));
    std::thread::scope(|scope| {
        let racing = [0, 1, 2, 3].map(|process| {
            let (charges, gives_back, held, most) = (&charges, &gives_back, &held, &most);
            scope.spawn(move || {
                for _ in 0..20_000 {
                    if charges(process) {
                        most.fetch_max(held.fetch_add(40, Ordering::SeqCst) + 40, Ordering::SeqCst);
                        held.fetch_sub(40, Ordering::SeqCst);
                        gives_back(process);
                    }
                }
            })
        });
        // Joined: a checker of threads does not see how a scope waits.
        racing.into_iter().for_each(|thread| thread.join().unwrap());
    });
    most.into_inner()
}
