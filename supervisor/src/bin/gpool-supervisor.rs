//! The host daemon.

fn main() -> std::process::ExitCode {
    gpool_supervisor::main()
}
