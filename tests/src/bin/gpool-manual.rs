//! `gpool-manual`: writes the pages of the manual that are made from the code, see [`gpool_tests::manual`].

fn main() -> std::process::ExitCode {
    gpool_tests::manual::run()
}
