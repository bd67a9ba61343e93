//! The shims are installed, and there are some for this driver.

use super::driver_notes::is_simulated;
use super::{Outcome, Surroundings, first_of};
use gpool_protocol::{DriverView, ErrorCode};
use std::path::Path;

/// The shims, in each generation's directory.
pub const FILES: [&str; 2] = ["libgpool-cuda.so", "libgpool-nvml.so"];
/// What each of them needs, which nothing else does: the driver's own library, at its place in a container.
const NEEDED: [&[u8]; 2] = [b"/dev/gpool/real/libcuda.so.1\0", b"/dev/gpool/real/libnvidia-ml.so.1\0"];

pub fn check(host: &Surroundings) -> Outcome {
    let dir = host.configuration().paths.shim_dir;
    let installed = generations_in(&host.path(&dir.display().to_string()));
    if let Some(half) = half_installed(&host.path(&dir.display().to_string())) {
        return Outcome::fail(
            format!("{}/{half}", dir.display()),
            "install gpool again; until then the shims of this generation are not used",
        );
    }
    if installed.is_empty() {
        return Outcome::fail(
            format!("no shims are installed in {} (paths.shim_dir)", dir.display()),
            "install gpool again, or name the directory",
        );
    }
    for generation in &installed {
        for (file, needed) in FILES.iter().zip(NEEDED) {
            let path = dir.join(generation).join(file);
            if !is_shim(&host.path(&path.display().to_string()), needed) {
                return Outcome::fail(
                    format!("{} is no shim of gpool: containers would run on it", path.display()),
                    "install gpool again; running containers keep what they have mapped",
                );
            }
        }
    }
    match &host.driver {
        Ok(driver) => fit(driver, &installed),
        Err(error) if error.code != ErrorCode::SupervisorAbsent => {
            Outcome::fail(error.message.clone(), error.remedy.clone())
        }
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

/// The first directory that holds one shim and not the other, and what it lacks.
fn half_installed(dir: &Path) -> Option<String> {
    let entries = std::fs::read_dir(dir).into_iter().flatten().flatten();
    let lacks = |path: &Path| {
        let missing: Vec<&str> = FILES.into_iter().filter(|file| !path.join(file).is_file()).collect();
        missing.first().filter(|_| missing.len() < FILES.len()).map(ToString::to_string)
    };
    let mut half: Vec<String> = entries
        .filter_map(|entry| Some(format!("{} lacks {}", entry.file_name().display(), lacks(&entry.path())?)))
        .collect();
    half.sort();
    half.into_iter().next()
}

/// Whether the file is an ELF library that needs the driver's own one behind it.
fn is_shim(path: &Path, needed: &[u8]) -> bool {
    let bytes = std::fs::read(path).unwrap_or_default();
    bytes.starts_with(b"\x7fELF") && bytes.windows(needed.len()).any(|window| window == needed)
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
    // The simulated driver has fewer names than any real one, on purpose.
    if !driver.missing.is_empty() && !is_simulated(&driver.version) {
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
