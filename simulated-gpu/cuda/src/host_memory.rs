//! Host memory that the device may use: page-locked in a real driver, plain memory here. It takes nothing of a device.

use crate::capture;
use crate::driver::{code, driver, put};
use crate::memory::{map, unmap};
use gpool_driver_abi::cuda::*;
use std::collections::BTreeMap;
use std::ffi::{c_uint, c_void};

/// A range of host memory.
pub(crate) struct Range {
    pub(crate) bytes: usize,
    /// The context with which it goes, if the driver has made it; none if the program has, and only registered it.
    context: Option<usize>,
}

/// By address.
pub(crate) type HostMemory = BTreeMap<usize, Range>;

/// The range that holds an address: where it starts and how long it is.
pub(crate) fn holding(memory: &HostMemory, address: usize) -> Option<(usize, usize)> {
    let (first, found) = memory.range(..=address).next_back()?;
    (address - first < found.bytes).then_some((*first, found.bytes))
}

/// Takes out what the driver has made in a context: address and bytes of each, to be unmapped.
pub(crate) fn leave(memory: &mut HostMemory, context: usize) -> Vec<(usize, usize)> {
    let is_its = |(_, range): &(&usize, &Range)| range.context == Some(context);
    let left: Vec<_> = memory.iter().filter(is_its).map(|(first, range)| (*first, range.bytes)).collect();
    memory.retain(|_, range| range.context != Some(context));
    left
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuMemAllocHost_v2(address: *mut *mut c_void, bytes: usize) -> CUresult {
    // SAFETY: the same contract.
    unsafe { cuMemHostAlloc(address, bytes, 0) }
}

/// Flags are accepted and make no difference. It goes with its context.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuMemHostAlloc(address: *mut *mut c_void, bytes: usize, _flags: c_uint) -> CUresult {
    code(|| {
        let driver = driver()?;
        let mut objects = driver.objects();
        let (context, _) = objects.current()?;
        capture::refuse_unsafe(&mut objects)?;
        if address.is_null() || bytes == 0 {
            return Err(CUDA_ERROR_INVALID_VALUE);
        }
        let found = map(bytes).ok_or(CUDA_ERROR_OUT_OF_MEMORY)?;
        objects.host_memory.insert(found as usize, Range { bytes, context: Some(context) });
        // SAFETY: not NULL, and valid as the API demands of its caller.
        unsafe { put(address, found as *mut c_void) }
    })
}

#[unsafe(no_mangle)]
pub extern "C" fn cuMemFreeHost(address: *mut c_void) -> CUresult {
    code(|| {
        let driver = driver()?;
        let mut objects = driver.objects();
        capture::refuse_unsafe(&mut objects)?;
        let found = objects.host_memory.get(&(address as usize)).filter(|found| found.context.is_some());
        let bytes = found.ok_or(CUDA_ERROR_INVALID_VALUE)?.bytes;
        objects.host_memory.remove(&(address as usize));
        unmap(address as u64, bytes);
        Ok(())
    })
}

#[unsafe(no_mangle)]
pub extern "C" fn cuMemHostRegister_v2(address: *mut c_void, bytes: usize, _flags: c_uint) -> CUresult {
    code(|| {
        let driver = driver()?;
        let mut objects = driver.objects();
        objects.current()?;
        if address.is_null() || bytes == 0 || objects.host_memory.contains_key(&(address as usize)) {
            return Err(CUDA_ERROR_INVALID_VALUE);
        }
        objects.host_memory.insert(address as usize, Range { bytes, context: None });
        Ok(())
    })
}

#[unsafe(no_mangle)]
pub extern "C" fn cuMemHostUnregister(address: *mut c_void) -> CUresult {
    code(|| {
        let driver = driver()?;
        let mut objects = driver.objects();
        let is_registered = objects.host_memory.get(&(address as usize)).is_some_and(|found| found.context.is_none());
        if !is_registered {
            return Err(CUDA_ERROR_INVALID_VALUE);
        }
        objects.host_memory.remove(&(address as usize));
        Ok(())
    })
}

/// Host memory has one address for host and device, as unified addressing gives it.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuMemHostGetDevicePointer_v2(
    address: *mut CUdeviceptr,
    host: *mut c_void,
    flags: c_uint,
) -> CUresult {
    code(|| {
        let driver = driver()?;
        let objects = driver.objects();
        let host = host as usize;
        let is_known = holding(&objects.host_memory, host).is_some();
        if !is_known || flags != 0 {
            return Err(CUDA_ERROR_INVALID_VALUE);
        }
        // SAFETY: NULL or valid, as the API demands of its caller.
        unsafe { put(address, host as CUdeviceptr) }
    })
}
