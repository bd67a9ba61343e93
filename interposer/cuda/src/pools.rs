//! Pools of stream-ordered memory, charged what they hold of the device, see `pools` of the logic; and what graphs hold of
//! it, as one more pool of each device.

use crate::PROCESS;
use crate::accounts::{freed as free_charged, inexact, refused};
use crate::entry::{index, real};
use crate::graph_memory;
use crate::work_exports::{legacy, per_thread};
use core::ptr::null_mut;
use core::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use gpool_driver_abi::cuda::*;
use gpool_interposer_logic::futex::Mutex;
use gpool_interposer_logic::graphs::Need;
use gpool_interposer_logic::memory::Call;
use gpool_interposer_logic::memory::Charge;
use gpool_interposer_logic::pools::{Pool, Pools, growth_bytes};
use gpool_interposer_logic::process::{Change, Place};
use gpool_interposer_logic::waits::WaitFor;

static POOLS: Mutex<Pools> = Mutex::new(Pools::new());
/// Something has been allocated from a pool, ever.
static ARE_USED: AtomicBool = AtomicBool::new(false);
/// Something went back to a pool, which may give it back when somebody waits: how often to look then. The first wait
/// may be for other work.
static WAITS_TO_LOOK_AFTER: AtomicU32 = AtomicU32::new(0);
const LOOKS: u32 = 8;

/// How often graphs' memory was trimmed.
static TRIMS: AtomicU32 = AtomicU32::new(0);

/// A figure of `pool`, in bytes: the one attribute of a pool or the other of graphs; none where the driver does not say.
fn figure(pool: &Pool, of_pool: CUmemPool_attribute, of_graphs: CUgraphMem_attribute) -> Option<u64> {
    let mut bytes = 0u64;
    let answer = (&raw mut bytes).cast();
    // SAFETY: the entry points' types; the attributes' values have eight bytes; so for all calls of `real` here.
    let result = unsafe {
        if pool.is_of_graphs() {
            let ask = index::cuDeviceGetGraphMemAttribute;
            real::<CuDeviceGetGraphMemAttribute>(ask)(pool.device, of_graphs, answer)
        } else {
            let ask = index::cuMemPoolGetAttribute;
            real::<CuMemPoolGetAttribute>(ask)(pool.handle as CUmemoryPool, of_pool, answer)
        }
    };
    (result == CUDA_SUCCESS).then_some(bytes)
}

/// What `pool` holds of its device.
fn held_bytes(pool: &Pool) -> Option<u64> {
    figure(pool, CU_MEMPOOL_ATTR_RESERVED_MEM_CURRENT, CU_GRAPH_MEM_ATTR_RESERVED_MEM_CURRENT)
}

/// The part of it that nothing is allocated of.
fn idle_bytes(pool: &Pool) -> u64 {
    let used = figure(pool, CU_MEMPOOL_ATTR_USED_MEM_CURRENT, CU_GRAPH_MEM_ATTR_USED_MEM_CURRENT);
    held_bytes(pool).zip(used).map_or(0, |(held, used)| held.saturating_sub(used))
}

/// Sets what `pool` is charged to what it holds, after an allocation that had charged `finished_bytes`, or none. Where the
/// driver does not say what that is, the charge of an allocation that it made stays until it does.
#[inline(never)]
fn settle(place: &Place, pool: &mut Pool, finished_bytes: u64) {
    if pool.is_on_host {
        return;
    }
    let Some(held_bytes) = held_bytes(pool) else { return pool.finish(finished_bytes) };
    let gpu = usize::from(pool.gpu);
    match pool.settle(finished_bytes, held_bytes) {
        0 => {}
        more @ 1.. => PROCESS.add_on_device(place, gpu, more as u64),
        less => PROCESS.release_on_device(place, gpu, less.unsigned_abs()),
    }
}

#[inline(never)]
fn trim(pool: &Pool) {
    // SAFETY: see figure.
    unsafe {
        if pool.is_of_graphs() {
            real::<CuDeviceGraphMemTrim>(index::cuDeviceGraphMemTrim)(pool.device);
            TRIMS.fetch_add(1, Ordering::AcqRel);
        } else {
            real::<CuMemPoolTrimTo>(index::cuMemPoolTrimTo)(pool.handle as CUmemoryPool, 0);
        }
    }
}

