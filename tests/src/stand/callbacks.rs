//! A profiler's callbacks, at the beginning and the end of the driver's calls: what they call is answered, and nobody
//! waits for a thread that is in one.

use super::calls::Calls;
use super::entries::entry_points;
use super::place::{CONTEXT_BYTES, REAL, SHIM};
use crate::failure::{Context, Failure, Result, ensure};
use crate::library::Library;
use gpool_driver_abi::cuda::*;
use std::ffi::{CStr, c_int, c_uint, c_void};
use std::ptr::null_mut;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{OnceLock, mpsc};
use std::thread;
use std::time::Duration;

const PAGE_BYTES: usize = 2 << 20;
/// Where the driver behind the stand shows memory.
const SHOWN: u64 = 1 << 44;
/// What waits so long waits for ever.
const LIMIT: Duration = Duration::from_secs(10);
const DEVICE: CUmemAllocationProp = CUmemAllocationProp {
    kind: CU_MEM_ALLOCATION_TYPE_PINNED,
    requestedHandleTypes: CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR,
    location: CUmemLocation { kind: CU_MEM_LOCATION_TYPE_DEVICE, id: 0 },
    win32HandleMetaData: null_mut(),
    allocFlags: [0; 8],
};

entry_points! {
    allocate: CuMemAllocV2 = c"cuMemAlloc_v2";
    free: CuMemFreeV2 = c"cuMemFree_v2";
    create: CuMemCreate = c"cuMemCreate";
    release: CuMemRelease = c"cuMemRelease";
    map: CuMemMap = c"cuMemMap";
    unmap: CuMemUnmap = c"cuMemUnmap";
    retain: CuMemRetainAllocationHandle = c"cuMemRetainAllocationHandle";
    export: CuMemExportToShareableHandle = c"cuMemExportToShareableHandle";
    import: CuMemImportFromShareableHandle = c"cuMemImportFromShareableHandle";
    retain_primary: CuDevicePrimaryCtxRetain = c"cuDevicePrimaryCtxRetain";
    release_primary: CuDevicePrimaryCtxReleaseV2 = c"cuDevicePrimaryCtxRelease_v2";
    make_context: CuCtxCreateV2 = c"cuGLCtxCreate_v2";
    end_context: CuCtxDestroyV2 = c"cuCtxDestroy_v2";
    allocate_async: CuMemAllocAsync = c"cuMemAllocAsync";
    free_async: CuMemFreeAsync = c"cuMemFreeAsync";
    pool_of: CuDeviceGetMemPool = c"cuDeviceGetMemPool";
    trim: CuMemPoolTrimTo = c"cuMemPoolTrimTo";
    load: LoadLibrary = c"cuLibraryLoadData";
    unload: unsafe extern "C" fn(*mut c_void) -> CUresult = c"cuLibraryUnload";
}

/// cuLibraryLoadData with two arrays of options and their values, which nobody gives here.
type LoadLibrary = unsafe extern "C" fn(
    *mut *mut c_void,
    *const c_void,
    *mut c_int,
    *mut *mut c_void,
    c_uint,
    *mut c_int,
    *mut *mut c_void,
    c_uint,
) -> CUresult;

/// What a library has on the device in each context.
const IMAGE: &CStr = c".version 7.0\n.target sm_70\n.address_size 64\n.global .u64 x[262144];\n";

impl Entries {
    fn load(&self, library: &mut *mut c_void) -> CUresult {
        let none = null_mut();
        // SAFETY: see below; the image is a terminated text.
        unsafe { (self.load)(library, IMAGE.as_ptr().cast(), none, none.cast(), 0, none, none.cast(), 0) }
    }
}

static SHIM_ENTRIES: OnceLock<Entries> = OnceLock::new();
/// Callbacks that did all that they wanted.
static DONE: AtomicU32 = AtomicU32::new(0);
/// What the callback that waits waits for: 1 once it is there, 2 once it need not stay.
static TURN: AtomicU32 = AtomicU32::new(0);

// SAFETY of the calls below: the entry points have these types, handles are the driver's own and used while they live,
// there are places for the answers, and the driver behind the stand follows no address.

/// Takes memory and gives it back.
extern "C" fn allocates() {
    let Some(shim) = SHIM_ENTRIES.get() else { return };
    let (mut pointer, mut handle) = (0, 0);
    // SAFETY: see above.
    let said = unsafe {
        [
            (shim.allocate)(&mut pointer, PAGE_BYTES),
            (shim.free)(pointer),
            (shim.create)(&mut handle, PAGE_BYTES, &DEVICE, 0),
            (shim.release)(handle),
        ]
    };
    DONE.fetch_add(u32::from(said == [0; 4]), Ordering::AcqRel);
}

