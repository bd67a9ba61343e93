//! The command line of gpool-simgpu.

use crate::driver_version::DriverVersion;
use crate::health::Health;
use crate::layout::{DEFAULT_DIRECTORY, Layout, MAX_DEVICES};
use crate::server::{Host, ServeError, serve};
use crate::site::Site;
use crate::store::Store;
use clap::{CommandFactory, Parser, Subcommand};
use gpool_device_model::{Device, DeviceParameters, MIG_MODELS, MigModel};
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use std::io::Write;
use std::os::fd::{AsFd, FromRawFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::process::ExitCode;

/// Play NVIDIA GPUs and their kernel driver for processes that load the simulated libraries.
#[derive(Debug, Parser)]
#[command(name = "gpool-simgpu", version)]
struct Arguments {
    #[command(subcommand)]
    verb: Option<Verb>,
    /// Where state, socket and device nodes lie; the simulated libraries look in the default only.
    #[arg(long, global = true, default_value = DEFAULT_DIRECTORY)]
    dir: PathBuf,
    /// How many devices there are, all alike.
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..=i64::from(MAX_DEVICES)))]
    gpus: u32,
    /// How many devices each island of NVLink has, in order: 1,4,2. Those that are left are linked with none.
    #[arg(long, value_name = "SIZES", value_delimiter = ',')]
    islands: Vec<u32>,
    /// How many processors the devices are spread over, in order.
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..))]
    processors: u32,
    /// A board with MIG that the devices are to be divided like: A30, A100-40GB, A100-80GB, H100-80GB, H200-141GB or
    /// B200-180GB; without it they have no MIG.
    #[arg(long, value_name = "MODEL", value_parser = model)]
    model: Option<&'static MigModel>,
    /// A device's memory: bytes, or a number with KiB, MiB or GiB; without it the model's, or 24GiB.
    #[arg(long, value_parser = bytes)]
    memory: Option<u64>,
    /// What the driver keeps for itself beside it.
    #[arg(long, default_value = "0", value_parser = bytes)]
    reserved_memory: u64,
    /// What of it is in use while no process is there: 4 MiB of an H100.
    #[arg(long, default_value = "0", value_parser = bytes)]
    held_memory: u64,
    /// What a context takes from it.
    #[arg(long, default_value = "256MiB", value_parser = bytes)]
    context_memory: u64,
    /// The part of that which NVML lists for no process.
    #[arg(long, default_value = "0", value_parser = bytes)]
    unlisted_memory: u64,
    /// The driver's version; programs that come with a driver want their own.
    #[arg(long, value_name = "VERSION", default_value_t, value_parser = DriverVersion::parse)]
    driver_version: DriverVersion,
    /// Map physical memory (cuMemMap) only as a whole, as a driver may.
    #[arg(long)]
    whole_maps: bool,
    /// How long a context keeps the GPU while others have work, in nanoseconds.
    #[arg(long, value_name = "NS", default_value_t = DeviceParameters::TIME_SLICE_NS)]
    time_slice: u64,
    /// How long an exchange of contexts takes, in nanoseconds.
    #[arg(long, value_name = "NS", default_value_t = 50_000)]
    switch_cost: u64,
}

#[derive(Debug, Subcommand)]
enum Verb {
    /// Print what the devices have seen, a line of JSON for each: who ran for how long and who held what.
    Meter {
        /// Print this device only.
        #[arg(long, value_name = "INDEX")]
        gpu: Option<u32>,
    },
    /// Let a device have a fault: whoever has a context on it loses it. That of a MIG instance does not spread.
    Fault {
        /// Which device.
        #[arg(long, value_name = "INDEX", default_value_t = 0)]
        gpu: u32,
        /// Which GPU instance of it.
        #[arg(long, value_name = "NUMBER")]
        instance: Option<u32>,
        /// Only this process on the host loses its contexts: a fault of its own work, such as an illegal address. With it
        /// all clients of its MPS server lose theirs.
        #[arg(long, value_name = "PID")]
        process: Option<u32>,
    },
    /// Let a device say this of its health from now on. What is not named is as on a healthy one.
    Health {
        /// Which device.
        #[arg(long, value_name = "INDEX", default_value_t = 0)]
        gpu: u32,
        #[command(flatten)]
        health: Health,
    },
}

/// The command line, for the manual and its tests.
#[must_use]
pub fn command() -> clap::Command {
    Arguments::command()
}

