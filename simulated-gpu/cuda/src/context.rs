//! Contexts, and which one is current to a thread.

use crate::capture;
use crate::driver::{Driver, Outcome, code, code_at_once, driver, lost, put};
use crate::library;
use crate::memory::unmap;
use crate::objects::{Context, Objects, Place};
use crate::sharing;
use crate::wait::wait;
use gpool_device_model::{ClientRefusal, ContextId, Device, Loss, Ticket};
use gpool_driver_abi::cuda::*;
use gpool_simulated_hardware::MAX_DEVICES;
use std::cell::RefCell;
use std::ffi::{c_int, c_uint, c_void};
use std::ops::Range;
use std::ptr::null_mut;

/// The handle of the first device's primary context. A primary context keeps its handle when it is made again.
const PRIMARY: usize = 0x6000_0000;
/// All handles of primary contexts, 16 apart like other handles.
const PRIMARIES: Range<usize> = PRIMARY..PRIMARY + 16 * MAX_DEVICES as usize;

/// The handle of a device's primary context. Fails for a device that this process does not see.
fn primary(driver: &Driver, device: CUdevice) -> Outcome<usize> {
    driver.gpu(device)?;
    Ok(PRIMARY + 16 * device as usize)
}

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

fn create(driver: &Driver, objects: &mut Objects, handle: usize, device: CUdevice) -> Outcome {
    let (identity, gpu) = (driver.identity(), driver.gpu(device)?);
    let limits =
        driver.session().map(|session| (session.server(), session.limits(device as usize, &gpu.parameters.uuid)));
    let made = gpu.store.update(|device, now_ns| match limits {
        Some((server, limits)) => device.create_client(now_ns, identity.host_pid, &identity.owner, server, limits),
        None => {
            let made = device.create_context(now_ns, identity.host_pid, &identity.owner);
            made.map_err(ClientRefusal::OutOfMemory)
        }
    });
    let id = made.map_err(lost)?.map_err(|refusal| match refusal {
        ClientRefusal::OutOfMemory(_) => CUDA_ERROR_OUT_OF_MEMORY,
        ClientRefusal::NoServer => CUDA_ERROR_MPS_RPC_FAILURE,
        ClientRefusal::Recovering => CUDA_ERROR_MPS_SERVER_NOT_READY,
        ClientRefusal::TooMany => CUDA_ERROR_MPS_MAX_CLIENTS_REACHED,
    })?;
    objects.contexts.insert(handle, Context { place: Place { device, id }, last: Ticket(0) });
    if let Err(refused) = library::load_all_into(driver, objects, handle) {
        destroy(driver, objects, handle)?;
        return Err(refused);
    }
    Ok(())
}

