//! What a leased container gets in its config.json.

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
    let mut args = ["gpool-hook", "create-runtime", &lease.0, "--socket"].map(String::from).to_vec();
    args.push(configuration.socket.path.display().to_string());
    for shim in &chosen.shims {
        args.extend(["--shim".to_owned(), shim.path.display().to_string()]);
    }
    edits.push(Edit::Hook {
        path: configuration.paths.hook.display().to_string(),
        args,
        // Never empty: a hook without env may be handed the image's.
        env: vec!["GPOOL_HOOK=1".into()],
    });
    Ok((edits, chosen))
}
