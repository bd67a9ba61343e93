//! Arrays: opaque images in device memory. They only take their bytes here; nothing can be copied to or from them.

use crate::driver::{Driver, Outcome, code, driver, lost, put};
use crate::objects::Array;
use gpool_driver_abi::cuda::*;
use std::ffi::c_uint;

/// The sides of an array's smallest block: 64 bytes of 8 rows. Source: the block-linear layout in NVIDIA's
/// open-gpu-doc, "GOB".
const BLOCK_WIDTH_BYTES: u64 = 64;
const BLOCK_ROWS: u64 = 8;

/// The formats that arrays can have here, with the bytes of one channel.
fn channel_bytes(format: CUarray_format) -> Outcome<u64> {
    match format {
        0x01 | 0x08 => Ok(1),
        0x02 | 0x09 | 0x10 => Ok(2),
        0x03 | 0x0a | 0x20 => Ok(4),
        _ => Err(CUDA_ERROR_INVALID_VALUE),
    }
}

/// What one level takes.
fn level_bytes(descriptor: &CUDA_ARRAY3D_DESCRIPTOR, level: u32) -> Outcome<u64> {
    let shrunk = |side: usize| (side as u64 >> level).max(1);
    let is_layered = descriptor.Flags & (CUDA_ARRAY3D_LAYERED | CUDA_ARRAY3D_CUBEMAP) != 0;
    let layers = if is_layered { descriptor.Depth.max(1) as u64 } else { shrunk(descriptor.Depth) };
    let element = channel_bytes(descriptor.Format)? * u64::from(descriptor.NumChannels);
    let row = shrunk(descriptor.Width).checked_mul(element).map(|row| row.next_multiple_of(BLOCK_WIDTH_BYTES));
    let rows = shrunk(descriptor.Height).next_multiple_of(BLOCK_ROWS);
    row.and_then(|row| row.checked_mul(rows)?.checked_mul(layers)).ok_or(CUDA_ERROR_INVALID_VALUE)
}

fn create(driver: &Driver, descriptor: &CUDA_ARRAY3D_DESCRIPTOR, levels: Option<u32>) -> Outcome<usize> {
    let is_mapped_later = descriptor.Flags & (CUDA_ARRAY3D_SPARSE | CUDA_ARRAY3D_DEFERRED_MAPPING) != 0;
    if descriptor.Width == 0 || !matches!(descriptor.NumChannels, 1 | 2 | 4) || is_mapped_later {
        return Err(CUDA_ERROR_INVALID_VALUE);
    }
    // There are no more levels than halvings of the longest side.
    let longest = descriptor.Width.max(descriptor.Height).max(descriptor.Depth);
    let count = levels.unwrap_or(1).clamp(1, longest.ilog2() + 1);
    let bytes = (0..count).try_fold(0, |sum: u64, level| {
        sum.checked_add(level_bytes(descriptor, level)?).ok_or(CUDA_ERROR_INVALID_VALUE)
    })?;
    let mut objects = driver.objects();
    let (context, found) = objects.current()?;
    let place = found.place;
    let made = driver.store(place)?.update(|device, now_ns| device.allocate(now_ns, place.id, bytes));
    made.map_err(lost)?.map_err(|_| CUDA_ERROR_OUT_OF_MEMORY)?;
    let handle = objects.new_handle();
    objects.arrays.insert(handle, Array { bytes, context, is_mipmapped: levels.is_some() });
    Ok(handle)
}

fn destroy(driver: &Driver, array: CUarray, is_mipmapped: bool) -> Outcome {
    let mut objects = driver.objects();
    let handle = array as usize;
    if objects.arrays.get(&handle).is_none_or(|found| found.is_mipmapped != is_mipmapped) {
        return Err(CUDA_ERROR_INVALID_HANDLE);
    }
    let gone = objects.arrays.remove(&handle).ok_or(CUDA_ERROR_INVALID_HANDLE)?;
    let place = objects.contexts.get(&gone.context).ok_or(CUDA_ERROR_CONTEXT_IS_DESTROYED)?.place;
    driver.store(place)?.update(|device, now_ns| device.free(now_ns, place.id, gone.bytes)).map_err(lost)
}

/// # Safety
///
/// Both are NULL or valid.
unsafe fn create_into(
    array: *mut CUarray,
    descriptor: *const CUDA_ARRAY3D_DESCRIPTOR,
    levels: Option<u32>,
) -> CUresult {
    code(|| {
        let driver = driver()?;
        // SAFETY: as this function's caller promises.
        let descriptor = unsafe { descriptor.as_ref() }.ok_or(CUDA_ERROR_INVALID_VALUE)?;
        if array.is_null() {
            return Err(CUDA_ERROR_INVALID_VALUE);
        }
        // SAFETY: not NULL, so valid as this function's caller promises.
        unsafe { put(array, create(driver, descriptor, levels)? as CUarray) }
    })
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuArrayCreate_v2(array: *mut CUarray, descriptor: *const CUDA_ARRAY_DESCRIPTOR) -> CUresult {
    // SAFETY: NULL or valid, as the API demands of its caller.
    let Some(flat) = (unsafe { descriptor.as_ref() }) else { return CUDA_ERROR_INVALID_VALUE };
    let CUDA_ARRAY_DESCRIPTOR { Width, Height, Format, NumChannels } = *flat;
    let descriptor = CUDA_ARRAY3D_DESCRIPTOR { Width, Height, Depth: 0, Format, NumChannels, Flags: 0 };
    // SAFETY: the same contract for `array`; the descriptor is live.
    unsafe { create_into(array, &descriptor, None) }
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuArray3DCreate_v2(
    array: *mut CUarray,
    descriptor: *const CUDA_ARRAY3D_DESCRIPTOR,
) -> CUresult {
    // SAFETY: the same contract.
    unsafe { create_into(array, descriptor, None) }
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuMipmappedArrayCreate(
    array: *mut CUarray,
    descriptor: *const CUDA_ARRAY3D_DESCRIPTOR,
    levels: c_uint,
) -> CUresult {
    // SAFETY: the same contract.
    unsafe { create_into(array, descriptor, Some(levels)) }
}

#[unsafe(no_mangle)]
pub extern "C" fn cuArrayDestroy(array: CUarray) -> CUresult {
    code(|| destroy(driver()?, array, false))
}

#[unsafe(no_mangle)]
pub extern "C" fn cuMipmappedArrayDestroy(array: CUarray) -> CUresult {
    code(|| destroy(driver()?, array, true))
}
