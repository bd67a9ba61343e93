//! What a look-up of an entry point by name may hand out.
//!
//! The real driver only ever returns addresses of its exports, so comparing addresses tells what it found and needs no
//! knowledge of which version of the API means which variant. Source: all names of drivers 535, 550 and 555, asked for.

use core::ffi::{CStr, c_void};
use core::sync::atomic::{AtomicPtr, Ordering};

/// What the real look-up found.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Found {
    /// The hooked function with this index.
    Hooked(usize),
    /// A function that is known and not hooked, or that has nothing to do with a hooked one.
    Passes,
    /// A variant of a hooked function that is not known: handing it out would lead past the account.
    UnknownVersion,
}

/// Tells what the real driver found for `symbol` at `address`. `known` holds the addresses of all functions that the
/// shim knows, those of the `hooked` first ones before the others; `bases` the names of the hooked ones without their
/// versions, each with a zero behind it.
pub fn find(known: &[AtomicPtr<c_void>], hooked: usize, bases: &[u8], symbol: &CStr, address: *mut c_void) -> Found {
    let base = base_of(symbol.to_bytes());
    match known.iter().position(|slot| slot.load(Ordering::Relaxed) == address) {
        Some(index) if index < hooked => Found::Hooked(index),
        None if !base.is_empty() && bases.split(|byte| *byte == 0).any(|hooked| hooked == base) => {
            Found::UnknownVersion
        }
        _ => Found::Passes,
    }
}

/// `cuMemAlloc_v2_ptds` -> `cuMemAlloc`: programs may ask for either.
fn base_of(symbol: &[u8]) -> &[u8] {
    let plain = symbol.strip_suffix(b"_ptsz").or(symbol.strip_suffix(b"_ptds")).unwrap_or(symbol);
    let letters = plain.len() - plain.iter().rev().take_while(|byte| byte.is_ascii_digit()).count();
    let (name, digits) = plain.split_at(letters);
    match name.strip_suffix(b"_v") {
        Some(base) if !digits.is_empty() => base,
        _ => plain,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn versions_that_are_not_known_are_never_handed_out() {
        let known = [0x10, 0x20, 0x30].map(|address| AtomicPtr::new(address as *mut c_void));
        let find = |symbol, address| find(&known, 2, b"cuInit\0cuMemAlloc\0", symbol, address as *mut c_void);
        assert_eq!(find(c"cuMemAlloc", 0x20), Found::Hooked(1));
        assert_eq!(find(c"cuMemAlloc", 0x30), Found::Passes, "a variant of the baseline that is not hooked");
        assert_eq!(find(c"cuMemAlloc", 0x40), Found::UnknownVersion);
        for symbol in [c"cuMemAlloc_v3", c"cuMemAlloc_ptsz", c"cuMemAlloc_v12_ptds"] {
            assert_eq!(find(symbol, 0x40), Found::UnknownVersion, "{symbol:?}");
        }
        for symbol in [c"cuSomethingNew", c"cuMemAllocAsync", c"cuMemAlloc2", c"cuMemAlloc_v", c"_v2", c""] {
            assert_eq!(find(symbol, 0x40), Found::Passes, "{symbol:?}");
        }
    }
}
