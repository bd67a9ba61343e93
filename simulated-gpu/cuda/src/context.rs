//! Contexts, and which one is current to a thread.

use crate::capture;
use crate::device::check;
use crate::driver::{Driver, Outcome, code, driver, lost, put};
use crate::memory::unmap;
use crate::objects::{Context, Objects};
use crate::wait::wait;
use gpool_device_model::Ticket;
use gpool_driver_abi::cuda::*;
use std::cell::RefCell;
use std::ffi::{c_int, c_uint, c_void};
use std::ptr::null_mut;

/// The handle of the device's primary context, which stays the same when it is made again.
const PRIMARY: usize = 0x6000_0000;

thread_local! {
    static STACK: RefCell<Vec<usize>> = const { RefCell::new(Vec::new()) };
}

/// The handle of the context that is current to this thread. None also while the thread ends.
pub(crate) fn current() -> Option<usize> {
    on_stack(|stack| stack.last().copied())
}

fn on_stack<T>(work: impl FnOnce(&mut Vec<usize>) -> Option<T>) -> Option<T> {
    STACK.try_with(|stack| work(&mut stack.borrow_mut())).ok().flatten()
}

fn push(handle: usize) {
    on_stack(|stack| {
        stack.push(handle);
        Some(())
    });
}

fn create(driver: &Driver, objects: &mut Objects, handle: usize) -> Outcome {
    let identity = driver.identity();
    let made = driver.store.update(|device, now_ns| device.create_context(now_ns, identity.host_pid, &identity.owner));
    let id = made.map_err(lost)?.map_err(|_| CUDA_ERROR_OUT_OF_MEMORY)?;
    objects.contexts.insert(handle, Context { id, last: Ticket(0) });
    Ok(())
}

fn destroy(driver: &Driver, objects: &mut Objects, handle: usize) -> Outcome {
    let id = objects.contexts.get(&handle).ok_or(CUDA_ERROR_INVALID_CONTEXT)?.id;
    driver.store.update(|device, now_ns| device.destroy_context(now_ns, id)).map_err(lost)?;
    for (address, bytes) in objects.forget(handle) {
        unmap(address, bytes);
    }
    on_stack(|stack| stack.pop_if(|top| *top == handle));
    Ok(())
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuCtxCreate_v2(context: *mut CUcontext, _flags: c_uint, device: CUdevice) -> CUresult {
    code(|| {
        let driver = driver()?;
        check(device)?;
        if context.is_null() {
            return Err(CUDA_ERROR_INVALID_VALUE);
        }
        let mut objects = driver.objects();
        let handle = objects.new_handle();
        create(driver, &mut objects, handle)?;
        push(handle);
        // SAFETY: not NULL, and valid as the API demands of its caller.
        unsafe { put(context, handle as CUcontext) }
    })
}

/// Execution affinity only concerns MPS, which is not simulated.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuCtxCreate_v3(
    context: *mut CUcontext,
    _affinity: *mut c_void,
    affinities: c_int,
    flags: c_uint,
    device: CUdevice,
) -> CUresult {
    if affinities != 0 {
        return CUDA_ERROR_NOT_SUPPORTED;
    }
    // SAFETY: the same contract.
    unsafe { cuCtxCreate_v2(context, flags, device) }
}

