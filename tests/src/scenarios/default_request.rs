//! `[default_request]`: who names no share has the host's, and so has who asks for GPUs as NVIDIA's runtime has it. Whoever names
//! one, or wants no GPU, is as without it.

use super::{configure, finish, is_refused, reload_with, said, wait_for};
use crate::failure::{Context, Result, ensure};
use crate::host::{Container, Host, succeeded, text};
use crate::namespaces::Inside;
use gpool_protocol::Priority;

/// An ended container's place is free at once.
const BEFORE: &str = "[lease]\nhold_ms = 0\n";
const DEFAULT: &str = "[lease]\nhold_ms = 0\n\
     [default_request]\nfraction = \"0.25\"\nmemory = \"2GiB\"\nclass = \"notebook\"\npriority = \"burst\"\n";
const VISIBLE: &str = "visible_devices = true\n";
const ALL: (&str, &str) = ("NVIDIA_VISIBLE_DEVICES", "all");
const TENANT: [&str; 5] = ["gpool-tenant", "--kernel-us", "500", "--nvml", "--allocate-mib=64"];

/// Without a default, with one, and with one for images of CUDA.
pub fn run(inside: &Inside) -> Result<()> {
    let host = Host::start_with(inside, 2, "")?;
    let outcome = reload_with(&host, BEFORE)
        .and_then(|()| without(&host))
        .and_then(|()| for_who_names_no_share(&host))
        .and_then(|()| for_images_of_cuda(&host))
        .and_then(|()| for_nobody_else(&host));
    finish(host, outcome)
}

fn without(host: &Host) -> Result<()> {
    is_refused(host, &[("GPOOL_MEMORY", "1GiB")], &["no fraction"])?;
    has_no_lease(host, &[ALL], &[])
}

fn for_who_names_no_share(host: &Host) -> Result<()> {
    configure(DEFAULT)?;
    let unnamed = host.run_container("unnamed", &[("GPOOL_CLASS", "batch")], &[], &TENANT)?;
    let lease = host.lease_of(&unnamed)?;
    let has = (lease.fraction_permille, lease.memory_cap_bytes >> 30, lease.class.text(), lease.priority);
    ensure(has == (250, 2, "batch", Priority::Burst), || format!("it has {has:?}"))?;
    wait_for("its work to be measured", || Ok(host.lease_of(&unnamed)?.charged_gpu_ns > 0))?;
    let own = host.run_container("own", &[("GPOOL_FRACTION", "0.5")], &[], &["sleep", "60"])?;
    let lease = host.lease_of(&own)?;
    let has = (lease.fraction_permille, lease.memory_cap_bytes >> 30, lease.priority);
    ensure(has == (500, 12, Priority::Guaranteed), || format!("who names a share has {has:?}"))?;
    let run = succeeded("gpool run", host.gpool(&["run", "--", "sh", "-c", "gpool ps --format csv"])?)?;
    let lines = run.lines().filter(|line| line.contains("run-") && line.contains(",250,"));
    ensure(lines.count() == 1, || format!("a command without a share has {run}"))?;
    has_no_lease(host, &[ALL], &[])?;
    remove(host, &["unnamed", "own"])
}

fn for_images_of_cuda(host: &Host) -> Result<()> {
    configure(&format!("{DEFAULT}{VISIBLE}"))?;
    let any = host.run_container("any", &[ALL], &[], &TENANT)?;
    let lease = host.lease_of(&any)?;
    let has = (lease.fraction_permille, lease.gpus.len(), lease.enforcement.as_str());
    ensure(has == (250, 1, "co-operative"), || format!("it has {has:?}"))?;
    wait_for("its work to be measured", || Ok(host.lease_of(&any)?.charged_gpu_ns > 0))?;
    let restarted = host.engine.docker_text(&["restart", "-t", "0", "any"]);
    restarted.and_then(|_| wait_for("its lease after a restart", || is_leased(host, &any)))?;
    let both = host.run_container("both", &[("NVIDIA_VISIBLE_DEVICES", "0,1")], &[], &["sleep", "60"])?;
    ensure(host.lease_of(&both)?.gpus.len() == 2, || "who names two GPUs has one".to_owned())?;
    let second = host.run_container("second", &[("NVIDIA_VISIBLE_DEVICES", "1")], &[], &["sleep", "60"])?;
    let (uuid, all) = (host.lease_of(&second)?.gpu_uuid, host.lease_of(&both)?.gpus);
    ensure(all.get(1).is_some_and(|gpu| gpu.gpu_uuid == uuid), || format!("GPU 1 is {uuid}"))?;

    // Of the priority burst there is room for as many as there are; of guaranteed ones there is not.
    configure(&format!("{DEFAULT}{VISIBLE}").replace("burst", "guaranteed").replace("0.25", "1"))?;
    let full = host.run_container("full", &[("NVIDIA_VISIBLE_DEVICES", "0,1")], &[], &["sleep", "60"]);
    full.context("all that can be promised")?;
    is_refused(host, &[ALL], &["GPOOL-E201", "the container names no share, and has that of [default_request]"])?;
    remove(host, &["any", "both", "second", "full"])
}

/// Containers that ask for no GPU, that could undo a share, or that nobody can know anything of.
fn for_nobody_else(host: &Host) -> Result<()> {
    configure(&format!("{DEFAULT}{VISIBLE}"))?;
    for nothing in ["void", "none", "", "MIG-5131"] {
        has_no_lease(host, &[("NVIDIA_VISIBLE_DEVICES", nothing)], &[])?;
    }
    has_no_lease(host, &[], &[])?;
    has_no_lease(host, &[ALL], &["--pid=host"])?;
    has_no_lease(host, &[ALL], &["-v", "/dev:/dev"])?;
    configure("[default_request]\nfractoin = \"0.25\"\n")?;
    has_no_lease(host, &[ALL], &[])?;
    configure("[default_request]\nclass = \"train\"\n")?;
    said(&host.gpool(&["config", "validate"])?, 78, &["default_request.class", "without default_request.fraction"])
}

fn has_no_lease(host: &Host, env: &[(&str, &str)], options: &[&str]) -> Result<()> {
    let container = host.run_container("bare", env, options, &["sleep", "60"])?;
    let (is_leased, is_alive) = (is_leased(host, &container)?, container.is_alive());
    let listed = text(&host.engine.docker(&["exec", "bare", "ls", "/dev"])?.stdout);
    host.engine.docker_text(&["rm", "-f", "bare"])?;
    let has_gpu = listed.contains("nvidia");
    ensure(is_alive && !is_leased && !has_gpu, || {
        format!("{env:?} {options:?}: alive {is_alive}, {is_leased}: {listed}")
    })
}

fn is_leased(host: &Host, container: &Container) -> Result<bool> {
    Ok(host.leases()?.iter().any(|lease| lease.container_id.0 == container.id))
}

fn remove(host: &Host, names: &[&str]) -> Result<()> {
    host.engine.docker_text(&[&["rm", "-f"], names].concat())?;
    wait_for("all places to be free", || Ok(host.leases()?.is_empty()))
}
