//! Questions by number. A simulated device answers none of them.

use crate::library::code;
use crate::target::minor;
use gpool_driver_abi::nvml::*;
use std::ffi::c_int;

/// Each question is answered for itself: that the device does not support it.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn nvmlDeviceGetFieldValues(
    device: nvmlDevice_t,
    count: c_int,
    values: *mut nvmlFieldValue_t,
) -> nvmlReturn_t {
    code(|| {
        minor(device)?;
        if values.is_null() {
            return Err(NVML_ERROR_INVALID_ARGUMENT);
        }
        for index in 0..usize::try_from(count).map_err(|_| NVML_ERROR_INVALID_ARGUMENT)? {
            // SAFETY: not NULL, and valid for `count` elements, as the API demands of its caller.
            unsafe { (*values.add(index)).nvmlReturn = NVML_ERROR_NOT_SUPPORTED };
        }
        Ok(())
    })
}
