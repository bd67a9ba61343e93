//! Events: markers in the queue, whose times are told relative to each other only.

use crate::capture;
use crate::driver::{Driver, Outcome, code, driver, lost, put};
use crate::launch::{Work, submit};
use crate::objects::{Event, Objects, Place, Record};
use crate::wait::wait;
use gpool_device_model::Ticket;
use gpool_driver_abi::cuda::*;
use std::ffi::c_uint;

/// The resolution of cuEventElapsedTime, as documented.
const RESOLUTION_NS: i64 = 500;

#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuEventCreate(event: *mut CUevent, flags: c_uint) -> CUresult {
    code(|| {
        let driver = driver()?;
        if event.is_null() {
            return Err(CUDA_ERROR_INVALID_VALUE);
        }
        let mut objects = driver.objects();
        let (context, _) = objects.current()?;
        let handle = objects.new_handle();
        objects.events.insert(handle, Event { flags, context, record: Record::Nowhere });
        // SAFETY: not NULL, and valid as the API demands of its caller.
        unsafe { put(event, handle as CUevent) }
    })
}

/// Replaces where an event was last recorded.
fn set_record(objects: &mut Objects, handle: usize, record: Record) -> Outcome {
    let event = objects.events.get_mut(&handle).ok_or(CUDA_ERROR_INVALID_HANDLE)?;
    if let Record::Queue { place, ticket } = std::mem::replace(&mut event.record, record) {
        objects.times.remove(&(place, ticket));
    }
    Ok(())
}

#[unsafe(no_mangle)]
pub extern "C" fn cuEventDestroy_v2(event: CUevent) -> CUresult {
    code(|| {
        let driver = driver()?;
        let mut objects = driver.objects();
        set_record(&mut objects, event as usize, Record::Nowhere)?;
        objects.events.remove(&(event as usize));
        Ok(())
    })
}

#[unsafe(no_mangle)]
pub extern "C" fn cuEventRecord(event: CUevent, stream: CUstream) -> CUresult {
    code(|| {
        let driver = driver()?;
        {
            let objects = driver.objects();
            let context = objects.events.get(&(event as usize)).ok_or(CUDA_ERROR_INVALID_HANDLE)?.context;
            if objects.target(stream)?.context != context {
                return Err(CUDA_ERROR_INVALID_HANDLE);
            }
        }
        submit(driver, stream, Work::Marker, |objects, record| set_record(objects, event as usize, record))
    })
}

/// External records differ only inside a capture, where events have no node here.
#[unsafe(no_mangle)]
pub extern "C" fn cuEventRecordWithFlags(event: CUevent, stream: CUstream, _flags: c_uint) -> CUresult {
    cuEventRecord(event, stream)
}

/// Where an event is in a queue, if it was recorded at all; refused if the calling thread must not ask now. Without a
/// context it must not at all: the documentation names CUDA_ERROR_INVALID_CONTEXT for cuEventSynchronize and
/// cuEventElapsedTime, and of cuEventQuery it says nothing, so that nobody may rely on it.
fn position(driver: &Driver, event: CUevent) -> Outcome<Option<(Place, Ticket)>> {
    let mut objects = driver.objects();
    objects.current()?;
    match objects.events.get(&(event as usize)).ok_or(CUDA_ERROR_INVALID_HANDLE)?.record {
        Record::Capture { stream } => {
            capture::refuse_on_stream(&mut objects, stream)?;
            Err(CUDA_ERROR_CAPTURED_EVENT)
        }
        Record::Nowhere => capture::refuse_unsafe(&mut objects).map(|()| None),
        Record::Queue { place, ticket } => {
            capture::refuse_unsafe(&mut objects)?;
            Ok((objects.times.get(&(place, ticket)) == Some(&None)).then_some((place, ticket)))
        }
    }
}

#[unsafe(no_mangle)]
pub extern "C" fn cuEventQuery(event: CUevent) -> CUresult {
    code(|| {
        let driver = driver()?;
        match position(driver, event)? {
            Some((place, ticket)) if driver.last_completed(place)? < ticket => Err(CUDA_ERROR_NOT_READY),
            Some(_) | None => Ok(()),
        }
    })
}

#[unsafe(no_mangle)]
pub extern "C" fn cuEventSynchronize(event: CUevent) -> CUresult {
    code(|| {
        let driver = driver()?;
        match position(driver, event)? {
            Some((place, ticket)) => wait(driver, place, ticket),
            None => Ok(()),
        }
    })
}

/// On which device an event completed, and when. Invalid if it was never recorded or takes no times.
fn time_ns(driver: &Driver, objects: &mut Objects, event: CUevent) -> Outcome<(CUdevice, u64)> {
    let event = objects.events.get(&(event as usize)).ok_or(CUDA_ERROR_INVALID_HANDLE)?;
    let (place, ticket) = match event.record {
        Record::Queue { place, ticket } if event.flags & CU_EVENT_DISABLE_TIMING == 0 => (place, ticket),
        Record::Capture { .. } => return Err(CUDA_ERROR_CAPTURED_EVENT),
        Record::Queue { .. } | Record::Nowhere => return Err(CUDA_ERROR_INVALID_HANDLE),
    };
    if let Some(Some(time_ns)) = objects.times.get(&(place, ticket)) {
        return Ok((place.device, *time_ns));
    }
    let times = driver.store(place)?.update(|device, _| device.take_marker_times(place.id)).map_err(lost)?;
    objects.completed(place, times);
    let time_ns = objects.times.get(&(place, ticket)).copied().flatten().ok_or(CUDA_ERROR_NOT_READY)?;
    Ok((place.device, time_ns))
}

/// A float of milliseconds with a resolution of half a microsecond, so that only near events can be compared well, and
/// only events of one device at all.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuEventElapsedTime(milliseconds: *mut f32, start: CUevent, end: CUevent) -> CUresult {
    code(|| {
        let driver = driver()?;
        let mut objects = driver.objects();
        objects.current()?;
        let (start_device, start_ns) = time_ns(driver, &mut objects, start)?;
        let (end_device, end_ns) = time_ns(driver, &mut objects, end)?;
        if start_device != end_device {
            return Err(CUDA_ERROR_INVALID_HANDLE);
        }
        let elapsed_ns = end_ns.wrapping_sub(start_ns) as i64;
        let steps = (elapsed_ns + RESOLUTION_NS / 2).div_euclid(RESOLUTION_NS);
        // SAFETY: NULL or valid, as the API demands of its caller.
        unsafe { put(milliseconds, (steps * RESOLUTION_NS) as f32 / 1e6) }
    })
}
