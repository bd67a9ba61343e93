//! Devices and what they are.

use crate::library::{Outcome, code, look, on_the_bus, put, put_text, visible};
use crate::target::{handle, look_at_instance, minor, usable};
use gpool_driver_abi::nvml::*;
use gpool_simulated_hardware::Layout;
use gpool_simulated_hardware::model::Device;
use std::ffi::{CStr, c_char, c_uint};

/// The visible devices of which something can be asked.
fn on_the_bus_now() -> Outcome<Vec<u32>> {
    Ok(visible()?.into_iter().filter(|minor| on_the_bus(*minor).is_ok()).collect())
}

/// The visible device that has what is looked for.
fn search(wanted: impl Fn(&Device) -> bool) -> Outcome<nvmlDevice_t> {
    for minor in on_the_bus_now()? {
        if look(minor, &wanted)? {
            return Ok(handle(minor));
        }
    }
    Err(NVML_ERROR_NOT_FOUND)
}

/// The instance that this process may use and that has what is looked for.
fn search_instances(wanted: impl Fn(&Device) -> bool) -> Outcome<nvmlDevice_t> {
    for minor in on_the_bus_now()? {
        for instance in usable(minor)? {
            if look_at_instance(instance, &wanted)? {
                return Ok(instance.device());
            }
        }
    }
    Err(NVML_ERROR_NOT_FOUND)
}

/// The address on the bus with a domain of so many digits.
fn pci_address(bus: u32, domain_digits: usize) -> String {
    format!("{:0domain_digits$}:{bus:02x}:00.0", 0)
}

#[unsafe(no_mangle)]
#[inline(never)]
pub unsafe extern "C" fn nvmlDeviceGetCount_v2(count: *mut c_uint) -> nvmlReturn_t {
    // SAFETY: NULL or valid, as the API demands of its caller.
    code(|| visible().and_then(|minors| unsafe { put(count, minors.len() as c_uint) }))
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn nvmlDeviceGetCount(count: *mut c_uint) -> nvmlReturn_t {
    // SAFETY: the same contract.
    unsafe { nvmlDeviceGetCount_v2(count) }
}

#[unsafe(no_mangle)]
#[inline(never)]
pub unsafe extern "C" fn nvmlDeviceGetHandleByIndex_v2(index: c_uint, device: *mut nvmlDevice_t) -> nvmlReturn_t {
    code(|| {
        let minor = *visible()?.get(index as usize).ok_or(NVML_ERROR_INVALID_ARGUMENT)?;
        on_the_bus(minor)?;
        // SAFETY: NULL or valid, as the API demands of its caller.
        unsafe { put(device, handle(minor)) }
    })
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn nvmlDeviceGetHandleByIndex(index: c_uint, device: *mut nvmlDevice_t) -> nvmlReturn_t {
    // SAFETY: the same contract.
    unsafe { nvmlDeviceGetHandleByIndex_v2(index, device) }
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn nvmlDeviceGetHandleByUUID(uuid: *const c_char, device: *mut nvmlDevice_t) -> nvmlReturn_t {
    code(|| {
        if uuid.is_null() {
            return Err(NVML_ERROR_INVALID_ARGUMENT);
        }
        // SAFETY: a text that ends with a zero, as the API demands of its caller.
        let wanted = unsafe { CStr::from_ptr(uuid) };
        let is_it = |device: &Device| device.parameters().uuid.as_bytes() == wanted.to_bytes();
        let found = search(is_it).or_else(|_| search_instances(is_it))?;
        // SAFETY: NULL or valid, as the API demands of its caller.
        unsafe { put(device, found) }
    })
}

/// Takes the address with a domain of four or of eight digits.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn nvmlDeviceGetHandleByPciBusId_v2(
    address: *const c_char,
    device: *mut nvmlDevice_t,
) -> nvmlReturn_t {
    code(|| {
        if address.is_null() {
            return Err(NVML_ERROR_INVALID_ARGUMENT);
        }
        // SAFETY: a text that ends with a zero, as the API demands of its caller.
        let wanted = unsafe { CStr::from_ptr(address) }.to_str().map_err(|_| NVML_ERROR_NOT_FOUND)?;
        let found = search(|device| {
            let bus = device.parameters().pci_bus;
            [4, 8].iter().any(|digits| pci_address(bus, *digits).eq_ignore_ascii_case(wanted))
        })?;
        // SAFETY: NULL or valid, as the API demands of its caller.
        unsafe { put(device, found) }
    })
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn nvmlDeviceGetIndex(device: nvmlDevice_t, index: *mut c_uint) -> nvmlReturn_t {
    code(|| {
        let found = visible()?.into_iter().position(|minor| handle(minor) == device);
        // SAFETY: NULL or valid, as the API demands of its caller.
        unsafe { put(index, found.ok_or(NVML_ERROR_INVALID_ARGUMENT)? as c_uint) }
    })
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn nvmlDeviceGetMinorNumber(device: nvmlDevice_t, place: *mut c_uint) -> nvmlReturn_t {
    // SAFETY: NULL or valid, as the API demands of its caller.
    code(|| minor(device).and_then(|minor| unsafe { put(place, minor) }))
}

#[unsafe(no_mangle)]
#[inline(never)]
pub unsafe extern "C" fn nvmlDeviceGetPciInfo_v3(device: nvmlDevice_t, place: *mut nvmlPciInfo_t) -> nvmlReturn_t {
    code(|| {
        let bus = look(minor(device)?, |device| device.parameters().pci_bus)?;
        let mut found = nvmlPciInfo_t {
            busIdLegacy: [0; 16],
            domain: 0,
            bus,
            device: 0,
            pciDeviceId: 0x0000_10de,
            pciSubSystemId: 0x0000_10de,
            busId: [0; 32],
        };
        // SAFETY: both arrays are longer than their text.
        unsafe {
            put_text(found.busIdLegacy.as_mut_ptr(), 16, &pci_address(bus, 4))?;
            put_text(found.busId.as_mut_ptr(), 32, &pci_address(bus, 8))?;
        }
        // SAFETY: NULL or valid, as the API demands of its caller.
        unsafe { put(place, found) }
    })
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn nvmlDeviceGetComputeMode(device: nvmlDevice_t, mode: *mut nvmlComputeMode_t) -> nvmlReturn_t {
    code(|| {
        let said = std::fs::read_to_string(Layout::default().compute_mode(minor(device)?));
        let now = said.ok().and_then(|text| text.trim().parse().ok()).unwrap_or(NVML_COMPUTEMODE_DEFAULT);
        // SAFETY: NULL or valid, as the API demands of its caller.
        unsafe { put(mode, now) }
    })
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn nvmlDeviceGetPersistenceMode(
    device: nvmlDevice_t,
    mode: *mut nvmlEnableState_t,
) -> nvmlReturn_t {
    // SAFETY: NULL or valid, as the API demands of its caller.
    code(|| minor(device).and_then(|_| unsafe { put(mode, NVML_FEATURE_ENABLED) }))
}
