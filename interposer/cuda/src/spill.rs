//! Memory that has no room within the cap and lies in the host's, where the lease may have some there.
//!
//! It is page-locked memory that the device reads and writes over its bus, at the address that the program gets for it: nothing
//! moves, and of the device it takes the tables of its pages alone. It stays there until it is freed.

use crate::accounts::{refused, remember};
use crate::entry::{index, real};
use crate::memory_exports::cuMemFree_v2;
use crate::{HANDLES, PROCESS};
use core::ffi::c_void;
use core::ptr::null_mut;
use core::sync::atomic::{AtomicBool, Ordering};
use gpool_driver_abi::cuda::{
    CU_MEMHOSTALLOC_DEVICEMAP, CU_MEMHOSTALLOC_PORTABLE, CUDA_ERROR_INVALID_VALUE, CUDA_ERROR_NOT_INITIALIZED,
    CUDA_ERROR_OUT_OF_MEMORY, CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED, CUDA_SUCCESS, CUdeviceptr, CUresult, CUstream,
    CuMemFreeHost, CuMemFreeV2, CuMemHostAlloc, CuStreamSynchronize,
};
use gpool_interposer_logic::handles::{Held, Kind};
use gpool_interposer_logic::memory::{self, Call, Charge};
use gpool_interposer_logic::process::Place;
use gpool_interposer_logic::spill;
use gpool_interposer_logic::waits::WaitFor;

/// Something has gone to the host's memory, ever.
static IS_USED: AtomicBool = AtomicBool::new(false);

/// Whether what has no room within the cap may go to the host's memory.
fn may_spill(place: &Place) -> bool {
    spill::limit_bytes(&place.region) > 0
}

/// Whether `bytes` have room there.
pub fn has_room(place: &Place, bytes: u64) -> bool {
    may_spill(place) && spill::used_bytes(&place.region).saturating_add(bytes) <= spill::limit_bytes(&place.region)
}

/// What stands for an answer where there is no room and nothing has been said of it, because the caller has [`instead`] look for
/// another place. No answer of a driver is one.
pub const INSTEAD: CUresult = CUresult::MIN;

/// Whether what `call` has no room for may go to the host's memory.
pub fn takes(place: &Place, call: Call) -> bool {
    matches!(call, Call::MemAlloc | Call::MemAllocPitch) && may_spill(place)
}

/// What an allocation of `bytes` answers for which there is no room ([`INSTEAD`]): it is in the host's memory then, or refused.
#[cold]
#[inline(never)]
pub fn instead(call: Call, pointer: *mut CUdeviceptr, bytes: u64) -> CUresult {
    match PROCESS.place() {
        Some(place) => spilled(place, PROCESS.current_gpu(place), (call, pointer, bytes)),
        None => CUDA_ERROR_OUT_OF_MEMORY,
    }
}

/// What an allocation that has no room on GPU `gpu` answers: it is in the host's memory then, or refused.
#[cold]
#[inline(never)]
pub fn spilled(place: &'static Place, gpu: usize, (call, pointer, bytes): (Call, *mut CUdeviceptr, u64)) -> CUresult {
    let refuse = || refused(place, gpu, Charge::Bytes(memory::rounded_bytes(bytes)), call);
    if !may_spill(place) {
        return refuse();
    }
    if pointer.is_null() {
        return CUDA_ERROR_INVALID_VALUE;
    }
    let (slot, page_bytes) = (place.slot(), spill::rounded_bytes(bytes));
    if !spill::try_reserve(&place.region, slot, page_bytes) {
        return refuse();
    }
    // Before the driver is asked, so that the charge goes with the context whenever that goes.
    let Some(context) = PROCESS.spilled(place, page_bytes) else {
        spill::release(slot, page_bytes);
        return refuse();
    };
    // The device has tables of pages for it, which the account does not know.
    place.note_inexact();
    // Contexts on all of the lease's GPUs may be given the address.
    let flags = CU_MEMHOSTALLOC_PORTABLE | CU_MEMHOSTALLOC_DEVICEMAP;
    let mut address = null_mut();
    // What is allocated in the order of a stream breaks no capture that goes on elsewhere.
    let relaxed = place.driver.relaxed_capture();
    // SAFETY: the entry point's type, and a place for the address.
    let result = unsafe { real::<CuMemHostAlloc>(index::cuMemHostAlloc)(&mut address, bytes as usize, flags) };
    let held = Held { owner: context.0, is_spilled: true, ..Held::new(Kind::Memory, address as u64, page_bytes) };
    let is_kept = result == CUDA_SUCCESS && is_remembered(place, held);
    if result == CUDA_SUCCESS && !is_kept {
        // SAFETY: the entry point's type, and what it has just been given by.
        unsafe { real::<CuMemFreeHost>(index::cuMemFreeHost)(address) };
    }
    drop(relaxed);
    if !is_kept {
        if PROCESS.unspilled(context, page_bytes) {
            spill::release(slot, page_bytes);
        }
        return if matches!(result, CUDA_SUCCESS | CUDA_ERROR_OUT_OF_MEMORY) { refuse() } else { result };
    }
    IS_USED.store(true, Ordering::Release);
    spill::note(slot);
    // SAFETY: not null, and a place for the address, as the caller's caller promises.
    unsafe { *pointer = address as CUdeviceptr };
    CUDA_SUCCESS
}

/// Remembers what lies there, as what has to be freed in another way; false where there is no room for that.
fn is_remembered(place: &Place, held: Held) -> bool {
    remember(place, held);
    HANDLES.lock().find(Kind::Memory, held.handle).is_some()
}

/// Whether what is at `pointer` lies in the host's memory. Of a context that has gone it does no more, and the address may be another's.
#[inline(never)]
pub fn is_spilled(pointer: CUdeviceptr) -> bool {
    // In a forked child the lock may be a thread's that it does not have.
    if !IS_USED.load(Ordering::Acquire) || PROCESS.place().is_none() {
        return false;
    }
    let held = HANDLES.lock().find(Kind::Memory, pointer).map(|held| *held);
    held.is_some_and(|held| held.is_spilled && PROCESS.has_context(held.owner))
}

/// Has the driver free what is at `pointer`, which lies in the host's memory or not.
#[inline(never)]
pub fn free(pointer: CUdeviceptr) -> CUresult {
    match is_spilled(pointer) {
        // SAFETY: the entry point's type; the address is one that the driver gave for this.
        true => unsafe { real::<CuMemFreeHost>(index::cuMemFreeHost)(pointer as *mut c_void) },
        // SAFETY: the entry point's type, the caller's address.
        false => unsafe { real::<CuMemFreeV2>(index::cuMemFree_v2)(pointer) },
    }
}

/// Frees what is at `pointer` and lies in the host's memory, behind the work that is on `stream`.
#[cold]
#[inline(never)]
pub fn free_in_order(pointer: CUdeviceptr, stream: CUstream) -> CUresult {
    let Some(place) = PROCESS.touched_place() else { return CUDA_ERROR_NOT_INITIALIZED };
    if place.driver.is_capturing(stream) {
        return CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED;
    }
    let _relaxed = place.driver.relaxed_capture();
    // Before the account is about to change: the supervisor learns nothing from one that is, however long this takes.
    let result = PROCESS.wait(WaitFor::Stream(stream), || {
        // SAFETY: the entry point's type, the caller's stream.
        unsafe { real::<CuStreamSynchronize>(index::cuStreamSynchronize)(stream) }
    });
    // SAFETY: it is the caller's to free.
    if result == CUDA_SUCCESS { unsafe { cuMemFree_v2(pointer) } } else { result }
}
