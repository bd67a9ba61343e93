//! A command of the host under a lease: see the library.
#![forbid(unsafe_code)]

fn main() -> std::process::ExitCode {
    let arguments: Vec<_> = std::env::args_os().skip(1).collect();
    gpool_runtime_hook::run_command(&arguments).into()
}
