//! `gpool-tenant`: an ordinary CUDA program, see [`gpool_tests::workload`].

// It runs in images of other systems too.
gpool_driver_abi::needs_old_glibc!(program);

fn main() -> std::process::ExitCode {
    gpool_tests::workload::run()
}
