//! Whether a library exports a name, by its own tables.
//!
//! Before glibc 2.34 a `dlsym` that finds nothing ends the program if it is called in another namespace than the first
//! one (tried with 2.31: a program that loads libcuda by `dlmopen`). So nothing may be asked for that is not there, and a
//! driver lacks the newest of the names that a shim answers.

use core::ffi::c_void;

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

/// `Elf64_Sym`, of which only the name counts.
#[repr(C)]
struct Symbol {
    name: u32,
    rest: [u32; 5],
}

const DT_NULL: u64 = 0;
const DT_STRTAB: u64 = 5;
const DT_SYMTAB: u64 = 6;
const DT_GNU_HASH: u64 = 0x6fff_fef5;

/// The tables of a loaded library. Without a GNU hash table every name counts as there.
#[derive(Debug)]
pub struct ExportedNames {
    hash: *const u32,
    symbols: *const Symbol,
    strings: *const u8,
}

impl ExportedNames {
    /// Those of `library`.
    ///
    /// # Safety
    /// `library` is a live handle of glibc's `dlopen`.
    #[must_use]
    pub unsafe fn of(library: *const c_void) -> Self {
        let mut found = Self { hash: core::ptr::null(), symbols: core::ptr::null(), strings: core::ptr::null() };
        // SAFETY: the handle is the library's link map, whose dynamic section ends with DT_NULL.
        unsafe {
            let map = &*library.cast::<LinkMap>();
            let mut entry = map.dynamic;
            while (*entry).tag != DT_NULL {
                // The loader makes addresses of these values unless the section is read-only.
                let value = (*entry).value;
                let address = if value < map.base { value + map.base } else { value } as *const u8;
                match (*entry).tag {
                    DT_STRTAB => found.strings = address,
                    DT_SYMTAB => found.symbols = address.cast(),
                    DT_GNU_HASH => found.hash = address.cast(),
                    _ => {}
                }
                entry = entry.add(1);
            }
        }
        found
    }

    /// Whether `name`, which ends with a zero, is among them. The layout of the table: a head of four words (buckets, the
    /// first symbol in the table, words of 64 bits in the filter, its shift), the filter, the buckets, and for each
    /// symbol its hash, whose lowest bit ends a bucket.
    ///
    /// # Safety
    /// The library is still loaded.
    #[must_use]
    pub unsafe fn have(&self, name: &[u8]) -> bool {
        if self.hash.is_null() || self.symbols.is_null() || self.strings.is_null() {
            return true;
        }
        let length = name.iter().position(|byte| *byte == 0).unwrap_or(name.len());
        let name = &name[..length];
        let hash = name.iter().fold(5381_u32, |hash, byte| hash.wrapping_mul(33).wrapping_add(u32::from(*byte)));
        // SAFETY: the tables are the loader's own, and laid out as said above.
        unsafe {
            let (buckets, first, filter) = (*self.hash, *self.hash.add(1), *self.hash.add(2) as usize);
            if buckets == 0 {
                return false;
            }
            let bucket = self.hash.add(4 + 2 * filter);
            let chain = bucket.add(buckets as usize);
            let mut symbol = *bucket.add((hash % buckets) as usize);
            if symbol < first {
                return false;
            }
            loop {
                let its = *chain.add((symbol - first) as usize);
                if its | 1 == hash | 1 && self.is_called((*self.symbols.add(symbol as usize)).name, name) {
                    return true;
                }
                if its & 1 == 1 {
                    return false;
                }
                symbol += 1;
            }
        }
    }

    /// # Safety
    /// `offset` is that of a string in the table.
    unsafe fn is_called(&self, offset: u32, name: &[u8]) -> bool {
        // SAFETY: a string that ends with a zero, beyond which nothing is read.
        unsafe {
            let text = self.strings.add(offset as usize);
            name.iter().enumerate().all(|(at, byte)| *text.add(at) == *byte) && *text.add(name.len()) == 0
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::ffi::CString;

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
                assert_eq!(exported.have([name.as_bytes(), b"\0"].concat().as_slice()), is_there, "{name}");
            }
        }
    }

    #[test]
    fn without_a_table_every_name_counts_as_there() {
        let nothing = ExportedNames { hash: core::ptr::null(), symbols: core::ptr::null(), strings: core::ptr::null() };
        // SAFETY: nothing is read.
        assert!(unsafe { nothing.have(b"cuInit\0") });
    }
}
