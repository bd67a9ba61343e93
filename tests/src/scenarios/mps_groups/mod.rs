//! MPS: containers of one team work side by side under a server that others do not share; what its end takes with it, what
//! its limits bind, and what a supervisor leaves running.

mod daemons;
mod deaths;
mod limits;
mod sharing;

pub(super) use daemons::process_of;

use super::{finish_found, wait_for};
use crate::failure::{Failure, Result, ensure};
use crate::host::{Container, Host, text};
use crate::meter::usage_of;
use crate::namespaces::Inside;
use std::time::{Duration, Instant};

/// The environment may ask for it here: Debian's docker has no annotations.
const CONFIGURATION: &str =
    "[policy]\nmps = true\n[policy.env]\nallow = [\"fraction\", \"memory\", \"mode\", \"team\", \"gpus\"]\n";
/// How long anything may take to be seen.
const PATIENCE: Duration = Duration::from_secs(20);
/// How long what containers get is measured.
const WATCH: Duration = Duration::from_secs(8);

/// Two containers of one team, one of another, and what becomes of them.
pub fn run(inside: &Inside) -> Result<()> {
    let mut host = Host::start_with(inside, 2, CONFIGURATION)?;
    let outcome = scenes(&mut host);
    finish_found(host, outcome)
}

fn scenes(host: &mut Host) -> Result<()> {
    let team = sharing::two_of_a_team(host)?;
    let other = limits::of_who_says_otherwise(host, team.gpu)?;
    sharing::others_are_kept_away(host)?;
    daemons::outlive_the_supervisor(host, &team)?;
    daemons::say_what_they_know(host, &team)?;
    deaths::of_the_server(host, &team, &other)?;
    deaths::by_a_fault(host, &team, &other)?;
    limits::without_variables(host, &other)?;
    limits::past_the_server(host, &other)?;
    daemons::end_with_the_last(host)
}

/// The two containers of one team, and where they are.
struct Team {
    first: Container,
    second: Container,
    gpu: u32,
}

/// What a container of `team` asks for.
fn asks<'a>(team: &'a str, fraction: &'a str, memory: &'a str) -> [(&'a str, &'a str); 4] {
    [("GPOOL_MODE", "mps"), ("GPOOL_TEAM", team), ("GPOOL_FRACTION", fraction), ("GPOOL_MEMORY", memory)]
}

/// The GPU on which its kernels run, once there are some.
pub(super) fn wait_for_work(host: &Host, container: &Container) -> Result<u32> {
    let deadline = Instant::now() + PATIENCE;
    loop {
        for gpu in 0..2 {
            if busy_ns(host, gpu, container)? > 0 {
                return Ok(gpu);
            }
        }
        if Instant::now() > deadline || !container.is_alive() {
            let said = container.log(&host.engine)?;
            return Err(Failure::new(format!("{} does not work; it said:\n{said}", container.name)));
        }
        std::thread::sleep(Duration::from_millis(50));
    }
}

fn busy_ns(host: &Host, gpu: u32, container: &Container) -> Result<u64> {
    Ok(usage_of(&host.meter_of(gpu)?.read()?, &container.id).busy_ns)
}

/// The part of a GPU that each of these had of it over a while.
fn parts(host: &Host, gpu: u32, containers: &[&Container]) -> Result<Vec<f64>> {
    let look = || -> Result<(u64, Vec<u64>)> {
        let meter = host.meter_of(gpu)?.read()?;
        Ok((meter.elapsed_ns(), containers.iter().map(|one| usage_of(&meter, &one.id).busy_ns).collect()))
    };
    let before = look()?;
    std::thread::sleep(WATCH);
    let after = look()?;
    let elapsed_ns = (after.0 - before.0) as f64;
    Ok(after.1.iter().zip(&before.1).map(|(after, before)| (after - before) as f64 / elapsed_ns).collect())
}

fn is_refused(host: &Host, env: &[(&str, &str)], options: &[&str], parts: &[&str]) -> Result<()> {
    let output = host.try_run_container("refused", env, options, &["true"])?;
    let said = text(&output.stderr);
    ensure(!output.status.success(), || format!("{env:?} was granted"))?;
    host.engine.docker_text(&["rm", "-f", "refused"])?;
    let missing = parts.iter().find(|part| !said.contains(**part));
    ensure(missing.is_none(), || format!("{env:?}: {said:?} lacks {missing:?}"))
}

/// Fails unless the container's own daemon is where programs look for one that is not named, and nobody can change that.
fn finds_its_daemon(host: &Host, container: &str) -> Result<()> {
    let look = "test -S /tmp/nvidia-mps/control && ! rm /tmp/nvidia-mps/control 2> /dev/null";
    let seen = host.docker(&["exec", container, "sh", "-c", look])?;
    ensure(seen.status.success(), || {
        format!("{container}: its daemon is not in /tmp/nvidia-mps, {}", text(&seen.stderr))
    })
}
