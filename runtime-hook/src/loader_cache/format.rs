//! The format of /etc/ld.so.cache: `struct cache_file_new` of glibc (sysdeps/generic/dl-cache.h), which ldconfig has written
//! since glibc 2.2 and alone since 2.32; before, an older table may stand in front of it, which no loader of today reads.
//!
//! A header of 48 bytes, entries of 24, strings that end with zeros, and since 2.33 a directory of extensions. Positions
//! of strings count from the header, those of extensions from the file's beginning. All numbers are little-endian on this
//! processor.

use std::cmp::Ordering;

const MAGIC: &[u8; 20] = b"glibc-ld.so.cache1.1";
const OLD_MAGIC: &[u8; 11] = b"ld.so-1.7.0";
/// The old table: its magic padded, the number of its entries behind it, and what an entry takes.
const OLD_HEADER_BYTES: usize = 16;
const OLD_COUNT_AT: usize = 12;
const OLD_ENTRY_BYTES: usize = 12;
const HEADER_BYTES: usize = 48;
/// In the header: numbers of entries and of bytes in strings, the order of bytes, and where the extensions are.
const COUNT_AT: usize = 20;
const STRINGS_BYTES_AT: usize = 24;
const ENDIAN_AT: usize = 28;
const EXTENSIONS_AT: usize = 32;
const ENTRY_BYTES: usize = 24;
const LITTLE_ENDIAN: u8 = 2;
const EXTENSIONS_MAGIC: u32 = 0xeaa4_2174;
/// Who wrote the file, a text; and names of glibc-hwcaps directories, as positions of strings.
const GENERATOR: u32 = 0;
const HWCAPS: u32 = 1;
/// A library of glibc for x86-64 (FLAG_ELF_LIBC6 with FLAG_X8664_LIB64).
const X86_64: u32 = 0x0303;
/// No name or path of a file is longer (PATH_MAX), and no text of who wrote it.
const STRING_LIMIT: usize = 4096;
/// Strings may overlap in a file that somebody made by hand: together they have so many times its length at most. ldconfig's
/// have less than twice.
const STRINGS_FACTOR: usize = 4;

/// A cache as it is read and written.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct LoaderCache {
    /// Descending by name, as the loader searches.
    entries: Vec<Entry>,
    hwcaps: Vec<Vec<u8>>,
    generator: Option<Vec<u8>>,
}

#[derive(Debug, PartialEq, Eq)]
struct Entry {
    flags: u32,
    os_version: u32,
    hwcap: u64,
    name: Vec<u8>,
    path: Vec<u8>,
}

impl LoaderCache {
    /// None for what ldconfig does not write. Takes a small multiple of the file's length, whoever made it.
    pub fn read(whole: &[u8]) -> Option<Self> {
        let file = &whole[position(whole)?..];
        let mut left = whole.len().saturating_mul(STRINGS_FACTOR);
        let mut string = |at| string(file, at, &mut left);
        let table = file.get(HEADER_BYTES..)?;
        let count = u32_at(file, COUNT_AT)? as usize;
        let entries = table.get(..count.checked_mul(ENTRY_BYTES)?)?.chunks_exact(ENTRY_BYTES);
        let entries = entries.map(|entry| {
            Some(Entry {
                flags: u32_at(entry, 0)?,
                name: string(u32_at(entry, 4)?)?,
                path: string(u32_at(entry, 8)?)?,
                os_version: u32_at(entry, 12)?,
                hwcap: u64::from(u32_at(entry, 16)?) | u64::from(u32_at(entry, 20)?) << 32,
            })
        });
        let entries: Vec<Entry> = entries.collect::<Option<_>>()?;
        if !entries.is_sorted_by(|before, after| compare(&before.name, &after.name).is_ge()) {
            return None;
        }
        let mut cache = Self { entries, hwcaps: Vec::new(), generator: None };
        match u32_at(file, EXTENSIONS_AT)? {
            0 => {}
            at => cache.read_extensions(whole, at as usize, &mut string)?,
        }
        Some(cache)
    }

