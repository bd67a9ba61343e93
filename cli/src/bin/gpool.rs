//! `gpool`: what a person types. Everything is in the library, so that tests and the demo can use it.

fn main() -> std::process::ExitCode {
    gpool_protocol::is_build(option_env!("GPOOL_VERSION"));
    gpool_cli::run(std::env::args_os())
}
