//! What is behind an address, several things at a time. Managed memory is device memory here, and shows as such.

use crate::driver::{Outcome, code, driver, put};
use crate::host_memory;
use crate::objects::Objects;
use gpool_driver_abi::cuda::*;
use std::ffi::{c_int, c_uint, c_void};

/// A value as wide as the attribute is.
enum Value {
    Word(u32),
    Long(u64),
}

/// The attribute of an address; zeroes, and no device, for one that is nothing to the driver.
fn attribute(objects: &Objects, attribute: c_int, address: CUdeviceptr) -> Outcome<Value> {
    let device = objects.holding(address);
    let host = host_memory::holding(&objects.host_memory, address as usize);
    let range = device.or(host.map(|(first, bytes)| (first as CUdeviceptr, bytes)));
    let allocation = device.and_then(|(base, _)| objects.allocations.get(&base));
    let pool = allocation.and_then(|found| objects.pools.get(&found.pool?));
    let variable = device.and_then(|(base, _)| objects.statics.get(&base));
    let context = allocation.map(|found| found.context).or(variable.map(|found| found.context));
    let memory_type = if device.is_some() { CU_MEMORYTYPE_DEVICE } else { CU_MEMORYTYPE_HOST };
    let ordinal = || {
        let of_context = || objects.contexts.get(&context?).map(|context| context.place.device);
        pool.map(|pool| pool.device).or_else(of_context).unwrap_or(CU_DEVICE_INVALID)
    };
    Ok(match attribute {
        CU_POINTER_ATTRIBUTE_CONTEXT => Value::Long(context.filter(|_| pool.is_none()).unwrap_or(0) as u64),
        CU_POINTER_ATTRIBUTE_MEMORY_TYPE => Value::Word(range.map_or(0, |_| memory_type)),
        CU_POINTER_ATTRIBUTE_DEVICE_POINTER => Value::Long(range.map_or(0, |_| address)),
        CU_POINTER_ATTRIBUTE_HOST_POINTER => Value::Long(host.map_or(0, |_| address)),
        CU_POINTER_ATTRIBUTE_IS_MANAGED => Value::Word(0),
        CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL => Value::Word(ordinal() as u32),
        CU_POINTER_ATTRIBUTE_RANGE_START_ADDR => Value::Long(range.map_or(0, |(base, _)| base)),
        CU_POINTER_ATTRIBUTE_RANGE_SIZE => Value::Long(range.map_or(0, |(_, bytes)| bytes as u64)),
        CU_POINTER_ATTRIBUTE_MAPPED => Value::Word(range.is_some().into()),
        CU_POINTER_ATTRIBUTE_MEMPOOL_HANDLE => Value::Long(allocation.and_then(|found| found.pool).unwrap_or(0) as u64),
        _ => return Err(CUDA_ERROR_INVALID_VALUE),
    })
}

/// One attribute, of an address that is something to the driver.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuPointerGetAttribute(value: *mut c_void, asked: c_int, address: CUdeviceptr) -> CUresult {
    code(|| {
        let driver = driver()?;
        let objects = driver.objects();
        objects.reachable(address).ok_or(CUDA_ERROR_INVALID_VALUE)?;
        // SAFETY: NULL or as wide as the attribute, as the API demands of its caller.
        unsafe {
            match attribute(&objects, asked, address)? {
                Value::Word(found) => put(value.cast(), found),
                Value::Long(found) => put(value.cast(), found),
            }
        }
    })
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuPointerGetAttributes(
    count: c_uint,
    asked: *mut c_int,
    places: *mut *mut c_void,
    address: CUdeviceptr,
) -> CUresult {
    code(|| {
        let driver = driver()?;
        if asked.is_null() || places.is_null() {
            return Err(CUDA_ERROR_INVALID_VALUE);
        }
        let objects = driver.objects();
        for index in 0..count as usize {
            // SAFETY: not NULL, and both valid for `count` elements, as the API demands of its caller.
            let (asked, place) = unsafe { (*asked.add(index), *places.add(index)) };
            // SAFETY: NULL or as wide as the attribute, as the API demands of its caller.
            unsafe {
                match attribute(&objects, asked, address)? {
                    Value::Word(value) => put(place.cast(), value)?,
                    Value::Long(value) => put(place.cast(), value)?,
                }
            }
        }
        Ok(())
    })
}