    fn read_extensions(
        &mut self,
        whole: &[u8],
        at: usize,
        mut string: impl FnMut(u32) -> Option<Vec<u8>>,
    ) -> Option<()> {
        let directory = whole.get(at..)?;
        if u32_at(directory, 0)? != EXTENSIONS_MAGIC {
            return None;
        }
        let count = u32_at(directory, 4)? as usize;
        let sections = directory.get(8..)?.get(..count.checked_mul(16)?)?.chunks_exact(16);
        for section in sections {
            let (start, size) = (u32_at(section, 8)? as usize, u32_at(section, 12)? as usize);
            let content = whole.get(start..start.checked_add(size)?)?;
            match u32_at(section, 0)? {
                GENERATOR if self.generator.is_none() && size <= STRING_LIMIT => {
                    self.generator = Some(content.to_vec());
                }
                HWCAPS if self.hwcaps.is_empty() && size >= 4 => {
                    let positions = content.chunks_exact(4).map(|position| string(u32_at(position, 0)?));
                    self.hwcaps = positions.collect::<Option<_>>()?;
                }
                _ => return None,
            }
        }
        Some(())
    }

    /// Where the first library of this name is.
    pub fn first(&self, name: &str) -> Option<&str> {
        let entry = self
            .entries
            .get(self.place_of(name))
            .filter(|entry| entry.name == name.as_bytes() && entry.flags == X86_64)?;
        std::str::from_utf8(&entry.path).ok()
    }

    /// Enters a library of this processor in front of all others of its name. Whether it was not there.
    pub fn enter(&mut self, name: &str, path: &str) -> bool {
        let entry = Entry { flags: X86_64, os_version: 0, hwcap: 0, name: name.into(), path: path.into() };
        if self.entries.get(self.place_of(name)) == Some(&entry) {
            return false;
        }
        self.entries.retain(|other| other != &entry);
        self.entries.insert(self.place_of(name), entry);
        true
    }

    /// Where the first entry of this name is, or would be.
    fn place_of(&self, name: &str) -> usize {
        self.entries.partition_point(|entry| compare(&entry.name, name.as_bytes()).is_gt())
    }

    /// The file.
    pub fn write(&self) -> Vec<u8> {
        let mut strings = Strings { start: HEADER_BYTES + self.entries.len() * ENTRY_BYTES, bytes: Vec::new() };
        let mut entries = Vec::new();
        for entry in &self.entries {
            let path = strings.put(&entry.path);
            let name = match entry.path.ends_with(&entry.name) {
                true => path + (entry.path.len() - entry.name.len()) as u32,
                false => strings.put(&entry.name),
            };
            for number in [entry.flags, name, path, entry.os_version, entry.hwcap as u32, (entry.hwcap >> 32) as u32] {
                entries.extend(number.to_le_bytes());
            }
        }
        let hwcaps: Vec<u8> = self.hwcaps.iter().flat_map(|name| strings.put(name).to_le_bytes()).collect();
        let mut file = MAGIC.to_vec();
        file.extend((self.entries.len() as u32).to_le_bytes());
        file.extend((strings.bytes.len() as u32).to_le_bytes());
        file.push(LITTLE_ENDIAN);
        file.resize(HEADER_BYTES, 0);
        file.extend(entries);
        file.extend(strings.bytes);
        self.write_extensions(&mut file, hwcaps);
        file
    }

    fn write_extensions(&self, file: &mut Vec<u8>, hwcaps: Vec<u8>) {
        let generator = self.generator.iter().map(|text| (GENERATOR, text.clone()));
        let hwcaps = (!hwcaps.is_empty()).then_some((HWCAPS, hwcaps));
        // Numbers first, each at a multiple of its size.
        let sections: Vec<(u32, Vec<u8>)> = hwcaps.into_iter().chain(generator).collect();
        if sections.is_empty() {
            return;
        }
        file.resize(file.len().next_multiple_of(4), 0);
        let directory_at = file.len() as u32;
        file[EXTENSIONS_AT..EXTENSIONS_AT + 4].copy_from_slice(&directory_at.to_le_bytes());
        let mut content_at = directory_at + 8 + 16 * sections.len() as u32;
        for number in [EXTENSIONS_MAGIC, sections.len() as u32] {
            file.extend(number.to_le_bytes());
        }
        for (tag, content) in &sections {
            for number in [*tag, 0, content_at, content.len() as u32] {
                file.extend(number.to_le_bytes());
            }
            content_at += content.len() as u32;
        }
        file.extend(sections.into_iter().flat_map(|(_, content)| content));
    }
}

