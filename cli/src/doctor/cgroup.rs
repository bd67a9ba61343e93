//! The kernel has the controllers with which devices are granted and containers frozen.

use super::{Outcome, Surroundings};

pub fn check(host: &Surroundings) -> Outcome {
    if host.path("/sys/fs/cgroup/cgroup.controllers").is_file() {
        return Outcome::ok("version 2");
    }
    let missing: Vec<&str> = ["devices", "freezer"]
        .into_iter()
        .filter(|controller| !host.path(&format!("/sys/fs/cgroup/{controller}")).is_dir())
        .collect();
    if missing.is_empty() {
        return Outcome::ok("version 1 with the controllers devices and freezer");
    }
    Outcome::fail(
        format!("version 1 without the controller {}", missing.join(" and ")),
        "mount it below /sys/fs/cgroup: without it containers are not kept from GPUs that they have not leased, or not frozen",
    )
}
