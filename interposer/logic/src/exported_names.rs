//! Where a library's exports are, by its own tables.
//!
//! Hundreds of names are looked up in each process that starts, for which `dlsym`, with its locks and scopes, takes twice
//! as long. And it cannot be asked for everything:
//! Before glibc 2.34 a `dlsym` that finds nothing ends the program if it is called in another namespace than the first
//! one (tried with 2.31: a program that loads libcuda by `dlmopen`). So nothing may be asked for that is not there, and a
//! driver lacks the newest of the names that a shim answers.

use core::ffi::{CStr, c_void};

/// `struct link_map` of glibc's link.h, to which a handle of `dlopen` points.
#[repr(C)]
struct LinkMap {
    base: usize,
    name: *const u8,
    dynamic: *const Dynamic,
}

/// `Elf64_Dyn`
#[repr(C)]
struct Dynamic {
    tag: u64,
    value: usize,
}

/// `Elf64_Sym`
#[repr(C)]
struct Symbol {
    name: u32,
    info: u8,
    other: u8,
    section: u16,
    value: usize,
    bytes: u64,
}

const DT_NULL: u64 = 0;
const DT_STRTAB: u64 = 5;
const DT_SYMTAB: u64 = 6;
const DT_GNU_HASH: u64 = 0x6fff_fef5;
/// Of a library that gives its own symbols versions; those of others it may ask for in any case.
const DT_VERDEF: u64 = 0x6fff_fffc;
/// The lower half of `Symbol::info` of a function that is where it says.
const STT_FUNC: u8 = 2;

/// What a library has under a name.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Export {
    /// Nothing.
    Absent,
    /// A function at this address.
    At(*mut c_void),
    /// Something that `dlsym` has to say: with versions, or chosen when it is looked up.
    Ask,
}

/// A name that many are written into one after the other, each over what it does not share with the one before it.
/// `LONGEST` is room for the longest and its zero.
pub struct Name<const LONGEST: usize> {
    bytes: [u8; LONGEST],
    length: usize,
}

impl<const LONGEST: usize> Name<LONGEST> {
    /// The empty name.
    #[must_use]
    pub const fn new() -> Self {
        Self { bytes: [0; LONGEST], length: 0 }
    }

    /// Reads the next one from the front of `coded`: how many bytes it shares with this one, how many more it has, and
    /// these. Without another one it becomes empty.
    pub fn read(&mut self, coded: &mut &[u8]) {
        self.length = 0;
        if let [shared, own, rest @ ..] = *coded
            && let Some((own, rest)) = rest.split_at_checked(usize::from(*own))
            && let Some(place) = self.bytes.get_mut(usize::from(*shared)..usize::from(*shared) + own.len())
            && usize::from(*shared) + own.len() < LONGEST
        {
            place.copy_from_slice(own);
            self.length = usize::from(*shared) + own.len();
            *coded = rest;
        }
        self.bytes[self.length] = 0;
    }

    /// It, with a zero behind it.
    #[must_use]
    pub fn as_c_str(&self) -> &CStr {
        // SAFETY: what is read has no zeros, and `read` writes one at its end; there is one at first.
        unsafe { CStr::from_bytes_with_nul_unchecked(&self.bytes[..=self.length]) }
    }
}

impl<const LONGEST: usize> Default for Name<LONGEST> {
    fn default() -> Self {
        Self::new()
    }
}

/// The tables of a loaded library. Without a GNU hash table every name has to be asked for.
#[derive(Debug)]
pub struct ExportedNames {
    base: usize,
    has_versions: bool,
    hash: *const u32,
    symbols: *const Symbol,
    strings: *const u8,
}

impl ExportedNames {
    const NONE: Self = Self {
        base: 0,
        has_versions: false,
        hash: core::ptr::null(),
        symbols: core::ptr::null(),
        strings: core::ptr::null(),
    };

    /// Those of `library`.
    ///
    /// # Safety
    /// `library` is a live handle of glibc's `dlopen`.
    #[must_use]
    pub unsafe fn of(library: *const c_void) -> Self {
        let mut found = Self::NONE;
        // SAFETY: the handle is the library's link map, whose dynamic section ends with DT_NULL.
        unsafe {
            let map = &*library.cast::<LinkMap>();
            let mut entry = map.dynamic;
            found.base = map.base;
            while (*entry).tag != DT_NULL {
                // The loader makes addresses of these values unless the section is read-only.
                let value = (*entry).value;
                let address = if value < map.base { value + map.base } else { value } as *const u8;
                match (*entry).tag {
                    DT_STRTAB => found.strings = address,
                    DT_SYMTAB => found.symbols = address.cast(),
                    DT_GNU_HASH => found.hash = address.cast(),
                    DT_VERDEF => found.has_versions = true,
                    _ => {}
                }
                entry = entry.add(1);
            }
        }
        found
    }

