//! A process that wants one of the lease's places, and nothing else.

use super::driver::Driver;
use super::{check, say};
use serde_json::json;
use std::process::ExitCode;
use std::ptr::null_mut;

/// Says how large the device is and what the driver answers to a context; stays if there is one.
pub(super) fn take() -> ExitCode {
    let driver = Driver::load();
    let (mut device, mut total, mut context) = (0, 0, null_mut());
    // SAFETY: all pointers are to places for the answers.
    let answer = unsafe {
        check("cuInit", (driver.init)(0));
        check("cuDeviceGet", (driver.device_get)(&mut device, 0));
        check("cuDeviceTotalMem", (driver.device_memory)(&mut total, device));
        (driver.context_create)(&mut context, 0, device)
    };
    say(&json!({ "event": "place", "total": total, "context": answer }));
    if answer != 0 {
        return ExitCode::FAILURE;
    }
    loop {
        std::thread::park();
    }
}
