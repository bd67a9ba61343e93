//! What is charged for pools, and for what graphs hold of each device, as one more pool of it; see `pools` of the logic.

use crate::PROCESS;
use crate::accounts::refused;
use crate::entry::{index, real};
use core::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use gpool_driver_abi::cuda::*;
use gpool_interposer_logic::futex::Turn;
use gpool_interposer_logic::graphs::{DEVICES, Need, Needs};
use gpool_interposer_logic::memory::{Call, Charge};
use gpool_interposer_logic::pools::{Pool, Pools, growth_bytes};
use gpool_interposer_logic::process::Place;

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
/// A graph that leaves something allocated has been launched: what is held is not all kept for further launches.
static ARE_LEFT: AtomicBool = AtomicBool::new(false);

/// What `pool` holds of its device, in bytes; none where the driver does not say.
fn held_bytes(pool: &Pool) -> Option<u64> {
    let mut held_bytes = 0u64;
    let answer = (&raw mut held_bytes).cast();
    // SAFETY: the entry points' types; the attributes' values have eight bytes; so for all calls of `real` here.
    let result = unsafe {
        if pool.is_of_graphs() {
            let (ask, attribute) = (index::cuDeviceGetGraphMemAttribute, CU_GRAPH_MEM_ATTR_RESERVED_MEM_CURRENT);
            real::<CuDeviceGetGraphMemAttribute>(ask)(pool.device, attribute, answer)
        } else {
            let (ask, attribute) = (index::cuMemPoolGetAttribute, CU_MEMPOOL_ATTR_RESERVED_MEM_CURRENT);
            real::<CuMemPoolGetAttribute>(ask)(pool.handle as CUmemoryPool, attribute, answer)
        }
    };
    (result == CUDA_SUCCESS).then_some(held_bytes)
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
            // SAFETY: see held_bytes.
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

/// How often what streams keep for graphs has changed under them.
pub fn age() -> u32 {
    AGE.load(Ordering::Acquire)
}

/// It changes.
pub fn grow_older() {
    AGE.fetch_add(1, Ordering::AcqRel);
}

/// A graph is about to be launched that leaves something allocated, in which case what the stream keeps is less.
pub fn leave() {
    ARE_LEFT.store(true, Ordering::Release);
    grow_older();
}

/// Charges what graphs hold now.
pub fn look_at_graphs(place: &Place) {
    with(|pools| pools.all().filter(|pool| pool.is_of_graphs()).for_each(|pool| settle(place, pool, 0)));
}

/// Has `upload` make `stream` keep what a graph allocates. It is charged before; where there is no room for all that the
/// graph has at once, only for its largest piece, since the driver knows best what it has at once; then a device may hold
/// more than is charged for a moment, in which it is found out how much that is. The age of what streams keep then, none
/// where `upload` was refused for another reason than memory; or what to answer.
#[cold]
#[inline(never)]
pub fn mapped(
    place: &Place,
    needs: &Needs,
    stream: (CUstream, u64),
    upload: &dyn Fn() -> CUresult,
) -> Result<Option<u32>, CUresult> {
    for attempt in 0..3 {
        if attempt == 2 {
            // SAFETY: see held_bytes. No wait of the program's: work that was admitted is about to be issued.
            unsafe { real::<CuStreamSynchronize>(index::cuStreamSynchronize)(stream.0) };
        }
        if attempt > 0 {
            give_back(place, true);
        }
        let age = age();
        match uploaded(place, needs, stream.1, upload) {
            CUDA_ERROR_OUT_OF_MEMORY => {}
            result => return Ok((result == CUDA_SUCCESS).then_some(age)),
        }
    }
    let (device, bytes) = needs.each().next().map_or((0, 0), |(device, need)| (device, need.peak));
    let gpu = PROCESS.gpu_of(place, Some(device as CUdevice));
    Err(refused(place, gpu, Charge::Bytes(growth_bytes(bytes)), Call::GraphLaunch))
}

/// One attempt of [`mapped`].
fn uploaded(place: &Place, needs: &Needs, stream: u64, upload: &dyn Fn() -> CUresult) -> CUresult {
    let (mut charged, mut result, _change) = ([0; DEVICES], CUDA_SUCCESS, place.change());
    for (device, need) in needs.each() {
        match reserved(place, device as CUdevice, need, stream) {
            Some(bytes) => charged[device] = bytes,
            None => result = CUDA_ERROR_OUT_OF_MEMORY,
        }
    }
    let is_uploaded = result == CUDA_SUCCESS && {
        result = upload();
        result == CUDA_SUCCESS
    };
    for (device, _) in needs.each() {
        if !is_settled(place, device as CUdevice, charged[device], is_uploaded) {
            result = CUDA_ERROR_OUT_OF_MEMORY;
        }
    }
    // The driver may map only when the stream comes to it.
    look_later();
    result
}

/// Charges what graphs in `stream` are about to hold of `device` beyond what they keep; how much that is.
fn reserved(place: &Place, device: CUdevice, need: &Need, stream: u64) -> Option<u64> {
    let gpu = PROCESS.gpu_of(place, Some(device));
    let pool = Pool::new(Pool::handle_of_graphs(device), device, gpu, false);
    let is_there = with(|pools| pools.find(pool.handle).is_some() || pools.enter(pool)).unwrap_or(false);
    let kept = with(|pools| pools.find(pool.handle).map_or(0, |pool| pool.kept_bytes(stream))).unwrap_or(0);
    let kept = if ARE_LEFT.load(Ordering::Acquire) { 0 } else { kept };
    let wanted = [growth_bytes(need.peak), need.largest].map(|bytes| bytes.saturating_sub(kept));
    let charged =
        wanted.into_iter().find(|bytes| is_there && (*bytes == 0 || PROCESS.reserve_on_device(place, gpu, *bytes)))?;
    ARE_USED.store(true, Ordering::Relaxed);
    with(|pools| {
        if let Some(pool) = pools.find(pool.handle) {
            pool.begin(charged);
            pool.keep_for(stream);
        }
    });
    Some(charged)
}

/// What graphs hold of `device` has been charged by `charged` bytes for what has been uploaded, or has not been. Whether
/// what that took is charged now; else streams have given back.
fn is_settled(place: &Place, device: CUdevice, charged: u64, is_uploaded: bool) -> bool {
    let settled = with(|pools| {
        let Some(pool) = pools.find(Pool::handle_of_graphs(device)) else { return true };
        let more = held_bytes(pool).map_or(0, |held| pool.uncharged(held));
        let is_charged = !is_uploaded || more == 0 || PROCESS.reserve_on_device(place, usize::from(pool.gpu), more);
        if is_uploaded && is_charged {
            pool.begin(more);
            // What is too much of it is given back by the next who looks: the stream may not have come to it.
            pool.finish(charged + more);
        } else {
            if is_uploaded {
                trim(pool);
            }
            settle(place, pool, charged);
        }
        is_charged
    });
    settled.unwrap_or(true)
}
