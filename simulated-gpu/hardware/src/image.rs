//! A file with two buffers, of which a header names the valid one.
//!
//! A writer fills the other buffer first and then replaces the header with one write of 40 bytes. A process that
//! is killed anywhere in between leaves the old header and the old buffer as they were.

use std::fs::File;
use std::io::{Error, ErrorKind, Result};
use std::os::unix::fs::FileExt;

const MAGIC: u64 = u64::from_le_bytes(*b"gpoolsim");
const HEADER_BYTES: usize = 40;
const FIRST_BUFFER: u64 = 4096;
/// Far more than a device with hundreds of busy contexts needs. The file is sparse.
const BUFFER_BYTES: u64 = 16 << 20;
const FORMAT: u64 = 2;

/// What the header says about the valid buffer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Header {
    /// Counts the writes; the lowest bit names the buffer.
    pub(crate) generation: u64,
    length: u64,
    checksum: u64,
}

/// Reads the header. Fails if the file is not one of ours.
pub(crate) fn read_header(file: &File) -> Result<Header> {
    let mut bytes = [0; HEADER_BYTES];
    file.read_exact_at(&mut bytes, 0)?;
    let (words, _) = bytes.as_chunks::<8>();
    let [magic, format, generation, length, checksum] = [0, 1, 2, 3, 4].map(|index| u64::from_le_bytes(words[index]));
    if magic != MAGIC || format != FORMAT || length > BUFFER_BYTES {
        return Err(Error::new(ErrorKind::InvalidData, "not the state of a simulated device of this version"));
    }
    Ok(Header { generation, length, checksum })
}

/// Reads the buffer that `header` names into `content`.
pub(crate) fn read(file: &File, header: Header, content: &mut Vec<u8>) -> Result<()> {
    content.resize(header.length as usize, 0);
    file.read_exact_at(content, offset(header.generation))?;
    if checksum(content) != header.checksum {
        return Err(Error::new(ErrorKind::InvalidData, "the state of the simulated device is damaged"));
    }
    Ok(())
}

/// Writes `content` as the given generation, which must follow the one in the file.
pub(crate) fn write(file: &File, generation: u64, content: &[u8]) -> Result<()> {
    let length = content.len() as u64;
    if length > BUFFER_BYTES {
        return Err(Error::new(ErrorKind::FileTooLarge, "the state of the simulated device outgrew its file"));
    }
    file.write_all_at(content, offset(generation))?;
    let mut header = [0; HEADER_BYTES];
    let values = [MAGIC, FORMAT, generation, length, checksum(content)];
    for (word, value) in header.as_chunks_mut::<8>().0.iter_mut().zip(values) {
        *word = value.to_le_bytes();
    }
    file.write_all_at(&header, 0)
}

fn offset(generation: u64) -> u64 {
    FIRST_BUFFER + (generation & 1) * BUFFER_BYTES
}

/// Tells a damaged buffer, not a forged one: FNV-1a over words of eight bytes.
fn checksum(content: &[u8]) -> u64 {
    let mix = |sum: u64, word: u64| (sum ^ word).wrapping_mul(0x0000_0100_0000_01b3);
    let (words, rest) = content.as_chunks::<8>();
    let sum = words.iter().fold(0xcbf2_9ce4_8422_2325, |sum, word| mix(sum, u64::from_le_bytes(*word)));
    rest.iter().fold(sum, |sum, byte| mix(sum, u64::from(*byte)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_death_before_the_header_is_written_loses_nothing() {
        let file = tempfile::tempfile().unwrap();
        write(&file, 6, b"the old state").unwrap();
        file.write_all_at(b"half a new st", offset(7)).unwrap();
        let header = read_header(&file).unwrap();
        let mut content = Vec::new();
        read(&file, header, &mut content).unwrap();
        assert_eq!((header.generation, content.as_slice()), (6, b"the old state".as_slice()));
    }

    #[test]
    fn damage_and_strangers_are_told() {
        let file = tempfile::tempfile().unwrap();
        assert!(read_header(&file).is_err());
        write(&file, 1, b"state").unwrap();
        file.write_all_at(b"X", offset(1)).unwrap();
        assert!(read(&file, read_header(&file).unwrap(), &mut Vec::new()).is_err());
        file.write_all_at(b"X", 0).unwrap();
        assert!(read_header(&file).is_err());
    }
}
