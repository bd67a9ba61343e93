//! What `gpool update` has changed stays with its container: over restarts, also when what it asks for is sold meanwhile, while its place
//! is kept and when it is not, and over a restart of the supervisor. Where there is no room for it any more it has what it asks for.

use super::{finish, is_refused, reload_with, wait_for};
use crate::failure::{Context, Failure, Result, ensure};
use crate::host::{Container, Host, succeeded, text};
use crate::namespaces::{Inside, spawn_bound};
use gpool_protocol::{EventKind, LeaseView, WaitingView};
use std::process::Stdio;
use std::time::Duration;

/// It may wait, by the environment.
const CONFIGURATION: &str = "[policy.env]\nallow = [\"fraction\", \"memory\", \"wait\"]\n";
const KEPT: &str = "[lease]\nhold_ms = 10000\n";
/// An ended container's place is free at once.
const AT_ONCE: &str = "[lease]\nhold_ms = 0\n";
const SLEEP: [&str; 2] = ["sleep", "600"];

/// On one GPU.
pub fn run(inside: &Inside) -> Result<()> {
    let mut host = Host::start_with(inside, 1, CONFIGURATION)?;
    let outcome = sold_meanwhile(&host)
        .and_then(|first| later(&mut host, &first).map(|()| first))
        .and_then(|first| without_room(&host, &first).map(|()| first))
        .and_then(|first| as_it_asks_again(&host, &first))
        .and_then(|()| of_one_that_waits(&host));
    finish(host, outcome)
}

fn start(host: &Host, name: &str, fraction: &str, more: &[(&str, &str)]) -> Result<Container> {
    let env = [&[("GPOOL_FRACTION", fraction), ("GPOOL_MEMORY", "2GiB")], more].concat();
    host.run_container(name, &env, &[], &SLEEP)
}

fn update(host: &Host, container: &Container, fraction: &str) -> Result<()> {
    succeeded("gpool update", host.gpool(&["update", &container.id, "--fraction", fraction])?).map(drop)
}

fn docker(host: &Host, words: &[&str]) -> Result<()> {
    host.engine.docker_text(words).map(drop)
}

/// Whether it has this share, and the memory that it asked for.
fn has(host: &Host, container: &Container, permille: u16) -> Result<()> {
    let lease = host.lease_of(container)?;
    ensure((lease.fraction_permille, lease.memory_cap_bytes) == (permille, 2 << 30), || {
        format!("it has {} permille and {} bytes, and not {permille}", lease.fraction_permille, lease.memory_cap_bytes)
    })
}

fn last_grant(host: &Host) -> Result<String> {
    let events = host.events()?;
    let granted = events.iter().rev().find(|event| event.kind == EventKind::LeaseGranted);
    Ok(granted.map_or(String::new(), |event| event.message.clone()))
}

/// It was made smaller, and somebody has the rest when it is restarted.
fn sold_meanwhile(host: &Host) -> Result<Container> {
    reload_with(host, KEPT)?;
    let first = start(host, "first", "0.3", &[])?;
    update(host, &first, "0.1")?;
    start(host, "second", "0.85", &[])?;
    is_refused(host, &[("GPOOL_FRACTION", "0.3"), ("GPOOL_MEMORY", "1GiB")], &["GPOOL-E201"])?;
    docker(host, &["restart", "-t", "0", "first"])?;
    has(host, &first, 100)?;
    let told = last_grant(host)?;
    ensure(told.contains("granted 10 %") && told.contains("as it was changed to: it asks for 30 %"), || told)?;
    Ok(first)
}

/// It is started when its place is kept no more, by another supervisor.
fn later(host: &mut Host, first: &Container) -> Result<()> {
    reload_with(host, AT_ONCE)?;
    stop(host, "first", 1)?;
    host.kill_supervisor()?;
    host.start_supervisor()?;
    docker(host, &["start", "first"])?;
    has(host, first, 100)
}

