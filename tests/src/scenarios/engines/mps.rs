//! One container of a team under each engine and low-level runtime, all under one MPS daemon.

use super::{Client, PATIENCE, wait_for_end};
use crate::cgroups;
use crate::failure::{Context, Result, ensure};
use crate::host::{Container, Containerd, Host, Podman, succeeded};
use crate::image;
use crate::meter::usage_of;
use crate::namespaces::Inside;
use crate::scenarios::finish_found;
use gpool_protocol::{EventKind, Mechanism};
use std::fs;
use std::path::PathBuf;
use std::time::{Duration, Instant};

/// Debian 12's podman gives a container its image's annotations, too, so that they are bounded as the environment is.
const ALLOWED: &str = "[policy]\nmps = true\n[policy.env]\nallow = [\"fraction\", \"memory\", \"mode\", \"team\"]\n";
/// What each asks for, as podman and ctr take it.
const ASKS: [&str; 4] = [
    "--annotation=gpool.io/mode=mps",
    "--annotation=gpool.io/team=vision",
    "--annotation=gpool.io/fraction=0.2",
    "--annotation=gpool.io/memory=2GiB",
];
/// What each runs: the first process is the program itself.
const COMMAND: [&str; 5] = ["gpool-tenant", "--kernel-us", "1000", "--allocate-mib", "64"];
/// What it has to be told; the limits are 1.2 times a fifth, and the memory in MiB.
const VARIABLES: [&str; 4] = [
    "CUDA_MPS_PIPE_DIRECTORY=/dev/gpool/mps/pipe",
    "CUDA_MPS_LOG_DIRECTORY=/dev/gpool/mps/log",
    "CUDA_MPS_ACTIVE_THREAD_PERCENTAGE=24",
    "CUDA_MPS_PINNED_DEVICE_MEM_LIMIT=0=2048M",
];
/// How long all of them are watched at work.
const WATCH: Duration = Duration::from_secs(2);

/// Starts all of them, and looks whether they are told the same and work side by side.
pub fn run(inside: &Inside) -> Result<()> {
    cgroups::hide_unified()?;
    let host = Host::start_with(inside, 1, ALLOWED)?;
    let podman = host.podman()?;
    let containerd = host.containerd()?;
    let outcome = side_by_side(&host, &podman, &containerd);
    let cleared = podman.clear();
    let stopped = containerd.stop();
    finish_found(host, outcome.and(cleared).and(stopped))
}

fn side_by_side(host: &Host, podman: &Podman, containerd: &Containerd) -> Result<()> {
    let hooks = Podman::hooks(false);
    let containers = [
        by_podman(podman, "podman-runc", &["--runtime=gpool"])?,
        by_podman(podman, "podman-hook-crun", &["--runtime=crun", &hooks])?,
        by_ctr(containerd)?,
    ];
    for container in &containers {
        wait_for_work(host, container)?;
        is_told(host, container)?;
    }
    let daemons = host.events()?.into_iter().filter(|event| event.kind == EventKind::MpsStarted).count();
    ensure(daemons == 1, || format!("{daemons} daemons were started"))?;
    at_the_same_time(host, &containers)?;
    containerd.remove("ctr-runc")?;
    podman.text(&["rm", "-f", "-a", "-t", "0"])?;
    containers.iter().try_for_each(|container| wait_for_end(host, container))
}

fn by_podman(podman: &Podman, name: &str, global: &[&str]) -> Result<Container> {
    let options = ["run", "-d", "--name", name, "--stop-timeout=0"];
    podman.text(&[global, &options, &ASKS, &[image::NAME], &COMMAND].concat())?;
    Client::new("podman", |arguments| podman.podman(arguments)).container(name)
}

fn by_ctr(containerd: &Containerd) -> Result<Container> {
    let name = "ctr-runc";
    succeeded("ctr run", containerd.try_run(name, &ASKS, &COMMAND)?)?;
    Ok(Container { name: name.into(), id: name.into(), init_pid: containerd.init_pid(name)? })
}

fn wait_for_work(host: &Host, container: &Container) -> Result<()> {
    let deadline = Instant::now() + PATIENCE;
    while busy_ns(host, container)? == 0 {
        let is_hopeful = Instant::now() < deadline && container.is_alive();
        ensure(is_hopeful, || format!("{} does not work", container.name))?;
        std::thread::sleep(Duration::from_millis(50));
    }
    Ok(())
}

fn busy_ns(host: &Host, container: &Container) -> Result<u64> {
    Ok(usage_of(&host.meter()?.read()?, &container.id).busy_ns)
}

/// The variables, the daemon's socket where they say, and a lease that says so.
fn is_told(host: &Host, container: &Container) -> Result<()> {
    let process = PathBuf::from(format!("/proc/{}", container.init_pid));
    let environment = fs::read(process.join("environ")).context(&container.name)?;
    let environment = String::from_utf8_lossy(&environment).into_owned();
    for variable in VARIABLES {
        let has_it = environment.split('\0').any(|its| its == variable);
        ensure(has_it, || format!("{} lacks {variable}: {environment:?}", container.name))?;
    }
    let socket = process.join("root/dev/gpool/mps/pipe/control");
    ensure(socket.exists(), || format!("{} has no socket of its daemon", container.name))?;
    let mounts = fs::read_to_string(process.join("mountinfo")).context(&container.name)?;
    let is_read_only = mounts.lines().any(|line| line.contains(" /dev/gpool/mps/pipe ro,"));
    ensure(is_read_only, || format!("{}: its daemon's folder can be changed: {mounts}", container.name))?;
    let lease = host.lease_of(container)?;
    let is_its = lease.mechanism == Mechanism::Mps && lease.init_pid.map(|pid| pid.0) == Some(container.init_pid);
    ensure(is_its && lease.enforcement == "co-operative", || format!("{}: {lease:?}", container.name))
}

/// All of them go on, and the GPU changes from none to another: they are clients of one server.
fn at_the_same_time(host: &Host, containers: &[Container]) -> Result<()> {
    let look = || -> Result<(u64, Vec<u64>)> {
        let busy = containers.iter().map(|container| busy_ns(host, container)).collect::<Result<Vec<u64>>>()?;
        Ok((host.meter()?.read()?.switch_ns, busy))
    };
    let before = look()?;
    std::thread::sleep(WATCH);
    let after = look()?;
    ensure(before.0 == after.0, || "they have the GPU in turns".to_owned())?;
    let still = containers.iter().zip(before.1.iter().zip(&after.1)).find(|(_, (before, after))| before >= after);
    ensure(still.is_none(), || format!("one stands still: {still:?}"))
}
