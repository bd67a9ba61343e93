//! podman's monitor killed with SIGKILL: while the wrapper below it waits for the supervisor, and while the container runs.
//! And podman itself, while its container waits for room. A container that runs on has its lease, and one that does not has none.

use super::finish;
use crate::cgroups;
use crate::failure::{Context, Failure, Result, ensure};
use crate::host::{Host, Podman};
use crate::image;
use crate::namespaces::Inside;
use gpool_protocol::{HostPid, LeaseState, LeaseView, WaitingView};
use rustix::process::{Pid, Signal, kill_process};
use std::fs;
use std::time::{Duration, Instant};

/// The aim is 3 s; a machine busy with other things is slower.
const PATIENCE: Duration = Duration::from_secs(20);
const REQUEST: [&str; 4] = ["--env", "GPOOL_FRACTION=0.2", "--env", "GPOOL_MEMORY=1GiB"];

/// Kills it at both stages, and podman.
pub fn run(inside: &Inside) -> Result<()> {
    let host = Host::start(inside)?;
    let podman = host.podman()?;
    let outcome = while_it_starts(&host, &podman)
        .and_then(|()| while_it_runs(&host, &podman))
        .and_then(|()| podman_while_it_waits(&host, &podman));
    let cleared = podman.clear();
    // podman itself does not take away the cgroup of a container whose monitor has died.
    cgroups::remove_below(&inside.cgroup_parent);
    finish(host, outcome.and(cleared))
}

fn start(podman: &Podman, name: &str) -> Result<std::process::Output> {
    let before = ["--runtime=gpool", "run", "-d", "--name", name];
    podman.podman(&[&before[..], &REQUEST, &[image::NAME, "sleep", "1000"]].concat())
}

fn while_it_starts(host: &Host, podman: &Podman) -> Result<()> {
    let supervisor = host.supervisor_pid().ok_or_else(|| Failure::new("no supervisor runs"))?;
    signal(supervisor, Signal::STOP)?;
    let killed = std::thread::scope(|scope| {
        let start = scope.spawn(|| start(podman, "starting"));
        let killed = until("the wrapper below conmon", || Ok((!pids("gpool-runtime").is_empty()).then_some(())))
            .and_then(|()| kill_monitors());
        let started = start.join().map_err(|_| Failure::new("podman run"));
        killed.and(started?)
    });
    signal(supervisor, Signal::CONT)?;
    ensure(!killed?.status.success(), || "podman started a container whose monitor was killed".to_owned())?;
    until("the end of the lease", || Ok(host.leases()?.is_empty().then_some(())))?;
    podman.text(&["rm", "-f", "-t", "0", "starting"]).map(drop)
}

fn while_it_runs(host: &Host, podman: &Podman) -> Result<()> {
    crate::host::succeeded("podman run", start(podman, "running")?)?;
    let init = active(host)?;
    kill_monitors()?;
    // Nobody watches the container now, and it goes on.
    std::thread::sleep(Duration::from_secs(2));
    ensure(active(host)? == init, || "the lease is of another container".to_owned())?;
    let at = Instant::now();
    signal(init.0, Signal::KILL)?;
    let is_over = |leases: Vec<LeaseView>| leases.iter().all(|lease| lease.state == LeaseState::Held);
    until("the end of the lease", || Ok(is_over(host.leases()?).then_some(())))?;
    println!("    lease back {:.2} s after the kill", at.elapsed().as_secs_f64());
    podman.text(&["rm", "-f", "-t", "0", "running"]).map(drop)
}

/// conmon, and the wrapper below it, go on when podman is killed; nobody waits for room any more all the same.
fn podman_while_it_waits(host: &Host, podman: &Podman) -> Result<()> {
    let run = |name: &str| {
        let before =
            ["--runtime=gpool", "run", "-d", "--name", name, "--env", "GPOOL_FRACTION=1", "--env", "GPOOL_WAIT=200s"];
        podman.podman(&[&before[..], &[image::NAME, "sleep", "1000"]].concat())
    };
    crate::host::succeeded("podman run", run("full")?)?;
    let queue = || host.client().get::<Vec<WaitingView>>("/v1/queue").context("the queue");
    let killed = std::thread::scope(|scope| {
        let start = scope.spawn(|| run("waiting"));
        let killed = until("a container that waits", || Ok((!queue()?.is_empty()).then_some(())))
            .and_then(|()| pids("podman").into_iter().try_for_each(|pid| signal(pid, Signal::KILL)));
        let started = start.join().map_err(|_| Failure::new("podman run"));
        killed.and(started?)
    })?;
    ensure(!killed.status.success(), || "podman was not killed".to_owned())?;
    until("the end of the wait", || Ok(queue()?.is_empty().then_some(())))?;
    until("the end of the wrapper", || Ok(pids("gpool-runtime").is_empty().then_some(())))?;
    podman.text(&["rm", "-f", "-t", "0", "full"]).map(drop)
}

/// The init of the one lease, which is active.
fn active(host: &Host) -> Result<HostPid> {
    until("one active lease", || {
        let leases = host.leases()?;
        let init = leases.iter().filter(|lease| lease.state == LeaseState::Active).find_map(|lease| lease.init_pid);
        Ok(init.filter(|_| leases.len() == 1))
    })
}

fn kill_monitors() -> Result<()> {
    let monitors = pids("conmon");
    ensure(!monitors.is_empty(), || "there is no conmon to kill".to_owned())?;
    monitors.into_iter().try_for_each(|pid| signal(pid, Signal::KILL))
}

fn pids(name: &str) -> Vec<u32> {
    let processes = fs::read_dir("/proc").into_iter().flatten().flatten();
    let pids = processes.filter_map(|entry| entry.file_name().to_str()?.parse::<u32>().ok());
    // The kernel keeps fifteen letters.
    let is_it = |pid: &u32| fs::read_to_string(format!("/proc/{pid}/comm")).is_ok_and(|its| its.trim_end() == name);
    pids.filter(is_it).collect()
}

fn signal(pid: u32, signal: Signal) -> Result<()> {
    let raw = i32::try_from(pid).ok().and_then(Pid::from_raw).ok_or_else(|| Failure::new("no pid"))?;
    kill_process(raw, signal).context(format!("process {pid}"))
}

fn until<T>(what: &str, mut there: impl FnMut() -> Result<Option<T>>) -> Result<T> {
    let deadline = Instant::now() + PATIENCE;
    loop {
        if let Some(it) = there()? {
            return Ok(it);
        }
        ensure(Instant::now() < deadline, || format!("waited for {what} for {PATIENCE:?}"))?;
        std::thread::sleep(Duration::from_millis(10));
    }
}
