//! Device memory: address space without pages until somebody writes, accounted on the device.

use crate::capture;
use crate::context::why_gone;
use crate::driver::{Driver, Outcome, code, driver, lost, put};
use crate::graph_memory;
use crate::objects::Allocation;
use crate::pool;
use crate::sharing;
use gpool_driver_abi::cuda::*;
use std::ffi::{c_uint, c_void};
use std::ptr::null_mut;

const PITCH_BYTES: usize = 512;

/// A range of addresses.
pub(crate) fn map(bytes: usize) -> Option<u64> {
    let protection = libc::PROT_READ | libc::PROT_WRITE;
    let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE;
    // SAFETY: a new anonymous mapping, which touches nothing that exists.
    let address = unsafe { libc::mmap(null_mut(), bytes, protection, flags, -1, 0) };
    (address != libc::MAP_FAILED).then_some(address as u64)
}

/// Gives back what [`map`] made.
pub(crate) fn unmap(address: u64, bytes: usize) {
    // SAFETY: the range is one that `map` returned and that has just left the table of allocations.
    unsafe { libc::munmap(address as *mut c_void, bytes) };
}

fn allocate(driver: &Driver, bytes: usize, is_managed: bool) -> Outcome<CUdeviceptr> {
    if bytes == 0 {
        return Err(CUDA_ERROR_INVALID_VALUE);
    }
    let mut objects = driver.objects();
    let (context, found) = objects.current()?;
    let place = found.place;
    capture::refuse_unsafe(&mut objects)?;
    let (store, id) = (driver.store(place)?, place.id);
    let reserved = store.update(|device, now_ns| match device.has_context(id) {
        true => device.allocate(now_ns, id, bytes as u64).map_err(|_| CUDA_ERROR_OUT_OF_MEMORY),
        false => Err(why_gone(device, id)),
    });
    reserved.map_err(lost)??;
    let Some(address) = map(bytes) else {
        store.update(|device, now_ns| device.free(now_ns, id, bytes as u64)).map_err(lost)?;
        return Err(CUDA_ERROR_OUT_OF_MEMORY);
    };
    let managed = is_managed.then(|| driver.unmovable());
    objects
        .allocations
        .insert(address, Allocation { bytes, context, pool: None, share: None, is_view: false, _managed: managed });
    Ok(address)
}

/// Frees an allocation, whatever made it.
pub(crate) fn free(driver: &Driver, address: CUdeviceptr) -> Outcome {
    if address == 0 {
        return Ok(());
    }
    let mut objects = driver.objects();
    capture::refuse_unsafe(&mut objects)?;
    if let Some(freed) = graph_memory::free(&mut objects, address) {
        return freed;
    }
    let allocation = objects.allocations.remove(&address).ok_or(CUDA_ERROR_INVALID_VALUE)?;
    unmap(address, allocation.bytes);
    if let Some(pool) = allocation.pool {
        return pool::freed(driver, &mut objects, pool, allocation.bytes as u64, allocation.share);
    }
    if allocation.is_view {
        return Ok(());
    }
    if let Some(share) = allocation.share {
        return sharing::leave(driver, share);
    }
    if let Some(context) = objects.contexts.get(&allocation.context) {
        let (place, bytes) = (context.place, allocation.bytes as u64);
        driver.store(place)?.update(|device, now_ns| device.free(now_ns, place.id, bytes)).map_err(lost)?;
    }
    Ok(())
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuMemGetInfo_v2(free: *mut usize, total: *mut usize) -> CUresult {
    code(|| {
        let driver = driver()?;
        let device = driver.objects().current()?.1.place.device;
        let gpu = driver.gpu(device)?;
        // Within a limit of its cgroup a process sees that.
        let owner = &driver.identity().owner;
        let seen = gpu.store.read(|device| (device.memory_free_for(owner), device.memory_limit(owner)));
        let (free_bytes, limit) = seen.map_err(lost)?;
        let total_bytes = limit.map_or(u64::MAX, |limit| limit.hard_bytes).min(gpu.parameters.memory_bytes);
        // SAFETY: NULL or valid, as the API demands of its caller.
        unsafe {
            put(free, free_bytes as usize)?;
            put(total, total_bytes as usize)
        }
    })
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuMemAlloc_v2(address: *mut CUdeviceptr, bytes: usize) -> CUresult {
    code(|| {
        let driver = driver()?;
        if address.is_null() {
            return Err(CUDA_ERROR_INVALID_VALUE);
        }
        // SAFETY: not NULL, and valid as the API demands of its caller.
        unsafe { put(address, allocate(driver, bytes, false)?) }
    })
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuMemAllocPitch_v2(
    address: *mut CUdeviceptr,
    pitch: *mut usize,
    width: usize,
    height: usize,
    element: c_uint,
) -> CUresult {
    let rounded = width.checked_next_multiple_of(PITCH_BYTES);
    let Some((row, bytes)) = rounded.and_then(|row| Some((row, row.checked_mul(height)?))) else {
        return CUDA_ERROR_INVALID_VALUE;
    };
    if pitch.is_null() || !matches!(element, 4 | 8 | 16) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    // SAFETY: the same contract for `address`; `pitch` is not NULL, and valid as the API demands of its caller.
    unsafe {
        let result = cuMemAlloc_v2(address, bytes);
        if result == CUDA_SUCCESS {
            pitch.write(row);
        }
        result
    }
}

/// Managed memory is device memory here; nothing migrates. A process that has some cannot be suspended.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuMemAllocManaged(address: *mut CUdeviceptr, bytes: usize, flags: c_uint) -> CUresult {
    code(|| {
        let driver = driver()?;
        if address.is_null() || !matches!(flags, CU_MEM_ATTACH_GLOBAL | CU_MEM_ATTACH_HOST) {
            return Err(CUDA_ERROR_INVALID_VALUE);
        }
        // SAFETY: not NULL, and valid as the API demands of its caller.
        unsafe { put(address, allocate(driver, bytes, true)?) }
    })
}

#[unsafe(no_mangle)]
pub extern "C" fn cuMemFree_v2(address: CUdeviceptr) -> CUresult {
    code(|| free(driver()?, address))
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuMemGetAddressRange_v2(
    base: *mut CUdeviceptr,
    bytes: *mut usize,
    address: CUdeviceptr,
) -> CUresult {
    code(|| {
        let found = driver()?.objects().holding(address).ok_or(CUDA_ERROR_NOT_FOUND)?;
        if !base.is_null() {
            // SAFETY: not NULL, and valid as the API demands of its caller.
            unsafe { put(base, found.0) }?;
        }
        if !bytes.is_null() {
            // SAFETY: as above.
            unsafe { put(bytes, found.1) }?;
        }
        Ok(())
    })
}
