//! Streams. All of a context share its one queue; a stream only knows its own newest ticket.

use crate::capture;
use crate::driver::{Driver, Outcome, code, driver, put};
use crate::objects::{Place, Record, Stream};
use crate::wait::wait;
use gpool_device_model::Ticket;
use gpool_driver_abi::cuda::*;
use std::ffi::{c_int, c_uint};

/// The context of a stream and the newest ticket to wait for; refused while it captures.
fn position(driver: &Driver, stream: CUstream) -> Outcome<(Place, Ticket)> {
    let mut objects = driver.objects();
    let target = objects.target(stream)?;
    match target.stream {
        Some(handle) => {
            capture::refuse_on_stream(&mut objects, handle)?;
            Ok((target.place, objects.streams.get(&handle).ok_or(CUDA_ERROR_INVALID_HANDLE)?.last))
        }
        None => {
            capture::refuse_implicit(&mut objects, target.context)?;
            Ok((target.place, objects.contexts.get(&target.context).ok_or(CUDA_ERROR_INVALID_CONTEXT)?.last))
        }
    }
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuStreamCreate(stream: *mut CUstream, flags: c_uint) -> CUresult {
    code(|| {
        let driver = driver()?;
        if stream.is_null() || flags & !CU_STREAM_NON_BLOCKING != 0 {
            return Err(CUDA_ERROR_INVALID_VALUE);
        }
        let mut objects = driver.objects();
        let (context, _) = objects.current()?;
        let handle = objects.new_handle();
        objects.streams.insert(handle, Stream { context, flags, last: Ticket(0), capture: None });
        // SAFETY: not NULL, and valid as the API demands of its caller.
        unsafe { put(stream, handle as CUstream) }
    })
}

/// Priorities are accepted and make no difference.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuStreamCreateWithPriority(
    stream: *mut CUstream,
    flags: c_uint,
    _priority: c_int,
) -> CUresult {
    // SAFETY: the same contract.
    unsafe { cuStreamCreate(stream, flags) }
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuCtxGetStreamPriorityRange(least: *mut c_int, greatest: *mut c_int) -> CUresult {
    code(|| {
        driver()?.objects().current()?;
        for (place, value) in [(least, 0), (greatest, -5)] {
            if !place.is_null() {
                // SAFETY: not NULL, and valid as the API demands of its caller.
                unsafe { put(place, value) }?;
            }
        }
        Ok(())
    })
}

#[unsafe(no_mangle)]
pub extern "C" fn cuStreamDestroy_v2(stream: CUstream) -> CUresult {
    code(|| {
        let removed = driver()?.objects().streams.remove(&(stream as usize));
        removed.map(|_| ()).ok_or(CUDA_ERROR_INVALID_HANDLE)
    })
}

#[unsafe(no_mangle)]
pub extern "C" fn cuStreamSynchronize(stream: CUstream) -> CUresult {
    code(|| {
        let driver = driver()?;
        let (place, ticket) = position(driver, stream)?;
        wait(driver, place, ticket)
    })
}

#[unsafe(no_mangle)]
pub extern "C" fn cuStreamQuery(stream: CUstream) -> CUresult {
    code(|| {
        let driver = driver()?;
        let (place, ticket) = position(driver, stream)?;
        if driver.last_completed(place)? >= ticket { Ok(()) } else { Err(CUDA_ERROR_NOT_READY) }
    })
}

/// All streams of a context share one queue, so what a stream waits for is in front of what it is given next, unless it
/// is of another context: then the caller waits. That a stream joins another one's capture by this is not simulated.
#[unsafe(no_mangle)]
pub extern "C" fn cuStreamWaitEvent(stream: CUstream, event: CUevent, _flags: c_uint) -> CUresult {
    code(|| {
        let driver = driver()?;
        let elsewhere = {
            let objects = driver.objects();
            let target = objects.target(stream)?;
            match objects.events.get(&(event as usize)).ok_or(CUDA_ERROR_INVALID_HANDLE)?.record {
                Record::Queue { place, ticket } if place != target.place => Some((place, ticket)),
                Record::Capture { stream } if target.stream != Some(stream) => return Err(CUDA_ERROR_NOT_SUPPORTED),
                Record::Queue { .. } | Record::Capture { .. } | Record::Nowhere => None,
            }
        };
        elsewhere.map_or(Ok(()), |(place, ticket)| wait(driver, place, ticket))
    })
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuStreamGetFlags(stream: CUstream, flags: *mut c_uint) -> CUresult {
    code(|| {
        let driver = driver()?;
        let objects = driver.objects();
        let found = objects.target(stream)?.stream.and_then(|handle| objects.streams.get(&handle));
        // SAFETY: NULL or valid, as the API demands of its caller.
        unsafe { put(flags, found.map_or(0, |stream| stream.flags)) }
    })
}

/// Numbers are handles here, which never come back; those of default streams are their contexts'.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuStreamGetId(stream: CUstream, number: *mut u64) -> CUresult {
    code(|| {
        let target = driver()?.objects().target(stream)?;
        // SAFETY: NULL or valid, as the API demands of its caller.
        unsafe { put(number, target.stream.unwrap_or(target.context) as u64) }
    })
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuStreamGetPriority(stream: CUstream, priority: *mut c_int) -> CUresult {
    code(|| {
        driver()?.objects().target(stream)?;
        // SAFETY: NULL or valid, as the API demands of its caller.
        unsafe { put(priority, 0) }
    })
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuStreamGetCtx(stream: CUstream, context: *mut CUcontext) -> CUresult {
    code(|| {
        let found = driver()?.objects().target(stream)?.context;
        // SAFETY: NULL or valid, as the API demands of its caller.
        unsafe { put(context, found as CUcontext) }
    })
}