/// Makes a context and loads a library, and ends both.
extern "C" fn makes() {
    let Some(shim) = SHIM_ENTRIES.get() else { return };
    let (mut primary, mut context, mut library) = (null_mut(), null_mut(), null_mut());
    // SAFETY: see above.
    let said = unsafe {
        [
            (shim.retain_primary)(&mut primary, 0),
            shim.load(&mut library),
            (shim.make_context)(&mut context, 0, 0),
            (shim.unload)(library),
            (shim.end_context)(context),
            (shim.release_primary)(0),
        ]
    };
    DONE.fetch_add(u32::from(said == [0; 6]), Ordering::AcqRel);
}

/// Takes memory of a pool and gives it back.
extern "C" fn pools() {
    let Some(shim) = SHIM_ENTRIES.get() else { return };
    let mut pointer = 0;
    // SAFETY: see above.
    let said =
        unsafe { [(shim.allocate_async)(&mut pointer, 40 << 20, null_mut()), (shim.free_async)(pointer, null_mut())] };
    DONE.fetch_add(u32::from(said == [0; 2]), Ordering::AcqRel);
}

/// Waits for another thread.
extern "C" fn waits() {
    TURN.store(1, Ordering::Release);
    DONE.fetch_add(u32::from(is_turn(2)), Ordering::AcqRel);
}

fn is_turn(turn: u32) -> bool {
    let is_it = || TURN.load(Ordering::Acquire) >= turn;
    (0..LIMIT.as_millis()).any(|_| {
        thread::sleep(Duration::from_millis(u64::from(!is_it())));
        is_it()
    })
}

/// The callback from now on; or none.
fn subscribe(callback: Option<extern "C" fn()>) -> Result<()> {
    let subscribe: unsafe extern "C" fn(Option<extern "C" fn()>) = Library::open(REAL)?.function(c"gpool_subscribe")?;
    // SAFETY: see above.
    unsafe { subscribe(callback) };
    Ok(())
}

/// All of them.
pub fn from_within_calls(calls: &Calls) -> Result<()> {
    let (calls, entries) = (*calls, Entries::of(&Library::open(SHIM)?)?);
    let shim = *SHIM_ENTRIES.get_or_init(|| entries);
    let (said, hears) = mpsc::channel();
    thread::spawn(move || said.send(all(&calls, &shim)));
    hears.recv_timeout(LIMIT * 3).map_err(|_| Failure::new("a call from within one of the driver's never returns"))?
}

fn all(calls: &Calls, shim: &Entries) -> Result<()> {
    memory(calls, shim)?;
    slow(calls, shim)?;
    contexts(calls, shim)?;
    // Once pools are used, the driver is asked about them within other calls too.
    of_pools(calls, shim)
}

/// Within each call that makes a context or loads a library, both are had and ended; what is charged is what there is.
fn contexts(calls: &Calls, shim: &Entries) -> Result<()> {
    let free = || calls.room().map(|(free, _)| free).context("cuMemGetInfo");
    let (mut primary, mut context, mut library) = (null_mut(), null_mut(), null_mut());
    let before = free()?;
    // What it takes in the one context that there is.
    ensure(shim.load(&mut library) == 0, || "no library".to_owned())?;
    let library_bytes = before - free()?;
    subscribe(Some(makes))?;
    let mut held = Vec::new();
    let mut note = |result| free().map(|free| held.push((result, before - free)));
    // SAFETY: see above.
    unsafe {
        note((shim.retain_primary)(&mut primary, 0))?;
        note((shim.make_context)(&mut context, 0, 0))?;
        note((shim.unload)(library))?;
        note((shim.end_context)(context))?;
        note((shim.release_primary)(0))?;
    }
    subscribe(None)?;
    let (one, two) = (CONTEXT_BYTES + library_bytes, 2 * (CONTEXT_BYTES + library_bytes));
    let expected = [one + library_bytes, two + library_bytes, 2 * CONTEXT_BYTES, CONTEXT_BYTES, 0];
    ensure(held == expected.map(|bytes| (0, bytes)), || format!("{held:?} with callbacks, and not {expected:?}"))?;
    let done = DONE.swap(0, Ordering::AcqRel);
    ensure(library_bytes > 0 && done == 8, || format!("{library_bytes} bytes; {done} callbacks were answered"))
}

