//! What cuGetProcAddress hands out: our function where there is one.

use crate::PROCESS;
use crate::entry::{HOOKED, KNOWN, LONGEST, NAMES, REPLACED, SLOTS, ours};
use core::ffi::{CStr, c_char, c_void};
use gpool_interposer_logic::lookup::{self, Found};

/// What to hand out for the real `pointer` of `symbol`; none for a version of a hooked function that this shim does
/// not know, which is counted.
///
/// # Safety
/// `symbol` must be a terminated string.
pub unsafe fn substitute(symbol: *const c_char, pointer: *mut c_void) -> Option<*mut c_void> {
    // SAFETY: the caller's promise.
    let symbol = unsafe { CStr::from_ptr(symbol) };
    match lookup::find::<{ LONGEST + 1 }>(KNOWN.find(&SLOTS, pointer), (HOOKED, REPLACED), NAMES, symbol) {
        Found::Ours(index) => Some(ours(index)),
        Found::Passes => Some(pointer),
        Found::UnknownVersion => {
            PROCESS.note_unknown_version();
            None
        }
    }
}
