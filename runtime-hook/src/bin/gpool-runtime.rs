//! The OCI runtime that engines call: see the library.
#![forbid(unsafe_code)]

use gpool_runtime_hook::{Installation, run};

fn main() -> std::process::ExitCode {
    let arguments: Vec<_> = std::env::args_os().skip(1).collect();
    run(&Installation::default(), &arguments).into()
}
