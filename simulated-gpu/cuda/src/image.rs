//! Images of programs: which kernels are in one, and how much static data. Nothing of them is executed.

use crate::driver::Outcome;
use crate::static_data;
use gpool_driver_abi::cuda::*;
use std::ffi::{CStr, c_void};

/// First bytes of fat binaries, in the order of a little-endian word: a container, and its wrapper in a program.
const FAT_BINARIES: [u8; 2] = [0x50, 0xb1];
/// First byte of a cubin, which is an ELF file.
const ELF: u8 = 0x7f;
/// Bits in an ELF symbol's `st_other` that mark a kernel (STO_CUDA_ENTRY), as `cuobjdump -elf` shows them.
const ENTRY: u8 = 0x10;
const SYMBOL_TABLE: u32 = 2;
const SYMBOL_BYTES: usize = 24;
const SECTION_BYTES: usize = 64;

/// Bit of a section's flags that says that it takes memory when the program runs (SHF_ALLOC).
const ALLOCATED: u64 = 2;

/// What an image holds.
pub(crate) struct Contents {
    /// The names of its kernels.
    pub(crate) kernels: Vec<String>,
    /// What its variables take of a context's memory; of a cubin, all that its sections take.
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
        let file = unsafe { elf_bytes(image) }.ok_or(CUDA_ERROR_INVALID_IMAGE)?;
        let kernels = kernels_of_cubin(file).ok_or(CUDA_ERROR_INVALID_IMAGE)?;
        let static_bytes = bytes_of_cubin(file).ok_or(CUDA_ERROR_INVALID_IMAGE)?;
        return Ok(Contents { kernels, static_bytes });
    }
    // SAFETY: not a binary, so a text that ends with a zero, as this function's caller promises.
    let text = unsafe { CStr::from_ptr(image.cast()) }.to_str().map_err(|_| CUDA_ERROR_INVALID_PTX)?;
    Ok(Contents { kernels: kernels_of_ptx(text)?, static_bytes: static_data::text_bytes(text) })
}

/// What follows `.entry` in a PTX text.
fn kernels_of_ptx(text: &str) -> Outcome<Vec<String>> {
    if !text.contains(".version") || !text.contains(".target") {
        return Err(CUDA_ERROR_INVALID_PTX);
    }
    let name = |rest: &str| -> String {
        let legal = |letter: &char| letter.is_ascii_alphanumeric() || matches!(letter, '_' | '$' | '%');
        rest.trim_start().chars().take_while(legal).collect()
    };
    Ok(text.split(".entry").skip(1).map(name).filter(|name| !name.is_empty()).collect())
}

/// An ELF-64 file up to the end of its section or program headers, whichever is later; a cubin has nothing behind them.
///
/// # Safety
///
/// `image` is the start of a whole ELF file.
unsafe fn elf_bytes<'a>(image: *const c_void) -> Option<&'a [u8]> {
    // SAFETY: an ELF file is at least as long as its header of 64 bytes.
    let header = unsafe { std::slice::from_raw_parts(image.cast::<u8>(), 64) };
    let table_end = |offset, size, count| {
        let (size, count) = (short(header, size)? as usize, short(header, count)? as usize);
        (long(header, offset)? as usize).checked_add(size * count)
    };
    let length = table_end(32, 54, 56)?.max(table_end(40, 58, 60)?);
    // SAFETY: the headers lie within the file.
    Some(unsafe { std::slice::from_raw_parts(image.cast::<u8>(), length) })
}

/// A section's header. Layout: the ELF-64 object file format.
fn section(file: &[u8], index: usize) -> Option<&[u8]> {
    file.get((long(file, 40)? as usize).checked_add(index * SECTION_BYTES)?..)?.get(..SECTION_BYTES)
}

/// What the sections take that are there when the program runs.
fn bytes_of_cubin(file: &[u8]) -> Option<u64> {
    (0..short(file, 60)? as usize).try_fold(0_u64, |bytes, index| {
        let header = section(file, index)?;
        let own = if long(header, 8)? & ALLOCATED == 0 { 0 } else { long(header, 32)? };
        Some(bytes.saturating_add(own))
    })
}

/// The symbols that are marked as kernels.
fn kernels_of_cubin(file: &[u8]) -> Option<Vec<String>> {
    let content = |section: &[u8]| {
        let start = long(section, 24)? as usize;
        file.get(start..start.checked_add(long(section, 32)? as usize)?)
    };
    let mut found = Vec::new();
    for index in 0..short(file, 60)? as usize {
        let header = section(file, index)?;
        if word(header, 4)? != SYMBOL_TABLE {
            continue;
        }
        let names = content(section(file, word(header, 40)? as usize)?)?;
        for symbol in content(header)?.chunks_exact(SYMBOL_BYTES).filter(|symbol| symbol[5] & ENTRY != 0) {
            let name = CStr::from_bytes_until_nul(names.get(word(symbol, 0)? as usize..)?).ok()?;
            found.push(name.to_str().ok()?.to_owned());
        }
    }
    Some(found)
}

fn short(bytes: &[u8], at: usize) -> Option<u16> {
    Some(u16::from_le_bytes(*bytes.get(at..)?.first_chunk()?))
}

fn word(bytes: &[u8], at: usize) -> Option<u32> {
    Some(u32::from_le_bytes(*bytes.get(at..)?.first_chunk()?))
}

fn long(bytes: &[u8], at: usize) -> Option<u64> {
    Some(u64::from_le_bytes(*bytes.get(at..)?.first_chunk()?))
}
