// Shared by both shims (included): the table of the real library's entry points, filled when the shim is loaded.

use core::ffi::c_void;
use core::sync::atomic::{AtomicPtr, Ordering};

// Generated: an index for every name, used or not.
#[allow(dead_code, non_snake_case, non_upper_case_globals, missing_docs, clippy::undocumented_unsafe_blocks)]
mod table {
    include!(concat!(env!("OUT_DIR"), "/table.rs"));
}

#[allow(unused_imports)] // NVML has no look-up by name that hands out pointers
pub use table::{BASES, COUNT, HOOKED, NAMES, OURS, index};

/// The real function behind each name. Private to the library: trampolines jump through it.
pub static SLOTS: [AtomicPtr<c_void>; COUNT] = [const { AtomicPtr::new(missing as *mut c_void) }; COUNT];

/// A function of ours, in hooked order.
#[repr(transparent)]
pub struct Ours(pub *const c_void);

// SAFETY: a function's address, never written.
unsafe impl Sync for Ours {}

extern "C" fn missing() -> i32 {
    MISSING
}

/// The real function `index`, as the function type `F`.
///
/// # Safety
/// `F` must be the function-pointer type of that entry point.
#[inline(always)]
pub unsafe fn real<F: Copy>(index: usize) -> F {
    const { assert!(size_of::<F>() == size_of::<*mut c_void>()) };
    let pointer = SLOTS[index].load(Ordering::Relaxed);
    // SAFETY: a function pointer is one word; the caller answers for its type.
    unsafe { core::mem::transmute_copy(&pointer) }
}

/// Runs when the shim is loaded, after the real library, which is a dependency of ours.
extern "C" fn resolve() {
    // SAFETY: a terminated path; loading a library that is loaded already only adds a reference.
    let library = unsafe { libc::dlopen(REAL_LIBRARY.as_ptr(), libc::RTLD_NOW | libc::RTLD_LOCAL) };
    if library.is_null() {
        return;
    }
    for (slot, name) in SLOTS.iter().zip(NAMES.iter()) {
        // SAFETY: a live handle and a terminated name.
        let address = unsafe { libc::dlsym(library, name.as_ptr()) };
        if !address.is_null() {
            slot.store(address, Ordering::Relaxed);
        }
    }
}

#[used]
#[unsafe(link_section = ".init_array")]
static RESOLVE: extern "C" fn() = resolve;
