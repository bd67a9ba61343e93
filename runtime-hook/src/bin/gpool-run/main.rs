//! A command of the host under a lease: see the library.
#![deny(unsafe_code)]

mod kernel;

use gpool_runtime_hook::{KernelCalls, run_command};

fn main() -> std::process::ExitCode {
    let arguments: Vec<_> = std::env::args_os().skip(1).collect();
    kernel::notice_ends_of_children();
    let calls = KernelCalls { filter_calls: kernel::filter_calls, forget_children: kernel::forget_children };
    kernel::end_as(run_command(&arguments, calls))
}
