//! What a leased container gets in its config.json.

use super::record::EMPTY_DIR;
use crate::device::{Chosen, DriverFiles, DriverFilesError, Gpu};
use gpool_configuration::Configuration;
use gpool_protocol::{Edit, LeaseId};
use gpool_shared_region::{BELL_FILE, CONTROL_FILE, REGION_DIR, REPORT_FILE};
use std::path::Path;
use std::sync::Arc;

/// The edits for one lease: the driver with its GPUs, the region, and the hook that binds the lease; and
/// the shims that are among them.
///
/// # Errors
/// When a device node or a library is not there.
pub fn edits(
    configuration: &Configuration,
    files: &DriverFiles,
    gpus: &[&Gpu],
    lease: &LeaseId,
    region: &Path,
) -> Result<(Vec<Edit>, Arc<Chosen>), DriverFilesError> {
    let (mut edits, chosen) = files.edits(gpus)?;
    for (name, access) in [(CONTROL_FILE, "ro"), (REPORT_FILE, "rw"), (BELL_FILE, "rw")] {
        edits.push(Edit::Mount {
            source: region.join(name).display().to_string(),
            destination: format!("{REGION_DIR}/{name}"),
            // All that the region itself is mounted with: in a user namespace nobody may take one of them away.
            options: ["bind", access, "nosuid", "nodev", "noexec", "rprivate"].map(String::from).to_vec(),
        });
    }
    let shims: Vec<&Path> = chosen.shims.iter().map(|shim| shim.path.as_path()).collect();
    edits.push(mask_of_foreign_mps(configuration));
    edits.push(binding_hook(configuration, lease, &shims));
    Ok((edits, chosen))
}

/// The edits for a lease without shims: the driver itself with its GPUs, and the hook that binds the lease, which sees to
/// it that the libraries are the host's.
///
/// # Errors
/// When a device node or a library is not there.
pub fn edits_without_shims(
    configuration: &Configuration,
    files: &DriverFiles,
    gpus: &[&Gpu],
    lease: &LeaseId,
) -> Result<Vec<Edit>, DriverFilesError> {
    let (mut edits, real) = files.edits_without_shims(gpus)?;
    edits.push(mask_of_foreign_mps(configuration));
    edits.push(binding_hook(configuration, lease, &real.each_ref().map(|path| path.as_path())));
    Ok(edits)
}

/// Nothing, where programs look for an MPS daemon that is not named: NVIDIA's toolkit puts the host's there.
fn mask_of_foreign_mps(configuration: &Configuration) -> Edit {
    Edit::Mount {
        source: configuration.paths.run_dir.join(EMPTY_DIR).display().to_string(),
        destination: "/tmp/nvidia-mps".into(),
        options: ["bind", "ro", "nosuid", "nodev", "noexec", "rprivate"].map(String::from).to_vec(),
    }
}

/// The hook that binds `lease`, if every libcuda and NVML in the container is one of `libraries`.
fn binding_hook(configuration: &Configuration, lease: &LeaseId, libraries: &[&Path]) -> Edit {
    let mut args = ["gpool-hook", "create-runtime", &lease.0, "--socket"].map(String::from).to_vec();
    args.push(configuration.socket.path.display().to_string());
    for library in libraries {
        args.extend(["--shim".to_owned(), library.display().to_string()]);
    }
    Edit::Hook {
        path: configuration.paths.hook.display().to_string(),
        args,
        // Never empty: a hook without env may be handed the image's.
        env: vec!["GPOOL_HOOK=1".into()],
    }
}
