//! A command of the host under a lease: see the library.
#![deny(unsafe_code)]

mod kernel;

use gpool_runtime_hook::{End, run_command};

fn main() -> std::process::ExitCode {
    let arguments: Vec<_> = std::env::args_os().skip(1).collect();
    kernel::notice_ends_of_children();
    let end = run_command(&arguments, kernel::filter_calls);
    if let End::Signal(signal) = end {
        kernel::end_by(signal);
    }
    end.status().into()
}
