//! The host daemon.

fn main() -> std::process::ExitCode {
    gpool_protocol::is_build(option_env!("GPOOL_VERSION"));
    gpool_supervisor::main()
}
