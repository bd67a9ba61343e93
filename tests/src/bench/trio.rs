//! The three tenants of the main job, with shares of gpool or in plain containers.

use super::containers::{self, Way};
use crate::failure::{Context, Result};
use crate::host::{Container, Host};
use crate::measure::Entitled;
use crate::scenarios::wait_until_running;
use crate::tenant::{PauseFile, Tenant};
use std::path::Path;

const PAUSES: &str = "/run/gpool-bench-pause";

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
    let directory = Path::new(PAUSES).join(MEMBERS[index].name);
    // One that a tenant of an earlier round was paused with.
    match std::fs::remove_file(directory.join("pause")) {
        Err(cause) if cause.kind() != std::io::ErrorKind::NotFound => Err(cause).context(directory.display()),
        _ => PauseFile::new(directory),
    }
}

fn start(host: &Host, way: Way, index: usize, pause: &PauseFile, more: &[&str]) -> Result<Container> {
    let Member { name, fraction, memory, kernel_us, allocate_mib, .. } = MEMBERS[index];
    let tenant = Tenant { kernel_us, allocate_mib: Some(allocate_mib), pause: Some(pause) };
    containers::start(host, way, name, &tenant, &[("GPOOL_FRACTION", fraction), ("GPOOL_MEMORY", memory)], more)
}
