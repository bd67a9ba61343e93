//! Pools of another process: a descriptor names the pool, and for each allocation of it there are 64 bytes.
//!
//! What has been exported of a pool is there until the last who holds it lets go, be its pool gone or not.

use crate::driver::{code, driver, lost, put};
use crate::memory::map;
use crate::objects::{Allocation, Pool, Shared};
use crate::pool::GRANULARITY_BYTES;
use crate::sharing::Ticket;
use gpool_device_model::ShareId;
use gpool_driver_abi::cuda::*;
use std::ffi::{c_int, c_uint, c_ulonglong, c_void};

/// Stands in the descriptor of a pool, where that of memory names a piece; no piece has this number.
const NO_PIECE: ShareId = ShareId(0);

#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuMemPoolExportToShareableHandle(
    shareable: *mut c_void,
    pool: CUmemoryPool,
    kind: c_uint,
    _flags: c_ulonglong,
) -> CUresult {
    code(|| {
        let driver = driver()?;
        let objects = driver.objects();
        let found = objects.pools.get(&(pool as usize)).filter(|found| !found.is_imported && !found.is_destroyed);
        let device = found.ok_or(CUDA_ERROR_INVALID_VALUE)?.device;
        if kind != CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR {
            return Err(CUDA_ERROR_NOT_SUPPORTED);
        }
        let ticket = Ticket::new(driver, Shared { device, id: NO_PIECE }, 0)?;
        // SAFETY: NULL or valid, as the API demands of its caller for this kind.
        unsafe { put(shareable.cast(), ticket.into_descriptor()?) }
    })
}

/// The descriptor is passed as the pointer.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuMemPoolImportFromShareableHandle(
    pool: *mut CUmemoryPool,
    shareable: *mut c_void,
    kind: c_uint,
    _flags: c_ulonglong,
) -> CUresult {
    code(|| {
        let driver = driver()?;
        if pool.is_null() || kind != CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR {
            return Err(CUDA_ERROR_INVALID_VALUE);
        }
        let device = Ticket::of_descriptor(shareable as usize as c_int)?.device(driver)?;
        let mut objects = driver.objects();
        let handle = objects.new_handle();
        let imported = Pool { device, reserved: 0, used: 0, threshold: 0, is_destroyed: false, is_imported: true };
        objects.pools.insert(handle, imported);
        // SAFETY: not NULL, and valid as the API demands of its caller.
        unsafe { put(pool, handle as CUmemoryPool) }
    })
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuMemPoolExportPointer(data: *mut CUmemPoolPtrExportData, address: CUdeviceptr) -> CUresult {
    code(|| {
        let driver = driver()?;
        let mut objects = driver.objects();
        let found = objects.allocations.get(&address).ok_or(CUDA_ERROR_INVALID_VALUE)?;
        let (bytes, shared) = ((found.bytes as u64).next_multiple_of(GRANULARITY_BYTES), found.share);
        let pool = found.pool.and_then(|handle| objects.pools.get(&handle)).filter(|pool| !pool.is_imported);
        let device = pool.ok_or(CUDA_ERROR_INVALID_VALUE)?.device;
        let share = match shared {
            Some(share) => share,
            None => {
                let process = driver.identity().host_pid;
                let made = driver.gpu(device)?.store.update(|device, now_ns| device.share(now_ns, process, bytes));
                Shared { device, id: made.map_err(lost)?.ok_or(CUDA_ERROR_INVALID_VALUE)? }
            }
        };
        if let Some(found) = objects.allocations.get_mut(&address) {
            found.share = Some(share);
        }
        // SAFETY: NULL or valid, as the API demands of its caller.
        unsafe { put(data, CUmemPoolPtrExportData { reserved: Ticket::new(driver, share, bytes)?.0 }) }
    })
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuMemPoolImportPointer(
    address: *mut CUdeviceptr,
    pool: CUmemoryPool,
    data: *mut CUmemPoolPtrExportData,
) -> CUresult {
    code(|| {
        let driver = driver()?;
        // SAFETY: NULL or valid, as the API demands of its caller.
        let data = unsafe { data.as_ref() }.ok_or(CUDA_ERROR_INVALID_VALUE)?;
        let (handle, mut objects) = (pool as usize, driver.objects());
        let is_imported = objects.pools.get(&handle).is_some_and(|found| found.is_imported && !found.is_destroyed);
        if !is_imported || address.is_null() {
            return Err(CUDA_ERROR_INVALID_VALUE);
        }
        let context = objects.current()?.0;
        let (share, bytes) = Ticket(data.reserved).redeem(driver)?;
        let bytes = bytes as usize;
        let shown = map(bytes).ok_or(CUDA_ERROR_OUT_OF_MEMORY)?;
        let opened =
            Allocation { bytes, context, pool: Some(handle), share: Some(share), is_view: false, _managed: None };
        objects.allocations.insert(shown, opened);
        // SAFETY: not NULL, and valid as the API demands of its caller.
        unsafe { put(address, shown) }
    })
}
