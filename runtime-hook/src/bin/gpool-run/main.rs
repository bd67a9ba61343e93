//! A command of the host under a lease: see the library.
#![deny(unsafe_code)]

mod kernel;

fn main() -> std::process::ExitCode {
    let arguments: Vec<_> = std::env::args_os().skip(1).collect();
    kernel::notice_ends_of_children();
    gpool_runtime_hook::run_command(&arguments, kernel::filter_calls).into()
}
