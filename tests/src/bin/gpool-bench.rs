//! `gpool-bench`: every figure that is promised, measured, see [`gpool_tests::bench`].

fn main() -> std::process::ExitCode {
    gpool_tests::bench::run()
}