/// Within each call that has to do with memory without an address, memory is had and given back.
fn memory(calls: &Calls, shim: &Entries) -> Result<()> {
    let before = calls.room().context("cuMemGetInfo")?;
    subscribe(Some(allocates))?;
    let (mut memory, mut again, mut imported, mut descriptor) = (0, 0, 0, -1 as c_int);
    let kind = CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR;
    // SAFETY: see above.
    let said = unsafe {
        [
            (shim.create)(&mut memory, PAGE_BYTES, &DEVICE, 0),
            (shim.map)(SHOWN, PAGE_BYTES, 0, memory, 0),
            (shim.retain)(&mut again, (SHOWN + 1) as *mut _),
            (shim.release)(again),
            (shim.unmap)(SHOWN, PAGE_BYTES),
        ]
    };
    let held = calls.room().context("cuMemGetInfo")?;
    ensure(said == [0; 5] && memory == again, || format!("{said:?} with callbacks in between"))?;
    ensure(before.0 - held.0 == PAGE_BYTES, || format!("{before:?} was free, and {held:?} with a page"))?;
    // SAFETY: as above.
    let said = unsafe { (shim.release)(memory) };
    let after = calls.room().context("cuMemGetInfo")?;
    ensure(said == 0 && before == after, || format!("{said}; {before:?} was free, and {after:?} is"))?;
    // SAFETY: as above; a descriptor is passed as the pointer.
    let said = unsafe {
        [
            (shim.create)(&mut memory, PAGE_BYTES, &DEVICE, 0),
            (shim.export)((&raw mut descriptor).cast(), memory, kind, 0),
            (shim.import)(&mut imported, descriptor as usize as *mut _, kind),
            (shim.release)(imported),
            (shim.release)(memory),
        ]
    };
    subscribe(None)?;
    let done = DONE.swap(0, Ordering::AcqRel);
    ensure((said, done) == ([0; 5], 22), || format!("{said:?} with callbacks, of which {done} were answered"))
}

/// Within what the driver is asked of pools, memory of them is had and given back; what the pool holds then is charged when
/// somebody looks.
fn of_pools(calls: &Calls, shim: &Entries) -> Result<()> {
    let before = calls.room().context("cuMemGetInfo")?;
    let mut pointer = 0;
    subscribe(Some(pools))?;
    // SAFETY: see above.
    let said = unsafe { (shim.allocate_async)(&mut pointer, PAGE_BYTES, null_mut()) };
    subscribe(None)?;
    let held = before.0 - calls.room().context("cuMemGetInfo")?.0;
    ensure((said, held) == (0, 64 << 20), || format!("{said}, and {held} bytes are held by the pool"))?;
    // SAFETY: as above.
    let mut pool = null_mut();
    // SAFETY: as above.
    let said = unsafe { [(shim.free_async)(pointer, null_mut()), (shim.pool_of)(&mut pool, 0), (shim.trim)(pool, 0)] };
    let after = calls.room().context("cuMemGetInfo")?;
    ensure(said == [0; 3] && after == before, || format!("{said:?}; {before:?} was free, and {after:?} is"))?;
    let done = DONE.swap(0, Ordering::AcqRel);
    ensure(done == 2, || format!("{done} callbacks were answered"))
}

/// A thread that stays in the driver holds up no other.
fn slow(calls: &Calls, shim: &Entries) -> Result<()> {
    let mut memory = 0;
    // SAFETY: see above.
    let said =
        unsafe { [(shim.create)(&mut memory, PAGE_BYTES, &DEVICE, 0), (shim.map)(SHOWN, PAGE_BYTES, 0, memory, 0)] };
    ensure(said == [0; 2], || format!("memory that shows: {said:?}"))?;
    subscribe(Some(waits))?;
    let shim = *shim;
    // SAFETY: see above.
    let unmapped = thread::spawn(move || unsafe { (shim.unmap)(SHOWN, PAGE_BYTES) });
    ensure(is_turn(1), || "the driver was not called".to_owned())?;
    subscribe(None)?;
    let other = calls.allocate(PAGE_BYTES).is_some_and(|pointer| calls.free(pointer));
    // SAFETY: see above.
    let released = unsafe { (shim.release)(memory) };
    TURN.store(2, Ordering::Release);
    let said = (other, released, unmapped.join().unwrap_or(-1), DONE.swap(0, Ordering::AcqRel));
    ensure(said == (true, 0, 0, 1), || format!("beside a thread that stays in the driver: {said:?}"))
}
