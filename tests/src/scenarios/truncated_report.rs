//! A tenant that truncates its report: the supervisor and the neighbour must not notice more than a breach.

use super::{finish, start_tenants, wait_until_running};
use crate::failure::{Result, ensure};
use crate::host::Host;
use crate::meter::usage_of;
use crate::namespaces::Inside;
use std::time::Duration;

/// Truncates the report of one of two containers.
pub fn run(inside: &Inside) -> Result<()> {
    let host = Host::start(inside)?;
    let outcome = truncate_one(&host);
    finish(host, outcome)
}

fn truncate_one(host: &Host) -> Result<()> {
    let containers = start_tenants(host, &[("vandal", "0.5", "2GiB", 500), ("neighbour", "0.5", "2GiB", 500)])?;
    wait_until_running(host, &containers)?;
    let supervisor = host.supervisor_pid();
    host.engine.docker_text(&["exec", "vandal", "truncate", "-s", "0", "/dev/gpool/report"])?;
    std::thread::sleep(Duration::from_secs(2));
    let ran = |meter| usage_of(&meter, &containers[1].id).kernels;
    let before = ran(host.meter()?.read()?);
    std::thread::sleep(Duration::from_secs(2));
    let after = ran(host.meter()?.read()?);
    ensure(after > before, || "the neighbour stands still".to_owned())?;
    host.leases()?;
    ensure(host.supervisor_pid() == supervisor && containers[1].is_alive(), || "the neighbour ended".to_owned())
}
