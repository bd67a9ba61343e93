//! `gpool-integration`: the integration tests, see [`gpool_tests::runner`].

fn main() -> std::process::ExitCode {
    gpool_tests::runner::run()
}
