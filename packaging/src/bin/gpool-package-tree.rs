//! Lays out a package, of what is built and of what stands in `packaging/Cargo.toml`.

fn main() -> std::process::ExitCode {
    gpool_packaging::tree::main()
}
