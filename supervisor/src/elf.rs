//! What a shared library exports, and which build it is: read from its file. Layout: the ELF-64 object file format; the
//! note with the build id is GNU's. A container may have made the file, so nothing in it is believed without a bound.

use gpool_protocol::BuildId;
use std::collections::BTreeSet;
use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;

const HEADER_BYTES: usize = 64;
const PROGRAM_HEADER_BYTES: usize = 56;
const SECTION_HEADER_BYTES: usize = 64;
const SYMBOL_BYTES: usize = 24;
/// A program header of this type leads to notes (PT_NOTE).
const NOTES: u32 = 4;
/// A section of this type holds the dynamic linker's symbols (SHT_DYNSYM).
const DYNAMIC_SYMBOLS: u32 = 11;
/// The type of the note with the build id (NT_GNU_BUILD_ID).
const BUILD_ID: u32 = 3;
/// No table or note that is read here comes near this.
const TABLE_BYTES: u64 = 8 << 20;
/// Nor this, what is read of a file that a container may have made.
const NOTE_BYTES: u64 = 4096;

fn malformed() -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, "no 64-bit ELF file, or one that contradicts itself")
}

/// The names that the library defines for others.
///
/// # Errors
/// A file that cannot be read, or is no shared library.
pub fn exported_names(file: &File) -> io::Result<BTreeSet<String>> {
    let header = header(file)?;
    let (at, count) = (long(&header, 40)?, half(&header, 60)?);
    let sections = read(file, at, u64::from(count) * SECTION_HEADER_BYTES as u64, TABLE_BYTES)?;
    let sections: Vec<&[u8]> = sections.chunks_exact(SECTION_HEADER_BYTES).collect();
    let symbols = sections.iter().find(|section| word(section, 4).is_ok_and(|kind| kind == DYNAMIC_SYMBOLS));
    let symbols = symbols.ok_or_else(malformed)?;
    let strings = sections.get(word(symbols, 40)? as usize).ok_or_else(malformed)?;
    let content = |section: &[u8]| read(file, long(section, 24)?, long(section, 32)?, TABLE_BYTES);
    let (symbols, strings) = (content(symbols)?, content(strings)?);
    // A symbol of section 0 is one that the library wants.
    let defined = symbols.chunks_exact(SYMBOL_BYTES).filter(|symbol| symbol[6..8] != [0, 0]);
    let name = |symbol: &[u8]| {
        let rest = strings.get(word(symbol, 0)? as usize..).ok_or_else(malformed)?;
        let name = rest.split(|byte| *byte == 0).next().unwrap_or_default();
        String::from_utf8(name.to_vec()).map_err(|_| malformed())
    };
    defined.map(name).collect()
}

/// Which build of a library or program this is, if its linker wrote that down.
///
/// # Errors
/// A file that cannot be read, or is no ELF file.
pub fn build_id(file: &File) -> io::Result<Option<BuildId>> {
    let header = header(file)?;
    let (at, count) = (long(&header, 32)?, half(&header, 56)?);
    let headers = read(file, at, u64::from(count) * PROGRAM_HEADER_BYTES as u64, NOTE_BYTES)?;
    for header in headers.chunks_exact(PROGRAM_HEADER_BYTES) {
        if word(header, 0)? == NOTES
            && let Some(id) = build_id_in(&read(file, long(header, 8)?, long(header, 32)?, NOTE_BYTES)?)
        {
            return Ok(Some(id));
        }
    }
    Ok(None)
}

/// Each note is the lengths of its name and of its content, its type, and both, padded to four bytes.
fn build_id_in(notes: &[u8]) -> Option<BuildId> {
    let mut rest = notes;
    loop {
        let (name, content, kind) = (word(rest, 0).ok()?, word(rest, 4).ok()?, word(rest, 8).ok()?);
        let padded = |bytes: u32| (bytes as usize).next_multiple_of(4);
        let body = rest.get(12..)?;
        if kind == BUILD_ID && body.starts_with(b"GNU\0") && name == 4 {
            let id = body.get(4..)?.get(..content as usize)?;
            return Some(BuildId(id.iter().map(|byte| format!("{byte:02x}")).collect()));
        }
        rest = body.get(padded(name).checked_add(padded(content))?..)?;
    }
}

