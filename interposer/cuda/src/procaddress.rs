//! What cuGetProcAddress hands out: our function where the real one is hooked.

use crate::entry::{BASES, HOOKED, OURS, SLOTS};
use core::ffi::{CStr, c_char, c_void};
use core::sync::atomic::Ordering;

/// What to do with a pointer that the real look-up returned.
pub enum Found {
    /// Hand this out.
    Use(*mut c_void),
    /// A version of a hooked function that this shim does not know: handing it out would lead past the account.
    TooNew,
}

/// Our function for the real `pointer` of `symbol`, or the pointer itself when nothing is hooked there.
///
/// The real driver only ever returns addresses of its exports, so comparing pointers is enough and needs no
/// knowledge of versions.
///
/// # Safety
/// `symbol` must be a terminated string.
pub unsafe fn substitute(symbol: *const c_char, pointer: *mut c_void) -> Found {
    for index in 0..HOOKED {
        if SLOTS[index].load(Ordering::Relaxed) == pointer {
            return Found::Use(OURS[index].0.cast_mut());
        }
    }
    // SAFETY: the caller's promise.
    let symbol = unsafe { CStr::from_ptr(symbol) };
    if BASES.contains(&symbol) { Found::TooNew } else { Found::Use(pointer) }
}
