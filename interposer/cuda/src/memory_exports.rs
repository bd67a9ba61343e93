//! Allocators: charge, ask the driver, keep or take back.

use crate::accounts::{freed, held, inexact};
use crate::entry::{index, real};
use crate::managed;
use crate::pool_accounts;
use crate::spill;
use crate::touched::touch;
use core::ffi::{c_int, c_uint};
use gpool_driver_abi::cuda::{
    CUDA_ERROR_INVALID_VALUE, CUDA_ERROR_NOT_SUPPORTED, CUDA_SUCCESS, CUdevice, CUdeviceptr, CUresult,
    CuDeviceTotalMemV2, CuMemAllocManaged, CuMemAllocPitchV2, CuMemAllocV2, CuMemGetInfoV2,
};
use gpool_interposer_logic::ended;
use gpool_interposer_logic::handles::Kind;
use gpool_interposer_logic::memory;
use gpool_interposer_logic::memory::Call;

/// Rows of a pitched allocation are padded to this on every GPU so far.
const PITCH_ALIGNMENT: u64 = 512;

/// Answers `value`, if that is wanted.
///
/// # Safety
/// `wanted` is null or a place for the answer.
unsafe fn say<T>(wanted: *mut T, value: T) {
    // SAFETY: the caller's promise.
    if let Some(place) = unsafe { wanted.as_mut() } {
        *place = value;
    }
}

/// The lease's memory on the current context's GPU instead of the device's.
///
/// # Safety
/// As the driver's function of this name; so for all functions here.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuMemGetInfo_v2(free: *mut usize, total: *mut usize) -> CUresult {
    touch();
    let (mut free_bytes, mut total_bytes) = (0, 0);
    // Null is an answer that a program does not want. Whether it may is the driver's to say, so it gets what is null.
    let own = |wanted: *mut usize, place: &mut usize| if wanted.is_null() { wanted } else { place };
    // SAFETY: the entry point's type; nulls of the caller's, and places of ours. So for all calls of `real` here.
    let result = unsafe {
        real::<CuMemGetInfoV2>(index::cuMemGetInfo_v2)(own(free, &mut free_bytes), own(total, &mut total_bytes))
    };
    if result != CUDA_SUCCESS {
        return result;
    }
    if let Some(place) = crate::PROCESS.place() {
        // What processes of this lease held that have ended is free, and so may be what went back to pools, whatever was waited for
        // meanwhile.
        ended::wait(&place.region, place.slot());
        pool_accounts::give_back(place, false);
        let device_free_bytes = if free.is_null() { u64::MAX } else { free_bytes as u64 };
        let (free, total) = memory::visible(&place.region, crate::PROCESS.current_gpu(place), device_free_bytes);
        (free_bytes, total_bytes) = (free as usize, total as usize);
    }
    // SAFETY: null, or places of the caller's.
    unsafe {
        say(free, free_bytes);
        say(total, total_bytes);
    }
    result
}

/// The lease's cap instead of the device's memory.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuDeviceTotalMem_v2(total: *mut usize, device: CUdevice) -> CUresult {
    // SAFETY: see cuMemGetInfo_v2.
    let result = unsafe { real::<CuDeviceTotalMemV2>(index::cuDeviceTotalMem_v2)(total, device) };
    if result == CUDA_SUCCESS
        && let Some(cap_bytes) = crate::PROCESS.cap_bytes()
    {
        // SAFETY: the driver succeeded, so `total` is valid.
        unsafe { *total = (*total).min(cap_bytes as usize) };
    }
    result
}

/// The 32-bit allocator of CUDA 2 is not accounted for, so it is refused.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuMemAlloc(_pointer: *mut c_uint, _size: c_uint) -> CUresult {
    CUDA_ERROR_NOT_SUPPORTED
}

/// `bytes` as CUDA 2 has them, with 32 bits: as many as these can say.
fn in_32_bits(bytes: usize) -> c_uint {
    c_uint::try_from(bytes).unwrap_or(c_uint::MAX)
}

