//! Memory without an address, and ranges of addresses that show it.
//!
//! The model's device holds the memory as long as NVIDIA's would: until its last reference and its last mapping are
//! gone, contexts or not. Two mappings of one piece do not show the same bytes here.

use crate::driver::{Driver, Outcome, code, driver, lost, put};
use crate::memory::{map, unmap};
use crate::objects::{Mapping, Objects, Physical};
use crate::sharing;
use gpool_driver_abi::cuda::*;
use gpool_simulated_hardware::Layout;
use std::ffi::{c_int, c_ulonglong, c_void};
use std::sync::OnceLock;

/// Sizes and addresses are multiples of this.
const PAGE_BYTES: usize = 2 << 20;

fn whole_pages(bytes: usize) -> Outcome<usize> {
    if bytes > 0 && bytes.is_multiple_of(PAGE_BYTES) { Ok(bytes) } else { Err(CUDA_ERROR_INVALID_VALUE) }
}

fn create(driver: &Driver, bytes: usize, location: CUmemLocation) -> Outcome<usize> {
    whole_pages(bytes)?;
    match location.kind {
        CU_MEM_LOCATION_TYPE_DEVICE => {
            let identity = driver.identity();
            let store = &driver.gpu(location.id)?.store;
            let made = store.update(|device, now_ns| {
                device.allocate_physical(now_ns, identity.host_pid, &identity.owner, bytes as u64)
            });
            made.map_err(lost)?.map_err(|_| CUDA_ERROR_OUT_OF_MEMORY)?;
        }
        CU_MEM_LOCATION_TYPE_HOST_NUMA => {}
        _ => return Err(CUDA_ERROR_INVALID_VALUE),
    }
    let mut objects = driver.objects();
    let handle = objects.new_handle();
    objects.physical.insert(handle, Physical { bytes, location, references: 1, mappings: 0, share: None });
    Ok(handle)
}

