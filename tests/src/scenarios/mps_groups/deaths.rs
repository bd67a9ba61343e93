//! A server that is killed: who loses what, and who does not notice.

use super::daemons::process_of;
use super::{Team, asks, busy_ns, wait_for, wait_for_work};
use crate::failure::{Context, Failure, Result, ensure};
use crate::host::{Container, Host, succeeded, text};
use crate::tenant::Tenant;
use gpool_protocol::{Event, EventKind, LeaseFault};
use rustix::process::{Pid, Signal, kill_process};

/// What a program gets whose MPS server is gone: CUDA_ERROR_MPS_RPC_FAILURE.
const RPC_FAILURE: &str = "\"code\":806";

/// What a program gets whom a fatal fault has reached, its own or another's: CUDA_ERROR_LAUNCH_FAILED.
const LAUNCH_FAILED: &str = "\"code\":719";

/// All clients of the server fail with the cause named, nobody else, and the next container has a new one.
pub fn of_the_server(host: &Host, team: &Team, other: &Container) -> Result<()> {
    let server = process_of("vision", "server")?;
    let pid = i32::try_from(server).ok().and_then(Pid::from_raw);
    let pid = pid.ok_or_else(|| Failure::new(format!("{server} is no process")))?;
    kill_process(pid, Signal::KILL).context("kill the server")?;
    for container in [&team.first, &team.second] {
        wait_for("its program's end", || Ok(container.log(&host.engine)?.contains(RPC_FAILURE)))?;
    }
    wait_for("the mark of the lease", || Ok(host.lease_of(&team.second)?.fault == Some(LeaseFault::MpsServerDied)))?;
    let listed = text(&host.gpool(&["ps"])?.stdout);
    ensure(listed.contains("mps-server-died"), || format!("gpool ps says {listed}"))?;
    let explained = text(&host.gpool(&["explain", &team.second.id])?.stdout);
    ensure(explained.contains("mps-server-died"), || format!("gpool explain says {explained}"))?;
    let told: Vec<Event> = host.events_of(EventKind::MpsServerDied)?;
    let names = |container: &Container| {
        told.iter().any(|event| event.container_id.as_ref().is_some_and(|id| id.0 == container.id))
    };
    ensure(
        names(&team.second) && told.iter().all(|event| event.message.contains(&format!("(process {server})"))),
        || format!("events: {told:#?}"),
    )?;
    let is_spared = !names(other) && host.lease_of(other)?.fault.is_none();
    ensure(is_spared, || "another team's container is said to have failed".to_owned())?;
    let other_gpu = 1 - team.gpu;
    let before = busy_ns(host, other_gpu, other)?;
    wait_for("the other team at work", || Ok(busy_ns(host, other_gpu, other)? > before))?;

    let tenant = Tenant { allocate_mib: Some(64), ..Tenant::greedy(1000) };
    let new = tenant.run(host, "new", &asks("vision", "0.1", "1GiB"))?;
    ensure(wait_for_work(host, &new)? == team.gpu, || "the next container is on another GPU".to_owned())?;
    wait_for("another server", || Ok(process_of("vision", "server").is_ok_and(|now| now != server)))
}

/// A fatal fault of one program ends the work of all under the server, which takes others in when they have gone.
pub fn by_a_fault(host: &Host, team: &Team, other: &Container) -> Result<()> {
    host.engine.docker_text(&["rm", "-f", "first", "second", "late"])?;
    let is_theirs = |id: &str| [&team.first, &team.second].iter().any(|one| one.id == id);
    wait_for("their places given up", || Ok(!host.leases()?.iter().any(|lease| is_theirs(&lease.container_id.0))))?;
    let tenant = Tenant { allocate_mib: Some(64), ..Tenant::greedy(1000) };
    let newer = tenant.run(host, "newer", &asks("vision", "0.1", "1GiB"))?;
    wait_for_work(host, &newer)?;
    let other_gpu = 1 - team.gpu;
    let before = busy_ns(host, other_gpu, other)?;
    let (gpu, process) = (team.gpu.to_string(), newer.init_pid.to_string());
    let fault = host.command("gpool-simgpu").args(["fault", "--gpu", &gpu, "--process", &process]).output();
    succeeded("gpool-simgpu fault", fault.context("gpool-simgpu")?)?;
    for name in ["new", "newer"] {
        wait_for(
            "a fault that reaches it",
            || Ok(text(&host.docker(&["logs", name])?.stdout).contains(LAUNCH_FAILED)),
        )?;
    }
    wait_for("the other team at work", || Ok(busy_ns(host, other_gpu, other)? > before))?;
    let newest = tenant.run(host, "newest", &asks("vision", "0.1", "1GiB"))?;
    wait_for_work(host, &newest).map(drop)
}
