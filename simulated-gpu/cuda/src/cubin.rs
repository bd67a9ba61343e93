//! Cubins: ELF-64 files of kernels and variables. Layout: the ELF-64 object file format; names as `cuobjdump -elf` shows
//! them.

use crate::image::Contents;
use crate::program::Programs;
use crate::static_data::Variable;
use std::ffi::{CStr, c_void};

/// Bits in a symbol's `st_other` that mark a kernel (STO_CUDA_ENTRY).
const ENTRY: u8 = 0x10;
/// A symbol's type, in the low bits of `st_info`, that says that it is a variable (STT_OBJECT).
const VARIABLE: u8 = 1;
const HEADER_BYTES: usize = 64;
const SECTION_BYTES: usize = 64;
const SYMBOL_BYTES: usize = 24;
/// The type of a section with symbols (SHT_SYMTAB).
const SYMBOL_TABLE: u32 = 2;
/// Bit of a section's flags that says that it takes memory when the program runs (SHF_ALLOC).
const ALLOCATED: u64 = 2;
/// Static shared memory lies on the multiprocessor.
const ON_CHIP: &[u8] = b".nv.shared";

/// The file up to the end of its section or program headers, whichever is later; a cubin has nothing behind them.
///
/// # Safety
///
/// `image` is the start of a whole ELF file.
pub(crate) unsafe fn bytes_at<'a>(image: *const c_void) -> Option<&'a [u8]> {
    // SAFETY: an ELF file is at least as long as its header.
    let header = unsafe { std::slice::from_raw_parts(image.cast::<u8>(), HEADER_BYTES) };
    let table_end = |offset, size, count| {
        let (size, count) = (short(header, size)? as usize, short(header, count)? as usize);
        (long(header, offset)? as usize).checked_add(size * count)
    };
    let length = table_end(32, 54, 56)?.max(table_end(40, 58, 60)?);
    // SAFETY: the headers lie within the file.
    Some(unsafe { std::slice::from_raw_parts(image.cast::<u8>(), length) })
}

/// What a file holds; nothing if it is none.
pub(crate) fn contents(file: &[u8]) -> Option<Contents> {
    let mut found = Contents { kernels: Vec::new(), variables: Vec::new(), programs: Programs::new(), static_bytes: 0 };
    for index in 0..short(file, 60)? as usize {
        let header = section(file, index)?;
        if is_on_device(file, header)? {
            found.static_bytes = found.static_bytes.saturating_add(long(header, 32)?);
        }
        if word(header, 4)? == SYMBOL_TABLE {
            add_symbols(file, header, &mut found)?;
        }
    }
    Some(found)
}

/// The kernels and variables of a table of symbols.
fn add_symbols(file: &[u8], table: &[u8], found: &mut Contents) -> Option<()> {
    let names = content(file, section(file, word(table, 40)? as usize)?)?;
    for symbol in content(file, table)?.chunks_exact(SYMBOL_BYTES) {
        let name = || {
            let name = CStr::from_bytes_until_nul(names.get(word(symbol, 0)? as usize..)?).ok()?;
            Some(name.to_str().ok()?.to_owned())
        };
        let (bytes, index) = (long(symbol, 16)?, short(symbol, 6)?);
        if symbol[5] & ENTRY != 0 {
            found.kernels.push(name()?);
        } else if symbol[4] & 0xf == VARIABLE && bytes > 0 {
            // One that lies elsewhere belongs to no section.
            let of_section = section(file, index as usize).filter(|_| index != 0);
            if of_section.and_then(|header| is_on_device(file, header)).unwrap_or(false) {
                found.variables.push(Variable { name: name()?, bytes, is_managed: false });
            }
        }
    }
    Some(())
}

fn section(file: &[u8], index: usize) -> Option<&[u8]> {
    file.get((long(file, 40)? as usize).checked_add(index * SECTION_BYTES)?..)?.get(..SECTION_BYTES)
}

fn content<'a>(file: &'a [u8], section: &[u8]) -> Option<&'a [u8]> {
    let start = long(section, 24)? as usize;
    file.get(start..start.checked_add(long(section, 32)? as usize)?)
}

/// Whether a section takes device memory when the program runs.
fn is_on_device(file: &[u8], header: &[u8]) -> Option<bool> {
    let names = content(file, section(file, short(file, 62)? as usize)?)?;
    let name = names.get(word(header, 0)? as usize..)?;
    Some(long(header, 8)? & ALLOCATED != 0 && !name.starts_with(ON_CHIP))
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
