//! Sets of events, in which nothing ever happens: a simulated device has no faults to tell of.

use crate::library::{Outcome, code, initialised, put};
use gpool_driver_abi::nvml::*;
use std::collections::BTreeSet;
use std::ffi::{c_uint, c_void};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

/// Handles are names, never addresses.
const FIRST: usize = 0x6000_0000;

static SETS: Mutex<BTreeSet<usize>> = Mutex::new(BTreeSet::new());

fn sets() -> MutexGuard<'static, BTreeSet<usize>> {
    SETS.lock().unwrap_or_else(PoisonError::into_inner)
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn nvmlEventSetCreate(set: *mut nvmlEventSet_t) -> nvmlReturn_t {
    code(|| {
        initialised()?;
        let mut sets = sets();
        let handle = sets.last().map_or(FIRST, |last| last + 16);
        // SAFETY: NULL or valid, as the API demands of its caller.
        unsafe { put(set, handle as nvmlEventSet_t) }?;
        sets.insert(handle);
        Ok(())
    })
}

#[unsafe(no_mangle)]
pub extern "C" fn nvmlEventSetFree(set: nvmlEventSet_t) -> nvmlReturn_t {
    code(|| if sets().remove(&(set as usize)) { Ok(()) } else { Err(NVML_ERROR_INVALID_ARGUMENT) })
}

/// Waits in vain.
fn wait(set: nvmlEventSet_t, timeout_ms: c_uint) -> Outcome {
    initialised()?;
    if !sets().contains(&(set as usize)) {
        return Err(NVML_ERROR_INVALID_ARGUMENT);
    }
    std::thread::sleep(Duration::from_millis(timeout_ms.into()));
    Err(NVML_ERROR_TIMEOUT)
}

#[unsafe(no_mangle)]
pub extern "C" fn nvmlEventSetWait_v2(set: nvmlEventSet_t, _data: *mut c_void, timeout_ms: c_uint) -> nvmlReturn_t {
    code(|| wait(set, timeout_ms))
}

#[unsafe(no_mangle)]
pub extern "C" fn nvmlEventSetWait(set: nvmlEventSet_t, _data: *mut c_void, timeout_ms: c_uint) -> nvmlReturn_t {
    code(|| wait(set, timeout_ms))
}