fn destroy(driver: &Driver, objects: &mut Objects, handle: usize) -> Outcome {
    let place = objects.contexts.get(&handle).ok_or(CUDA_ERROR_INVALID_CONTEXT)?.place;
    driver.store(place)?.update(|device, now_ns| device.destroy_context(now_ns, place.id)).map_err(lost)?;
    for (address, bytes, share) in objects.forget(handle) {
        unmap(address, bytes);
        share.map_or(Ok(()), |share| sharing::leave(driver, share))?;
    }
    on_stack(|stack| stack.pop_if(|top| *top == handle));
    Ok(())
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuCtxCreate_v2(context: *mut CUcontext, _flags: c_uint, device: CUdevice) -> CUresult {
    code(|| {
        let driver = driver()?;
        driver.gpu(device)?;
        if context.is_null() {
            return Err(CUDA_ERROR_INVALID_VALUE);
        }
        let mut objects = driver.objects();
        let handle = objects.new_handle();
        create(driver, &mut objects, handle, device)?;
        push(handle);
        // SAFETY: not NULL, and valid as the API demands of its caller.
        unsafe { put(context, handle as CUcontext) }
    })
}

/// Why a context that the device no longer has is gone.
pub(crate) fn why_gone(device: &Device, context: ContextId) -> CUresult {
    match device.loss_of(context) {
        Some(Loss::ServerGone) => CUDA_ERROR_MPS_RPC_FAILURE,
        Some(Loss::Fault) => CUDA_ERROR_LAUNCH_FAILED,
        Some(Loss::Terminated) => CUDA_ERROR_MPS_CLIENT_TERMINATED,
        None => CUDA_ERROR_CONTEXT_IS_DESTROYED,
    }
}

/// Execution affinity only concerns MPS, of which it is not simulated.
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
        if PRIMARIES.contains(&(context as usize)) {
            return Err(CUDA_ERROR_INVALID_CONTEXT);
        }
        destroy(driver, &mut driver.objects(), context as usize)
    })
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuDevicePrimaryCtxRetain(context: *mut CUcontext, device: CUdevice) -> CUresult {
    code(|| {
        let driver = driver()?;
        let handle = primary(driver, device)?;
        if context.is_null() {
            return Err(CUDA_ERROR_INVALID_VALUE);
        }
        let mut objects = driver.objects();
        if !objects.contexts.contains_key(&handle) {
            create(driver, &mut objects, handle, device)?;
        }
        objects.primaries.entry(device).or_default().users += 1;
        // SAFETY: not NULL, and valid as the API demands of its caller.
        unsafe { put(context, handle as CUcontext) }
    })
}

#[unsafe(no_mangle)]
pub extern "C" fn cuDevicePrimaryCtxRelease_v2(device: CUdevice) -> CUresult {
    code(|| {
        let driver = driver()?;
        let handle = primary(driver, device)?;
        let mut objects = driver.objects();
        let found = objects.primaries.entry(device).or_default();
        found.users = found.users.checked_sub(1).ok_or(CUDA_ERROR_INVALID_CONTEXT)?;
        if found.users == 0 && objects.contexts.contains_key(&handle) {
            destroy(driver, &mut objects, handle)?;
        }
        Ok(())
    })
}

#[unsafe(no_mangle)]
pub extern "C" fn cuDevicePrimaryCtxReset_v2(device: CUdevice) -> CUresult {
    code(|| {
        let driver = driver()?;
        let handle = primary(driver, device)?;
        let mut objects = driver.objects();
        if objects.contexts.contains_key(&handle) {
            destroy(driver, &mut objects, handle)?;
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
        let handle = primary(driver, device)?;
        let objects = driver.objects();
        // SAFETY: NULL or valid, as the API demands of its caller.
        unsafe {
            put(flags, objects.primaries.get(&device).map_or(0, |primary| primary.flags))?;
            put(active, c_int::from(objects.contexts.contains_key(&handle)))
        }
    })
}

#[unsafe(no_mangle)]
pub extern "C" fn cuDevicePrimaryCtxSetFlags_v2(device: CUdevice, flags: c_uint) -> CUresult {
    code(|| {
        let driver = driver()?;
        primary(driver, device)?;
        driver.objects().primaries.entry(device).or_default().flags = flags;
        Ok(())
    })
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuCtxGetCurrent(context: *mut CUcontext) -> CUresult {
    code_at_once(|| {
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
        let found = driver()?.objects().current()?.1.place.device;
        // SAFETY: NULL or valid, as the API demands of its caller.
        unsafe { put(device, found) }
    })
}

#[unsafe(no_mangle)]
pub extern "C" fn cuCtxSynchronize() -> CUresult {
    code(|| synchronize_current(driver()?))
}

/// Waits for all work of the current context.
pub(crate) fn synchronize_current(driver: &Driver) -> Outcome {
    let (place, last) = {
        let mut objects = driver.objects();
        let (handle, context) = objects.current()?;
        let found = (context.place, context.last);
        capture::refuse_in_context(&mut objects, handle)?;
        found
    };
    wait(driver, place, last)
}
