//! Writes man pages and completions for a package.

fn main() -> std::process::ExitCode {
    gpool_packaging::pages::main()
}
