//! The program that plays the hardware and the kernel driver.

fn main() -> std::process::ExitCode {
    gpool_simulated_hardware::program::run()
}
