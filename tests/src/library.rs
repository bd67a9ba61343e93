//! A driver library, loaded as programs load it.

use crate::failure::{Failure, Result, ensure};
use std::ffi::{CStr, c_void};
use std::mem::{size_of, transmute_copy};

/// A library, which is never closed.
#[derive(Debug)]
pub struct Library {
    name: &'static CStr,
    handle: *mut c_void,
}

impl Library {
    /// Loads it by its name or path.
    pub fn open(name: &'static CStr) -> Result<Self> {
        // SAFETY: the name ends with a zero; loading a driver library has no preconditions.
        let handle = unsafe { libc::dlopen(name.as_ptr(), libc::RTLD_NOW) };
        ensure(!handle.is_null(), || format!("{name:?} cannot be loaded"))?;
        Ok(Self { name, handle })
    }

    /// Where the function `name` is.
    pub fn address(&self, name: &CStr) -> Result<*mut c_void> {
        // SAFETY: the name ends with a zero and the library is never closed.
        let address = unsafe { libc::dlsym(self.handle, name.as_ptr()) };
        if address.is_null() { Err(Failure::new(format!("{:?} has no {name:?}", self.name))) } else { Ok(address) }
    }

    /// The function `name`, whose type `F` is.
    pub fn function<F: Copy>(&self, name: &CStr) -> Result<F> {
        let address = self.address(name)?;
        const { assert!(size_of::<F>() == size_of::<*mut c_void>(), "F is no pointer to a function") };
        // SAFETY: the types of gpool-driver-abi are those of the driver's functions of these names; each is a pointer.
        Ok(unsafe { transmute_copy(&address) })
    }
}
