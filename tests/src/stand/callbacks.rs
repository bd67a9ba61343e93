//! A profiler's callbacks, at the beginning and the end of the driver's calls: what they call is answered, and nobody
//! waits for a thread that is in one.

use super::calls::Calls;
use super::place::{REAL, SHIM};
use crate::failure::{Context, Failure, Result, ensure};
use crate::library::Library;
use gpool_driver_abi::cuda::*;
use std::ffi::c_int;
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

macro_rules! entry_points {
    ($($field:ident: $kind:ty = $name:literal;)*) => {
        #[derive(Clone, Copy)]
        struct Entries { $($field: $kind),* }

        impl Entries {
            fn of(library: &Library) -> Result<Self> {
                Ok(Self { $($field: library.function($name)?),* })
            }
        }
    };
}

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

/// Both kinds.
pub fn from_within_calls(calls: &Calls) -> Result<()> {
    let (calls, entries) = (*calls, Entries::of(&Library::open(SHIM)?)?);
    let shim = *SHIM_ENTRIES.get_or_init(|| entries);
    let (said, hears) = mpsc::channel();
    thread::spawn(move || said.send(memory(&calls, &shim).and_then(|()| slow(&calls, &shim))));
    hears.recv_timeout(LIMIT * 3).map_err(|_| Failure::new("a call from within one of the driver's never returns"))?
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