/// Runs the program with the process's arguments.
pub fn run() -> ExitCode {
    let arguments = Arguments::parse();
    let result = match arguments.verb {
        Some(Verb::Meter { gpu }) => meter(&arguments.dir, gpu),
        Some(Verb::Fault { gpu, instance, process }) => fault(&arguments.dir, gpu, instance, process),
        Some(Verb::Health { gpu, health }) => say(&arguments.dir, gpu, health),
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

fn meter(directory: &Path, gpu: Option<u32>) -> Result<(), ServeError> {
    // Without any device, the first one's absence is the error to tell.
    let layout = Layout::new(directory);
    let all = 0..layout.device_count().max(1);
    let wanted = gpu.map_or(all, |index| index..index + 1);
    for index in wanted {
        print(&seen(index, None, &Store::open_device(directory, index)?.snapshot()?))?;
        for (_, instance) in layout.instances().into_iter().filter(|(device, _)| *device == index) {
            print(&seen(index, Some(instance), &Store::open_instance(directory, (index, instance))?.snapshot()?))?;
        }
    }
    Ok(())
}

fn print(line: &serde_json::Value) -> Result<(), ServeError> {
    let written = writeln!(std::io::stdout(), "{line}");
    written.map_err(|cause| ServeError::System { doing: "print the meter", cause })
}

fn fault(directory: &Path, gpu: u32, instance: Option<u32>, process: Option<u32>) -> Result<(), ServeError> {
    let strike = |store: Store| {
        store.update(|device, now_ns| match process {
            Some(process) => device.fault_process(now_ns, process),
            None => device.fault(now_ns),
        })
    };
    if let Some(instance) = instance {
        return Ok(strike(Store::open_instance(directory, (gpu, instance))?)?);
    }
    strike(Store::open_device(directory, gpu)?)?;
    // A fault of the whole board spares nobody.
    let instances = Layout::new(directory).instances().into_iter().filter(|(device, _)| *device == gpu);
    for instance in instances {
        strike(Store::open_instance(directory, instance)?)?;
    }
    Ok(())
}

fn say(directory: &Path, gpu: u32, health: Health) -> Result<(), ServeError> {
    // That it is not there is told here.
    Store::open_device(directory, gpu)?;
    let noted = health.note(&Layout::new(directory), gpu);
    noted.map_err(|cause| ServeError::System { doing: "say what is wrong with the device", cause })
}

fn seen(index: u32, instance: Option<u32>, device: &Device) -> serde_json::Value {
    let meter = device.meter();
    serde_json::json!({
        "gpu": index,
        "instance": instance,
        "uuid": device.parameters().uuid,
        "name": device.parameters().name,
        "elapsed_ns": meter.elapsed_ns(),
        "idle_ns": meter.idle_ns(),
        "memory_bytes": device.parameters().memory_bytes,
        "memory_used_bytes": device.memory_used(),
        "processes": device.processes(),
        "meter": meter,
    })
}

fn play(arguments: &Arguments) -> Result<(), ServeError> {
    let failed = |doing| move |cause| ServeError::System { doing, cause };
    raise_descriptor_limit().map_err(failed("raise the limit of open files"))?;
    let stop = termination().map_err(failed("take the signals"))?;
    let parameters = |index| {
        let standard = DeviceParameters::standard(index);
        let usual = arguments.model.map_or(standard.clone(), |model| standard.with_model(model));
        DeviceParameters {
            memory_bytes: arguments.memory.unwrap_or(usual.memory_bytes),
            reserved_bytes: arguments.reserved_memory,
            held_bytes: arguments.held_memory.min(arguments.memory.unwrap_or(usual.memory_bytes)),
            context_bytes: arguments.context_memory,
            unlisted_bytes: arguments.unlisted_memory.min(arguments.context_memory),
            time_slice_ns: arguments.time_slice,
            switch_cost_ns: arguments.switch_cost,
            ..usual
        }
    };
    let parameters: Vec<DeviceParameters> = (0..arguments.gpus).map(parameters).collect();
    let sites = sites(arguments);
    let host = Host {
        parameters: &parameters,
        sites: &sites,
        driver_version: &arguments.driver_version,
        has_whole_maps: arguments.whole_maps,
    };
    serve(&Layout::new(&arguments.dir), &host, stop.as_fd(), || {
        let mut output = std::io::stdout();
        // Whoever started this and does not listen is not waiting either.
        let _ = writeln!(output, "ready").and_then(|()| output.flush());
        let _ = sd_notify::notify(&[sd_notify::NotifyState::Ready]);
    })
}

fn sites(arguments: &Arguments) -> Vec<Site> {
    let islands = (0..).zip(&arguments.islands);
    let linked = islands.flat_map(|(island, size)| std::iter::repeat_n(Some(island), *size as usize));
    let each = arguments.gpus.div_ceil(arguments.processors);
    let site = |(index, island)| Site { island, processor: index / each };
    (0..arguments.gpus).zip(linked.chain(std::iter::repeat(None))).map(site).collect()
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

fn model(text: &str) -> Result<&'static MigModel, String> {
    let names: Vec<&str> = MIG_MODELS.iter().map(|model| model.name).collect();
    MigModel::named(text).ok_or_else(|| format!("{text:?} is none of {}", names.join(", ")))
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
    fn the_number_of_devices_is_bounded() {
        let gpus = |text: &str| Arguments::try_parse_from(["gpool-simgpu", "--gpus", text]).map(|given| given.gpus);
        assert_eq!((gpus("1").ok(), gpus("16").ok()), (Some(1), Some(16)));
        assert!(gpus("0").is_err() && gpus("17").is_err());
    }

    #[test]
    fn sizes_are_read_with_and_without_units() {
        assert_eq!(bytes("24GiB"), Ok(24 << 30));
        assert_eq!(bytes("1"), Ok(1));
        assert!(bytes("1.5GiB").is_err());
        assert!(bytes("99999999999GiB").is_err());
    }
}
