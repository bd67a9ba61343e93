//! The names that a shared library exports, read from its file. Layout: the ELF-64 object file format.

use crate::failure::{Context, Failure, Result};
use std::collections::BTreeSet;
use std::path::Path;

const SECTION_HEADER_BYTES: usize = 64;
const SYMBOL_BYTES: usize = 24;
/// The dynamic linker's symbols (SHT_DYNSYM).
const DYNAMIC_SYMBOLS: u32 = 11;

/// The names that `library` defines for others.
///
/// # Errors
/// When the file cannot be read or is no shared library.
pub fn of(library: &Path) -> Result<BTreeSet<String>> {
    let file = std::fs::read(library).context(library.display())?;
    names(&file).ok_or_else(|| Failure::new(format!("{} is no shared library", library.display())))
}

fn names(file: &[u8]) -> Option<BTreeSet<String>> {
    file.starts_with(b"\x7fELF").then_some(())?;
    let sections = long(file, 40)?;
    let section = |index: usize| file.get(sections + index * SECTION_HEADER_BYTES..);
    let count = usize::from(u16::from_le_bytes(*file.get(60..)?.first_chunk()?));
    let symbols = (0..count).filter_map(section).find(|header| word(header, 4) == Some(DYNAMIC_SYMBOLS))?;
    let strings = section(word(symbols, 40)? as usize)?;
    let table = |header: &[u8]| file.get(long(header, 24)?..)?.get(..long(header, 32)?);
    let (symbols, strings) = (table(symbols)?, table(strings)?);
    // A symbol of section 0 is one that the library wants.
    let defined = symbols.chunks_exact(SYMBOL_BYTES).filter(|symbol| symbol[6..8] != [0, 0]);
    defined
        .map(|symbol| {
            let name = strings.get(word(symbol, 0)? as usize..)?.split(|byte| *byte == 0).next()?;
            String::from_utf8(name.to_vec()).ok()
        })
        .collect()
}

fn word(bytes: &[u8], at: usize) -> Option<u32> {
    Some(u32::from_le_bytes(*bytes.get(at..)?.first_chunk()?))
}

fn long(bytes: &[u8], at: usize) -> Option<usize> {
    usize::try_from(u64::from_le_bytes(*bytes.get(at..)?.first_chunk()?)).ok()
}