/// It was made larger, and somebody has that when it is started.
fn without_room(host: &Host, first: &Container) -> Result<()> {
    docker(host, &["rm", "-f", "second"])?;
    wait_for("room", || Ok(host.leases()?.len() == 1))?;
    update(host, first, "0.9")?;
    stop(host, "first", 0)?;
    start(host, "third", "0.5", &[])?;
    docker(host, &["start", "first"])?;
    has(host, first, 300)?;
    is_told(host, "has what it asks for, and not 90 % and 2GiB, which it was changed to: ")?;
    docker(host, &["rm", "-f", "third"])?;
    wait_for("room", || Ok(host.leases()?.len() == 1))?;
    docker(host, &["restart", "-t", "0", "first"])?;
    has(host, first, 900)
}

/// What it is changed back to is what it asks for.
fn as_it_asks_again(host: &Host, first: &Container) -> Result<()> {
    update(host, first, "0.3")?;
    docker(host, &["restart", "-t", "0", "first"])?;
    has(host, first, 300)?;
    let told = last_grant(host)?;
    ensure(!told.contains("changed"), || told)?;
    // Another one under its name is another one, and one whose cap follows its share has the one that it had.
    update(host, first, "0.6")?;
    docker(host, &["rm", "-f", "first"])?;
    let other = host.run_container("first", &[("GPOOL_FRACTION", "0.3")], &[], &SLEEP)?;
    let asked = host.lease_of(&other)?;
    for fraction in ["0.6", "0.3"] {
        update(host, &other, fraction)?;
        let changed = host.lease_of(&other)?;
        docker(host, &["restart", "-t", "0", "first"])?;
        let restarted = host.lease_of(&other)?;
        let of = |its: &LeaseView| (its.fraction_permille, its.memory_cap_bytes);
        ensure(of(&restarted) == of(&changed) && changed.memory_cap_bytes == asked.memory_cap_bytes, || {
            format!("it had {:?}, was changed to {:?} and has {:?}", of(&asked), of(&changed), of(&restarted))
        })?;
    }
    ensure(!last_grant(host)?.contains("changed"), || "it was changed back".to_owned())
}

/// One that was made smaller waits for that, and keeps its place in the queue; one that was made larger waits for nothing that it
/// does not ask for.
fn of_one_that_waits(host: &Host) -> Result<()> {
    let waits = start(host, "waits", "0.2", &[("GPOOL_WAIT", "60s")])?;
    update(host, &waits, "0.1")?;
    stop(host, "waits", 1)?;
    start(host, "full", "0.65", &[])?;
    let mut docker_start = host.docker_command(&["start", "waits"]);
    let started = spawn_bound(docker_start.stdout(Stdio::null()).stderr(Stdio::piped())).context("docker start")?;
    let queue = || Ok::<_, Failure>(host.client().get::<Vec<WaitingView>>("/v1/queue")?);
    wait_for("it to wait", || Ok(queue()?.len() == 1))?;
    let first = queue()?;
    // It has asked again by then.
    std::thread::sleep(Duration::from_millis(2500));
    let second = queue()?;
    let place = |all: &[WaitingView]| all.first().map(|its| (its.request.fraction_permille, its.since_unix_ms));
    ensure(place(&first) == place(&second) && place(&first).is_some_and(|(permille, _)| permille == 100), || {
        format!("it waits as {first:?}, and then as {second:?}")
    })?;
    docker(host, &["rm", "-f", "full"])?;
    let told = text(&started.wait_with_output().context("docker start")?.stderr);
    has(host, &waits, 100).context(format!("docker start says {told}"))?;
    update(host, &waits, "0.7")?;
    stop(host, "waits", 1)?;
    start(host, "full", "0.4", &[])?;
    docker(host, &["start", "waits"])?;
    has(host, &waits, 200)?;
    ensure(queue()?.is_empty(), || "it waits for more than it asks for".to_owned())?;
    is_told(host, "has what it asks for, and not 70 % and 2GiB, which it was changed to: ")
}

/// Has it end, so that this many leases are left.
fn stop(host: &Host, name: &str, left: usize) -> Result<()> {
    docker(host, &["stop", "-t", "0", name])?;
    wait_for("its place to be free", || Ok(host.leases()?.len() == left))
}

fn is_told(host: &Host, part: &str) -> Result<()> {
    let events = host.events()?;
    let is_told = events.iter().any(|event| event.kind == EventKind::LeaseUpdated && event.message.contains(part));
    ensure(is_told, || format!("no event says {part:?}: {events:#?}"))
}
