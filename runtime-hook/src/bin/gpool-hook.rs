//! The OCI hook of leased containers: see the library.
#![forbid(unsafe_code)]

fn main() -> std::process::ExitCode {
    let arguments: Vec<_> = std::env::args_os().skip(1).collect();
    gpool_runtime_hook::keep_what_the_hook_needs(&arguments);
    let (mut stdin, mut stdout, mut stderr) = (std::io::stdin(), std::io::stdout(), std::io::stderr());
    gpool_runtime_hook::run_hook(&arguments, &mut stdin, &mut stdout, &mut stderr).into()
}
