//! Memory that several processes hold.
//!
//! Nothing that the driver says of imported memory tells which process made it, or that two imports are one piece. But
//! what it is exported as has a name that all see, see `names` of the logic. By that a process that opens what another of
//! its lease has made takes hold of the same piece, which is charged once. What has no name is charged to each process
//! that holds it: who made it for as long as its handle is shared, and who opens it from then on, so that it stays
//! charged to somebody whoever ends first. Charged to two, it is never charged to none.

use crate::accounts::{charge_device, known, left, named, note_bound, opened_again, opening};
use crate::entry::{index, real};
use crate::virtual_memory::shared_at;
use crate::{HANDLES, PROCESS};
use core::ffi::{c_uint, c_ulonglong, c_void};
use gpool_driver_abi::cuda::*;
use gpool_interposer_logic::handles::{BurstTag, Held, Kind};
use gpool_interposer_logic::memory::{Call, rounded_bytes};
use gpool_interposer_logic::names;
use gpool_interposer_logic::process::Place;

/// What is opened is as large as the pages that the driver shares.
const PAGE_BYTES: u64 = 2 << 20;

/// The index in the lease of the GPU on which `pointer` lies.
fn gpu_of(place: &Place, pointer: CUdeviceptr) -> usize {
    PROCESS.gpu_of(place, place.driver.device_of(pointer))
}

/// Memory of another process has been opened at `pointer`: charged by its size in whole pieces that `piece_bytes` makes
/// of it. Without room it is closed again; what to answer. It goes with the context that has `tag`, or with none.
#[cold]
#[inline(never)]
fn opened(
    place: &Place,
    call: Call,
    pointer: CUdeviceptr,
    (piece_bytes, tag): (fn(u64) -> u64, BurstTag),
    close: CuIpcCloseMemHandle,
) -> CUresult {
    let bytes = piece_bytes(allocation_bytes(pointer).max(1));
    let gpu = gpu_of(place, pointer);
    if opened_again(&mut HANDLES.lock(), Kind::Memory, pointer) {
        return CUDA_SUCCESS;
    }
    place.note_inexact();
    if let Err(refused) = charge_device(place, gpu, bytes, call) {
        // SAFETY: the driver's function that takes back what it has opened.
        unsafe { close(pointer) };
        return refused;
    }
    let held = Held { gpu: gpu as u8, ..Held::new(Kind::Memory, pointer, bytes) }.opened_in(tag);
    let mut handles = HANDLES.lock();
    // Another thread may have opened it meanwhile.
    let unused = if opened_again(&mut handles, Kind::Memory, pointer) { Some(held) } else { handles.hold(held) };
    if let Some(unused) = unused {
        PROCESS.give_back(place, &unused);
    }
    CUDA_SUCCESS
}

/// Size of the allocation that `pointer` lies in, as the driver knows it; 0 if it is none.
fn allocation_bytes(pointer: CUdeviceptr) -> u64 {
    let (mut base, mut bytes) = (0, 0);
    // SAFETY: see the opens below; there are places for the answers.
    unsafe { real::<CuMemGetAddressRangeV2>(index::cuMemGetAddressRange_v2)(&mut base, &mut bytes, pointer) };
    bytes as u64
}

fn pages(bytes: u64) -> u64 {
    bytes.saturating_add(PAGE_BYTES - 1) / PAGE_BYTES * PAGE_BYTES
}

/// Makes a piece of the lease of it. What is smaller than the pages that the driver shares stays charged to each.
///
/// # Safety
/// As the driver's function of this name; so for all functions here.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuIpcGetMemHandle(handle: *mut CUipcMemHandle, pointer: CUdeviceptr) -> CUresult {
    let Some(place) = PROCESS.touched_place() else { return CUDA_ERROR_NOT_INITIALIZED };
    let known = HANDLES.lock().find(Kind::Memory, pointer).map(|held| held.serial);
    // SAFETY: the entry point's type, the caller's arguments; so for all calls of `real` here.
    let result = unsafe { real::<CuIpcGetMemHandle>(index::cuIpcGetMemHandle)(handle, pointer) };
    let mut handles = HANDLES.lock();
    // Freed meanwhile, the address may be another's.
    let is_it = |held: &&mut Held| Some(held.serial) == known && held.bytes.is_multiple_of(PAGE_BYTES);
    if result == CUDA_SUCCESS
        && let Some(held) = handles.find(Kind::Memory, pointer).filter(is_it)
    {
        place.note_inexact();
        note_bound();
        // SAFETY: the driver succeeded, so `handle` is valid and holds the handle.
        PROCESS.share(place, held, names::of_bytes(unsafe { &(*handle).reserved }));
    }
    result
}

