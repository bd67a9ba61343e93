// Shared by both shims (included): the table of the real library's entry points, filled when the shim is loaded.

use core::ffi::c_void;
use core::sync::atomic::{AtomicPtr, Ordering};
use gpool_interposer_logic::exported_names::{Export, ExportedNames, Name};

// Generated: an index for every name, used or not.
#[allow(dead_code, non_snake_case, non_upper_case_globals, missing_docs, clippy::undocumented_unsafe_blocks)]
mod table {
    include!(concat!(env!("OUT_DIR"), "/table.rs"));
}

#[allow(unused_imports)] // NVML has no look-up by name that hands out pointers
pub use table::{COUNT, HOOKED, LONGEST, NAMES, REPLACED, index};
use table::HASHES;

/// The real function behind each name. Private to the library: trampolines jump through it. Written before anything
/// reads it (see `fill`), so that it takes no place in the library's file.
pub static SLOTS: [AtomicPtr<c_void>; COUNT] = [const { AtomicPtr::new(core::ptr::null_mut()) }; COUNT];

unsafe extern "C" {
    /// Where our functions are, those that are answered and those that are passed on with a look, each by how far it is from this
    /// table.
    #[allow(dead_code)] // NVML hands out no pointers
    static gpool_ours: [i32; REPLACED];
}

/// Our function for the entry point `index`, one of the first `REPLACED`.
#[allow(dead_code)] // as above
pub fn ours(index: usize) -> *mut c_void {
    // SAFETY: made by the build script in this library, and never written.
    let table = unsafe { &gpool_ours };
    table.as_ptr().cast::<c_void>().wrapping_offset(table[index] as isize).cast_mut()
}

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
    // SAFETY: a live handle of glibc's own dlopen, for which alone the shims are built.
    let exports = unsafe { ExportedNames::of(library) };
    let mut name = Name::<{ LONGEST + 1 }>::new();
    let mut coded = NAMES;
    for (index, (slot, hash)) in SLOTS.iter().zip(&HASHES).enumerate() {
        name.read(&mut coded);
        // SAFETY: the library stays loaded.
        let address = match unsafe { exports.find(name.as_c_str(), *hash) } {
            Export::Absent => continue,
            Export::At(address) => address,
            // SAFETY: as above; a live handle and a terminated name.
            Export::Ask => unsafe { libc::dlsym(library, name.as_c_str().as_ptr()) },
        };
        if !address.is_null() {
            slot.store(address, Ordering::Relaxed);
            note(index, address);
        }
    }
}

#[used]
#[unsafe(link_section = ".init_array")]
static RESOLVE: extern "C" fn() = resolve;

/// Points every slot to `missing` while the shim is being relocated, before any constructor runs: libnvidia-ml calls its
/// own exports, which are ours, and may do so in its constructor. A relocation for each slot would do the same and take
/// 24 bytes of the file for each.
extern "C" fn fill() -> *const c_void {
    for slot in &SLOTS {
        slot.store(missing as *mut c_void, Ordering::Relaxed);
    }
    missing as *const c_void
}

// An indirect function that nobody calls: its resolver, `fill`, runs when the loader comes to FILLED's relocation
// (R_X86_64_IRELATIVE, x86-64 psABI; glibc since 2.11).
core::arch::global_asm!(
    ".globl gpool_fill",
    ".hidden gpool_fill",
    ".type gpool_fill, @gnu_indirect_function",
    ".set gpool_fill, {fill}",
    fill = sym fill,
);

unsafe extern "C" {
    fn gpool_fill();
}

#[used]
static FILLED: unsafe extern "C" fn() = gpool_fill;
