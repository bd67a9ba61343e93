//! The real libcuda's entry points.

use gpool_interposer_logic::lookup::Known;

/// What a function that the real driver lacks answers: CUDA_ERROR_NOT_FOUND.
const MISSING: i32 = 500;
/// Where the runtime mounts the real library.
const REAL_LIBRARY: &core::ffi::CStr = c"/dev/gpool/real/libcuda.so.1";

/// Which function is behind an address, for look-ups by name.
pub static KNOWN: Known<{ (COUNT * 3 / 2).next_power_of_two() }> = Known::new();

/// The function `index` of the real library is at `address`.
fn note(index: usize, address: *mut c_void) {
    KNOWN.add(&SLOTS, index, address);
}

include!("../../shim_entry.rs");
