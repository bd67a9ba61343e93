//! What is charged for pools, and for what graphs hold of each device, as one more pool of it; see `pools` of the logic.

use crate::PROCESS;
use crate::accounts::refused;
use crate::entry::{index, real};
use core::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use gpool_driver_abi::cuda::*;
use gpool_interposer_logic::futex::Turn;
use gpool_interposer_logic::graphs::Need;
use gpool_interposer_logic::memory::{Call, Charge};
use gpool_interposer_logic::pools::{Pool, Pools, growth_bytes};
use gpool_interposer_logic::process::Place;
use gpool_interposer_logic::waits::WaitFor;

/// Kept while the driver is asked what a pool holds, or the answer would be of another moment. What a profiler's callback does
/// with pools meanwhile is not charged before, but with what is found the next time.
static POOLS: Turn<Pools> = Turn::new(Pools::new());
/// Something has been allocated from a pool, ever.
static ARE_USED: AtomicBool = AtomicBool::new(false);
/// Something went back to a pool, which may give it back when somebody waits: how often to look then. The first wait
/// may be for other work.
static WAITS_TO_LOOK_AFTER: AtomicU32 = AtomicU32::new(0);
const LOOKS: u32 = 8;

/// How often what streams keep for graphs was trimmed.
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
pub fn settle(place: &Place, pool: &mut Pool, finished_bytes: u64) {
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
    let Some(mut pools) = POOLS.take() else { return false };
    for pool in pools.all() {
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

/// Whether this thread is asking what a pool holds: the call is one of a profiler's callback in there.
#[inline(never)]
pub fn is_within() -> bool {
    POOLS.is_ours()
}

/// Looks at the pools; none if this thread is already doing that.
pub fn with<T>(look: impl FnOnce(&mut Pools) -> T) -> Option<T> {
    POOLS.take().map(|mut pools| look(&mut pools))
}

/// An allocation that has charged `growth` begins.
#[inline(never)]
pub fn begin(handle: usize, growth: u64) {
    ARE_USED.store(true, Ordering::Relaxed);
    with(|pools| pools.find(handle).map(|pool| pool.begin(growth)));
}

/// It has ended.
#[inline(never)]
pub fn end(place: &Place, handle: usize, growth: u64, result: CUresult) {
    with(|pools| {
        let Some(pool) = pools.find(handle) else { return };
        if result != CUDA_SUCCESS {
            // It has not made the pool grow, whatever can be learnt of that.
            pool.abandon(growth);
            PROCESS.release_on_device(place, usize::from(pool.gpu), growth);
        }
        settle(place, pool, if result == CUDA_SUCCESS { growth } else { 0 });
    });
}

/// Whether anything has been allocated from a pool, ever.
pub fn are_used() -> bool {
    ARE_USED.load(Ordering::Relaxed)
}

/// Something went back to a pool: the next waits look whether it gives that back.
pub fn look_later() {
    WAITS_TO_LOOK_AFTER.store(LOOKS, Ordering::Release);
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
    look_later();
    with(|pools| pools.all().filter(|pool| pool.is_of_graphs()).for_each(|pool| settle(place, pool, 0)));
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
    match with(|pools| pools.find(pool.handle).is_some() || pools.enter(pool)) {
        Some(true) => ARE_USED.store(true, Ordering::Relaxed),
        Some(false) => return Err(CUDA_ERROR_NOT_SUPPORTED),
        // The launch takes it, and whoever looks charges it.
        None => return Ok(trims()),
    }
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
    let pool = with(|pools| pools.find(handle).copied()).flatten();
    let Some(pool) = pool else { return CUDA_ERROR_NOT_SUPPORTED };
    let (gpu, _change) = (usize::from(pool.gpu), place.change());
    let is_reserved = |bytes: &u64| *bytes == 0 || PROCESS.reserve_on_device(place, gpu, *bytes);
    let kept_bytes = || if pool.keeps_for(stream as usize) { idle_bytes(&pool) } else { 0 };
    let least = || need.largest.saturating_sub(kept_bytes());
    let all = Some(growth_bytes(need.all)).filter(is_reserved);
    let Some(mut charged) = all.or_else(|| Some(least()).filter(is_reserved)) else { return CUDA_ERROR_OUT_OF_MEMORY };
    with(|pools| {
        if let Some(pool) = pools.find(handle) {
            pool.begin(charged);
            pool.keep_for(stream as usize);
        }
    });
    let mut result = upload();
    let Some(mut pools) = POOLS.take() else { return result };
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
