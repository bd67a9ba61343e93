//! What a look-up of an entry point by name may hand out.
//!
//! The real driver only ever returns addresses of its exports, so comparing addresses tells what it found and needs no
//! knowledge of which version of the API means which variant. Source: all names of drivers 535, 550, 555, 580 and 595,
//! asked for with each version of the API and each kind of default stream.

use crate::exported_names::Name;
use core::ffi::{CStr, c_void};
use core::sync::atomic::{AtomicPtr, AtomicU16, Ordering};

/// What the real look-up found.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Found {
    /// The function with this index, for which there is one of ours.
    Ours(usize),
    /// A function that is known and left to the driver, or that has nothing to do with a hooked one.
    Passes,
    /// A variant of a hooked function that is not known: handing it out would lead past the account.
    UnknownVersion,
}

/// Which of the functions that the shim knows is at an address: a table of their indices by address, open to all places
/// behind the first one. `PLACES` is a power of two, well above their number. It is filled before anybody asks.
pub struct Known<const PLACES: usize> {
    /// One more than the index; 0 where nothing is.
    places: [AtomicU16; PLACES],
}

impl<const PLACES: usize> Known<PLACES> {
    /// None yet. All zero.
    #[must_use]
    pub const fn new() -> Self {
        const { assert!(PLACES.is_power_of_two()) };
        Self { places: [const { AtomicU16::new(0) }; PLACES] }
    }

    /// The places where `address` may stand, with what stands there, up to the first that is free.
    fn places(&self, address: *mut c_void) -> impl Iterator<Item = (&AtomicU16, usize)> {
        // Fibonacci hashing: Knuth, The Art of Computer Programming 3, 6.4.
        let hash = (address as u64).wrapping_mul(0x9e37_79b9_7f4a_7c15);
        let first = (hash >> (u64::BITS - PLACES.ilog2())) as usize;
        let all = (first..first + PLACES).filter_map(|place| self.places.get(place % PLACES));
        all.map(|place| (place, usize::from(place.load(Ordering::Relaxed))))
    }

    /// Function `index` of `slots` is at `address`. Of several at one address the first counts.
    pub fn add(&self, slots: &[AtomicPtr<c_void>], index: usize, address: *mut c_void) {
        for (place, known) in self.places(address) {
            match known.checked_sub(1).and_then(|known| slots.get(known)) {
                None => return place.store(index as u16 + 1, Ordering::Relaxed),
                Some(slot) if slot.load(Ordering::Relaxed) == address => return,
                Some(_) => {}
            }
        }
    }

    /// The first function of `slots` at `address`.
    #[must_use]
    pub fn find(&self, slots: &[AtomicPtr<c_void>], address: *mut c_void) -> Option<usize> {
        for (_, known) in self.places(address) {
            let index = known.checked_sub(1)?;
            if slots.get(index)?.load(Ordering::Relaxed) == address {
                return Some(index);
            }
        }
        None
    }
}

impl<const PLACES: usize> Default for Known<PLACES> {
    fn default() -> Self {
        Self::new()
    }
}

/// Tells what the real driver found for `symbol`: the function of this index among those that the shim knows, of which
/// the first `hooked` are answered by it, and those behind them, up to `replaced`, passed on with a look; or another one. `names`
/// are those of the known ones, as [`Name`] reads them, and `LONGEST` is room for each.
pub fn find<const LONGEST: usize>(
    known: Option<usize>,
    (hooked, replaced): (usize, usize),
    names: &[u8],
    symbol: &CStr,
) -> Found {
    match known {
        Some(index) if index < replaced => Found::Ours(index),
        None if is_version::<LONGEST>(hooked, names, symbol) => Found::UnknownVersion,
        _ => Found::Passes,
    }
}

/// Whether one of the first `hooked` names is `symbol` but for its version.
#[cold]
#[inline(never)]
fn is_version<const LONGEST: usize>(hooked: usize, mut names: &[u8], symbol: &CStr) -> bool {
    let base = base_of(symbol.to_bytes());
    let mut name = Name::<LONGEST>::new();
    let mut is_it = || {
        name.read(&mut names);
        base_of(name.as_c_str().to_bytes()) == base
    };
    !base.is_empty() && (0..hooked).any(|_| is_it())
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
        let slots = [0x10, 0x20, 0x28, 0x30].map(|address| AtomicPtr::new(address as *mut c_void));
        let known = Known::<8>::new();
        slots.iter().enumerate().for_each(|(index, slot)| known.add(&slots, index, slot.load(Ordering::Relaxed)));
        let find = |symbol, address: usize| {
            let names = b"\0\x06cuInit\x02\x0bMemAlloc_v2\x02\x09EventMake\0\x06cuLate";
            find::<16>(known.find(&slots, address as *mut c_void), (2, 3), names, symbol)
        };
        assert_eq!(find(c"cuMemAlloc", 0x20), Found::Ours(1));
        assert_eq!(find(c"cuEventMake", 0x28), Found::Ours(2), "passed on, with a look before");
        assert_eq!(find(c"cuEventMake", 0x40), Found::Passes, "without one, which leads past no account");
        assert_eq!(find(c"cuMemAlloc", 0x30), Found::Passes, "a variant of the baseline that is not hooked");
        assert_eq!(find(c"cuMemAlloc", 0x40), Found::UnknownVersion);
        for symbol in [c"cuMemAlloc_v3", c"cuMemAlloc_ptsz", c"cuMemAlloc_v12_ptds"] {
            assert_eq!(find(symbol, 0x40), Found::UnknownVersion, "{symbol:?}");
        }
        for symbol in [c"cuLate", c"cuSomethingNew", c"cuMemAllocAsync", c"cuMemAlloc2", c"cuMemAlloc_v", c"_v2", c""] {
            assert_eq!(find(symbol, 0x40), Found::Passes, "{symbol:?}");
        }
    }

    #[test]
    fn every_address_is_known_by_its_first_index_and_no_other_is() {
        // A table as full as that of a shim, with addresses as functions have them and some that are the same.
        let address = |index: usize| (0x7f00_0000_1000 + index / 3 * 2 * 16) as *mut c_void;
        let slots: Vec<AtomicPtr<c_void>> = (0..680).map(|index| AtomicPtr::new(address(index))).collect();
        let known = Known::<1024>::new();
        (0..slots.len()).for_each(|index| known.add(&slots, index, address(index)));
        for index in 0..slots.len() {
            assert_eq!(known.find(&slots, address(index)), Some(index / 3 * 3), "{index}");
            assert_eq!(known.find(&slots, address(index).wrapping_byte_add(16)), None, "{index}");
        }
        assert_eq!(Known::<2>::new().find(&slots, address(0)), None);
    }

    #[test]
    fn a_table_without_room_is_searched_to_its_end() {
        let slots = [0x10, 0x20, 0x30].map(|address| AtomicPtr::new(address as *mut c_void));
        let known = Known::<2>::new();
        (0..3).for_each(|index| known.add(&slots, index, slots[index].load(Ordering::Relaxed)));
        let found: Vec<Option<usize>> = (1..4).map(|tens| known.find(&slots, (tens * 0x10) as *mut c_void)).collect();
        assert_eq!(found, [Some(0), Some(1), None]);
    }
}
