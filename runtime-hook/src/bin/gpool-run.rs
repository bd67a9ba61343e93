//! A command of the host under a lease: see the library.
#![deny(unsafe_code)]

fn main() -> std::process::ExitCode {
    use nix::sys::signal::{SigHandler::SigDfl, Signal::SIGCHLD, signal};
    let arguments: Vec<_> = std::env::args_os().skip(1).collect();
    // A caller that ignores SIGCHLD hands that on, and the kernel then keeps no exit status of any child.
    // SAFETY: the default action runs no code of this program, and there is no second thread yet.
    #[allow(unsafe_code)]
    let _ = unsafe { signal(SIGCHLD, SigDfl) };
    gpool_runtime_hook::run_command(&arguments).into()
}
