//! The nodes of instances in `/dev/nvidia-caps`. The driver makes them for nobody: NVML does for root, and not for this
//! service, which may make no device nodes. So another service does.

use crate::lease::Leases;
use crate::{mps, service_manager};
use std::path::Path;
use std::time::Duration;

/// Makes what is missing each time that it is started.
const UNIT: &str = "gpool-devices.service";
/// Where systemd looks for devices by their numbers.
const LINKS: &str = "/dev/char";
/// How long it is waited for: who asks NVML what goes on waits, too, and a driver of which one board is sick may hang.
const PATIENCE: Duration = Duration::from_secs(4);

/// Has what is missing made, where systemd runs this service. What is missing after that is logged; a container that
/// wants it is refused with the same words.
pub fn make_missing(leases: &Leases) {
    let missing = || leases.files.missing_of_instances(&leases.gpus(), Path::new(LINKS));
    if mps::starts_detached() || missing().is_none() {
        return;
    }
    let started = service_manager::systemctl("start", UNIT, PATIENCE);
    if let Err(error) = started {
        log!("{UNIT} cannot be started: {error}");
    }
    if let Some(cause) = missing() {
        log!("a MIG instance cannot be used: {cause}");
    }
}
