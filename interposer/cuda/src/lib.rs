//! The shim that stands in for libcuda.so.1 in a leased container.
//!
//! It is bind-mounted where the loader looks for libcuda.so.1, and needs the real library by an absolute path that
//! only gpool uses. Every name of the baseline driver is exported: most as trampolines, a few answered here. Names
//! are also replaced in what cuGetProcAddress returns, by pointer, so no version table is needed.
//!
//! Rooms: `entry` (the table of entry points), `exports` and its neighbours (the functions answered
//! here), `accounts` (memory and
//! contexts behind them).
#![no_std]

mod accounts;
#[allow(non_snake_case)] // the names are the driver's
mod copy_exports;
mod entry;
#[allow(non_snake_case)] // the names are the driver's
mod exports;
mod memory_exports;
mod procaddress;
#[allow(non_snake_case)] // the names are the driver's
mod work_exports;

use gpool_interposer_logic::Process;

/// This process as a tenant.
static PROCESS: Process = Process::new();

// A test build, as lints make one, has the standard library's.
#[cfg(not(test))]
#[panic_handler]
fn panic(_: &core::panic::PanicInfo<'_>) -> ! {
    // SAFETY: ends the process; a panic must not cross into the program.
    unsafe { libc::abort() }
}