/// Charges all pools for what they hold now, and lets those go that the program has destroyed. With `is_short` they
/// give back first whatever is not in use. Whether there is any.
#[inline(never)]
pub fn give_back(place: &Place, is_short: bool) -> bool {
    if !ARE_USED.load(Ordering::Relaxed) {
        return false;
    }
    let _relaxed = place.driver.relaxed_capture();
    for pool in POOLS.lock().all() {
        if is_short || pool.is_destroyed {
            trim(pool);
        }
        settle(place, pool, 0);
        if pool.is_destroyed && pool.is_empty() {
            // SAFETY: see figure.
            unsafe { real::<CuMemPoolDestroy>(index::cuMemPoolDestroy)(pool.handle as CUmemoryPool) };
            *pool = Pool::new(0, 0, 0, false);
        }
    }
    true
}

/// Somebody has waited for work: what went back to pools may have gone back to the device.
#[inline(always)]
pub fn waited() {
    let left = WAITS_TO_LOOK_AFTER.load(Ordering::Relaxed);
    if left > 0
        && WAITS_TO_LOOK_AFTER.compare_exchange(left, left - 1, Ordering::AcqRel, Ordering::Relaxed).is_ok()
        && let Some(place) = PROCESS.place()
    {
        give_back(place, false);
    }
}

/// Whether the memory at `pointer` came from a pool: its pool is charged, and not it.
pub fn is_pooled(pointer: CUdeviceptr) -> bool {
    let is_of_pool = |place: &Place| place.driver.pool_of(pointer).is_some();
    pointer != 0 && ARE_USED.load(Ordering::Relaxed) && PROCESS.place().is_some_and(is_of_pool)
}

/// Frees memory of a pool through `driver`. The pool is charged for it until it is seen to have given it back.
pub fn freed(driver: impl FnOnce() -> CUresult) -> CUresult {
    inexact();
    let result = driver();
    WAITS_TO_LOOK_AFTER.store(LOOKS, Ordering::Release);
    result
}

/// The pool that allocations on `device` come from where none is named.
fn current_pool(device: CUdevice) -> Option<CUmemoryPool> {
    let mut pool = null_mut();
    // SAFETY: see figure; there is a place for the handle.
    let result = unsafe { real::<CuDeviceGetMemPool>(index::cuDeviceGetMemPool)(&mut pool, device) };
    (result == CUDA_SUCCESS).then_some(pool)
}

fn default_pool(device: CUdevice) -> Option<CUmemoryPool> {
    let mut pool = null_mut();
    // SAFETY: as above.
    let result = unsafe { real::<CuDeviceGetDefaultMemPool>(index::cuDeviceGetDefaultMemPool)(&mut pool, device) };
    (result == CUDA_SUCCESS).then_some(pool)
}

/// The device that work on `stream` runs on: that of its context, which need not be the current one.
fn device_of(place: &Place, stream: CUstream) -> Option<CUdevice> {
    let mut context = null_mut();
    if stream as usize > CU_STREAM_PER_THREAD {
        // SAFETY: see figure; there is a place for the handle.
        unsafe { real::<CuStreamGetCtx>(index::cuStreamGetCtx)(stream, &mut context) };
    }
    let current = || place.driver.current_device();
    if context.is_null() { current() } else { place.driver.with_context(context, current).flatten() }
}

/// The pool as it is charged; one that is met first is a default pool of some device, or unknown and taken to be on
/// the current one. None if there is no room for another.
fn known(place: &Place, handle: CUmemoryPool, current: Option<CUdevice>) -> Option<Pool> {
    if let Some(pool) = POOLS.lock().find(handle as usize) {
        return Some(*pool);
    }
    let is_default_of = |device: &CUdevice| default_pool(*device) == Some(handle);
    let devices = 0..gpool_interposer_logic::contexts::gpus(place.region.control()) as CUdevice;
    let device = current.filter(is_default_of).or_else(|| devices.into_iter().find(is_default_of)).or(current)?;
    let pool = Pool::new(handle as usize, device, PROCESS.gpu_of(place, Some(device)), false);
    let mut pools = POOLS.lock();
    // Another thread may have met it meanwhile and allocated from it.
    if let Some(known) = pools.find(handle as usize) {
        return Some(*known);
    }
    pools.enter(pool).then_some(pool)
}