#[unsafe(no_mangle)]
pub extern "C" fn cuCtxDestroy_v2(context: CUcontext) -> CUresult {
    code(|| {
        let driver = driver()?;
        if context as usize == PRIMARY {
            return Err(CUDA_ERROR_INVALID_CONTEXT);
        }
        destroy(driver, &mut driver.objects(), context as usize)
    })
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuDevicePrimaryCtxRetain(context: *mut CUcontext, device: CUdevice) -> CUresult {
    code(|| {
        let driver = driver()?;
        check(device)?;
        if context.is_null() {
            return Err(CUDA_ERROR_INVALID_VALUE);
        }
        let mut objects = driver.objects();
        if !objects.contexts.contains_key(&PRIMARY) {
            create(driver, &mut objects, PRIMARY)?;
        }
        objects.primary_users += 1;
        // SAFETY: not NULL, and valid as the API demands of its caller.
        unsafe { put(context, PRIMARY as CUcontext) }
    })
}

#[unsafe(no_mangle)]
pub extern "C" fn cuDevicePrimaryCtxRelease_v2(device: CUdevice) -> CUresult {
    code(|| {
        let driver = driver()?;
        check(device)?;
        let mut objects = driver.objects();
        objects.primary_users = objects.primary_users.checked_sub(1).ok_or(CUDA_ERROR_INVALID_CONTEXT)?;
        if objects.primary_users == 0 && objects.contexts.contains_key(&PRIMARY) {
            destroy(driver, &mut objects, PRIMARY)?;
        }
        Ok(())
    })
}

#[unsafe(no_mangle)]
pub extern "C" fn cuDevicePrimaryCtxReset_v2(device: CUdevice) -> CUresult {
    code(|| {
        let driver = driver()?;
        check(device)?;
        let mut objects = driver.objects();
        if objects.contexts.contains_key(&PRIMARY) {
            destroy(driver, &mut objects, PRIMARY)?;
        }
        Ok(())
    })
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuDevicePrimaryCtxGetState(
    device: CUdevice,
    flags: *mut c_uint,
    active: *mut c_int,
) -> CUresult {
    code(|| {
        let driver = driver()?;
        check(device)?;
        let objects = driver.objects();
        // SAFETY: NULL or valid, as the API demands of its caller.
        unsafe {
            put(flags, objects.primary_flags)?;
            put(active, c_int::from(objects.contexts.contains_key(&PRIMARY)))
        }
    })
}

#[unsafe(no_mangle)]
pub extern "C" fn cuDevicePrimaryCtxSetFlags_v2(device: CUdevice, flags: c_uint) -> CUresult {
    code(|| {
        let driver = driver()?;
        check(device)?;
        driver.objects().primary_flags = flags;
        Ok(())
    })
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuCtxGetCurrent(context: *mut CUcontext) -> CUresult {
    code(|| {
        driver()?;
        // SAFETY: NULL or valid, as the API demands of its caller.
        unsafe { put(context, current().map_or(null_mut(), |handle| handle as CUcontext)) }
    })
}

#[unsafe(no_mangle)]
pub extern "C" fn cuCtxSetCurrent(context: CUcontext) -> CUresult {
    code(|| {
        let driver = driver()?;
        if !context.is_null() && !driver.objects().contexts.contains_key(&(context as usize)) {
            return Err(CUDA_ERROR_INVALID_CONTEXT);
        }
        on_stack(Vec::pop);
        if !context.is_null() {
            push(context as usize);
        }
        Ok(())
    })
}

#[unsafe(no_mangle)]
pub extern "C" fn cuCtxPushCurrent_v2(context: CUcontext) -> CUresult {
    code(|| {
        let driver = driver()?;
        if !driver.objects().contexts.contains_key(&(context as usize)) {
            return Err(CUDA_ERROR_INVALID_CONTEXT);
        }
        push(context as usize);
        Ok(())
    })
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuCtxPopCurrent_v2(context: *mut CUcontext) -> CUresult {
    code(|| {
        driver()?;
        let handle = on_stack(Vec::pop).ok_or(CUDA_ERROR_INVALID_CONTEXT)?;
        if context.is_null() {
            return Ok(());
        }
        // SAFETY: not NULL, and valid as the API demands of its caller.
        unsafe { put(context, handle as CUcontext) }
    })
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuCtxGetDevice(device: *mut CUdevice) -> CUresult {
    code(|| {
        driver()?.objects().current()?;
        // SAFETY: NULL or valid, as the API demands of its caller.
        unsafe { put(device, 0) }
    })
}

#[unsafe(no_mangle)]
pub extern "C" fn cuCtxSynchronize() -> CUresult {
    code(|| synchronize_current(driver()?))
}

/// Waits for all work of the current context.
pub(crate) fn synchronize_current(driver: &Driver) -> Outcome {
    let (id, last) = {
        let mut objects = driver.objects();
        let (handle, context) = objects.current()?;
        let found = (context.id, context.last);
        capture::refuse_in_context(&mut objects, handle)?;
        found
    };
    wait(driver, id, last)
}
