//! The three tenants of the main job, with shares of gpool or in plain containers.

use crate::failure::{Context, Result};
use crate::host::{Container, Host};
use crate::image;
use crate::measure::Entitled;
use crate::scenarios::wait_until_running;
use crate::tenant::{PauseFile, Tenant};
use std::path::{Path, PathBuf};

/// The directory of the simulated GPU: its device nodes, its libraries and its state.
const SIMULATED_GPU: &str = "/run/gpool-simgpu";
const PAUSES: &str = "/run/gpool-bench-pause";

/// How containers get at the GPU.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Way {
    /// With the runtime `gpool` and a request.
    Leased,
    /// With plain runc, the device nodes and the driver's own libraries: what the driver's time slicing gives.
    Plain,
}

/// One tenant of the main job.
struct Member {
    name: &'static str,
    fraction: &'static str,
    entitled: f64,
    memory: &'static str,
    kernel_us: u64,
    /// The same with and without a cap, so that the work is the same too; below every cap.
    allocate_mib: u64,
}

const MEMBERS: [Member; 3] = [
    Member {
        name: "small-kernels",
        fraction: "0.3",
        entitled: 0.3,
        memory: "4GiB",
        kernel_us: 300,
        allocate_mib: 3 << 10,
    },
    Member {
        name: "medium-kernels",
        fraction: "0.6",
        entitled: 0.6,
        memory: "10GiB",
        kernel_us: 2000,
        allocate_mib: 8 << 10,
    },
    Member { name: "long-kernels", fraction: "0.1", entitled: 0.1, memory: "1GiB", kernel_us: 5000, allocate_mib: 512 },
];

/// Index of the tenant with 60 %, which falls idle and comes back.
pub const LENDER: usize = 1;
/// Launches between two synchronisations of a plain lender.
const LENDER_BATCH: &str = "8";

/// Three containers.
#[derive(Debug)]
pub struct Trio {
    /// In the order of 30, 60 and 10 %.
    pub containers: [Container; 3],
    /// A tenant is idle while its file is there.
    pub pauses: [PauseFile; 3],
    way: Way,
}

impl Trio {
    /// Starts all three and waits until their kernels execute.
    pub fn start(host: &Host, way: Way) -> Result<Self> {
        let pauses = [pause(0)?, pause(1)?, pause(2)?];
        let start = |index: usize| start(host, way, index, &pauses[index], &[]);
        let containers = [start(0)?, start(1)?, start(2)?];
        wait_until_running(host, &containers)?;
        Ok(Self { containers, pauses, way })
    }

    /// Makes sure that the lender falls idle soon after it is told to. Behind a closed gate a tenant has little work
    /// queued; a plain one has a thousand launches, so it is started again as one that synchronises often.
    pub fn make_lender_prompt(&mut self, host: &Host) -> Result<()> {
        if self.way == Way::Leased {
            return Ok(());
        }
        host.engine.docker_text(&["rm", "-f", MEMBERS[LENDER].name])?;
        let batch = ["--launch-batch", LENDER_BATCH];
        self.containers[LENDER] = start(host, self.way, LENDER, &self.pauses[LENDER], &batch)?;
        wait_until_running(host, &self.containers)
    }

    /// Who should receive how much.
    pub fn entitled(&self) -> [Entitled<'_>; 3] {
        [0, 1, 2].map(|index| (self.containers[index].id.as_str(), MEMBERS[index].entitled))
    }

    /// The id of the lender.
    pub fn lender(&self) -> &str {
        &self.containers[LENDER].id
    }
}

fn pause(index: usize) -> Result<PauseFile> {
    let directory = pause_directory(index);
    // One that a tenant of an earlier round was paused with.
    match std::fs::remove_file(directory.join("pause")) {
        Err(cause) if cause.kind() != std::io::ErrorKind::NotFound => Err(cause).context(directory.display()),
        _ => PauseFile::new(directory),
    }
}

fn pause_directory(index: usize) -> PathBuf {
    Path::new(PAUSES).join(MEMBERS[index].name)
}

fn start(host: &Host, way: Way, index: usize, pause: &PauseFile, more: &[&str]) -> Result<Container> {
    let Member { name, fraction, memory, kernel_us, allocate_mib, .. } = MEMBERS[index];
    let tenant = Tenant { kernel_us, allocate_mib: Some(allocate_mib), pause: Some(pause) };
    match way {
        Way::Leased => tenant.run(host, name, &[("GPOOL_FRACTION", fraction), ("GPOOL_MEMORY", memory)]),
        Way::Plain => {
            let command: Vec<String> = tenant.command().into_iter().chain(more.iter().map(|s| s.to_string())).collect();
            run_plain(host, name, &pause_directory(index), &command)
        }
    }
}

fn run_plain(host: &Host, name: &str, pauses: &Path, command: &[String]) -> Result<Container> {
    let seen_at = command.windows(2).find(|pair| pair[0] == "--pause-file").map(|pair| Path::new(&pair[1]));
    let seen_at = seen_at.and_then(Path::parent).unwrap_or(Path::new("/data"));
    let mut options: Vec<String> = ["run", "-d", "--runtime=runc", "--name", name].map(String::from).to_vec();
    let libraries = ["libcuda.so.1", "libnvidia-ml.so.1"]
        .map(|library| format!("{SIMULATED_GPU}/lib/{library}:{}/{library}:ro", image::LIBRARIES));
    let others = [
        format!("{SIMULATED_GPU}/state:{SIMULATED_GPU}/state"),
        format!("{}:{}:ro", pauses.display(), seen_at.display()),
    ];
    options.extend(libraries.into_iter().chain(others).flat_map(|mount| ["-v".to_owned(), mount]));
    let nodes = ["nvidia0", "nvidiactl", "nvidia-uvm"];
    options.extend(
        nodes.iter().flat_map(|node| ["--device".to_owned(), format!("{SIMULATED_GPU}/dev/{node}:/dev/{node}:rw")]),
    );
    options.push(image::NAME.to_owned());
    options.extend_from_slice(command);
    host.engine.docker_text(&options.iter().map(String::as_str).collect::<Vec<_>>())?;
    Container::inspect(&host.engine, name)
}
