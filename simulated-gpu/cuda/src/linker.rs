//! The driver's linker. Since nothing is executed, what it makes of PTX texts is all of them, one after the other.

use crate::driver::{Outcome, code, driver, put};
use crate::image;
use gpool_driver_abi::cuda::*;
use std::collections::HashMap;
use std::ffi::{CStr, c_char, c_int, c_uint, c_void};

/// The texts of each linker under way, by its handle, and then its result, which ends with a zero.
pub(crate) type Links = HashMap<usize, Vec<u8>>;

/// Options are accepted and make no difference; nothing is written to logs.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuLinkCreate_v2(
    _count: c_uint,
    _options: *mut c_int,
    _values: *mut *mut c_void,
    link: *mut CUlinkState,
) -> CUresult {
    code(|| {
        let driver = driver()?;
        let mut objects = driver.objects();
        objects.current()?;
        let handle = objects.new_handle();
        // SAFETY: NULL or valid, as the API demands of its caller.
        unsafe { put(link, handle as CUlinkState) }?;
        objects.links.insert(handle, Vec::new());
        Ok(())
    })
}

/// Takes PTX, whose length counts its zero or not.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuLinkAddData_v2(
    link: CUlinkState,
    kind: c_int,
    data: *mut c_void,
    bytes: usize,
    _name: *const c_char,
    _count: c_uint,
    _options: *mut c_int,
    _values: *mut *mut c_void,
) -> CUresult {
    code(|| {
        if data.is_null() || bytes == 0 {
            return Err(CUDA_ERROR_INVALID_VALUE);
        }
        // SAFETY: not NULL, and as long as the API demands of its caller.
        let text = unsafe { std::slice::from_raw_parts(data.cast::<u8>(), bytes) };
        add(link, kind, text)
    })
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuLinkAddFile_v2(
    link: CUlinkState,
    kind: c_int,
    path: *const c_char,
    _count: c_uint,
    _options: *mut c_int,
    _values: *mut *mut c_void,
) -> CUresult {
    code(|| {
        if path.is_null() {
            return Err(CUDA_ERROR_INVALID_VALUE);
        }
        // SAFETY: a text that ends with a zero, as the API demands of its caller.
        let path = unsafe { CStr::from_ptr(path) }.to_str().map_err(|_| CUDA_ERROR_FILE_NOT_FOUND)?;
        add(link, kind, &std::fs::read(path).map_err(|_| CUDA_ERROR_FILE_NOT_FOUND)?)
    })
}

fn add(link: CUlinkState, kind: c_int, text: &[u8]) -> Outcome {
    if kind != CU_JIT_INPUT_PTX {
        return Err(CUDA_ERROR_NO_BINARY_FOR_GPU);
    }
    let text = text.split(|byte| *byte == 0).next().unwrap_or_default();
    let terminated = [text, b"\0"].concat();
    // SAFETY: a text that ends with a zero.
    unsafe { image::read(terminated.as_ptr().cast()) }?;
    let driver = driver()?;
    let mut objects = driver.objects();
    let linked = objects.links.get_mut(&(link as usize)).ok_or(CUDA_ERROR_INVALID_HANDLE)?;
    linked.extend_from_slice(text);
    linked.push(b'\n');
    Ok(())
}

/// The result lives as long as the linker.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuLinkComplete(link: CUlinkState, result: *mut *mut c_void, bytes: *mut usize) -> CUresult {
    code(|| {
        let driver = driver()?;
        let mut objects = driver.objects();
        let linked = objects.links.get_mut(&(link as usize)).ok_or(CUDA_ERROR_INVALID_HANDLE)?;
        linked.push(0);
        // SAFETY: NULL or valid, as the API demands of its caller.
        unsafe {
            put(result, linked.as_mut_ptr().cast())?;
            if bytes.is_null() { Ok(()) } else { put(bytes, linked.len()) }
        }
    })
}

#[unsafe(no_mangle)]
pub extern "C" fn cuLinkDestroy(link: CUlinkState) -> CUresult {
    code(|| driver()?.objects().links.remove(&(link as usize)).map(drop).ok_or(CUDA_ERROR_INVALID_HANDLE))
}
