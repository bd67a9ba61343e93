//! What is charged for pools, and for what graphs hold of each device, as one more pool of it; see `pools` of the logic, and
//! `graph_accounts` for what is done before graphs hold more.

use crate::PROCESS;
use crate::entry::{index, real};
use core::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use gpool_driver_abi::cuda::*;
use gpool_interposer_logic::futex::Turn;
use gpool_interposer_logic::pools::{Pool, Pools};
use gpool_interposer_logic::process::Place;
use gpool_interposer_logic::{ended, memory};

/// Kept while the driver is asked what a pool holds, or the answer would be of another moment. What a profiler's callback does
/// with pools meanwhile is not charged before, but with what is found the next time.
static POOLS: Turn<Pools> = Turn::new(Pools::new());
/// Something has been allocated from a pool, ever.
static ARE_USED: AtomicBool = AtomicBool::new(false);
/// Something went back to a pool, which may give it back when somebody waits: how often to look then. The first wait
/// may be for other work.
static WAITS_TO_LOOK_AFTER: AtomicU32 = AtomicU32::new(0);
const LOOKS: u32 = 8;

/// How often what streams keep for graphs has changed under them.
static AGE: AtomicU32 = AtomicU32::new(0);

/// What `pool` holds of its device, in bytes; none where the driver does not say.
pub fn held_bytes(pool: &Pool) -> Option<u64> {
    told_bytes(pool, CU_MEMPOOL_ATTR_RESERVED_MEM_CURRENT)
}

/// What the driver says of `pool` by this attribute, or of what graphs hold.
#[inline(never)]
fn told_bytes(pool: &Pool, attribute: CUmemPool_attribute) -> Option<u64> {
    let mut told_bytes = 0u64;
    let answer = (&raw mut told_bytes).cast();
    // SAFETY: the entry points' types; the attributes' values have eight bytes; so for all calls of `real` here.
    let result = unsafe {
        if pool.is_of_graphs() {
            let (ask, attribute) = (index::cuDeviceGetGraphMemAttribute, CU_GRAPH_MEM_ATTR_RESERVED_MEM_CURRENT);
            real::<CuDeviceGetGraphMemAttribute>(ask)(pool.device, attribute, answer)
        } else {
            real::<CuMemPoolGetAttribute>(index::cuMemPoolGetAttribute)(pool.handle as CUmemoryPool, attribute, answer)
        }
    };
    (result == CUDA_SUCCESS).then_some(told_bytes)
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

/// Has it give back what is not in use.
#[inline(never)]
pub fn trim(pool: &Pool) {
    // SAFETY: see held_bytes.
    unsafe {
        if pool.is_of_graphs() {
            // Before it and after it: who launches meanwhile is not to take it for what it was.
            grow_older();
            real::<CuDeviceGraphMemTrim>(index::cuDeviceGraphMemTrim)(pool.device);
            grow_older();
        } else {
            real::<CuMemPoolTrimTo>(index::cuMemPoolTrimTo)(pool.handle as CUmemoryPool, 0);
        }
    }
}

/// Charges all pools for what they hold now, and lets those go that the program has destroyed. With `is_short` they
/// give back first whatever is not in use, and so do processes that have ended. Whether there is any of them.
#[inline(never)]
pub fn give_back(place: &Place, is_short: bool) -> bool {
    let have_ended = is_short && ended::wait(&place.region, place.slot());
    if !ARE_USED.load(Ordering::Relaxed) {
        return have_ended;
    }
    let _relaxed = place.driver.relaxed_capture();
    let Some(mut pools) = POOLS.take() else { return have_ended };
    for pool in pools.all() {
        if is_short || pool.is_destroyed {
            trim(pool);
        }
        settle(place, pool, 0);
        if pool.is_destroyed && pool.is_empty() {
            // SAFETY: see held_bytes.
            unsafe { real::<CuMemPoolDestroy>(index::cuMemPoolDestroy)(pool.handle as CUmemoryPool) };
            *pool = Pool::new(0, 0, 0, false);
        }
    }
    true
}

/// More than 0 if something went back to a pool that it may not have given back yet.
pub fn pending() -> u32 {
    WAITS_TO_LOOK_AFTER.load(Ordering::Relaxed)
}

/// What was `pending` has been waited for: what of it has not come back does not for that.
pub fn note_settled(pending: u32) {
    let _ = WAITS_TO_LOOK_AFTER.compare_exchange(pending, 0, Ordering::AcqRel, Ordering::Relaxed);
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

/// Whether `bytes` more on the GPU of `pool` would be within the cap if all pools there gave back all that they hold.
#[cold]
#[inline(never)]
pub fn may_fit(place: &Place, pool: &Pool, bytes: u64) -> bool {
    let gpu = pool.gpu;
    let in_pools = with(|pools| pools.charged_bytes(gpu)).unwrap_or(u64::MAX);
    memory::fits_without(&place.region, usize::from(gpu), bytes, in_pools)
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

/// Gives an allocation `bytes` that its pool holds and nothing uses, until [`end_reused`]; false where there are not as many.
#[cold]
#[inline(never)]
pub fn reuse(handle: usize, bytes: u64) -> bool {
    let given = with(|pools| {
        let pool = pools.find(handle)?;
        let unused = held_bytes(pool)?.saturating_sub(told_bytes(pool, CU_MEMPOOL_ATTR_USED_MEM_CURRENT)?);
        Some(pool.reuse_unused(unused, bytes))
    });
    given.flatten().unwrap_or(false)
}

/// That has ended: whether all that the pool holds is within the cap, or was charged before. Else the driver has made it grow.
#[cold]
#[inline(never)]
pub fn end_reused(place: &Place, handle: usize, bytes: u64) -> bool {
    let is_within = with(|pools| {
        let Some(pool) = pools.find(handle) else { return true };
        pool.finish(bytes);
        let is_within = charge_more(place, pool);
        settle(place, pool, 0);
        is_within
    });
    is_within.unwrap_or(true)
}

/// Charges `pool` for what it holds beyond its charge; false where there is no room for that.
pub fn charge_more(place: &Place, pool: &mut Pool) -> bool {
    let more = held_bytes(pool).map_or(0, |held| pool.uncharged(held));
    let is_charged = more == 0 || PROCESS.reserve_on_device(place, usize::from(pool.gpu), more);
    if is_charged {
        pool.begin(more);
        pool.finish(more);
    }
    is_charged
}

/// Whether anything has been allocated from a pool, ever, or may have been by a graph.
pub fn are_used() -> bool {
    ARE_USED.load(Ordering::Relaxed)
}

/// There is one more to be looked at, if it is not known; false where there is no room for it.
pub fn enter(pool: Pool) -> bool {
    ARE_USED.store(true, Ordering::Relaxed);
    with(|pools| pools.find(pool.handle).is_some() || pools.enter(pool)).unwrap_or(false)
}

/// Something went back to a pool: the next waits look whether it gives that back.
pub fn look_later() {
    WAITS_TO_LOOK_AFTER.store(LOOKS, Ordering::Release);
}

/// How often what streams keep for graphs has changed under them.
pub fn age() -> u32 {
    AGE.load(Ordering::Acquire)
}

/// It changes.
pub fn grow_older() {
    AGE.fetch_add(1, Ordering::AcqRel);
}