fn header(file: &File) -> io::Result<Vec<u8>> {
    let header = read(file, 0, HEADER_BYTES as u64, NOTE_BYTES)?;
    // 64 bits, little-endian.
    if header.starts_with(b"\x7fELF\x02\x01") { Ok(header) } else { Err(malformed()) }
}

fn read(file: &File, at: u64, bytes: u64, limit: u64) -> io::Result<Vec<u8>> {
    if bytes > limit {
        return Err(malformed());
    }
    let mut content = vec![0; bytes as usize];
    file.read_exact_at(&mut content, at)?;
    Ok(content)
}

fn half(bytes: &[u8], at: usize) -> io::Result<u16> {
    bytes.get(at..).and_then(<[u8]>::first_chunk).map(|bytes| u16::from_le_bytes(*bytes)).ok_or_else(malformed)
}

fn word(bytes: &[u8], at: usize) -> io::Result<u32> {
    bytes.get(at..).and_then(<[u8]>::first_chunk).map(|bytes| u32::from_le_bytes(*bytes)).ok_or_else(malformed)
}

fn long(bytes: &[u8], at: usize) -> io::Result<u64> {
    bytes.get(at..).and_then(<[u8]>::first_chunk).map(|bytes| u64::from_le_bytes(*bytes)).ok_or_else(malformed)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::Write;
    use std::process::Command;

    /// A library from this machine's compiler and linker.
    fn library(directory: &std::path::Path, options: &[&str]) -> File {
        let (source, library) = (directory.join("a.c"), directory.join("a.so"));
        let text = "extern int wanted(void);\nint given(void) { return wanted(); }\nint gpool_datum;\n";
        std::fs::write(&source, text).unwrap();
        let linker = ["-shared", "-fPIC", "-nostdlib", "-o"];
        let compiled = Command::new("cc").args(linker).args([&library, &source]).args(options).status();
        assert!(compiled.unwrap().success());
        File::open(library).unwrap()
    }

    #[test]
    fn what_a_library_defines_is_exported_and_what_it_wants_is_not() {
        let directory = tempfile::tempdir().unwrap();
        let names = exported_names(&library(directory.path(), &[])).unwrap();
        assert!(names.contains("given") && names.contains("gpool_datum") && !names.contains("wanted"), "{names:?}");
    }

    #[test]
    fn a_build_is_known_by_its_note() {
        let directory = tempfile::tempdir().unwrap();
        let id = build_id(&library(directory.path(), &["-Wl,--build-id=0x0123456789abcdef"])).unwrap();
        assert_eq!(id, Some(BuildId("0123456789abcdef".into())));
        assert_eq!(build_id(&library(directory.path(), &["-Wl,--build-id=none"])).unwrap(), None);
    }

    #[test]
    fn rubbish_is_an_error_and_nothing_worse() {
        let mut whole = Vec::new();
        let directory = tempfile::tempdir().unwrap();
        io::copy(&mut library(directory.path(), &["-Wl,--build-id=sha1"]), &mut whole).unwrap();
        let file_of = |bytes: &[u8]| {
            let mut file = tempfile::tempfile().unwrap();
            file.write_all(bytes).unwrap();
            file
        };
        for bytes in [&b""[..], b"\x7fELF\x02\x01", &whole[..100], &[0xff; 4096]] {
            assert!(build_id(&file_of(bytes)).is_err() && exported_names(&file_of(bytes)).is_err());
        }
        // Every byte that says where something is, wrong in turn.
        for at in (0..HEADER_BYTES * 8).filter(|at| *at < whole.len()) {
            let mut bent = whole.clone();
            bent[at] = 0xff;
            let file = file_of(&bent);
            let _ = (build_id(&file), exported_names(&file));
        }
        assert_eq!(build_id_in(&[0xff; 40]), None);
    }
}