/// Charges the most that an allocation of `bytes` makes `pool` grow by, and says until the answer is dropped that account
/// and device differ. Where the cap does not allow it, pools give back what they keep, at last what the work on `stream`
/// still holds.
fn reserved(place: &Place, pool: &Pool, bytes: u64, stream: CUstream) -> Option<Change> {
    let reserve = || PROCESS.reserve_on_device(place, usize::from(pool.gpu), bytes);
    let change = place.change();
    if reserve() || give_back(place, false) && reserve() || give_back(place, true) && reserve() {
        return Some(change);
    }
    // While it waits they agree; the supervisor could not learn what a context costs from a program that always waits.
    drop(change);
    // SAFETY: see figure.
    PROCESS
        .wait(WaitFor::Stream(stream), || unsafe { real::<CuStreamSynchronize>(index::cuStreamSynchronize)(stream) });
    let change = place.change();
    (give_back(place, true) && reserve()).then_some(change)
}

/// What an allocation has charged before the driver is asked: its pool, and how much; nothing for memory of the host.
struct Begun(Option<(&'static Place, usize, u64, Change)>);

/// Begins to allocate `bytes` from `pool`, or from the current one; or what to answer instead.
#[inline(never)] // four allocators call these two
fn begin(bytes: usize, pool: Option<CUmemoryPool>, stream: CUstream) -> Result<Begun, CUresult> {
    let place = PROCESS.place().ok_or(CUDA_ERROR_NOT_INITIALIZED)?;
    // A captured allocation becomes a part of a graph, which takes its memory whenever it is launched.
    if stream as usize > CU_STREAM_LEGACY && place.driver.is_capturing(stream) {
        graph_memory::note();
        return Ok(Begun(None));
    }
    let (device, is_named) = (device_of(place, stream), pool.is_some());
    let handle = pool.or_else(|| current_pool(device?)).ok_or(CUDA_ERROR_NOT_SUPPORTED)?;
    let pool = known(place, handle, device).ok_or(CUDA_ERROR_NOT_SUPPORTED)?;
    if pool.is_on_host {
        return Ok(Begun(None));
    }
    let growth = growth_bytes(bytes as u64);
    let Some(change) = reserved(place, &pool, growth, stream) else {
        let call = if is_named { Call::MemAllocFromPool } else { Call::MemAllocAsync };
        return Err(refused(place, usize::from(pool.gpu), Charge::Bytes(growth), call));
    };
    ARE_USED.store(true, Ordering::Relaxed);
    if let Some(pool) = POOLS.lock().find(pool.handle) {
        pool.begin(growth);
    }
    Ok(Begun(Some((place, pool.handle, growth, change))))
}

#[inline(never)]
fn end(begun: Begun, result: CUresult) {
    if let Some((place, handle, growth, _change)) = begun.0
        && let Some(pool) = POOLS.lock().find(handle)
    {
        if result != CUDA_SUCCESS {
            // It has not made the pool grow, whatever can be learnt of that.
            pool.abandon(growth);
            PROCESS.release_on_device(place, usize::from(pool.gpu), growth);
        }
        settle(place, pool, if result == CUDA_SUCCESS { growth } else { 0 });
    }
}

/// Allocates `bytes` from `pool`, or from the current one, through `driver`.
fn allocated(
    bytes: usize,
    pool: Option<CUmemoryPool>,
    stream: CUstream,
    driver: impl FnOnce() -> CUresult,
) -> CUresult {
    match begin(bytes, pool, stream) {
        Ok(begun) => {
            let result = driver();
            end(begun, result);
            result
        }
        Err(refused) => refused,
    }
}

macro_rules! stream_ordered {
    ($($meant:ident: $allocate:ident, $from_pool:ident, $free:ident;)*) => {$(
        /// Charged by what it makes the pool grow by.
        ///
        /// # Safety
        /// As the driver's function of this name; so for all functions here.
        #[unsafe(no_mangle)]
        pub unsafe extern "C" fn $allocate(pointer: *mut CUdeviceptr, size: usize, stream: CUstream) -> CUresult {
            allocated(size, None, $meant(stream), || {
                // SAFETY: the entry point's type, the caller's arguments; so for all calls of `real` below.
                unsafe { real::<CuMemAllocAsync>(index::$allocate)(pointer, size, stream) }
            })
        }

        /// Charged by what it makes the pool grow by.
        #[unsafe(no_mangle)]
        pub unsafe extern "C" fn $from_pool(
            pointer: *mut CUdeviceptr, size: usize, pool: CUmemoryPool, stream: CUstream,
        ) -> CUresult {
            allocated(size, Some(pool), $meant(stream), || {
                // SAFETY: as above.
                unsafe { real::<CuMemAllocFromPoolAsync>(index::$from_pool)(pointer, size, pool, stream) }
            })
        }

        /// The pool gives it back when it will.
        #[unsafe(no_mangle)]
        pub unsafe extern "C" fn $free(pointer: CUdeviceptr, stream: CUstream) -> CUresult {
            // SAFETY: as above.
            free_charged(pointer, || unsafe { real::<CuMemFreeAsync>(index::$free)(pointer, stream) })
        }
    )*};
}

stream_ordered! {
    legacy: cuMemAllocAsync, cuMemAllocFromPoolAsync, cuMemFreeAsync;
    per_thread: cuMemAllocAsync_ptsz, cuMemAllocFromPoolAsync_ptsz, cuMemFreeAsync_ptsz;
}

/// Its place is noted: only memory of a device is charged.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuMemPoolCreate(pool: *mut CUmemoryPool, properties: *const CUmemPoolProps) -> CUresult {
    let Some(place) = PROCESS.place() else { return CUDA_ERROR_NOT_INITIALIZED };
    // SAFETY: as above.
    let result = unsafe { real::<CuMemPoolCreate>(index::cuMemPoolCreate)(pool, properties) };
    if result != CUDA_SUCCESS {
        return result;
    }
    // SAFETY: the driver succeeded, so both are valid.
    let (handle, location, kind) = unsafe { (*pool, (*properties).location, (*properties).allocType) };
    let is_of_host = crate::virtual_memory::gpu_at(place, location).is_none();
    // Managed memory, which newer drivers have pools of, moves to a device whatever place it prefers.
    let is_on_host = is_of_host && kind == CU_MEM_ALLOCATION_TYPE_PINNED;
    let device = if is_of_host { place.driver.current_device().unwrap_or(0) } else { location.id };
    let gpu = if is_on_host { 0 } else { PROCESS.gpu_of(place, Some(device)) };
    if POOLS.lock().enter(Pool::new(handle as usize, device, gpu, is_on_host)) {
        return CUDA_SUCCESS;
    }
    // SAFETY: as above.
    unsafe { real::<CuMemPoolDestroy>(index::cuMemPoolDestroy)(handle) };
    CUDA_ERROR_OUT_OF_MEMORY
}

/// A pool that holds something is destroyed once that has gone, since nobody could ask how much it holds afterwards.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuMemPoolDestroy(pool: CUmemoryPool) -> CUresult {
    let Some(place) = PROCESS.place() else { return CUDA_ERROR_NOT_INITIALIZED };
    let mut pools = POOLS.lock();
    let charged = pools.find(pool as usize).filter(|known| !known.is_on_host && !known.is_empty());
    let Some(known) = charged else {
        // SAFETY: as above.
        let result = unsafe { real::<CuMemPoolDestroy>(index::cuMemPoolDestroy)(pool) };
        if result == CUDA_SUCCESS {
            pools.leave(pool as usize);
        }
        return result;
    };
    let device = known.device;
    if default_pool(device) == Some(pool) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    known.is_destroyed = true;
    drop(pools);
    if current_pool(device) == Some(pool)
        && let Some(default) = default_pool(device)
    {
        // SAFETY: as above.
        unsafe { real::<CuDeviceSetMemPool>(index::cuDeviceSetMemPool)(device, default) };
    }
    give_back(place, false);
    CUDA_SUCCESS
}

