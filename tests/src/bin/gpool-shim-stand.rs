//! `gpool-shim-stand`: the shim in front of a driver that does nothing, see [`gpool_tests::stand`].

fn main() -> std::process::ExitCode {
    gpool_tests::stand::run()
}
