//! The driver's libraries are there, and NVML shows GPUs.

use super::{Outcome, Surroundings};
use crate::table::is_mig_instance;
use gpool_configuration::Gpus;
use gpool_protocol::GpuView;

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
    let named = host.configuration().driver.gpus;
    // The supervisor loads NVML when it starts, and does not start without it.
    match (&host.driver, &host.gpus) {
        (Ok(_), Ok(gpus)) if !absent(&named, gpus).is_empty() => Outcome::warn(
            format!("{} of driver.gpus is not served", absent(&named, gpus).join(", ")),
            "compare driver.gpus with nvidia-smi -L, and restart gpool-supervisor",
        ),
        (Ok(driver), Ok(gpus)) if gpus.is_empty() => Outcome::fail(
            format!("NVML of driver {} loads and shows no GPU", driver.version),
            "look at the kernel's log for NVRM, at nvidia-smi, and at driver.min_memory",
        ),
        (Ok(driver), Ok(gpus)) => Outcome::ok(format!(
            "NVML of driver {} loads and shows {} GPU(s){}",
            driver.version,
            gpus.iter().filter(|gpu| !is_mig_instance(gpu)).count(),
            if named.named().is_empty() { "" } else { ", those of driver.gpus" }
        )),
        _ => Outcome::skip("the libraries are there; whether NVML loads the supervisor knows, which does not answer"),
    }
}

/// What the configuration names and the supervisor does not serve.
fn absent<'a>(named: &'a Gpus, gpus: &[GpuView]) -> Vec<&'a str> {
    let is_served = |uuid: &&String| gpus.iter().any(|gpu| gpu.uuid.0 == **uuid);
    named.named().iter().filter(|uuid| !is_served(uuid)).map(String::as_str).collect()
}
