//! `gpool-launch-cost`: what calls through the shim cost, see [`gpool_tests::bench::call_cost`].

fn main() -> std::process::ExitCode {
    gpool_tests::bench::call_cost::run()
}
