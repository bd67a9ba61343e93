//! Tests the first GPU that it sees, and prints what it found.

fn main() -> std::process::ExitCode {
    gpool_gpu_test::main()
}
