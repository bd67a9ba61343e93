//! One mechanism's verdicts: a container that was promised half, beside one that takes what it gets.

use super::Mechanism;
use crate::failure::{Context, Failure, Result, ensure};
use crate::host::{Container, Host, text};
use crate::meter::{MeterReader, usage_of};
use crate::scenarios::wait_for;
use crate::tenant::report;
use gpool_protocol::MigGpuView;
use std::time::Duration;

/// How long GPU time is watched.
const WATCH: Duration = Duration::from_secs(6);
/// Of its half of 80 GiB, less contexts, what a container must be able to take: 30 GiB.
const PROMISED_MIB: u64 = 30 << 10;
/// Of the half that is due to it, what it must get at least.
const KEPT: f64 = 0.42;

/// What the runtime has added to the first process's environment; docker's exec knows only what docker was told.
const ENVIRONMENT: &str = "export $(tr '\\0' '\\n' < /proc/1/environ | grep ^CUDA_) > /dev/null; ";

/// Memory, compute and fault, in this order.
pub fn found_out(host: &Host, mechanism: &Mechanism) -> Result<[&'static str; 3]> {
    let start = |name| host.run_container(name, mechanism.env, &[], &["sleep", "1000"]);
    let (greedy, quiet) = (start("greedy")?, start("quiet")?);
    let keeper = |holds: bool| if holds { mechanism.keeper } else { "none" };
    let memory = keeper(keeps_memory(host)?);
    let compute = keeper(keeps_time(host, &quiet)?);
    Ok([memory, compute, fault(host, &greedy, &quiet)?])
}

/// Whether a program finds the memory that its container was promised, after the other one has taken what it got.
fn keeps_memory(host: &Host) -> Result<bool> {
    let hog = [ENVIRONMENT, "gpool-tenant --nvml --kernel-us 1000 > /tmp/hog 2>&1"].concat();
    host.engine.docker_text(&["exec", "-d", "greedy", "sh", "-c", &hog])?;
    let said = || host.engine.docker_text(&["exec", "greedy", "cat", "/tmp/hog"]);
    wait_for("the greedy one to have taken all", || Ok(said().is_ok_and(|said| report(&said).is_ok())))?;
    let program =
        format!("{ENVIRONMENT} gpool-tenant --nvml --kernel-us 100 --seconds 1 --allocate-mib {PROMISED_MIB}");
    let output = host.docker(&["exec", "quiet", "sh", "-c", &program])?;
    host.engine.docker_text(&["exec", "greedy", "killall", "gpool-tenant"])?;
    // One that does not even get a context says no more than that.
    let said = [text(&output.stdout), text(&output.stderr)].concat();
    Ok(report(&said).is_ok_and(|report| report.allocated_bytes >= PROMISED_MIB << 20))
}

/// Whether one program gets half of the GPU while the other container has three at work.
fn keeps_time(host: &Host, quiet: &Container) -> Result<bool> {
    wait_for("the memory to be free", || Ok(host.leases()?.iter().all(|lease| lease.memory_used_bytes < 1 << 30)))?;
    let program = [ENVIRONMENT, "exec gpool-tenant --kernel-us 1000 --allocate-mib 1"].concat();
    for _ in 0..3 {
        host.engine.docker_text(&["exec", "-d", "greedy", "sh", "-c", &program])?;
    }
    let work = [ENVIRONMENT, WORK].concat();
    host.engine.docker_text(&["exec", "-d", "quiet", "sh", "-c", &work])?;
    let meter = meter_of(host, quiet)?;
    let before = usage_of(&meter.read()?, &quiet.id).kernels;
    wait_for("the quiet one at work", || Ok(usage_of(&meter.read()?, &quiet.id).kernels > before))?;
    std::thread::sleep(Duration::from_secs(1));
    let look = || -> Result<(u64, u64)> {
        let now = meter.read()?;
        Ok((now.elapsed_ns(), usage_of(&now, &quiet.id).busy_ns))
    };
    let before = look()?;
    std::thread::sleep(WATCH);
    let after = look()?;
    Ok((after.1 - before.1) as f64 / (after.0 - before.0) as f64 >= KEPT)
}

