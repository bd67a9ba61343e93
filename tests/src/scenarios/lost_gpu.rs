//! A GPU that falls off its bus takes no new containers, and a supervisor that starts serves the others. The lease on it
//! stays, and is taken over when the GPU is back.

use super::{finish, is_refused, wait_for};
use crate::failure::{Failure, Result, ensure};
use crate::host::{Container, Host};
use crate::namespaces::Inside;
use gpool_protocol::{EventKind, GpuUuid, GpuView, LeaseView};

const LIKE_SECOND: [(&str, &str); 2] = [("GPOOL_FRACTION", "0.3"), ("GPOOL_MEMORY", "1GiB")];

/// Loses one of two GPUs.
pub fn run(inside: &Inside) -> Result<()> {
    let mut host = Host::start_with(inside, 2, "")?;
    let outcome = lose_one(&mut host);
    finish(host, outcome)
}

fn lose_one(host: &mut Host) -> Result<()> {
    let hurt = start(host, "hurt", "0.6")?;
    let healthy = start(host, "healthy", "0.6")?;
    let (lost, left) = (host.lease_of(&hurt)?.gpu_uuid, host.lease_of(&healthy)?.gpu_uuid);
    ensure(lost != left, || format!("both containers are on {lost}"))?;
    host.set_lost(index_of(host, &lost)?, true)?;
    wait_for("an event about the GPU that does not answer", || Ok(silent(host)? == 1))?;
    // It has room for another 0.4, as the other one has.
    let second = start(host, "second", "0.3")?;
    let its = host.lease_of(&second)?.gpu_uuid;
    ensure(its == left, || format!("a new container is on {its}, not on {left}"))?;
    is_refused(host, &LIKE_SECOND, &["GPOOL-E201"])?;

    host.kill_supervisor()?;
    host.start_supervisor()?;
    ensure(silent(host)? == 1, || "no event says that a GPU is left out".to_owned())?;
    ensure(hurt.is_alive(), || "the container on the lost GPU has ended".to_owned())?;
    let there: Vec<LeaseView> = host.leases()?;
    let is_served = there.iter().all(|lease| lease.gpu_uuid == left);
    ensure(there.len() == 2 && is_served, || format!("not the two leases of {left} are taken over: {there:?}"))?;
    is_refused(host, &LIKE_SECOND, &["GPOOL-E201"])?;

    host.set_lost(index_of_lost(host)?, false)?;
    host.kill_supervisor()?;
    host.start_supervisor()?;
    let back = host.lease_of(&hurt)?.gpu_uuid;
    ensure(back == lost && silent(host)? == 0, || format!("the lease on {lost} came back on {back}"))
}

fn start(host: &Host, name: &str, fraction: &str) -> Result<Container> {
    host.run_container(name, &[("GPOOL_FRACTION", fraction), ("GPOOL_MEMORY", "1GiB")], &[], &["sleep", "600"])
}

fn silent(host: &Host) -> Result<usize> {
    Ok(host.events_of(EventKind::GpuSilent)?.len())
}

fn index_of(host: &Host, uuid: &GpuUuid) -> Result<u32> {
    let gpus: Vec<GpuView> = host.client().get("/v1/gpus")?;
    let found = gpus.iter().find(|gpu| gpu.uuid == *uuid).map(|gpu| gpu.index);
    found.ok_or_else(|| Failure::new(format!("{uuid} is not among {gpus:?}")))
}

/// The one of the two that the supervisor does not show.
fn index_of_lost(host: &Host) -> Result<u32> {
    let gpus: Vec<GpuView> = host.client().get("/v1/gpus")?;
    ensure(gpus.len() == 1, || format!("not one GPU is left: {gpus:?}"))?;
    Ok(1 - gpus[0].index)
}
