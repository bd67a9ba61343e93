//! Variables of modules and libraries: they take memory of a context from load to unload, and all begin as zeros. Values
//! that an image gives them are not read.

use crate::driver::{Driver, Outcome, lost, put};
use crate::memory::{map, unmap};
use crate::objects::{Objects, Place};
use gpool_driver_abi::cuda::*;
use gpool_simulated_hardware::Unmovable;
use std::collections::HashMap;
use std::ffi::{CStr, c_char};

/// A variable that a program declares.
#[derive(Clone)]
pub(crate) struct Variable {
    pub(crate) name: String,
    pub(crate) bytes: u64,
    /// Of a library there is one for all contexts.
    pub(crate) is_managed: bool,
}

/// Where one is.
pub(crate) struct Static {
    pub(crate) bytes: usize,
    /// The handle of the context that pays for it.
    pub(crate) context: usize,
}

/// Variables that are in place.
pub(crate) struct Placed {
    /// The handle of the context that pays for them.
    context: usize,
    /// What they take of it.
    bytes: u64,
    addresses: HashMap<String, (CUdeviceptr, usize)>,
    /// Set if some are managed memory, which cannot be suspended.
    managed: Option<Unmovable>,
}

impl Placed {
    /// Places `variables` and takes `bytes` for them in a context, by its handle.
    pub(crate) fn new<'a>(
        driver: &Driver,
        objects: &mut Objects,
        context: usize,
        variables: impl Iterator<Item = &'a Variable>,
        bytes: u64,
    ) -> Outcome<Self> {
        let place = objects.contexts.get(&context).ok_or(CUDA_ERROR_INVALID_CONTEXT)?.place;
        take(driver, place, bytes)?;
        let mut placed = Self { context, bytes, addresses: HashMap::new(), managed: None };
        for Variable { name, bytes, is_managed } in variables {
            let bytes = *bytes as usize;
            let Some(address) = map(bytes) else {
                placed.remove(driver, objects)?;
                return Err(CUDA_ERROR_OUT_OF_MEMORY);
            };
            objects.statics.insert(address, Static { bytes, context });
            placed.addresses.insert(name.clone(), (address, bytes));
            if *is_managed && placed.managed.is_none() {
                placed.managed = Some(driver.unmovable());
            }
        }
        Ok(placed)
    }

    /// Takes them away, and gives back what they took if their context is still there.
    pub(crate) fn remove(self, driver: &Driver, objects: &mut Objects) -> Outcome {
        for (address, bytes) in self.addresses.into_values() {
            if objects.statics.remove(&address).is_some() {
                unmap(address, bytes);
            }
        }
        match objects.contexts.get(&self.context) {
            Some(context) => give_back(driver, context.place, self.bytes),
            None => Ok(()),
        }
    }

    /// Address and size of each.
    pub(crate) fn ranges(&self) -> impl Iterator<Item = (CUdeviceptr, usize)> {
        self.addresses.values().copied()
    }

    /// The context with this handle is gone, and with it what they took. The variables stay, in the host's memory.
    pub(crate) fn leave(&mut self, context: usize) {
        if self.context == context {
            self.bytes = 0;
        }
    }

    /// Address and size of the variable of this name.
    pub(crate) fn find(&self, name: &str) -> Outcome<(CUdeviceptr, usize)> {
        self.addresses.get(name).copied().ok_or(CUDA_ERROR_NOT_FOUND)
    }
}

/// Takes `bytes` in a context's name.
fn take(driver: &Driver, place: Place, bytes: u64) -> Outcome {
    if bytes == 0 {
        return Ok(());
    }
    let taken = driver.store(place)?.update(|device, now_ns| device.allocate(now_ns, place.id, bytes));
    taken.map_err(lost)?.map_err(|_| CUDA_ERROR_OUT_OF_MEMORY)
}

/// Gives back what [`take`] took.
fn give_back(driver: &Driver, place: Place, bytes: u64) -> Outcome {
    if bytes == 0 {
        return Ok(());
    }
    driver.store(place)?.update(|device, now_ns| device.free(now_ns, place.id, bytes)).map_err(lost)
}

/// The name of a variable that a caller asks for.
///
/// # Safety
///
/// `name` is NULL or a text that ends with a zero.
pub(crate) unsafe fn asked<'a>(name: *const c_char) -> Outcome<&'a str> {
    if name.is_null() {
        return Err(CUDA_ERROR_INVALID_VALUE);
    }
    // SAFETY: not NULL, so as this function's caller promises.
    unsafe { CStr::from_ptr(name) }.to_str().map_err(|_| CUDA_ERROR_NOT_FOUND)
}

/// Answers with a variable's address and size, one of which the caller may not want to know.
///
/// # Safety
///
/// Both places are NULL or valid for a write.
pub(crate) unsafe fn answer(
    (address, bytes): (CUdeviceptr, usize),
    address_place: *mut CUdeviceptr,
    bytes_place: *mut usize,
) -> Outcome {
    if address_place.is_null() && bytes_place.is_null() {
        return Err(CUDA_ERROR_INVALID_VALUE);
    }
    // SAFETY: as this function's caller promises.
    unsafe {
        if !address_place.is_null() {
            put(address_place, address)?;
        }
        if bytes_place.is_null() { Ok(()) } else { put(bytes_place, bytes) }
    }
}
