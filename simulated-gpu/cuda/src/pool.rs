//! Pools: device memory that is taken in large pieces, handed out in stream order, and kept after a free.
//!
//! What is handed out takes effect at once, not in the order of the stream. A pool belongs to a device and outlives
//! contexts, as NVIDIA's do.

use crate::capture;
use crate::driver::{Driver, Outcome, code, driver, lost, put};
use crate::graph_memory;
use crate::memory::{free, map};
use crate::objects::{Allocation, Objects, Pool, Shared};
use crate::sharing;
use gpool_driver_abi::cuda::*;
use std::ffi::c_void;

/// A pool takes this much from the device at a time. Its real size is not documented; this one is large enough to
/// tell what a pool holds from what is allocated of it.
pub(crate) const PIECE_BYTES: u64 = 32 << 20;
pub(crate) const GRANULARITY_BYTES: u64 = 512;
/// The handle of the first device's default pool; others are 16 apart, like all handles.
const DEFAULT_POOL: usize = 0x5000_0000;

fn default_pool(driver: &Driver, objects: &mut Objects, device: CUdevice) -> Outcome<usize> {
    driver.gpu(device)?;
    let handle = DEFAULT_POOL + 16 * device as usize;
    objects.pools.entry(handle).or_insert(Pool {
        device,
        reserved: 0,
        used: 0,
        threshold: 0,
        is_destroyed: false,
        is_imported: false,
    });
    Ok(handle)
}

fn current_pool(driver: &Driver, objects: &mut Objects, device: CUdevice) -> Outcome<usize> {
    match objects.current_pools.get(&device) {
        Some(handle) => Ok(*handle),
        None => default_pool(driver, objects, device),
    }
}

/// Gives pieces that nothing is allocated of back to the device, until `keep` bytes are left.
fn shrink(driver: &Driver, pool: &mut Pool, keep: u64) -> Outcome {
    let kept = pool.used.max(keep.min(pool.reserved)).next_multiple_of(PIECE_BYTES).min(pool.reserved);
    let (process, bytes) = (driver.identity().host_pid, pool.reserved - kept);
    pool.reserved = kept;
    if bytes == 0 {
        return Ok(());
    }
    driver.gpu(pool.device)?.store.update(|device, now_ns| device.free_physical(now_ns, process, bytes)).map_err(lost)
}

/// What every synchronisation does: pools give back what is above their threshold.
pub(crate) fn synchronized(driver: &Driver) -> Outcome {
    driver.objects().pools.values_mut().try_for_each(|pool| shrink(driver, pool, pool.threshold))
}

fn allocate(driver: &Driver, objects: &mut Objects, handle: usize, bytes: usize) -> Outcome<CUdeviceptr> {
    let (context, _) = objects.current()?;
    capture::refuse_unsafe(objects)?;
    let pool = objects
        .pools
        .get_mut(&handle)
        .filter(|pool| !pool.is_destroyed && !pool.is_imported)
        .ok_or(CUDA_ERROR_INVALID_VALUE)?;
    let taken = (bytes as u64).checked_next_multiple_of(GRANULARITY_BYTES).filter(|taken| *taken > 0);
    let used = taken.and_then(|taken| pool.used.checked_add(taken)).ok_or(CUDA_ERROR_INVALID_VALUE)?;
    let growth = used.saturating_sub(pool.reserved).next_multiple_of(PIECE_BYTES);
    if growth > 0 {
        let identity = driver.identity();
        let store = &driver.gpu(pool.device)?.store;
        let grown =
            store.update(|device, now_ns| device.allocate_physical(now_ns, identity.host_pid, &identity.owner, growth));
        grown.map_err(lost)?.map_err(|_| CUDA_ERROR_OUT_OF_MEMORY)?;
        pool.reserved += growth;
    }
    let address = map(bytes).ok_or(CUDA_ERROR_OUT_OF_MEMORY)?;
    pool.used = used;
    objects.allocations.insert(
        address,
        Allocation { bytes, context, pool: Some(handle), share: None, is_view: false, _managed: None },
    );
    Ok(address)
}

