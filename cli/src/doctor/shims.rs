//! The shims are installed, and there are some for this driver.

use super::{Outcome, Surroundings, first_of};
use gpool_protocol::DriverView;
use std::path::Path;

const FILES: [&str; 2] = ["libgpool-cuda.so", "libgpool-nvml.so"];

pub fn check(host: &Surroundings) -> Outcome {
    let dir = host.configuration().paths.shim_dir;
    let installed = generations_in(&host.path(&dir.display().to_string()));
    if installed.is_empty() {
        return Outcome::fail(
            format!("no shims are installed in {} (paths.shim_dir)", dir.display()),
            "install gpool again, or name the directory",
        );
    }
    match &host.driver {
        Ok(driver) => fit(driver, &installed),
        Err(_) => Outcome::skip(format!(
            "those for drivers {} are installed; which of them go with the driver the supervisor knows, which does not \
             answer",
            installed.join(", ")
        )),
    }
}

/// Directories that hold both shims, in order.
fn generations_in(dir: &Path) -> Vec<String> {
    let entries = std::fs::read_dir(dir).into_iter().flatten().flatten();
    let is_whole = |path: &Path| FILES.iter().all(|file| path.join(file).is_file());
    let whole = entries.filter(|entry| is_whole(&entry.path()));
    let mut names: Vec<String> = whole.map(|entry| entry.file_name().to_string_lossy().into_owned()).collect();
    names.sort();
    names
}

fn fit(driver: &DriverView, installed: &[String]) -> Outcome {
    let generation = driver.shims.first().map_or("no", |shim| shim.generation.as_str());
    let chosen = format!("those for driver {generation} go with driver {}", driver.version);
    if driver.shims.iter().any(|shim| shim.build_id.is_none()) {
        return Outcome::fail(
            format!("{chosen}, and have no build id: nothing can prove that a process has mapped them"),
            "build gpool with a linker that takes --build-id",
        );
    }
    if !driver.missing.is_empty() {
        return Outcome::warn(
            format!(
                "{chosen} best, and have {} names that it lacks: {}",
                driver.missing.len(),
                first_of(&driver.missing)
            ),
            "use a driver of branch 535 or newer: programs find these names, and calls of them fail",
        );
    }
    Outcome::ok(format!("{chosen}, of {}", installed.join(", ")))
}
