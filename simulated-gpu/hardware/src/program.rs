//! The command line of gpool-simgpu.

use crate::layout::{DEFAULT_DIRECTORY, Layout};
use crate::server::{ServeError, serve};
use crate::store::Store;
use clap::{Parser, Subcommand};
use gpool_device_model::DeviceParameters;
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use std::io::Write;
use std::os::fd::{AsFd, FromRawFd, OwnedFd};
use std::path::PathBuf;
use std::process::ExitCode;

/// Play an NVIDIA GPU and its kernel driver for processes that load the simulated libraries.
#[derive(Debug, Parser)]
#[command(name = "gpool-simgpu", version)]
struct Arguments {
    #[command(subcommand)]
    verb: Option<Verb>,
    /// Where state, socket and device nodes lie; the simulated libraries look in the default only.
    #[arg(long, global = true, default_value = DEFAULT_DIRECTORY)]
    dir: PathBuf,
    /// The device's memory: bytes, or a number with KiB, MiB or GiB.
    #[arg(long, default_value = "24GiB", value_parser = bytes)]
    memory: u64,
    /// What a context takes from it.
    #[arg(long, default_value = "256MiB", value_parser = bytes)]
    context_memory: u64,
    /// How long a context keeps the GPU while others have work, in nanoseconds.
    #[arg(long, value_name = "NS", default_value_t = 2_000_000)]
    time_slice: u64,
    /// How long an exchange of contexts takes, in nanoseconds.
    #[arg(long, value_name = "NS", default_value_t = 50_000)]
    switch_cost: u64,
}

#[derive(Debug, Subcommand)]
enum Verb {
    /// Print what the device has seen, as JSON: who ran for how long and who held what.
    Meter,
}

/// Runs the program with the process's arguments.
pub fn run() -> ExitCode {
    let arguments = Arguments::parse();
    let result = match arguments.verb {
        Some(Verb::Meter) => meter(&arguments),
        None => play(&arguments),
    };
    match result {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("gpool-simgpu: {error}");
            ExitCode::FAILURE
        }
    }
}

fn meter(arguments: &Arguments) -> Result<(), ServeError> {
    let device = Store::open(&arguments.dir)?.snapshot()?;
    let meter = device.meter();
    let text = serde_json::json!({
        "name": device.parameters().name,
        "elapsed_ns": meter.elapsed_ns(),
        "idle_ns": meter.idle_ns(),
        "memory_bytes": device.parameters().memory_bytes,
        "memory_used_bytes": device.memory_used(),
        "processes": device.processes(),
        "meter": meter,
    });
    let written = writeln!(std::io::stdout(), "{text}");
    written.map_err(|cause| ServeError::System { doing: "print the meter", cause })
}

fn play(arguments: &Arguments) -> Result<(), ServeError> {
    let failed = |doing| move |cause| ServeError::System { doing, cause };
    raise_descriptor_limit().map_err(failed("raise the limit of open files"))?;
    let stop = termination().map_err(failed("take the signals"))?;
    let parameters = DeviceParameters {
        memory_bytes: arguments.memory,
        context_bytes: arguments.context_memory,
        time_slice_ns: arguments.time_slice,
        switch_cost_ns: arguments.switch_cost,
        ..DeviceParameters::standard(0)
    };
    serve(&Layout::new(&arguments.dir), parameters, stop.as_fd(), || {
        let mut output = std::io::stdout();
        // Whoever started this and does not listen is not waiting either.
        let _ = writeln!(output, "ready").and_then(|()| output.flush());
    })
}

/// Every process that uses the device takes two descriptors.
fn raise_descriptor_limit() -> std::io::Result<()> {
    let Rlimit { maximum, .. } = getrlimit(Resource::Nofile);
    Ok(setrlimit(Resource::Nofile, Rlimit { current: maximum, maximum })?)
}

/// A descriptor that is readable once SIGTERM or SIGINT has come.
fn termination() -> std::io::Result<OwnedFd> {
    // SAFETY: the set is initialised by sigemptyset before it is read, all pointers are to live locals, and the
    // descriptor that signalfd returns is new and owned by nobody else.
    unsafe {
        let mut signals = std::mem::zeroed();
        libc::sigemptyset(&mut signals);
        libc::sigaddset(&mut signals, libc::SIGTERM);
        libc::sigaddset(&mut signals, libc::SIGINT);
        if libc::sigprocmask(libc::SIG_BLOCK, &signals, std::ptr::null_mut()) != 0 {
            return Err(std::io::Error::last_os_error());
        }
        match libc::signalfd(-1, &signals, libc::SFD_CLOEXEC) {
            descriptor if descriptor >= 0 => Ok(OwnedFd::from_raw_fd(descriptor)),
            _ => Err(std::io::Error::last_os_error()),
        }
    }
}

/// Parses `24GiB`, `256MiB`, `64KiB` or plain bytes.
fn bytes(text: &str) -> Result<u64, String> {
    let units = [("KiB", 10), ("MiB", 20), ("GiB", 30)];
    let unit = units.iter().find_map(|(suffix, shift)| Some((text.strip_suffix(suffix)?, *shift)));
    let (number, shift) = unit.unwrap_or((text, 0));
    let number = number.parse::<u64>().map_err(|cause| format!("{text:?} is not a number of bytes ({cause})"))?;
    number.checked_mul(1 << shift).ok_or_else(|| format!("{text:?} is too large"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_are_read_with_and_without_units() {
        assert_eq!(bytes("24GiB"), Ok(24 << 30));
        assert_eq!(bytes("1"), Ok(1));
        assert!(bytes("1.5GiB").is_err());
        assert!(bytes("99999999999GiB").is_err());
    }
}