    /// What `name` of this hash means. The layout of the table: a head of four words (buckets, the
    /// first symbol in the table, words of 64 bits in the filter, its shift), the filter, the buckets, and for each
    /// symbol its hash, whose lowest bit ends a bucket.
    ///
    /// # Safety
    /// The library is still loaded.
    #[must_use]
    pub unsafe fn find(&self, name: &CStr, hash: u32) -> Export {
        if self.hash.is_null() || self.symbols.is_null() || self.strings.is_null() {
            return Export::Ask;
        }
        // SAFETY: the tables are the loader's own, and laid out as said above.
        unsafe {
            let (buckets, first, filter) = (*self.hash, *self.hash.add(1), *self.hash.add(2) as usize);
            if buckets == 0 {
                return Export::Absent;
            }
            let bucket = self.hash.add(4 + 2 * filter);
            let chain = bucket.add(buckets as usize);
            let mut symbol = *bucket.add((hash % buckets) as usize);
            if symbol < first {
                return Export::Absent;
            }
            loop {
                let (its, known) = (*chain.add((symbol - first) as usize), &*self.symbols.add(symbol as usize));
                if its | 1 == hash | 1 && self.is_called(known.name, name) {
                    let is_plain = known.info & 0xf == STT_FUNC && known.section != 0 && !self.has_versions;
                    return if is_plain { Export::At((self.base + known.value) as *mut c_void) } else { Export::Ask };
                }
                if its & 1 == 1 {
                    return Export::Absent;
                }
                symbol += 1;
            }
        }
    }

    /// # Safety
    /// `offset` is that of a string in the table.
    unsafe fn is_called(&self, offset: u32, name: &CStr) -> bool {
        // SAFETY: two strings that end with a zero.
        unsafe { libc::strcmp(self.strings.add(offset as usize).cast(), name.as_ptr()) == 0 }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::ffi::CString;

    fn hash(text: &CStr) -> u32 {
        text.to_bytes().iter().fold(5381, |hash: u32, byte| hash.wrapping_mul(33).wrapping_add(u32::from(*byte)))
    }

    /// As a shim asks for it.
    unsafe fn find(exported: &ExportedNames, text: &CStr) -> Export {
        // SAFETY: the caller's promise.
        unsafe { exported.find(text, hash(text)) }
    }

    #[test]
    fn a_name_is_read_over_the_one_before_it() {
        let mut coded = &b"\0\x0acuMemAlloc\x05\x04Free\x02\0\x02\x04Init"[..];
        let mut name = Name::<11>::new();
        for text in [c"cuMemAlloc", c"cuMemFree", c"cu", c"cuInit", c""] {
            name.read(&mut coded);
            assert_eq!(name.as_c_str(), text);
        }
        for broken in [&b"\0\x06abcdef"[..], b"\x03\x01a", b"\0\x02a", b"\xff\xff"] {
            let (mut short, mut coded) = (Name::<4>::new(), broken);
            short.read(&mut coded);
            assert_eq!(short.as_c_str(), c"", "no further than there is room, and no more than there is");
        }
    }

    #[test]
    fn names_are_found_exactly_where_dlsym_finds_them() {
        // SAFETY: a library that every program of glibc can load; it stays loaded, and names end with a zero.
        unsafe {
            let library = libc::dlopen(c"libm.so.6".as_ptr(), libc::RTLD_NOW);
            assert!(!library.is_null());
            let exported = ExportedNames::of(library);
            assert!(!exported.hash.is_null());
            for name in ["cos", "sin", "pow", "lgamma_r", "sinh", "si", "sinus", "cuMemAlloc_v2", "", "n", "sin\0x"] {
                let terminated = CString::new(name.split('\0').next().unwrap()).unwrap();
                let is_there = !libc::dlsym(library, terminated.as_ptr()).is_null();
                let found = find(&exported, &terminated);
                assert_eq!(found, if is_there { Export::Ask } else { Export::Absent }, "{name}: it has versions");
            }
        }
    }

    #[test]
    fn without_versions_a_function_is_where_dlsym_says() {
        let dir = std::env::temp_dir().join(format!("gpool-exports-{}", std::process::id()));
        std::fs::create_dir_all(&dir).unwrap();
        let (source, library) = (dir.join("plain.c"), dir.join("plain.so"));
        let text = "int one(void) { return 1; } int two(void) { return 2; } int variable = 3;\n\
            static int chosen(void) { return 4; } static int (*choose(void))(void) { return chosen; }\n\
            int late(void) __attribute__((ifunc(\"choose\")));\n";
        std::fs::write(&source, text).unwrap();
        let compiled = std::process::Command::new("cc")
            .args(["-shared", "-fPIC", "-nostartfiles", "-o"])
            .args([&library, &source])
            .status();
        assert!(compiled.unwrap().success());
        let path = CString::new(library.to_str().unwrap()).unwrap();
        // SAFETY: a library without constructors, which stays loaded.
        unsafe {
            let handle = libc::dlopen(path.as_ptr(), libc::RTLD_NOW);
            assert!(!handle.is_null());
            let exported = ExportedNames::of(handle);
            for name in [c"one", c"two"] {
                let found = find(&exported, name);
                assert_eq!(found, Export::At(libc::dlsym(handle, name.as_ptr())), "{name:?}");
            }
            for name in [c"variable", c"late"] {
                assert_eq!(find(&exported, name), Export::Ask, "{name:?} is no plain function");
            }
            assert_eq!(find(&exported, c"three"), Export::Absent);
        }
        std::fs::remove_dir_all(&dir).unwrap();
    }

    #[test]
    fn without_a_table_every_name_has_to_be_asked_for() {
        // SAFETY: nothing is read.
        assert_eq!(unsafe { find(&ExportedNames::NONE, c"cuInit") }, Export::Ask);
    }
}
