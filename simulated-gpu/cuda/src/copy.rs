//! Copies and memsets. Bytes move when the work is queued, which nobody can tell from later: kernels compute nothing,
//! and who looks at memory before its stream has been waited for may find anything there.

use crate::context::synchronize_current;
use crate::driver::{Driver, Outcome, code, driver};
use crate::launch::{Work, submit};
use crate::objects::Node;
use crate::transfer::{End, Pattern, Transfer};
use gpool_driver_abi::cuda::*;
use std::ffi::{c_uchar, c_uint, c_void};
use std::ptr::null_mut;

pub(crate) fn enqueue(driver: &Driver, transfer: Transfer, stream: CUstream) -> Outcome {
    let node = Node { gpu_time_ns: transfer.gpu_time_ns(), transfer: Some(transfer) };
    submit(driver, stream, Work::Nodes(&[node]), |_, _| Ok(()))
}

/// A copy between device and host on the default stream waits for everything before it, and is done on return. Within
/// the device the host does not wait. Source: "API synchronization behavior" of the CUDA Driver API reference.
pub(crate) fn copy(driver: &Driver, transfer: Transfer) -> Outcome {
    if transfer.gpu_time_ns().is_some() {
        return enqueue(driver, transfer, null_mut());
    }
    transfer.check(&driver.objects())?;
    synchronize_current(driver)?;
    let objects = driver.objects();
    transfer.check(&objects)?;
    // SAFETY: just checked, and the objects are still locked.
    unsafe { transfer.apply() };
    Ok(())
}

/// A copy between two addresses of either kind.
fn unified(driver: &Driver, to: CUdeviceptr, from: CUdeviceptr, bytes: usize) -> Transfer {
    let objects = driver.objects();
    Transfer::Copy { to: End::of(&objects, to), from: End::of(&objects, from), bytes }
}

fn to_device(to: CUdeviceptr, from: *const c_void, bytes: usize) -> Transfer {
    Transfer::Copy { to: End::Device(to), from: End::Host(from as usize), bytes }
}

fn to_host(to: *mut c_void, from: CUdeviceptr, bytes: usize) -> Transfer {
    Transfer::Copy { to: End::Host(to as usize), from: End::Device(from), bytes }
}

fn within_device(to: CUdeviceptr, from: CUdeviceptr, bytes: usize) -> Transfer {
    Transfer::Copy { to: End::Device(to), from: End::Device(from), bytes }
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuMemcpy(to: CUdeviceptr, from: CUdeviceptr, bytes: usize) -> CUresult {
    code(|| copy(driver()?, unified(driver()?, to, from, bytes)))
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuMemcpyHtoD_v2(to: CUdeviceptr, from: *const c_void, bytes: usize) -> CUresult {
    code(|| copy(driver()?, to_device(to, from, bytes)))
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuMemcpyDtoH_v2(to: *mut c_void, from: CUdeviceptr, bytes: usize) -> CUresult {
    code(|| copy(driver()?, to_host(to, from, bytes)))
}

#[unsafe(no_mangle)]
pub extern "C" fn cuMemcpyDtoD_v2(to: CUdeviceptr, from: CUdeviceptr, bytes: usize) -> CUresult {
    code(|| copy(driver()?, within_device(to, from, bytes)))
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuMemcpyAsync(to: CUdeviceptr, from: CUdeviceptr, bytes: usize, stream: CUstream) -> CUresult {
    code(|| enqueue(driver()?, unified(driver()?, to, from, bytes), stream))
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuMemcpyHtoDAsync_v2(
    to: CUdeviceptr,
    from: *const c_void,
    bytes: usize,
    stream: CUstream,
) -> CUresult {
    code(|| enqueue(driver()?, to_device(to, from, bytes), stream))
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuMemcpyDtoHAsync_v2(
    to: *mut c_void,
    from: CUdeviceptr,
    bytes: usize,
    stream: CUstream,
) -> CUresult {
    code(|| enqueue(driver()?, to_host(to, from, bytes), stream))
}

#[unsafe(no_mangle)]
pub extern "C" fn cuMemcpyDtoDAsync_v2(to: CUdeviceptr, from: CUdeviceptr, bytes: usize, stream: CUstream) -> CUresult {
    code(|| enqueue(driver()?, within_device(to, from, bytes), stream))
}

#[unsafe(no_mangle)]
pub extern "C" fn cuMemsetD8_v2(to: CUdeviceptr, value: c_uchar, count: usize) -> CUresult {
    cuMemsetD8Async(to, value, count, null_mut())
}

#[unsafe(no_mangle)]
pub extern "C" fn cuMemsetD8Async(to: CUdeviceptr, value: c_uchar, count: usize, stream: CUstream) -> CUresult {
    code(|| enqueue(driver()?, Transfer::Fill { to, pattern: Pattern::Byte(value), count }, stream))
}

#[unsafe(no_mangle)]
pub extern "C" fn cuMemsetD32_v2(to: CUdeviceptr, value: c_uint, count: usize) -> CUresult {
    cuMemsetD32Async(to, value, count, null_mut())
}

#[unsafe(no_mangle)]
pub extern "C" fn cuMemsetD32Async(to: CUdeviceptr, value: c_uint, count: usize, stream: CUstream) -> CUresult {
    code(|| enqueue(driver()?, Transfer::Fill { to, pattern: Pattern::Word(value), count }, stream))
}