/// What the quiet container runs to be at work; a context that is lost ends it.
const WORK: &str = "gpool-tenant --kernel-us 1000 --allocate-mib 1 > /tmp/work 2>&1; echo ended >> /tmp/work";

/// How far a fault of the other container's goes: `none` keeps it away, it is `partial` when only one of the whole device
/// comes through, else what the mechanism is kept by.
fn fault(host: &Host, greedy: &Container, quiet: &Container) -> Result<&'static str> {
    let process = process_of(host, greedy)?;
    let instance = instance_of(host, greedy)?.map(|number| number.to_string());
    // In an instance the whole instance is struck, which is more than a process.
    match &instance {
        Some(number) => strike(host, &["--instance", number])?,
        None => strike(host, &["--process", &process.to_string()])?,
    }
    wait_for("the struck program's end", || Ok(process_of(host, greedy).ok() != Some(process)))?;
    if !goes_on(host, quiet)? {
        return Ok("none");
    }
    if instance.is_some() {
        return Ok("hardware");
    }
    strike(host, &[])?;
    Ok(if goes_on(host, quiet)? { "software" } else { "partial" })
}

fn strike(host: &Host, whom: &[&str]) -> Result<()> {
    let output = host.command("gpool-simgpu").args(["fault", "--gpu", "0"]).args(whom).output();
    let output = output.context("gpool-simgpu fault")?;
    ensure(output.status.success(), || text(&output.stderr))
}

/// A program of the container on the GPU.
fn process_of(host: &Host, container: &Container) -> Result<u32> {
    let is_its = |pid: &u32| {
        std::fs::read_to_string(format!("/proc/{pid}/cgroup")).is_ok_and(|cgroups| cgroups.contains(&container.id))
    };
    let found = meter_of(host, container)?.processes()?.into_iter().map(|(pid, _)| pid).find(is_its);
    found.ok_or_else(|| Failure::new(format!("{} has no program on the GPU", container.name)))
}

/// Whether its program computes, until it either has or has ended.
fn goes_on(host: &Host, quiet: &Container) -> Result<bool> {
    let meter = meter_of(host, quiet)?;
    let before = usage_of(&meter.read()?, &quiet.id).kernels;
    let mut outcome = None;
    wait_for("the quiet one to go on or to end", || {
        let said = host.engine.docker_text(&["exec", "quiet", "cat", "/tmp/work"])?;
        let kernels = usage_of(&meter.read()?, &quiet.id).kernels;
        // What was under way when it was struck still counts: a hundred more are a second of going on.
        outcome = if said.contains("ended") { Some(false) } else { (kernels > before + 100).then_some(true) };
        Ok(outcome.is_some())
    })?;
    Ok(outcome == Some(true))
}

/// The meter of the GPU, or of the container's instance of it.
fn meter_of(host: &Host, container: &Container) -> Result<MeterReader> {
    match instance_of(host, container)? {
        Some(number) => host.meter_of_instance(0, number),
        None => host.meter(),
    }
}

/// The number of the GPU instance that a container has, if it has one.
fn instance_of(host: &Host, container: &Container) -> Result<Option<u32>> {
    let uuid = host.lease_of(container)?.gpu_uuid;
    let gpus: Vec<MigGpuView> = host.client().get("/v1/mig")?;
    let mut instances = gpus.into_iter().flat_map(|gpu| gpu.instances);
    Ok(instances.find(|instance| instance.uuid == uuid).map(|instance| instance.gpu_instance))
}

/// The next mechanism finds an empty GPU, kept places included.
pub fn clear(host: &Host) -> Result<()> {
    host.engine.remove_all_containers()?;
    wait_for("the leases' ends", || Ok(host.leases()?.is_empty()))
}