/// An allocation of `bytes` went back to its pool. What others may hold too leaves the pool with it.
pub(crate) fn freed(
    driver: &Driver,
    objects: &mut Objects,
    handle: usize,
    bytes: u64,
    share: Option<Shared>,
) -> Outcome {
    if let Some(share) = share {
        sharing::leave(driver, share)?;
    }
    let pool = objects.pools.get_mut(&handle).ok_or(CUDA_ERROR_INVALID_VALUE)?;
    if !pool.is_imported {
        let taken = bytes.next_multiple_of(GRANULARITY_BYTES);
        pool.used -= taken;
        pool.reserved -= if share.is_some() { taken } else { 0 };
    }
    if pool.is_destroyed && pool.used == 0 && !pool.is_imported {
        shrink(driver, pool, 0)?;
        objects.pools.remove(&handle);
    }
    Ok(())
}

/// # Safety
///
/// `address` is NULL or valid for a write.
unsafe fn allocate_into(
    address: *mut CUdeviceptr,
    bytes: usize,
    pool: Option<CUmemoryPool>,
    stream: CUstream,
) -> CUresult {
    code(|| {
        let driver = driver()?;
        if address.is_null() {
            return Err(CUDA_ERROR_INVALID_VALUE);
        }
        let mut objects = driver.objects();
        let device = objects.current()?.1.place.device;
        let handle = match pool {
            Some(pool) => pool as usize,
            None => current_pool(driver, &mut objects, device)?,
        };
        let allocated = match graph_memory::capturing(&objects, stream)? {
            Some(stream) => graph_memory::captured(&mut objects, stream, handle, bytes)?,
            None => allocate(driver, &mut objects, handle, bytes)?,
        };
        // SAFETY: not NULL, so valid as this function's caller promises.
        unsafe { put(address, allocated) }
    })
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuMemAllocAsync(address: *mut CUdeviceptr, bytes: usize, stream: CUstream) -> CUresult {
    // SAFETY: the same contract.
    unsafe { allocate_into(address, bytes, None, stream) }
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuMemAllocAsync_ptsz(address: *mut CUdeviceptr, bytes: usize, stream: CUstream) -> CUresult {
    // SAFETY: the same contract.
    unsafe { allocate_into(address, bytes, None, stream) }
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuMemAllocFromPoolAsync(
    address: *mut CUdeviceptr,
    bytes: usize,
    pool: CUmemoryPool,
    stream: CUstream,
) -> CUresult {
    // SAFETY: the same contract.
    unsafe { allocate_into(address, bytes, Some(pool), stream) }
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuMemAllocFromPoolAsync_ptsz(
    address: *mut CUdeviceptr,
    bytes: usize,
    pool: CUmemoryPool,
    stream: CUstream,
) -> CUresult {
    // SAFETY: the same contract.
    unsafe { allocate_into(address, bytes, Some(pool), stream) }
}

/// Frees, or writes down that it is freed while the stream captures.
fn free_on(driver: &Driver, address: CUdeviceptr, stream: CUstream) -> Outcome {
    let mut objects = driver.objects();
    if let Some(stream) = graph_memory::capturing(&objects, stream)? {
        return graph_memory::captured_free(&mut objects, stream, address);
    }
    drop(objects);
    free(driver, address)
}

#[unsafe(no_mangle)]
pub extern "C" fn cuMemFreeAsync(address: CUdeviceptr, stream: CUstream) -> CUresult {
    code(|| free_on(driver()?, address, stream))
}

#[unsafe(no_mangle)]
pub extern "C" fn cuMemFreeAsync_ptsz(address: CUdeviceptr, stream: CUstream) -> CUresult {
    code(|| free_on(driver()?, address, stream))
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuDeviceGetDefaultMemPool(pool: *mut CUmemoryPool, device: CUdevice) -> CUresult {
    code(|| {
        let driver = driver()?;
        let handle = default_pool(driver, &mut driver.objects(), device)?;
        // SAFETY: NULL or valid, as the API demands of its caller.
        unsafe { put(pool, handle as CUmemoryPool) }
    })
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuDeviceGetMemPool(pool: *mut CUmemoryPool, device: CUdevice) -> CUresult {
    code(|| {
        let driver = driver()?;
        let handle = current_pool(driver, &mut driver.objects(), device)?;
        // SAFETY: NULL or valid, as the API demands of its caller.
        unsafe { put(pool, handle as CUmemoryPool) }
    })
}

#[unsafe(no_mangle)]
pub extern "C" fn cuDeviceSetMemPool(device: CUdevice, pool: CUmemoryPool) -> CUresult {
    code(|| {
        let driver = driver()?;
        let mut objects = driver.objects();
        default_pool(driver, &mut objects, device)?;
        let handle = pool as usize;
        let found = objects.pools.get(&handle).filter(|found| found.device == device && !found.is_destroyed);
        found.ok_or(CUDA_ERROR_INVALID_VALUE)?;
        objects.current_pools.insert(device, handle);
        Ok(())
    })
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuMemPoolCreate(pool: *mut CUmemoryPool, properties: *const CUmemPoolProps) -> CUresult {
    code(|| {
        let driver = driver()?;
        // SAFETY: NULL or valid, as the API demands of its caller.
        let properties = unsafe { properties.as_ref() }.ok_or(CUDA_ERROR_INVALID_VALUE)?;
        if properties.location.kind != CU_MEM_LOCATION_TYPE_DEVICE {
            return Err(CUDA_ERROR_INVALID_VALUE);
        }
        let device = properties.location.id;
        driver.gpu(device)?;
        let mut objects = driver.objects();
        let handle = objects.new_handle();
        // SAFETY: NULL or valid, as the API demands of its caller.
        unsafe { put(pool, handle as CUmemoryPool) }?;
        objects.pools.insert(
            handle,
            Pool { device, reserved: 0, used: 0, threshold: 0, is_destroyed: false, is_imported: false },
        );
        Ok(())
    })
}

/// What is still allocated of it stays until it is freed.
#[unsafe(no_mangle)]
pub extern "C" fn cuMemPoolDestroy(pool: CUmemoryPool) -> CUresult {
    code(|| {
        let driver = driver()?;
        let (mut objects, handle) = (driver.objects(), pool as usize);
        let found = objects.pools.get_mut(&handle).filter(|_| handle >= 0x7000_0000);
        let found = found.ok_or(CUDA_ERROR_INVALID_VALUE)?;
        (found.is_destroyed, found.threshold) = (true, 0);
        shrink(driver, found, 0)?;
        if found.used == 0 {
            objects.pools.remove(&handle);
        }
        objects.current_pools.retain(|_, current| *current != handle);
        Ok(())
    })
}

#[unsafe(no_mangle)]
pub extern "C" fn cuMemPoolTrimTo(pool: CUmemoryPool, keep: usize) -> CUresult {
    code(|| {
        let driver = driver()?;
        let mut objects = driver.objects();
        let found = objects.pools.get_mut(&(pool as usize)).ok_or(CUDA_ERROR_INVALID_VALUE)?;
        shrink(driver, found, keep as u64)
    })
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuMemPoolGetAttribute(
    pool: CUmemoryPool,
    attribute: CUmemPool_attribute,
    value: *mut c_void,
) -> CUresult {
    code(|| {
        let objects = driver()?.objects();
        let found = objects.pools.get(&(pool as usize)).ok_or(CUDA_ERROR_INVALID_VALUE)?;
        let answer = match attribute {
            CU_MEMPOOL_ATTR_RELEASE_THRESHOLD => found.threshold,
            CU_MEMPOOL_ATTR_RESERVED_MEM_CURRENT => found.reserved,
            CU_MEMPOOL_ATTR_USED_MEM_CURRENT => found.used,
            _ => return Err(CUDA_ERROR_INVALID_VALUE),
        };
        // SAFETY: NULL or valid for these attributes' eight bytes, as the API demands of its caller.
        unsafe { put(value.cast(), answer) }
    })
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuMemPoolSetAttribute(
    pool: CUmemoryPool,
    attribute: CUmemPool_attribute,
    value: *mut c_void,
) -> CUresult {
    code(|| {
        let mut objects = driver()?.objects();
        let found = objects.pools.get_mut(&(pool as usize)).ok_or(CUDA_ERROR_INVALID_VALUE)?;
        if attribute != CU_MEMPOOL_ATTR_RELEASE_THRESHOLD || value.is_null() {
            return Err(CUDA_ERROR_INVALID_VALUE);
        }
        // SAFETY: not NULL, and valid for this attribute's eight bytes as the API demands of its caller.
        found.threshold = unsafe { value.cast::<u64>().read_unaligned() };
        Ok(())
    })
}