/// What the pool gives back is no longer charged.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuMemPoolTrimTo(pool: CUmemoryPool, keep: usize) -> CUresult {
    // SAFETY: as above.
    let result = unsafe { real::<CuMemPoolTrimTo>(index::cuMemPoolTrimTo)(pool, keep) };
    if let Some(place) = PROCESS.place() {
        give_back(place, false);
    }
    result
}

/// How often streams have been made to give back what they keep for graphs.
pub fn trims() -> u32 {
    TRIMS.load(Ordering::Acquire)
}

/// The program has made them do that.
pub fn trimmed() {
    TRIMS.fetch_add(1, Ordering::AcqRel);
    if let Some(place) = PROCESS.place() {
        give_back(place, false);
    }
}

/// Charges what graphs hold now, and has the next waits look as well.
pub fn look_at_graphs(place: &Place) {
    WAITS_TO_LOOK_AFTER.store(LOOKS, Ordering::Release);
    let mut pools = POOLS.lock();
    pools.all().filter(|pool| pool.is_of_graphs()).for_each(|pool| settle(place, pool, 0));
}

/// Has `upload` make `stream` keep what a graph allocates of `device`. Charged first where there is room for all of it.
/// Else, as the driver gives again what the graph frees and what the stream keeps, for the largest piece; then the device
/// may hold more than is charged for a moment, in which it is found out how much that is. How often streams had been
/// trimmed; or what to answer instead.
#[cold]
#[inline(never)]
pub fn mapped(
    place: &Place,
    device: CUdevice,
    need: Need,
    stream: CUstream,
    upload: &dyn Fn() -> CUresult,
) -> Result<u32, CUresult> {
    let gpu = PROCESS.gpu_of(place, Some(device));
    let pool = Pool::new(Pool::handle_of_graphs(device), device, gpu, false);
    {
        let mut pools = POOLS.lock();
        if pools.find(pool.handle).is_none() && !pools.enter(pool) {
            return Err(CUDA_ERROR_NOT_SUPPORTED);
        }
    }
    ARE_USED.store(true, Ordering::Relaxed);
    for attempt in 0..3 {
        if attempt == 2 {
            // SAFETY: see figure.
            let wait = || unsafe { real::<CuStreamSynchronize>(index::cuStreamSynchronize)(stream) };
            PROCESS.wait(WaitFor::Stream(stream), wait);
        }
        if attempt > 0 {
            give_back(place, true);
        }
        let trims = trims();
        match uploaded(place, pool.handle, need, stream, upload) {
            CUDA_ERROR_OUT_OF_MEMORY => {}
            // Of anything else that is wrong with it the launch itself tells.
            _ => return Ok(trims),
        }
    }
    Err(refused(place, gpu, Charge::Bytes(growth_bytes(need.all)), Call::GraphLaunch))
}

