//! The shim that stands in for libcuda.so.1 in a leased container.
//!
//! It is bind-mounted where the loader looks for libcuda.so.1, and needs the real library by an absolute path that
//! only gpool uses. Every name of the driver generation that it is built for is exported: most as trampolines, some of which look
//! before whether the lease is there, a few answered here. Names are also replaced in what cuGetProcAddress returns, by pointer, so no version table is needed.
//!
//! Rooms: `entry` (the table of entry points), `exports` and its neighbours (the functions answered here), `accounts`,
//! `pool_accounts` and `graph_accounts` (the memory behind them), `contexts`, `touched` (what is passed on with a look).
#![no_std]

mod accounts;
#[allow(non_snake_case)] // the names are the driver's
mod arrays;
#[allow(non_snake_case)] // the names are the driver's
mod contexts;
#[allow(non_snake_case)] // the names are the driver's
mod copy_exports;
mod entry;
#[allow(non_snake_case)] // the names are the driver's
mod exports;
mod graph_accounts;
#[allow(non_snake_case)] // the names are the driver's
mod graph_memory;
mod graph_nodes;
#[allow(non_snake_case)] // the names are the driver's
mod images;
#[allow(non_snake_case)] // the names are the driver's
mod limits;
mod managed;
mod memory_exports;
mod pool_accounts;
#[allow(non_snake_case)] // the names are the driver's
mod pools;
mod procaddress;
#[allow(non_snake_case)] // the names are the driver's
mod sharing;
mod spill;
mod touched;
#[allow(non_snake_case)] // the names are the driver's
mod virtual_memory;
#[allow(non_snake_case)] // the names are the driver's
mod work_exports;

use gpool_interposer_logic::Process;
use gpool_interposer_logic::futex::Mutex;
use gpool_interposer_logic::handles::{CAPACITY, Handles};

/// This process as a tenant.
static PROCESS: Process = Process::new();

/// What it holds by handles.
static HANDLES: Mutex<Handles<CAPACITY>> = Mutex::new(Handles::new());

// A test build, as lints make one, has the standard library's.
#[cfg(not(test))]
#[panic_handler]
fn panic(_: &core::panic::PanicInfo<'_>) -> ! {
    // SAFETY: ends the process; a panic must not cross into the program.
    unsafe { libc::abort() }
}