/// Strings as they are written, with the position at which the first one will stand.
struct Strings {
    start: usize,
    bytes: Vec<u8>,
}

impl Strings {
    fn put(&mut self, text: &[u8]) -> u32 {
        let at = self.start + self.bytes.len();
        self.bytes.extend(text);
        self.bytes.push(0);
        at as u32
    }
}

/// Where the header is: behind an older table, whose size is rounded up for it.
fn position(file: &[u8]) -> Option<usize> {
    let at = match file.starts_with(OLD_MAGIC) {
        true => {
            let entries = (u32_at(file, OLD_COUNT_AT)? as usize).checked_mul(OLD_ENTRY_BYTES)?;
            entries.checked_add(OLD_HEADER_BYTES)?.checked_next_multiple_of(8)?
        }
        false => 0,
    };
    let header = file.get(at..)?;
    let is_little = header.get(ENDIAN_AT).is_some_and(|order| [0, LITTLE_ENDIAN].contains(&(order & 3)));
    let fits = u32_at(header, STRINGS_BYTES_AT)? as usize <= header.len();
    (header.starts_with(MAGIC) && is_little && fits).then_some(at)
}

fn u32_at(bytes: &[u8], at: usize) -> Option<u32> {
    Some(u32::from_le_bytes(bytes.get(at..)?.get(..4)?.try_into().ok()?))
}

/// The string at a position, if it is no longer than a name and `left` bytes may still be copied.
fn string(file: &[u8], at: u32, left: &mut usize) -> Option<Vec<u8>> {
    let text = file.get(at as usize..)?;
    let length = text.iter().take(STRING_LIMIT + 1).position(|byte| *byte == 0)?;
    *left = left.checked_sub(length + 1)?;
    Some(text[..length].to_vec())
}

/// The order of names in the cache (`_dl_cache_libcmp`): digits that stand at one place are a number, and a digit is after
/// every other letter.
fn compare(mut left: &[u8], mut right: &[u8]) -> Ordering {
    loop {
        let first = |text: &[u8]| text.first().copied();
        let is_digit = |letter: Option<u8>| letter.is_some_and(|letter| letter.is_ascii_digit());
        let (a, b) = (first(left), first(right));
        match (is_digit(a), is_digit(b)) {
            (true, true) => match number(&mut left).cmp(&number(&mut right)) {
                Ordering::Equal => {}
                other => return other,
            },
            (true, false) => return Ordering::Greater,
            (false, true) => return Ordering::Less,
            (false, false) => match (a, b) {
                (None, None) => return Ordering::Equal,
                // A string's end is a zero there, and letters have a sign.
                (a, b) if a != b => return (a.unwrap_or(0) as i8).cmp(&(b.unwrap_or(0) as i8)),
                _ => (left, right) = (&left[1..], &right[1..]),
            },
        }
    }
}

/// The number that stands at the beginning of `text`, which is what follows afterwards.
fn number(text: &mut &[u8]) -> i32 {
    let digits = text.iter().take_while(|letter| letter.is_ascii_digit()).count();
    let (number, rest) = text.split_at(digits);
    *text = rest;
    number.iter().fold(0, |all: i32, digit| all.wrapping_mul(10).wrapping_add(i32::from(digit - b'0')))
}

#[cfg(test)]
impl LoaderCache {
    /// The path that a loader takes for `name`: the first entry of that name that a search by halves comes to.
    pub fn found(&self, name: &str) -> Option<&str> {
        let (mut low, mut high) = (0, self.entries.len());
        while low < high {
            let middle = low.midpoint(high);
            match compare(name.as_bytes(), &self.entries[middle].name) {
                Ordering::Equal => {
                    let same = self.entries[..middle].iter().rev().take_while(|entry| entry.name == name.as_bytes());
                    return std::str::from_utf8(&self.entries[middle - same.count()].path).ok();
                }
                Ordering::Less => low = middle + 1,
                Ordering::Greater => high = middle,
            }
        }
        None
    }
}
