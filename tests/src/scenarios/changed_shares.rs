//! What `gpool update` has changed stays with its container: over restarts, also when what it asks for is sold meanwhile, while its place
//! is kept and when it is not, and over a restart of the supervisor. Where there is no room for it any more it has what it asks for.

use super::{finish, is_refused, reload_with, wait_for};
use crate::failure::{Result, ensure};
use crate::host::{Container, Host, succeeded};
use crate::namespaces::Inside;
use gpool_protocol::EventKind;

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
    docker(host, &["stop", "-t", "0", "first"])?;
    wait_for("its place to be free", || Ok(host.leases()?.len() == 1))?;
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
    docker(host, &["stop", "-t", "0", "first"])?;
    wait_for("its place to be free", || Ok(host.leases()?.is_empty()))?;
    start(host, "third", "0.5", &[])?;
    docker(host, &["start", "first"])?;
    has(host, first, 300)?;
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
    // Another one under its name is another one.
    update(host, first, "0.6")?;
    docker(host, &["rm", "-f", "first"])?;
    has(host, &start(host, "first", "0.3", &[])?, 300)
}

fn of_one_that_waits(host: &Host) -> Result<()> {
    let waits = start(host, "waits", "0.2", &[("GPOOL_WAIT", "60s")])?;
    update(host, &waits, "0.4")?;
    docker(host, &["restart", "-t", "0", "waits"])?;
    has(host, &waits, 400)
}