/// As [`cuMemGetInfo_v2`], in 32 bits.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuMemGetInfo(free: *mut c_uint, total: *mut c_uint) -> CUresult {
    let (mut free_bytes, mut total_bytes) = (0, 0);
    let own = |wanted: *mut c_uint, place: &mut usize| if wanted.is_null() { core::ptr::null_mut() } else { place };
    // SAFETY: nulls where the caller's are, live places else; the caller's are null or places for the answers.
    unsafe {
        let result = cuMemGetInfo_v2(own(free, &mut free_bytes), own(total, &mut total_bytes));
        if result == CUDA_SUCCESS {
            say(free, in_32_bits(free_bytes));
            say(total, in_32_bits(total_bytes));
        }
        result
    }
}

/// As [`cuDeviceTotalMem_v2`], in 32 bits.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuDeviceTotalMem(total: *mut c_uint, device: CUdevice) -> CUresult {
    let mut total_bytes = 0;
    // SAFETY: a live place for the answer; the caller's is null or a place for it.
    unsafe {
        let Some(total) = total.as_mut() else { return CUDA_ERROR_INVALID_VALUE };
        let result = cuDeviceTotalMem_v2(&mut total_bytes, device);
        if result == CUDA_SUCCESS {
            *total = in_32_bits(total_bytes);
        }
        result
    }
}

/// See [`cuMemAlloc`].
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuMemAllocPitch(
    _pointer: *mut c_uint,
    _pitch: *mut c_uint,
    _width: c_uint,
    _height: c_uint,
    _element: c_uint,
) -> CUresult {
    CUDA_ERROR_NOT_SUPPORTED
}

/// Charged, or in the host's memory.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuMemAlloc_v2(pointer: *mut CUdeviceptr, size: usize) -> CUresult {
    touch();
    // SAFETY: see cuMemGetInfo_v2.
    let make = || unsafe { real::<CuMemAllocV2>(index::cuMemAlloc_v2)(pointer, size) };
    match held(Kind::Memory, Call::MemAlloc, pointer, size as u64, make) {
        spill::INSTEAD => spill::instead(Call::MemAlloc, pointer, size as u64),
        result => result,
    }
}

/// Charged with rows padded as every GPU so far pads them, or in the host's memory with such rows.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuMemAllocPitch_v2(
    pointer: *mut CUdeviceptr,
    pitch: *mut usize,
    width: usize,
    height: usize,
    element: c_uint,
) -> CUresult {
    touch();
    let row = (width as u64).saturating_add(PITCH_ALIGNMENT - 1) / PITCH_ALIGNMENT * PITCH_ALIGNMENT;
    inexact();
    // SAFETY: see cuMemGetInfo_v2.
    let make =
        || unsafe { real::<CuMemAllocPitchV2>(index::cuMemAllocPitch_v2)(pointer, pitch, width, height, element) };
    let bytes = row.saturating_mul(height as u64);
    let result = held(Kind::Memory, Call::MemAllocPitch, pointer, bytes, make);
    if result != spill::INSTEAD {
        return result;
    }
    // What the driver refuses whatever there is room for.
    if pitch.is_null() || !matches!(element, 4 | 8 | 16) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    let result = spill::instead(Call::MemAllocPitch, pointer, bytes);
    if result == CUDA_SUCCESS {
        // SAFETY: the caller's place for it, which is not null.
        unsafe { *pitch = row as usize };
    }
    result
}

/// Charged in full to the device that is current: managed memory may all be there.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuMemAllocManaged(pointer: *mut CUdeviceptr, size: usize, flags: c_uint) -> CUresult {
    touch();
    inexact();
    // SAFETY: see cuMemGetInfo_v2.
    let make = || unsafe { real::<CuMemAllocManaged>(index::cuMemAllocManaged)(pointer, size, flags) };
    managed::with_piece(size, || held(Kind::Memory, Call::MemAllocManaged, pointer, size as u64, make))
}

/// Takes the charge back.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuMemFree_v2(pointer: CUdeviceptr) -> CUresult {
    freed(pointer, || spill::free(pointer))
}

/// A CUDA device ordinal is a C int in every entry point.
const _: () = assert!(size_of::<CUdevice>() == size_of::<c_int>());
