//! The program that tests one GPU. Each part computes what it must come to by itself, on the host's processor, and compares
//! every bit; what is found is printed as a line of JSON for each part when it has ended, a `GpuTestPart`: who ends the program has
//! what was found until then.
//!
//! | module | what is in it |
//! |---|---|
//! | `driver` | the driver's calls, and which of its errors are the GPU's |
//! | `answers` | kernels of which each thread must come to a known number |
//! | `arithmetic` | integers, single and double precision |
//! | `products` | products of matrices, on tensor cores |
//! | `memory` | memory that must keep what was written |
//!
//! Why a GPU that shows no error can be wrong: Meta's "Silent Data Corruptions at Scale" (arXiv 2102.11245) and NVIDIA's notes on
//! known-answer tests; a multiprocessor that errs in one of many sums raises no Xid.

mod answers;
mod arithmetic;
mod driver;
mod memory;
mod products;

use clap::{CommandFactory, Parser};
use driver::{Driver, DriverError, Gpu};
use gpool_protocol::{GpuTestOutcome, GpuTestPart, parse_bytes};
use std::io::Write;
use std::process::ExitCode;
use std::time::{Duration, Instant};

/// Test the first GPU that this process sees, and print what was found as JSON, a line for each part. CUDA_VISIBLE_DEVICES says which one that is.
///
/// Nobody should use the GPU meanwhile: gpool gpu test sees to that. It ends with whoever has started it. The exit code is 0
/// whatever was found.
#[derive(Debug, Parser)]
#[command(name = "gpool-gpu-test", version)]
struct Arguments {
    /// For how long, about: as long as there is memory that was not tried and time is left. 1 at least.
    #[arg(long, value_name = "SECONDS", default_value_t = 10, value_parser = clap::value_parser!(u64).range(1..=3600))]
    seconds: u64,
    /// How much memory is tried at most, like 64GiB; without it all that is free but half a GiB
    #[arg(long, value_name = "SIZE", value_parser = parse_bytes)]
    memory: Option<u64>,
}

/// The command line, for the manual and its tests.
#[must_use]
pub fn command() -> clap::Command {
    Arguments::command()
}

/// Of the time that there is, tenths until which arithmetic and products of matrices are tried.
const ARITHMETIC_TENTHS: u32 = 4;
const PRODUCTS_TENTHS: u32 = 6;

/// Runs the program with the process's arguments.
pub fn main() -> ExitCode {
    let arguments = Arguments::parse();
    // Whoever has started it ends it when somebody comes to the GPU, and it is nobody's without him.
    let _ = rustix::process::set_parent_process_death_signal(Some(rustix::process::Signal::KILL));
    if rustix::process::getppid().is_none_or(rustix::process::Pid::is_init) {
        // He has ended already.
        return ExitCode::FAILURE;
    }
    if let Err(error) = Driver::load().and_then(|driver| parts(&driver, &arguments)) {
        tell("driver", Err(error));
    }
    ExitCode::SUCCESS
}

fn parts(driver: &Driver, arguments: &Arguments) -> Result<(), DriverError> {
    let gpu = Gpu::begin(driver)?;
    let (multiprocessors, capability) = (gpu.multiprocessors, gpu.capability);
    tell("driver", Ok(Verdict::Right(format!("{multiprocessors} multiprocessors of compute capability {capability}"))));
    // The driver has been started and has a context, which takes a second or two.
    let (begun, all) = (Instant::now(), Duration::from_secs(arguments.seconds));
    let until = |tenths: u32| begun + all * tenths / 10;
    tell("arithmetic", arithmetic::test(&gpu, until(ARITHMETIC_TENTHS)));
    // An older one has none to test.
    if gpu.capability >= products::CAPABILITY {
        tell("products", products::test(&gpu, until(PRODUCTS_TENTHS)));
    }
    tell("memory", memory::test(&gpu, arguments.memory, until(10)));
    Ok(())
}

/// Prints what a part has come to. Who does not listen is not waiting either.
fn tell(name: &str, verdict: Result<Verdict, DriverError>) {
    let mut out = std::io::stdout().lock();
    let line = serde_json::to_string(&part(name, verdict)).unwrap_or_default();
    let _ = writeln!(out, "{line}").and_then(|()| out.flush());
}

/// What a part has come to.
enum Verdict {
    Right(String),
    Wrong(String),
    /// It cannot be tried on this GPU.
    Untried(String),
}

fn part(name: &str, verdict: Result<Verdict, DriverError>) -> GpuTestPart {
    let (outcome, told) = match verdict {
        Ok(Verdict::Right(told)) => (GpuTestOutcome::Passed, told),
        Ok(Verdict::Wrong(told)) => (GpuTestOutcome::Failed, told),
        Ok(Verdict::Untried(told)) => (GpuTestOutcome::NotRun, told),
        Err(error) if error.is_the_gpus() => (GpuTestOutcome::Failed, error.to_string()),
        Err(error) => (GpuTestOutcome::NotRun, error.to_string()),
    };
    GpuTestPart { name: name.to_owned(), outcome, told }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_command_line_is_sound_and_bounded() {
        command().debug_assert();
        let seconds = |text| Arguments::try_parse_from(["gpool-gpu-test", "--seconds", text]).map(|its| its.seconds);
        assert_eq!((seconds("1").ok(), seconds("3600").ok()), (Some(1), Some(3600)));
        assert!(seconds("0").is_err() && seconds("3601").is_err());
    }

    #[test]
    fn an_error_is_the_gpus_where_no_program_can_make_it() {
        let gives = |code| part("memory", Err(DriverError::Code("cuCtxSynchronize", code))).outcome;
        assert_eq!([214, 714, 719].map(gives), [GpuTestOutcome::Failed; 3]);
        assert_eq!([2, 100, 209, 227, 702, 999].map(gives), [GpuTestOutcome::NotRun; 6]);
    }
}
