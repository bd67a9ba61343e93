//! The driver's libraries are replaced while its kernel module is in use, as an upgrade over night does: containers that run
//! go on and are paced, also by a supervisor that starts then, and none are started, until the host is in order again.

use super::{finish, is_refused, said, start_tenants, wait_for, wait_until_running};
use crate::c_program;
use crate::failure::{Context, Result, ensure};
use crate::host::{Container, DRIVER_LIBRARIES, Host, SIMULATED_GPU, succeeded};
use crate::meter::usage_of;
use crate::namespaces::{Inside, spawn_bound};
use gpool_protocol::{EventKind, GpuView, WaitingView};
use std::fs;
use std::os::unix::fs::symlink;
use std::path::Path;
use std::process::{Command, Stdio};

const REQUEST: [(&str, &str); 2] = [("GPOOL_FRACTION", "0.2"), ("GPOOL_MEMORY", "1GiB")];
/// No simulated driver is of this version.
const NEWER: &str = "999.1.2";

/// Replaces them.
pub fn run(inside: &Inside) -> Result<()> {
    let mut host = Host::start_without_supervisor(inside, "")?;
    let outcome = name_nvml_as_most_hosts_do().and_then(|()| host.start_supervisor()).and_then(|()| replace(&mut host));
    finish(host, outcome)
}

/// By the plain name that is the default, which the loader looks up.
fn name_nvml_as_most_hosts_do() -> Result<()> {
    fs::create_dir_all("/etc/gpool/conf.d").context("conf.d")?;
    fs::write("/etc/gpool/conf.d/nvml.toml", "[driver]\nnvml = \"libnvidia-ml.so.1\"\n").context("conf.d")?;
    fs::write("/etc/ld.so.conf.d/simulated.conf", format!("{SIMULATED_GPU}/lib\n")).context("ld.so.conf.d")?;
    succeeded("ldconfig", Command::new("ldconfig").output().context("ldconfig")?).map(drop)
}

fn replace(host: &mut Host) -> Result<()> {
    let containers = start_tenants(host, &[("weeks", "0.3", "2GiB", 300), ("months", "0.4", "2GiB", 300)])?;
    wait_until_running(host, &containers)?;
    let leases: Vec<_> = containers.iter().map(|container| host.lease_of(container)).collect::<Result<_>>()?;
    let mut waits = host.command("gpool");
    waits.args(["run", "--fraction", "0.9", "--memory", "1GiB", "--wait", "900s", "--", "/bin/true"]);
    let waits = spawn_bound(waits.stdout(Stdio::piped()).stderr(Stdio::piped())).context("gpool run")?;
    wait_for("a command that waits", || Ok(!waiting(host)?.is_empty()))?;
    install_newer()?;
    is_refused(host, &REQUEST, &["GPOOL-E203", NEWER, "kernel module"])?;
    wait_for_event(host, EventKind::DriverReplaced)?;
    waits_on(host)?;
    host.kill_supervisor()?;
    host.start_supervisor()?;
    waits_on(host)?;
    let log = host.supervisor_log();
    ensure(log.contains("was replaced while it was in use"), || format!("the supervisor says {log}"))?;
    wait_for_event(host, EventKind::DriverReplaced)?;
    for (container, before) in containers.iter().zip(&leases) {
        let after = host.lease_of(container)?;
        ensure(after.lease_id == before.lease_id, || format!("{} has another lease", container.name))?;
        are_paced(host, container)?;
    }
    is_refused(host, &REQUEST, &["GPOOL-E203", NEWER, "kernel module"])?;
    said(&host.gpool(&["doctor"])?, 1, &[NEWER, "no program starts on a GPU"])?;
    put_back(host)?;
    wait_for_event(host, EventKind::DriverInOrder)?;
    wait_for("it to wait for room again", || Ok(waiting(host)?.iter().all(|its| !its.cause.contains(NEWER))))?;
    for its in waiting(host)? {
        succeeded("gpool queue cancel", host.gpool(&["queue", "cancel", &its.container_id.0])?)?;
    }
    let ended = waits.wait_with_output().context("gpool run")?;
    let told = String::from_utf8_lossy(&ended.stderr).into_owned();
    ensure(told.contains("GPOOL-E205"), || format!("the command that waited says {told}"))?;
    host.kill_supervisor()?;
    host.start_supervisor()?;
    start_tenants(host, &[("new", "0.2", "1GiB", 300)]).map(drop)
}

fn waiting(host: &Host) -> Result<Vec<WaitingView>> {
    Ok(host.client().get("/v1/queue")?)
}

/// Who waits keeps its place, and is told why it cannot begin.
fn waits_on(host: &Host) -> Result<()> {
    let is_told = |its: &WaitingView| its.cause.contains(NEWER);
    wait_for("who waits to be told of the driver", || Ok(waiting(host)?.first().is_some_and(is_told)))
}

/// The supervisor that runs now has told it.
fn wait_for_event(host: &Host, kind: EventKind) -> Result<()> {
    wait_for(&kind.word(), || Ok(host.events()?.iter().any(|event| event.kind == kind)))
}

/// It runs on, and its lease is charged for it.
fn are_paced(host: &Host, container: &Container) -> Result<()> {
    let charged = |host: &Host| host.lease_of(container).map(|lease| lease.charged_gpu_ns);
    let (ran, paid) = (usage_of(&host.meter()?.read()?, &container.id).kernels, charged(host)?);
    wait_for("another kernel, and its charge", || {
        let runs = usage_of(&host.meter()?.read()?, &container.id).kernels > ran;
        Ok(runs && charged(host)? > paid)
    })
}

/// As a package does: files of another version under names of their own, and links that lead there.
fn install_newer() -> Result<()> {
    let libraries = Path::new(SIMULATED_GPU).join("lib");
    let source = include_str!("../../programs/replaced_driver.c");
    c_program::compile(source, &libraries, "replaced.so", &["-shared", "-fPIC"])?;
    for name in DRIVER_LIBRARIES {
        let versioned = format!("{}{NEWER}", name.strip_suffix('1').unwrap_or(name));
        let (old, new) = (libraries.join(name), libraries.join(&versioned));
        // NVML is the one that was compiled, and libcuda, which nobody loads, what it was.
        let from = if name.contains("nvidia-ml") { libraries.join("replaced.so") } else { old.clone() };
        fs::copy(&from, &new).context(new.display())?;
        fs::rename(&old, libraries.join(format!("{name}.old"))).context(old.display())?;
        symlink(&versioned, &old).context(old.display())?;
    }
    Ok(())
}

/// As the package of the module's version does.
fn put_back(host: &Host) -> Result<()> {
    host.replace_driver(&host.stage.simulated())?;
    let gpus: Vec<GpuView> = host.client().get("/v1/gpus")?;
    let nvml = Path::new(SIMULATED_GPU).join("lib/libnvidia-ml.so.1");
    let versioned = nvml.with_file_name(format!("libnvidia-ml.so.{}", gpus[0].driver_version));
    fs::rename(&nvml, &versioned).context(versioned.display())?;
    symlink(&versioned, &nvml).context(nvml.display())
}
