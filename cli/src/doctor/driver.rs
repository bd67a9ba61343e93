//! The driver's libraries are there, and NVML shows GPUs.

use super::{Outcome, Surroundings};
use crate::table::is_mig_instance;

const LIBRARIES: [&str; 2] = ["libcuda.so.1", "libnvidia-ml.so.1"];

pub fn check(host: &Surroundings) -> Outcome {
    let dirs = host.configuration().driver.library_dirs;
    let is_there = |name: &&str| dirs.iter().any(|dir| host.path(&dir.join(name).display().to_string()).exists());
    let missing: Vec<&str> = LIBRARIES.into_iter().filter(|name| !is_there(name)).collect();
    if !missing.is_empty() {
        let dirs: Vec<String> = dirs.iter().map(|dir| dir.display().to_string()).collect();
        return Outcome::fail(
            format!("{} is in none of driver.library_dirs ({})", missing.join(" and "), dirs.join(", ")),
            "install the driver's libraries, or name their directory",
        );
    }
    // The supervisor loads NVML when it starts, and does not start without it.
    match (&host.driver, &host.gpus) {
        (Ok(driver), Ok(gpus)) if gpus.is_empty() => Outcome::fail(
            format!("NVML of driver {} loads and shows no GPU", driver.version),
            "look at the kernel's log for NVRM, and at nvidia-smi",
        ),
        (Ok(driver), Ok(gpus)) => Outcome::ok(format!(
            "NVML of driver {} loads and shows {} GPU(s)",
            driver.version,
            gpus.iter().filter(|gpu| !is_mig_instance(gpu)).count()
        )),
        _ => Outcome::skip("the libraries are there; whether NVML loads the supervisor knows, which does not answer"),
    }
}
