//! Pools of stream-ordered memory, charged what they hold of the device, see `pool_accounts`.

use crate::PROCESS;
use crate::accounts::{answered, freed as free_charged, inexact, refused};
use crate::entry::{index, real};
use crate::pool_accounts::{give_back, with};
use crate::work_exports::{legacy, per_thread};
use crate::{graph_accounts, graph_memory, pool_accounts, spill};
use core::ptr::null_mut;
use gpool_driver_abi::cuda::*;
use gpool_interposer_logic::memory::{Call, Charge};
use gpool_interposer_logic::pools::{Pool, growth_bytes};
use gpool_interposer_logic::process::{Change, Place};
use gpool_interposer_logic::waits::WaitFor;

/// How long an allocation waits at most for the work on its stream. That may wait for the thread that allocates, and may come to the
/// device only with its turns.
const WAIT_NS: u64 = 60_000_000_000;

/// Whether the memory at `pointer` came from a pool: its pool is charged, and not it.
pub fn is_pooled(pointer: CUdeviceptr) -> bool {
    let is_of_pool = |place: &Place| place.driver.pool_of(pointer).is_some();
    pointer != 0 && pool_accounts::are_used() && PROCESS.place().is_some_and(is_of_pool)
}

/// Frees memory of a pool through `driver`. The pool is charged for it until it is seen to have given it back.
pub fn freed(driver: impl FnOnce() -> CUresult) -> CUresult {
    inexact();
    let result = driver();
    pool_accounts::look_later();
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

/// Before CUDA 13 the host has no pool but those that programs make.
#[cfg(not(driver_580))]
fn is_hosts_default(_pool: CUmemoryPool) -> bool {
    false
}

/// Whether that is the default pool of the host or of one of its first nodes, which a program need not have made.
#[cfg(driver_580)]
fn is_hosts_default(pool: CUmemoryPool) -> bool {
    type Function = unsafe extern "C" fn(*mut CUmemoryPool, *mut CUmemLocation, core::ffi::c_uint) -> CUresult;
    let is_of = |kind, id| {
        let (mut found, mut location) = (null_mut(), CUmemLocation { kind, id });
        // SAFETY: both live.
        let result = unsafe {
            let ask = real::<Function>(index::cuMemGetDefaultMemPool);
            ask(&mut found, &mut location, CU_MEM_ALLOCATION_TYPE_PINNED)
        };
        result == CUDA_SUCCESS && found == pool
    };
    is_of(CU_MEM_LOCATION_TYPE_HOST, 0) || (0..16).any(|node| is_of(CU_MEM_LOCATION_TYPE_HOST_NUMA, node))
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

/// The pool as it is charged; one that is met first is a default pool of some device or of the host, or unknown and taken to be on
/// the current device. None if there is no room for another.
fn known(place: &Place, handle: CUmemoryPool, current: Option<CUdevice>) -> Option<Pool> {
    if let Some(pool) = with(|pools| pools.find(handle as usize).copied())? {
        return Some(pool);
    }
    let is_default_of = |device: &CUdevice| default_pool(*device) == Some(handle);
    let devices = 0..gpool_interposer_logic::contexts::gpus(place.region.control()) as CUdevice;
    let default_of = current.filter(is_default_of).or_else(|| devices.into_iter().find(is_default_of));
    let is_on_host = default_of.is_none() && is_hosts_default(handle);
    let device = default_of.or(current)?;
    let pool = Pool::new(handle as usize, device, PROCESS.gpu_of(place, Some(device)), is_on_host);
    // Another thread may have met it meanwhile and allocated from it.
    with(|pools| match pools.find(handle as usize) {
        Some(known) => Some(*known),
        None => pools.enter(pool).then_some(pool),
    })?
}

/// What an allocation is given before the driver is asked.
#[derive(Clone, Copy)]
struct Given {
    /// The most that it makes its pool grow by, charged.
    growth: u64,
    /// Of what the pool holds.
    reused: u64,
}

/// Charges the most that an allocation of `bytes` makes `pool` grow by, and says until the answer is dropped that account
/// and device differ. Where the cap does not allow it, it is given what the pool holds, if it `may_reuse` that; or pools give back
/// what they keep, at last what the work on `stream` still holds, unless that cannot do, or nothing can come back so and the allocation
/// may lie in the host's memory.
fn given(place: &Place, pool: &Pool, (bytes, may_reuse): (u64, bool), stream: CUstream) -> Option<(Given, Change)> {
    let charged = Given { growth: growth_bytes(bytes), reused: 0 };
    let reserve = || PROCESS.reserve_on_device(place, usize::from(pool.gpu), charged.growth);
    let change = place.change();
    if reserve() {
        return Some((charged, change));
    }
    if may_reuse && pool_accounts::reuse(pool.handle, bytes) {
        return Some((Given { growth: 0, reused: bytes }, change));
    }
    if give_back(place, false) && reserve() || give_back(place, true) && reserve() {
        return Some((charged, change));
    }
    // The program has asked for no wait: where nothing can come back, and there is another place, it does not. Nor where all that can
    // come back would not do.
    let pending = pool_accounts::pending();
    if pending == 0 && spill::has_room(place, bytes) || !pool_accounts::may_fit(place, pool, charged.growth) {
        return None;
    }
    // While it waits they agree; the supervisor could not learn what a context costs from a program that always waits.
    drop(change);
    // The program has asked for no wait: it must not break a capture of its.
    let relaxed = place.driver.relaxed_capture();
    PROCESS.wait(WaitFor::Stream(stream), || graph_accounts::wait(place, stream, WAIT_NS));
    drop(relaxed);
    let change = place.change();
    let is_reserved = give_back(place, true) && reserve();
    pool_accounts::note_settled(pending);
    is_reserved.then_some((charged, change))
}

/// What an allocation is asked for: where its address goes, and how large it is.
type Asked = (Call, *mut CUdeviceptr, u64);

/// An allocation before the driver is asked: its pool with the GPU of that, and what it is given of it; nothing for memory of the host.
struct Begun(Option<(&'static Place, (usize, usize), Given, Change)>);

/// Begins to allocate what is `asked` for from `pool`, or from the current one, as the entry points begin; or what to answer instead,
/// for which it may be in the host's memory.
fn begin((asked, may_reuse): (Asked, bool), pool: Option<CUmemoryPool>, stream: CUstream) -> Result<Begun, CUresult> {
    let place = PROCESS.touched_place().ok_or(CUDA_ERROR_NOT_INITIALIZED)?;
    // A captured allocation becomes a part of a graph, which takes its memory whenever it is launched.
    if stream as usize > CU_STREAM_LEGACY && place.driver.is_capturing(stream) {
        graph_memory::note();
        return Ok(Begun(None));
    }
    if pool_accounts::is_within() {
        inexact();
        pool_accounts::look_later();
        return Ok(Begun(None));
    }
    let device = device_of(place, stream);
    let handle = pool.or_else(|| current_pool(device?)).ok_or(CUDA_ERROR_NOT_SUPPORTED)?;
    let pool = known(place, handle, device).ok_or(CUDA_ERROR_NOT_SUPPORTED)?;
    if pool.is_on_host {
        return Ok(Begun(None));
    }
    let gpu = usize::from(pool.gpu);
    let Some((given, change)) = given(place, &pool, (asked.2, may_reuse), stream) else {
        return Err(match asked.2 {
            0 => refused(place, gpu, Charge::Bytes(0), asked.0),
            _ => spill::spilled(place, gpu, asked),
        });
    };
    if given.reused == 0 {
        pool_accounts::begin(pool.handle, given.growth);
    }
    Ok(Begun(Some((place, (pool.handle, gpu), given, change))))
}

/// It has ended: what to answer; none if it is to be begun again without what its pool holds, because that has grown above the cap, or
/// the driver had nothing there either.
#[inline(never)]
fn end(begun: Begun, result: CUresult, asked: Asked) -> Option<CUresult> {
    let Some((place, (handle, gpu), Given { growth, reused }, _change)) = begun.0 else { return Some(result) };
    let is_full = result == CUDA_ERROR_OUT_OF_MEMORY;
    if reused > 0 {
        return (pool_accounts::end_reused(place, handle, reused) && !is_full).then_some(result);
    }
    pool_accounts::end(place, handle, growth, result);
    Some(match asked.2 {
        bytes if is_full && spill::has_room(place, bytes) => spill::spilled(place, gpu, asked),
        bytes => answered(place, gpu, Charge::Bytes(bytes), asked.0, result),
    })
}

/// Allocates `bytes` from `pool`, or from the current one, through `driver`.
#[inline(never)] // four allocators call it
fn allocated(
    pointer: *mut CUdeviceptr,
    bytes: usize,
    pool: Option<CUmemoryPool>,
    stream: CUstream,
    driver: &dyn Fn() -> CUresult,
) -> CUresult {
    let mut may_reuse = true;
    let call = if pool.is_some() { Call::MemAllocFromPool } else { Call::MemAllocAsync };
    let asked = (call, pointer, bytes as u64);
    loop {
        let begun = match begin((asked, may_reuse), pool, stream) {
            Ok(begun) => begun,
            Err(refused) => return refused,
        };
        let result = driver();
        if let Some(answer) = end(begun, result, asked) {
            return answer;
        }
        may_reuse = false;
        if result == CUDA_SUCCESS {
            // SAFETY: the driver succeeded, so `pointer` is valid and holds the address.
            freed(|| unsafe { real::<CuMemFreeAsync>(index::cuMemFreeAsync)(*pointer, stream) });
        }
    }
}

/// Frees what is at `pointer` by `driver`, behind the work on a stream that is called so and meant to be that.
#[inline(never)] // two call it
fn freed_in_order(pointer: CUdeviceptr, (called, meant): (CUstream, CUstream), driver: CuMemFreeAsync) -> CUresult {
    if spill::is_spilled(pointer) {
        return spill::free_in_order(pointer, meant);
    }
    // SAFETY: the entry point's type, the caller's arguments.
    free_charged(pointer, || unsafe { driver(pointer, called) })
}

macro_rules! stream_ordered {
    ($($meant:ident: $allocate:ident, $from_pool:ident, $free:ident;)*) => {$(
        /// Charged by what it makes the pool grow by.
        ///
        /// # Safety
        /// As the driver's function of this name; so for all functions here.
        #[unsafe(no_mangle)]
        pub unsafe extern "C" fn $allocate(pointer: *mut CUdeviceptr, size: usize, stream: CUstream) -> CUresult {
            allocated(pointer, size, None, $meant(stream), &|| {
                // SAFETY: the entry point's type, the caller's arguments; so for all calls of `real` below.
                unsafe { real::<CuMemAllocAsync>(index::$allocate)(pointer, size, stream) }
            })
        }

        /// Charged by what it makes the pool grow by.
        #[unsafe(no_mangle)]
        pub unsafe extern "C" fn $from_pool(
            pointer: *mut CUdeviceptr, size: usize, pool: CUmemoryPool, stream: CUstream,
        ) -> CUresult {
            allocated(pointer, size, Some(pool), $meant(stream), &|| {
                // SAFETY: as above.
                unsafe { real::<CuMemAllocFromPoolAsync>(index::$from_pool)(pointer, size, pool, stream) }
            })
        }

        /// The pool gives it back when it will.
        #[unsafe(no_mangle)]
        pub unsafe extern "C" fn $free(pointer: CUdeviceptr, stream: CUstream) -> CUresult {
            // SAFETY: as above.
            freed_in_order(pointer, (stream, $meant(stream)), unsafe { real::<CuMemFreeAsync>(index::$free) })
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
    let Some(place) = PROCESS.touched_place() else { return CUDA_ERROR_NOT_INITIALIZED };
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
    // One of a profiler's callback is met when it is used.
    if with(|pools| pools.enter(Pool::new(handle as usize, device, gpu, is_on_host))).unwrap_or(true) {
        return CUDA_SUCCESS;
    }
    // SAFETY: as above.
    unsafe { real::<CuMemPoolDestroy>(index::cuMemPoolDestroy)(handle) };
    CUDA_ERROR_OUT_OF_MEMORY
}

/// A pool that holds something is destroyed once that has gone, since nobody could ask how much it holds afterwards.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuMemPoolDestroy(pool: CUmemoryPool) -> CUresult {
    let Some(place) = PROCESS.touched_place() else { return CUDA_ERROR_NOT_INITIALIZED };
    let known = with(|pools| pools.find(pool as usize).copied()).flatten();
    let charged = known.filter(|known| !known.is_on_host && !known.is_empty());
    let Some(Pool { device, .. }) = charged else {
        // Before it goes, since its handle may come back to another thread's at once.
        with(|pools| pools.leave(pool as usize));
        // SAFETY: as above.
        let result = unsafe { real::<CuMemPoolDestroy>(index::cuMemPoolDestroy)(pool) };
        if let Some(known) = known.filter(|_| result != CUDA_SUCCESS) {
            with(|pools| pools.enter(known));
        }
        return result;
    };
    if default_pool(device) == Some(pool) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    with(|pools| pools.find(pool as usize).map(|known| known.is_destroyed = true));
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
    let place = PROCESS.touched_place();
    // SAFETY: as above.
    let result = unsafe { real::<CuMemPoolTrimTo>(index::cuMemPoolTrimTo)(pool, keep) };
    if let Some(place) = place {
        give_back(place, false);
    }
    result
}
