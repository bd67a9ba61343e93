//! Puts the built files where a host has them, inside the run's own `/run` and `/etc`.

use super::program::Program;
use crate::failure::{Context, Result};
use crate::stage::Stage;
use gpool_simulated_hardware::{DriverVersion, Layout};
use std::fs;
use std::path::Path;
use std::process::Command;

/// The run's own copy of the stage.
pub const STAGE: &str = "/run/gpool-stage";
/// Where the simulated GPU keeps its state, its device nodes and its libraries.
pub const SIMULATED_GPU: &str = "/run/gpool-simgpu";

/// The audit of a run.
pub const AUDIT: &str = "/run/gpool-audit";
/// The ledger of a run, in a directory of its own.
pub const LEDGER: &str = "/run/gpool-ledger/ledger.db";
/// What the supervisor writes down for after a boot.
pub const STATE: &str = "/run/gpool-state";

/// The driver's libraries that gpool stands in for.
pub const LIBRARIES: [&str; 2] = ["libcuda.so.1", "libnvidia-ml.so.1"];

/// The driver's program that MPS is controlled with.
pub const MPS_CONTROL: &str = "nvidia-cuda-mps-control";

/// Writes `/etc/gpool/config.toml` and puts the simulated driver's libraries in their place.
///
/// `more` is added to the configuration.
pub fn write_configuration(stage: &Stage, more: &str) -> Result<()> {
    let libraries = Path::new(SIMULATED_GPU).join("lib");
    fs::create_dir_all(&libraries).context(libraries.display())?;
    for name in LIBRARIES {
        fs::copy(stage.simulated().join(name), libraries.join(name)).context(name)?;
    }
    let programs = Path::new(SIMULATED_GPU).join("bin");
    fs::create_dir_all(&programs).context(programs.display())?;
    fs::copy(stage.simulated().join(MPS_CONTROL), programs.join(MPS_CONTROL)).context(MPS_CONTROL)?;
    // The state must exist before it can be mounted into a container; the simulated GPU fills it.
    fs::create_dir_all("/etc/gpool").context("/etc/gpool")?;
    let text = configuration(stage) + "\n" + more;
    fs::write("/etc/gpool/config.toml", text).context("/etc/gpool/config.toml")
}

/// Puts other libraries where the driver's are, as its package would: each a new file under the old name. What is
/// running keeps the old ones.
pub fn replace_driver(directory: &Path) -> Result<()> {
    for name in LIBRARIES {
        let (path, new) = (Path::new(SIMULATED_GPU).join("lib").join(name), format!("{SIMULATED_GPU}/lib/{name}.new"));
        fs::copy(directory.join(name), &new).context(directory.join(name).display())?;
        fs::rename(&new, &path).context(path.display())?;
    }
    Ok(())
}

/// Makes the simulated driver one of this version, for whoever asks from now on.
pub fn set_driver_version(version: &DriverVersion) -> Result<()> {
    version.write(&Layout::new(SIMULATED_GPU)).context("the driver's version")
}

/// Makes the simulated driver one that maps physical memory only as a whole, for processes that start from now on.
pub fn map_only_whole() -> Result<()> {
    gpool_simulated_hardware::note_whole_maps(&Layout::new(SIMULATED_GPU), true).context("what the driver maps")
}

/// Makes the simulated GPU with this index one that has fallen off its bus, or puts it back.
pub fn set_lost(gpu: u32, is_lost: bool) -> Result<()> {
    gpool_simulated_hardware::note_lost(&Layout::new(SIMULATED_GPU), gpu, is_lost).context("which GPUs are lost")
}

/// NVML hangs when it is asked of that GPU, or comes back.
pub fn set_hung(gpu: u32, is_hung: bool) -> Result<()> {
    gpool_simulated_hardware::note_hung(&Layout::new(SIMULATED_GPU), gpu, is_hung).context("which GPUs hang")
}

/// Has an Xid happen to that GPU.
pub fn note_xid(gpu: u32, number: u64) -> Result<()> {
    gpool_simulated_hardware::note_xid(&Layout::new(SIMULATED_GPU), gpu, number).context("the Xids of GPUs")
}

/// The simulated GPU `gpu` has this compute mode from now on, a number of NVML's.
pub fn set_compute_mode(gpu: u32, mode: u32) -> Result<()> {
    let noted = gpool_simulated_hardware::note_compute_mode(&Layout::new(SIMULATED_GPU), gpu, mode);
    noted.context("the compute modes of GPUs")
}

/// Puts a driver's `nvidia-smi` where the driver's programs are, in place of one that is there. What is running keeps
/// what it has.
pub fn replace_nvidia_smi(program: &Path) -> Result<()> {
    let directory = Path::new(SIMULATED_GPU).join("bin");
    fs::create_dir_all(&directory).context(directory.display())?;
    let new = directory.join("nvidia-smi.new");
    fs::copy(program, &new).context(program.display())?;
    fs::rename(&new, directory.join("nvidia-smi")).context(directory.display())
}

fn configuration(stage: &Stage) -> String {
    format!(
        "[paths]\nshim_dir = \"{shims}\"\nhook = \"{hook}\"\nstate_dir = \"{STATE}\"\n\n\
         [ledger]\npath = \"{LEDGER}\"\n\n[audit]\ndirectory = \"{AUDIT}\"\n\n\
         [lease]\nhold_ms = {hold_ms}\n\n[[driver.mount]]\nsource = \"{SIMULATED_GPU}/state\"\n\n\
         [driver]\nnvml = \"{SIMULATED_GPU}/lib/libnvidia-ml.so.1\"\nlibrary_dirs = [\"{SIMULATED_GPU}/lib\"]\n\
         program_dirs = [\"{SIMULATED_GPU}/bin\"]\nheadroom_bytes = 0\n\
         device_dir = \"{SIMULATED_GPU}/dev\"\nproc_dir = \"{SIMULATED_GPU}/proc\"\n",
        shims = stage.shims().display(),
        hook = stage.hook().display(),
        hold_ms = super::HOLD.as_millis(),
    )
}

/// Starts so many simulated GPUs, of a model that has MIG if one is named.
pub fn start_simulated_gpus(stage: &Stage, gpus: u32, more: &[&str]) -> Result<Program> {
    let mut command = Command::new(stage.program("gpool-simgpu"));
    command.args(["--gpus", &gpus.to_string()]).args(more);
    Program::start("simgpu", &mut command)
}