/// Gives memory back that nothing refers to and nothing shows.
fn drop_unused(driver: &Driver, objects: &mut Objects, handle: usize) -> Outcome {
    let is_unused = |found: &Physical| found.references == 0 && found.mappings == 0;
    if !objects.physical.get(&handle).is_some_and(is_unused) {
        return Ok(());
    }
    match objects.physical.remove(&handle) {
        Some(Physical { share: Some(share), .. }) => sharing::leave(driver, share),
        Some(gone) if gone.location.kind == CU_MEM_LOCATION_TYPE_DEVICE => {
            let (process, bytes) = (driver.identity().host_pid, gone.bytes as u64);
            let store = &driver.gpu(gone.location.id)?.store;
            store.update(|device, now_ns| device.free_physical(now_ns, process, bytes)).map_err(lost)
        }
        _ => Ok(()),
    }
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuMemGetAllocationGranularity(
    granularity: *mut usize,
    _properties: *const CUmemAllocationProp,
    _option: c_int,
) -> CUresult {
    // SAFETY: NULL or valid, as the API demands of its caller.
    code(|| driver().and_then(|_| unsafe { put(granularity, PAGE_BYTES) }))
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuMemCreate(
    handle: *mut CUmemGenericAllocationHandle,
    bytes: usize,
    properties: *const CUmemAllocationProp,
    _flags: c_ulonglong,
) -> CUresult {
    code(|| {
        let driver = driver()?;
        // SAFETY: NULL or valid, as the API demands of its caller.
        let properties = unsafe { properties.as_ref() }.ok_or(CUDA_ERROR_INVALID_VALUE)?;
        if handle.is_null() || properties.kind != CU_MEM_ALLOCATION_TYPE_PINNED {
            return Err(CUDA_ERROR_INVALID_VALUE);
        }
        // SAFETY: not NULL, and valid as the API demands of its caller.
        unsafe { put(handle, create(driver, bytes, properties.location)? as CUmemGenericAllocationHandle) }
    })
}

#[unsafe(no_mangle)]
pub extern "C" fn cuMemRelease(handle: CUmemGenericAllocationHandle) -> CUresult {
    code(|| {
        let driver = driver()?;
        let (mut objects, handle) = (driver.objects(), handle as usize);
        let found = objects.physical.get_mut(&handle).ok_or(CUDA_ERROR_INVALID_VALUE)?;
        found.references = found.references.checked_sub(1).ok_or(CUDA_ERROR_INVALID_VALUE)?;
        drop_unused(driver, &mut objects, handle)
    })
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuMemRetainAllocationHandle(
    handle: *mut CUmemGenericAllocationHandle,
    address: *mut c_void,
) -> CUresult {
    code(|| {
        let mut objects = driver()?.objects();
        let (base, mapping) = objects.mappings.range(..=address as u64).next_back().ok_or(CUDA_ERROR_INVALID_VALUE)?;
        let physical = mapping.physical;
        if address as u64 - base >= mapping.bytes as u64 {
            return Err(CUDA_ERROR_INVALID_VALUE);
        }
        objects.physical.get_mut(&physical).ok_or(CUDA_ERROR_INVALID_VALUE)?.references += 1;
        // SAFETY: NULL or valid, as the API demands of its caller.
        unsafe { put(handle, physical as CUmemGenericAllocationHandle) }
    })
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuMemAddressReserve(
    address: *mut CUdeviceptr,
    bytes: usize,
    _alignment: usize,
    _wanted: CUdeviceptr,
    _flags: c_ulonglong,
) -> CUresult {
    code(|| {
        let driver = driver()?;
        let bytes = whole_pages(bytes)?;
        let longer = bytes.checked_add(PAGE_BYTES).ok_or(CUDA_ERROR_OUT_OF_MEMORY)?;
        let start = map(longer).ok_or(CUDA_ERROR_OUT_OF_MEMORY)?;
        let aligned = start.next_multiple_of(PAGE_BYTES as u64);
        let before = (aligned - start) as usize;
        if before > 0 {
            unmap(start, before);
        }
        unmap(aligned + bytes as u64, PAGE_BYTES - before);
        driver.objects().reservations.insert(aligned, bytes);
        // SAFETY: NULL or valid, as the API demands of its caller.
        unsafe { put(address, aligned) }
    })
}

#[unsafe(no_mangle)]
pub extern "C" fn cuMemAddressFree(address: CUdeviceptr, bytes: usize) -> CUresult {
    code(|| {
        let mut objects = driver()?.objects();
        let is_mapped = objects.mappings.range(address..address.saturating_add(bytes as u64)).next().is_some();
        if is_mapped || objects.reservations.get(&address) != Some(&bytes) {
            return Err(CUDA_ERROR_INVALID_VALUE);
        }
        objects.reservations.remove(&address);
        unmap(address, bytes);
        Ok(())
    })
}

/// Whether this driver maps physical memory only as a whole; it is the same for the life of a process.
fn has_whole_maps() -> bool {
    static ANSWER: OnceLock<bool> = OnceLock::new();
    *ANSWER.get_or_init(|| Layout::default().whole_maps().exists())
}

#[unsafe(no_mangle)]
pub extern "C" fn cuMemMap(
    address: CUdeviceptr,
    bytes: usize,
    offset: usize,
    handle: CUmemGenericAllocationHandle,
    _flags: c_ulonglong,
) -> CUresult {
    code(|| {
        let mut objects = driver()?.objects();
        let (bytes, physical) = (whole_pages(bytes)?, handle as usize);
        let end = address.checked_add(bytes as u64).ok_or(CUDA_ERROR_INVALID_VALUE)?;
        let reserved = objects.reservations.range(..=address).next_back();
        let is_reserved = reserved.is_some_and(|(base, length)| end <= base + *length as u64);
        let before = objects.mappings.range(..end).next_back();
        let is_mapped = before.is_some_and(|(base, mapping)| base + mapping.bytes as u64 > address);
        let found = objects.physical.get_mut(&physical).ok_or(CUDA_ERROR_INVALID_VALUE)?;
        let fits = if has_whole_maps() { bytes == found.bytes } else { bytes <= found.bytes };
        if !is_reserved || is_mapped || offset != 0 || !fits {
            return Err(CUDA_ERROR_INVALID_VALUE);
        }
        found.mappings += 1;
        objects.mappings.insert(address, Mapping { bytes, physical });
        Ok(())
    })
}

#[unsafe(no_mangle)]
pub extern "C" fn cuMemUnmap(address: CUdeviceptr, bytes: usize) -> CUresult {
    code(|| {
        let driver = driver()?;
        let mut objects = driver.objects();
        let end = address.checked_add(bytes as u64).ok_or(CUDA_ERROR_INVALID_VALUE)?;
        let pieces: Vec<(u64, usize)> =
            objects.mappings.range(address..end).map(|(base, mapping)| (*base, mapping.bytes)).collect();
        // Whole mappings, one behind the other, from the first address to the last.
        let mut next = address;
        for (base, length) in &pieces {
            if *base != next {
                return Err(CUDA_ERROR_INVALID_VALUE);
            }
            next += *length as u64;
        }
        if pieces.is_empty() || next != end {
            return Err(CUDA_ERROR_INVALID_VALUE);
        }
        for (base, _) in pieces {
            let Some(mapping) = objects.mappings.remove(&base) else { continue };
            if let Some(found) = objects.physical.get_mut(&mapping.physical) {
                found.mappings -= 1;
            }
            drop_unused(driver, &mut objects, mapping.physical)?;
        }
        Ok(())
    })
}

/// Every device has access to everything here.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuMemSetAccess(
    address: CUdeviceptr,
    _bytes: usize,
    accesses: *const CUmemAccessDesc,
    count: usize,
) -> CUresult {
    code(|| {
        let objects = driver()?.objects();
        let is_mapped = objects.mappings.contains_key(&address);
        if is_mapped && !accesses.is_null() && count > 0 { Ok(()) } else { Err(CUDA_ERROR_INVALID_VALUE) }
    })
}
