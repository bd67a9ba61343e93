//! `gpool-tenant`: an ordinary CUDA program, see [`gpool_tests::workload`].

fn main() -> std::process::ExitCode {
    gpool_tests::workload::run()
}
