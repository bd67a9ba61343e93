//! The shim that stands in for libnvidia-ml.so.1 in a leased container: memory, processes and utilisation are the lease's.
//!
//! libnvidia-ml calls its own exports through its PLT, so a hook here may run inside another: hooks are idempotent
//! and hold no lock across the real call.
#![no_std]

mod entry;
mod exports;
mod lease;
#[allow(non_snake_case)] // the names are the driver's; so in the next one
mod memory;
#[allow(non_snake_case)]
mod processes;

// A test build, as lints make one, has the standard library's.
#[cfg(not(test))]
#[panic_handler]
fn panic(_: &core::panic::PanicInfo<'_>) -> ! {
    // SAFETY: ends the process; a panic must not cross into the program.
    unsafe { libc::abort() }
}
