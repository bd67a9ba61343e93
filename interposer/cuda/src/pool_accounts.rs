//! What is charged for pools, and for what graphs hold of each device, as one more pool of it; see `pools` of the logic.

use crate::PROCESS;
use crate::accounts::refused;
use crate::entry::{index, real};
use core::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use gpool_driver_abi::cuda::*;
use gpool_interposer_logic::futex::Turn;
use gpool_interposer_logic::graphs::{DEVICES, Known};
use gpool_interposer_logic::memory::{Call, Charge};
use gpool_interposer_logic::pools::{Pool, Pools, growth_bytes};
use gpool_interposer_logic::process::Place;
use gpool_interposer_logic::{clock, contexts};

/// Kept while the driver is asked what a pool holds, or the answer would be of another moment. What a profiler's callback does
/// with pools meanwhile is not charged before, but with what is found the next time.
static POOLS: Turn<Pools> = Turn::new(Pools::new());
/// Something has been allocated from a pool, ever.
static ARE_USED: AtomicBool = AtomicBool::new(false);
/// Something went back to a pool, which may give it back when somebody waits: how often to look then. The first wait
/// may be for other work.
static WAITS_TO_LOOK_AFTER: AtomicU32 = AtomicU32::new(0);
const LOOKS: u32 = 8;

/// How long the launch of a graph waits at most for what its stream keeps.
const WAIT_NS: u64 = 100_000_000;
/// How often what streams keep for graphs has changed under them.
static AGE: AtomicU32 = AtomicU32::new(0);

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

/// A graph is about to be launched that leaves something allocated: that is kept for no other.
pub fn leave(known: &Known) {
    for (device, need) in known.needs.each() {
        let own = if known.was_launched { need.left } else { 0 };
        with(|pools| pools.find(Pool::handle_of_graphs(device as CUdevice)).map(|pool| pool.leave(need.left, own)));
    }
}

/// Charges what graphs hold now; what does not fit they give back as far as they can.
pub fn look_at_graphs(place: &Place) {
    with(|pools| {
        for pool in pools.all().filter(|pool| pool.is_of_graphs()) {
            if !charge_more(place, pool) {
                trim(pool);
            }
            settle(place, pool, 0);
        }
    });
}

/// Charges `pool` for what it holds beyond its charge; false where there is no room for that.
fn charge_more(place: &Place, pool: &mut Pool) -> bool {
    let more = held_bytes(pool).map_or(0, |held| pool.uncharged(held));
    let is_charged = more == 0 || PROCESS.reserve_on_device(place, usize::from(pool.gpu), more);
    if is_charged {
        pool.begin(more);
        pool.finish(more);
    }
    is_charged
}

/// Graphs are looked at from now on: what they hold is found whether it is known what they allocate or not.
pub fn enter_graphs(place: &Place) {
    ARE_USED.store(true, Ordering::Relaxed);
    for device in 0..contexts::gpus(place.region.control()) as CUdevice {
        let pool = Pool::new(Pool::handle_of_graphs(device), device, PROCESS.gpu_of(place, Some(device)), false);
        with(|pools| pools.find(pool.handle).is_some() || pools.enter(pool));
    }
}

/// Has `upload` make `stream` keep what a graph allocates. It is charged before; where there is no room for all that the
/// graph has at once, only for its largest piece, since the driver knows best what it has at once; then a device may hold
/// more than is charged for a moment, in which it is found out how much that is. The age of what streams keep then, none
/// where `upload` was refused for another reason than memory; or what to answer.
#[cold]
#[inline(never)]
pub fn mapped(
    place: &Place,
    known: &Known,
    stream: (CUstream, u64),
    upload: &dyn Fn() -> CUresult,
) -> Result<Option<u32>, CUresult> {
    for attempt in 0..4 {
        match attempt {
            0 => {}
            1 => drop(give_back(place, false)),
            2 => drop(give_back(place, true)),
            _ => {
                wait(place, stream.0);
                give_back(place, true);
            }
        }
        let age = age();
        match uploaded(place, known, (stream.1, attempt > 0), upload) {
            CUDA_ERROR_OUT_OF_MEMORY => {}
            result => return Ok((result == CUDA_SUCCESS).then_some(age)),
        }
    }
    let (device, bytes) = known.needs.each().next().map_or((0, 0), |(device, need)| (device, need.peak));
    let gpu = PROCESS.gpu_of(place, Some(device as CUdevice));
    Err(refused(place, gpu, Charge::Bytes(growth_bytes(bytes)), Call::GraphLaunch))
}

