//! What is charged for graphs that allocate: before their memory is there, by an upload ahead of their launch. See `graphs` of
//! the logic.

use crate::accounts::refused;
use crate::pool_accounts::{age, charge_more, give_back, is_within, look_later, settle, trim, with};
use crate::{PROCESS, pool_accounts};
use gpool_driver_abi::cuda::*;
use gpool_interposer_logic::graphs::{DEVICES, Known};
use gpool_interposer_logic::memory::{Call, Charge};
use gpool_interposer_logic::pools::{Pool, growth_bytes};
use gpool_interposer_logic::process::Place;
use gpool_interposer_logic::{clock, contexts};

/// How long the launch of a graph waits at most for what its stream keeps.
const WAIT_NS: u64 = 100_000_000;
/// It is looked so often whether that is there.
const LOOK_NS: u64 = 100_000;

/// A graph is about to be launched that leaves something allocated: that is kept for no other.
pub fn leave(known: &Known) {
    for (device, need) in known.needs.each() {
        let own = known.own_bytes(need);
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

/// Graphs are looked at from now on: what they hold is found whether it is known what they allocate or not.
pub fn enter_graphs(place: &Place) {
    for device in 0..contexts::gpus(place.region.control()) as CUdevice {
        let gpu = PROCESS.gpu_of(place, Some(device));
        pool_accounts::enter(Pool::new(Pool::handle_of_graphs(device), device, gpu, false));
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
    // Whoever began to look at graphs had no place yet, or is about to.
    enter_graphs(place);
    for attempt in 0..4 {
        match attempt {
            0 => {}
            1 => drop(give_back(place, false)),
            2 => drop(give_back(place, true)),
            _ => {
                wait(place, stream.0, WAIT_NS);
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

/// Waits for the work on `stream`, which may keep what is trimmed then; not for ever, as that may wait for this thread. What the
/// driver said last.
#[inline(never)]
pub fn wait(place: &Place, stream: CUstream, most_ns: u64) -> CUresult {
    let limit_ns = clock::now_ns() + most_ns;
    loop {
        // SAFETY: the driver's function of this type, which checks the stream.
        let result = unsafe { (place.driver.stream_query)(stream) };
        if result != CUDA_ERROR_NOT_READY || clock::now_ns() >= limit_ns {
            return result;
        }
        clock::sleep_until_ns(clock::now_ns() + LOOK_NS);
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
        let own = known.own_bytes(need);
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
