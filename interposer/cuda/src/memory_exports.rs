//! Allocators: charge, ask the driver, keep or take back.

use crate::accounts::{freed, held, inexact};
use crate::entry::{index, real};
use crate::pools;
use core::ffi::{c_int, c_uint};
use gpool_driver_abi::cuda::{
    CUDA_ERROR_INVALID_VALUE, CUDA_ERROR_NOT_SUPPORTED, CUDA_SUCCESS, CUdevice, CUdeviceptr, CUresult,
    CuDeviceTotalMemV2, CuMemAllocManaged, CuMemAllocPitchV2, CuMemAllocV2, CuMemFreeV2, CuMemGetInfoV2,
};
use gpool_interposer_logic::handles::Kind;
use gpool_interposer_logic::memory;
use gpool_interposer_logic::memory::Call;

/// Rows of a pitched allocation are padded to this on every GPU so far.
const PITCH_ALIGNMENT: u64 = 512;

/// The lease's memory on the current context's GPU instead of the device's.
///
/// # Safety
/// As the driver's function of this name; so for all functions here.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuMemGetInfo_v2(free: *mut usize, total: *mut usize) -> CUresult {
    // SAFETY: the entry point's type, the caller's arguments; so for all calls of `real` here.
    let result = unsafe { real::<CuMemGetInfoV2>(index::cuMemGetInfo_v2)(free, total) };
    if result == CUDA_SUCCESS
        && let Some(place) = crate::PROCESS.place()
    {
        pools::waited();
        // SAFETY: the driver succeeded, so both are valid.
        unsafe {
            let (free_bytes, total_bytes) =
                memory::visible(&place.region, crate::PROCESS.current_gpu(place), *free as u64);
            (*free, *total) = (free_bytes as usize, total_bytes as usize);
        }
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

/// Writes `bytes` to `place` as CUDA 2 has them, with 32 bits: as many as these can say.
///
/// # Safety
/// Null, or a place for the answer.
unsafe fn say_32_bits(place: *mut c_uint, bytes: usize) -> CUresult {
    // SAFETY: the caller's promise.
    let Some(place) = (unsafe { place.as_mut() }) else { return CUDA_ERROR_INVALID_VALUE };
    *place = c_uint::try_from(bytes).unwrap_or(c_uint::MAX);
    CUDA_SUCCESS
}

/// As [`cuMemGetInfo_v2`], in 32 bits.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuMemGetInfo(free: *mut c_uint, total: *mut c_uint) -> CUresult {
    let (mut free_bytes, mut total_bytes) = (0, 0);
    // SAFETY: live places for the answers; the caller's are null or places for them.
    unsafe {
        match cuMemGetInfo_v2(&mut free_bytes, &mut total_bytes) {
            CUDA_SUCCESS => say_32_bits(free, free_bytes).max(say_32_bits(total, total_bytes)),
            failed => failed,
        }
    }
}

/// As [`cuDeviceTotalMem_v2`], in 32 bits.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuDeviceTotalMem(total: *mut c_uint, device: CUdevice) -> CUresult {
    let mut total_bytes = 0;
    // SAFETY: see cuMemGetInfo.
    unsafe {
        match cuDeviceTotalMem_v2(&mut total_bytes, device) {
            CUDA_SUCCESS => say_32_bits(total, total_bytes),
            failed => failed,
        }
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

/// Charged.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuMemAlloc_v2(pointer: *mut CUdeviceptr, size: usize) -> CUresult {
    // SAFETY: see cuMemGetInfo_v2.
    held(Kind::Memory, Call::MemAlloc, pointer, size as u64, || unsafe {
        real::<CuMemAllocV2>(index::cuMemAlloc_v2)(pointer, size)
    })
}

/// Charged with rows padded as every GPU so far pads them.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuMemAllocPitch_v2(
    pointer: *mut CUdeviceptr,
    pitch: *mut usize,
    width: usize,
    height: usize,
    element: c_uint,
) -> CUresult {
    let row = (width as u64).saturating_add(PITCH_ALIGNMENT - 1) / PITCH_ALIGNMENT * PITCH_ALIGNMENT;
    inexact();
    held(Kind::Memory, Call::MemAllocPitch, pointer, row.saturating_mul(height as u64), || {
        // SAFETY: see cuMemGetInfo_v2.
        unsafe { real::<CuMemAllocPitchV2>(index::cuMemAllocPitch_v2)(pointer, pitch, width, height, element) }
    })
}

/// Charged in full: managed memory may all be on the device.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuMemAllocManaged(pointer: *mut CUdeviceptr, size: usize, flags: c_uint) -> CUresult {
    inexact();
    // SAFETY: see cuMemGetInfo_v2.
    held(Kind::Memory, Call::MemAllocManaged, pointer, size as u64, || unsafe {
        real::<CuMemAllocManaged>(index::cuMemAllocManaged)(pointer, size, flags)
    })
}

/// Takes the charge back.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuMemFree_v2(pointer: CUdeviceptr) -> CUresult {
    // SAFETY: see cuMemGetInfo_v2.
    freed(pointer, || unsafe { real::<CuMemFreeV2>(index::cuMemFree_v2)(pointer) })
}

/// A CUDA device ordinal is a C int in every entry point.
const _: () = assert!(size_of::<CUdevice>() == size_of::<c_int>());