/// One attempt of [`mapped`], which has entered the pool: it is never left.
fn uploaded(place: &Place, handle: usize, need: Need, stream: CUstream, upload: &dyn Fn() -> CUresult) -> CUresult {
    let Some(pool) = POOLS.lock().find(handle).copied() else { return CUDA_ERROR_NOT_SUPPORTED };
    let (gpu, _change) = (usize::from(pool.gpu), place.change());
    let is_reserved = |bytes: &u64| *bytes == 0 || PROCESS.reserve_on_device(place, gpu, *bytes);
    let kept_bytes = || if pool.keeps_for(stream as usize) { idle_bytes(&pool) } else { 0 };
    let least = || need.largest.saturating_sub(kept_bytes());
    let all = Some(growth_bytes(need.all)).filter(is_reserved);
    let Some(mut charged) = all.or_else(|| Some(least()).filter(is_reserved)) else { return CUDA_ERROR_OUT_OF_MEMORY };
    if let Some(pool) = POOLS.lock().find(handle) {
        pool.begin(charged);
        pool.keep_for(stream as usize);
    }
    let mut result = upload();
    let mut pools = POOLS.lock();
    let Some(pool) = pools.find(handle) else { return result };
    if result == CUDA_SUCCESS {
        let more = held_bytes(pool).map_or(0, |held| pool.uncharged(held));
        if is_reserved(&more) {
            pool.begin(more);
            charged += more;
        } else {
            trim(pool);
            result = CUDA_ERROR_OUT_OF_MEMORY;
        }
    }
    settle(place, pool, charged);
    result
}
