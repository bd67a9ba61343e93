//! Sets of events, in which the Xids happen that somebody has had happen to a device, and nothing else.

use crate::library::{Outcome, code, initialised, put};
use crate::target::{handle, minor};
use gpool_driver_abi::nvml::*;
use gpool_simulated_hardware::Layout;
use std::collections::BTreeMap;
use std::ffi::{c_uint, c_ulonglong};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

/// Handles are names, never addresses.
const FIRST: usize = 0x6000_0000;
/// `nvmlEventTypeXidCriticalError`
const XID: c_ulonglong = 0x8;
/// Between two looks. A driver has somebody who waits woken; a process of the simulation should cost no more than one of its.
const PERIOD: Duration = Duration::from_millis(50);
/// What an event has that is of no instance.
const NO_INSTANCE: c_uint = 0xffff_ffff;

/// Of each set and device how many Xids there were when it was registered, or have been told since.
type Sets = BTreeMap<usize, BTreeMap<u32, usize>>;

static SETS: Mutex<Sets> = Mutex::new(BTreeMap::new());

fn sets() -> MutexGuard<'static, Sets> {
    SETS.lock().unwrap_or_else(PoisonError::into_inner)
}

/// All that have happened to the device, the oldest first.
fn xids(minor: u32) -> Vec<u64> {
    let text = std::fs::read_to_string(Layout::default().xids(minor)).unwrap_or_default();
    // The last line may be about to be written.
    let whole = text.rsplit_once('\n').map_or("", |(whole, _)| whole);
    whole.lines().filter_map(|line| line.parse().ok()).collect()
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn nvmlEventSetCreate(set: *mut nvmlEventSet_t) -> nvmlReturn_t {
    code(|| {
        initialised()?;
        let mut sets = sets();
        let handle = sets.last_key_value().map_or(FIRST, |(last, _)| last + 16);
        // SAFETY: NULL or valid, as the API demands of its caller.
        unsafe { put(set, handle as nvmlEventSet_t) }?;
        sets.insert(handle, BTreeMap::new());
        Ok(())
    })
}

#[unsafe(no_mangle)]
pub extern "C" fn nvmlEventSetFree(set: nvmlEventSet_t) -> nvmlReturn_t {
    code(|| sets().remove(&(set as usize)).map(drop).ok_or(NVML_ERROR_INVALID_ARGUMENT))
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn nvmlDeviceGetSupportedEventTypes(
    device: nvmlDevice_t,
    types: *mut c_ulonglong,
) -> nvmlReturn_t {
    code(|| {
        minor(device)?;
        // SAFETY: NULL or valid, as the API demands of its caller.
        unsafe { put(types, XID) }
    })
}

/// From now on the set has what happens to the device. Nothing but Xids is supported.
#[unsafe(no_mangle)]
pub extern "C" fn nvmlDeviceRegisterEvents(
    device: nvmlDevice_t,
    types: c_ulonglong,
    set: nvmlEventSet_t,
) -> nvmlReturn_t {
    code(|| {
        let minor = minor(device)?;
        if types & !XID != 0 {
            return Err(NVML_ERROR_NOT_SUPPORTED);
        }
        let told = xids(minor).len();
        sets().get_mut(&(set as usize)).ok_or(NVML_ERROR_INVALID_ARGUMENT)?.insert(minor, told);
        Ok(())
    })
}

/// The next Xid of a device of the set, if there is one.
fn next(set: usize) -> Outcome<Option<nvmlEventData_t>> {
    let mut sets = sets();
    let devices = sets.get_mut(&set).ok_or(NVML_ERROR_INVALID_ARGUMENT)?;
    let found = devices.iter_mut().find_map(|(minor, told)| {
        let number = xids(*minor).get(*told).copied()?;
        *told += 1;
        Some((*minor, number))
    });
    Ok(found.map(|(minor, number)| nvmlEventData_t {
        device: handle(minor),
        eventType: XID,
        eventData: number,
        gpuInstanceId: NO_INSTANCE,
        computeInstanceId: NO_INSTANCE,
    }))
}

/// # Safety
///
/// `data` is NULL or valid for a write.
unsafe fn wait(set: nvmlEventSet_t, data: *mut nvmlEventData_t, timeout_ms: c_uint) -> Outcome {
    initialised()?;
    let deadline = Instant::now() + Duration::from_millis(timeout_ms.into());
    loop {
        if let Some(event) = next(set as usize)? {
            // SAFETY: as the caller promises.
            return unsafe { put(data, event) };
        }
        let left = deadline.saturating_duration_since(Instant::now());
        if left.is_zero() {
            return Err(NVML_ERROR_TIMEOUT);
        }
        std::thread::sleep(left.min(PERIOD));
    }
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn nvmlEventSetWait_v2(
    set: nvmlEventSet_t,
    data: *mut nvmlEventData_t,
    timeout_ms: c_uint,
) -> nvmlReturn_t {
    // SAFETY: as the API demands of its caller.
    code(|| unsafe { wait(set, data, timeout_ms) })
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn nvmlEventSetWait(
    set: nvmlEventSet_t,
    data: *mut nvmlEventData_t,
    timeout_ms: c_uint,
) -> nvmlReturn_t {
    // SAFETY: as the API demands of its caller.
    code(|| unsafe { wait(set, data, timeout_ms) })
}