/// Waits a moment for the work on `stream`, which may keep what is trimmed then; not for ever, as that may wait for this thread.
fn wait(place: &Place, stream: CUstream) {
    let limit_ns = clock::now_ns() + WAIT_NS;
    // SAFETY: the driver's function of this type, which checks the stream.
    while unsafe { (place.driver.stream_query)(stream) } == CUDA_ERROR_NOT_READY && clock::now_ns() < limit_ns {
        clock::sleep_until_ns(clock::now_ns() + WAIT_NS / 1000);
    }
}

/// What a graph has been given before it is uploaded, in bytes.
#[derive(Clone, Copy, Default)]
struct Given {
    charged: u64,
    /// Of what its stream keeps.
    kept: u64,
}

/// One attempt of [`mapped`].
fn uploaded(
    place: &Place,
    known: &Known,
    (stream, may_be_less): (u64, bool),
    upload: &dyn Fn() -> CUresult,
) -> CUresult {
    let (mut given, mut result, _change) = ([Given::default(); DEVICES], CUDA_SUCCESS, place.change());
    for (device, need) in known.needs.each() {
        let own = if known.was_launched { need.left } else { 0 };
        let least = if may_be_less { need.largest } else { need.peak };
        match reserved(place, device as CUdevice, [need.peak, least].map(growth_bytes), (stream, own)) {
            Some(bytes) => given[device] = bytes,
            None => result = CUDA_ERROR_OUT_OF_MEMORY,
        }
    }
    let is_uploaded = result == CUDA_SUCCESS && {
        result = upload();
        result == CUDA_SUCCESS
    };
    for (device, _) in known.needs.each() {
        if !is_settled(place, device as CUdevice, given[device], is_uploaded) {
            result = CUDA_ERROR_OUT_OF_MEMORY;
        }
    }
    // The driver may map only when the stream comes to it.
    look_later();
    result
}

/// Charges the first of `wanted` bytes of `device` for which there is room, less what is kept for a graph in `stream` that has
/// left `own` bytes before.
fn reserved(place: &Place, device: CUdevice, wanted: [u64; 2], (stream, own): (u64, u64)) -> Option<Given> {
    if is_within() {
        return Some(Given::default());
    }
    with(|pools| {
        let pool = pools.find(Pool::handle_of_graphs(device))?;
        let kept = pool.kept_bytes(stream, own);
        let gpu = usize::from(pool.gpu);
        let is_reserved = |bytes: &u64| *bytes == 0 || PROCESS.reserve_on_device(place, gpu, *bytes);
        let charged = wanted.map(|bytes| bytes.saturating_sub(kept)).into_iter().find(is_reserved)?;
        pool.begin(charged);
        pool.reuse(kept);
        pool.keep_for(stream);
        Some(Given { charged, kept })
    })?
}

/// What a graph was given of `device` it has taken, as it has been uploaded, or has not. Whether what that took is charged
/// now; else streams have given back.
fn is_settled(place: &Place, device: CUdevice, given: Given, is_uploaded: bool) -> bool {
    let settled = with(|pools| {
        let Some(pool) = pools.find(Pool::handle_of_graphs(device)) else { return true };
        pool.finish(given.kept);
        if !is_uploaded {
            pool.abandon(given.charged);
            PROCESS.release_on_device(place, usize::from(pool.gpu), given.charged);
            settle(place, pool, 0);
            return true;
        }
        if charge_more(place, pool) {
            // What is too much of it is given back by the next who looks: the stream may not have come to it.
            pool.finish(given.charged);
            return true;
        }
        trim(pool);
        settle(place, pool, given.charged);
        false
    });
    settled.unwrap_or(true)
}
