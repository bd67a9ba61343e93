//! Images of programs: which kernels and variables are in one, and of PTX what can be executed.

use crate::driver::Outcome;
use crate::program::{self, Programs};
use crate::static_data::Variable;
use crate::{cubin, ptx};
use gpool_driver_abi::cuda::*;
use std::ffi::{CStr, c_char, c_void};

/// First bytes of fat binaries, in the order of a little-endian word: a container, and its wrapper in a program.
const FAT_BINARIES: [u8; 2] = [0x50, 0xb1];
/// First byte of a cubin, which is an ELF file.
const ELF: u8 = 0x7f;

/// What an image holds.
pub(crate) struct Contents {
    /// The names of its kernels.
    pub(crate) kernels: Vec<String>,
    pub(crate) variables: Vec<Variable>,
    /// Kernels that are executed.
    pub(crate) programs: Programs,
    /// What it takes of a context's memory: its variables, and of a cubin all that its sections take.
    pub(crate) static_bytes: u64,
}

/// Reads an image: a PTX text or a cubin. Fat binaries are refused, as of another architecture.
///
/// # Safety
///
/// `image` is NULL or what cuModuleLoadData takes: a text that ends with a zero, or a whole binary.
pub(crate) unsafe fn read(image: *const c_void) -> Outcome<Contents> {
    if image.is_null() {
        return Err(CUDA_ERROR_INVALID_VALUE);
    }
    // SAFETY: not NULL, and neither a binary nor a text is empty: even the shortest text has its zero.
    let first = unsafe { image.cast::<u8>().read() };
    if FAT_BINARIES.contains(&first) {
        return Err(CUDA_ERROR_NO_BINARY_FOR_GPU);
    }
    if first == ELF {
        // SAFETY: a whole ELF file, as this function's caller promises.
        let file = unsafe { cubin::bytes_at(image) };
        return file.and_then(cubin::contents).ok_or(CUDA_ERROR_INVALID_IMAGE);
    }
    // SAFETY: not a binary, so a text that ends with a zero, as this function's caller promises.
    let text = unsafe { CStr::from_ptr(image.cast()) }.to_str().map_err(|_| CUDA_ERROR_INVALID_PTX)?;
    let contents = ptx::contents(text).ok_or(CUDA_ERROR_INVALID_PTX)?;
    Ok(Contents { programs: program::programs(text, &contents.kernels)?, ..contents })
}

/// Reads the image in a file.
///
/// # Safety
///
/// `path` is NULL or a text that ends with a zero.
pub(crate) unsafe fn read_file(path: *const c_char) -> Outcome<Contents> {
    if path.is_null() {
        return Err(CUDA_ERROR_INVALID_VALUE);
    }
    // SAFETY: not NULL, so as this function's caller promises.
    let path = unsafe { CStr::from_ptr(path) }.to_str().map_err(|_| CUDA_ERROR_FILE_NOT_FOUND)?;
    let mut file = std::fs::read(path).map_err(|_| CUDA_ERROR_FILE_NOT_FOUND)?;
    match file.first() {
        // Nobody vouches that it is whole.
        Some(&ELF) => cubin::contents(&file).ok_or(CUDA_ERROR_INVALID_IMAGE),
        _ => {
            file.push(0);
            // SAFETY: no ELF file, and ends with a zero.
            unsafe { read(file.as_ptr().cast()) }
        }
    }
}