/// Opens through `open` what has this handle, charged.
#[cold]
#[inline(never)]
fn ipc_opened(pointer: *mut CUdeviceptr, handle: &CUipcMemHandle, open: &dyn Fn() -> CUresult) -> CUresult {
    let Some(place) = PROCESS.touched_place() else { return CUDA_ERROR_NOT_INITIALIZED };
    let _change = place.change();
    let name = Some(names::of_bytes(&handle.reserved));
    if let Some(result) = named(Kind::Memory, Call::IpcOpen, name, pointer, open) {
        return result;
    }
    let result = open();
    if result != CUDA_SUCCESS {
        return result;
    }
    // SAFETY: the driver succeeded, so `pointer` is valid and holds the address.
    let pointer = unsafe { *pointer };
    // SAFETY: see cuIpcGetMemHandle.
    opened(place, Call::IpcOpen, pointer, (pages, opening(place)), unsafe { real(index::cuIpcCloseMemHandle) })
}

macro_rules! opens {
    ($($name:ident)*) => {$(
        /// Charged with the piece of the lease that it is, before it is there; or when it is there, though its owner is.
        #[unsafe(no_mangle)]
        pub unsafe extern "C" fn $name(pointer: *mut CUdeviceptr, handle: CUipcMemHandle, flags: c_uint) -> CUresult {
            // SAFETY: see cuIpcGetMemHandle.
            let open = || unsafe { real::<CuIpcOpenMemHandle>(index::$name)(pointer, handle, flags) };
            ipc_opened(pointer, &handle, &open)
        }
    )*};
}

opens! { cuIpcOpenMemHandle cuIpcOpenMemHandle_v2 }

/// Takes the charge back.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuIpcCloseMemHandle(pointer: CUdeviceptr) -> CUresult {
    match known(Kind::Memory, pointer) {
        // SAFETY: see the opens above.
        Ok(known) => left(known, unsafe { real::<CuIpcCloseMemHandle>(index::cuIpcCloseMemHandle)(pointer) }),
        Err(refused) => refused,
    }
}

/// Charged, though its owner is, by what the program gets of it. What it keeps beyond that of the other one's pool, once that has
/// ended, NVML shows: by whole pieces of a pool many small pointers would be charged a piece each.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuMemPoolImportPointer(
    pointer: *mut CUdeviceptr,
    pool: CUmemoryPool,
    data: *mut CUmemPoolPtrExportData,
) -> CUresult {
    let Some(place) = PROCESS.touched_place() else { return CUDA_ERROR_NOT_INITIALIZED };
    let _change = place.change();
    // SAFETY: see the opens above.
    let result = unsafe { real::<CuMemPoolImportPointer>(index::cuMemPoolImportPointer)(pointer, pool, data) };
    if result != CUDA_SUCCESS {
        return result;
    }
    // SAFETY: the driver succeeded, so `pointer` is valid and holds the address.
    let pointer = unsafe { *pointer };
    // SAFETY: as above.
    opened(place, Call::PoolImport, pointer, (rounded_bytes, BurstTag::default()), unsafe { real(index::cuMemFree_v2) })
}

/// A descriptor keeps the memory for as long as anybody has it, which nobody sees: the charge stays until the process
/// ends.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuMemGetHandleForAddressRange(
    handle: *mut c_void,
    address: CUdeviceptr,
    size: usize,
    kind: c_uint,
    flags: c_ulonglong,
) -> CUresult {
    let Some(place) = PROCESS.touched_place() else { return CUDA_ERROR_NOT_INITIALIZED };
    let export = index::cuMemGetHandleForAddressRange;
    // SAFETY: see the opens above.
    let result = unsafe { real::<CuMemGetHandleForAddressRange>(export)(handle, address, size, kind, flags) };
    if result == CUDA_SUCCESS {
        kept(place, address);
    }
    result
}

#[cold]
#[inline(never)]
fn kept(place: &Place, address: CUdeviceptr) {
    let (mut base, mut bytes) = (address, 0);
    // SAFETY: see the opens above; there are places for the answers.
    unsafe { real::<CuMemGetAddressRangeV2>(index::cuMemGetAddressRange_v2)(&mut base, &mut bytes, address) };
    let mut handles = HANDLES.lock();
    if let Some(held) = handles.take(Kind::Memory, base) {
        return PROCESS.keep(place, &held);
    }
    drop(handles);
    place.note_inexact();
    shared_at(address);
}
