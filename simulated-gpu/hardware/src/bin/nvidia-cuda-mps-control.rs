//! The stand-in for NVIDIA's control daemon of MPS on machines with the simulated GPU.

fn main() -> std::process::ExitCode {
    gpool_simulated_hardware::mps::program::run()
}
