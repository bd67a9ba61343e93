//! Tenants that load the driver past the shim, seen from outside: an event, the freezer or the end, as their classes say,
//! and nothing for their neighbours. A program without a lease is told too.

use super::{finish_found, reload_with, simulated_gpu, start_tenants, wait_until_running};
use crate::cgroups;
use crate::failure::{Context, Result, ensure};
use crate::host::{Container, Host};
use crate::meter::usage_of;
use crate::namespaces::{Inside, spawn_bound};
use crate::tenant::Tenant;
use gpool_cli::table::LeaseRow;
use gpool_protocol::{Event, EventKind, GuardedProcess, OutsideProcess};
use serde_json::Value;
use std::process::Stdio;
use std::time::{Duration, Instant};

/// Where the driver's own library is in a leased container.
const REAL: &str = "/dev/gpool/real/libcuda.so.1";
/// Kernels that those have outstanding: what has been launched ends, also of a frozen one.
const BATCH: u64 = 10;
/// From the first kernel to all events: two looks, a second apart, on a machine that is busy with other things.
const PATIENCE: Duration = Duration::from_secs(20);
/// More looks, in which nothing more must be found.
const WATCH: Duration = Duration::from_secs(3);

/// Starts three that go past the shim, in classes with different actions, beside two that do not.
pub fn run(inside: &Inside) -> Result<()> {
    let classes = "[class.notebook]\nbypass_action = \"freeze\"\n[class.train]\nbypass_action = \"kill\"\n";
    let host = Host::start_with(inside, 1, classes)?;
    let outcome = find_them(&host);
    // So that the end of a run that failed is no riddle of its own.
    cgroups::thaw(&inside.cgroup_parent);
    finish_found(host, outcome)
}

fn find_them(host: &Host) -> Result<()> {
    let honest = start_tenants(host, &[("honest", "0.2", "2GiB", 500), ("neighbour", "0.2", "2GiB", 1500)])?;
    wait_until_running(host, &honest)?;
    wait_until("the guard's first look", || Ok(guarded(host)?.len() == 2))?;
    let (status, builds) = doctor(host)?;
    // There may be warnings: no engine of the host needs to know gpool, nor must there be a group of that name.
    ensure(matches!(status, Some(0 | 10)) && builds == "ok", || {
        format!("gpool doctor ends with {status:?}, mapped builds {builds}")
    })?;
    let told = go_past(host, "told", "batch", 4096)?;
    let frozen = go_past(host, "frozen", "notebook", 256)?;
    let killed = go_past(host, "killed", "train", 256)?;
    let plain = simulated_gpu::start(host, "plain")?;

    let found = wait_for(host, |events| {
        of_kind(events, EventKind::Bypass).len() == 3
            && !of_kind(events, EventKind::OverCap).is_empty()
            && !of_kind(events, EventKind::Outside).is_empty()
    })?;
    for (container, consequence) in
        [(&told, "bypass_action = \"event\""), (&frozen, "is frozen"), (&killed, "are killed")]
    {
        is_named(&found, container, consequence)?;
    }
    let is_frozen = || is_frozen(host, &frozen);
    wait_until("the container of class notebook to be frozen", is_frozen)?;
    wait_until("the end of the container of class train", || Ok(!killed.is_alive()))?;
    ensure(told.is_alive() && plain.is_alive(), || "one whose class asks for an event alone has ended".to_owned())?;
    let outside: Vec<OutsideProcess> = host.client().get("/v1/guard/outside")?;
    ensure(outside.len() == 1, || format!("without a lease there are {outside:?}"))?;

    let kernels =
        |container: &Container| -> Result<u64> { Ok(usage_of(&host.meter()?.read()?, &container.id).kernels) };
    let before = [kernels(&honest[0])?, kernels(&honest[1])?, kernels(&frozen)?];
    std::thread::sleep(WATCH);
    let after = [kernels(&honest[0])?, kernels(&honest[1])?, kernels(&frozen)?];
    ensure(after[0] > before[0] && after[1] > before[1], || format!("neighbours stand still: {before:?} {after:?}"))?;
    ensure(after[2] <= before[2] + BATCH, || format!("the frozen one goes on: {} to {}", before[2], after[2]))?;
    nothing_else(host, &honest, &told)?;
    a_reload_is_for_whom_it_was_made(host, &honest, &told)?;
    // What people are told to do with it. SIGKILL alone does not reach what version 1 has frozen; low-level runtimes thaw.
    host.engine.docker_text(&["rm", "-f", "frozen"])?;
    wait_until("the end of the frozen container", || Ok(!frozen.is_alive()))?;
    another_clock_is_seen(host)
}

/// By a clock that is a quarter of an hour ahead no supervisor has been there for long, and the gate holds nobody.
fn another_clock_is_seen(host: &Host) -> Result<()> {
    let mut command = host.command("gpool");
    command.args(["run", "--fraction", "0.1", "--memory", "1GiB", "--user", "nobody", "--"]);
    command.args(["unshare", "-U", "-r", "-T", "--monotonic", "1000"]);
    command.args(["gpool-tenant", "--kernel-us", "500", "--allocate-mib", "64"]).stdout(Stdio::null());
    let mut ahead = spawn_bound(&mut command).context("gpool run")?;
    let told = wait_for(host, |events| {
        of_kind(events, EventKind::Bypass).iter().any(|event| event.message.contains("time namespace"))
    });
    ahead.kill().and_then(|()| ahead.wait()).context("gpool run")?;
    told.map(drop)
}

/// Who was told and left is ended when its class says so afterwards.
fn a_reload_is_for_whom_it_was_made(host: &Host, honest: &[Container], told: &Container) -> Result<()> {
    reload_with(host, "[class.batch]\nbypass_action = \"kill\"\n")?;
    wait_until("the end of the container that was told", || Ok(!told.is_alive()))?;
    ensure(honest.iter().all(Container::is_alive), || "one that came through the shims has ended".to_owned())
}

/// A tenant whose loader finds the driver's own library, in a container of that class, that holds so much.
fn go_past(host: &Host, name: &str, class: &str, mib: u64) -> Result<Container> {
    let tenant = Tenant { allocate_mib: Some(mib), ..Tenant::greedy(800) };
    let around = format!(
        "mkdir /tmp/past && ln -s {REAL} /tmp/past/ && exec {} --launch-batch {BATCH}",
        tenant.command().join(" ")
    );
    let env =
        [("GPOOL_FRACTION", "0.1"), ("GPOOL_MEMORY", "1GiB"), ("GPOOL_CLASS", class), ("LD_LIBRARY_PATH", "/tmp/past")];
    host.run_container(name, &env, &[], &["sh", "-c", &around])
}

/// One event about the container, with its process, the library and what followed.
fn is_named(events: &[Event], container: &Container, consequence: &str) -> Result<()> {
    let about = |event: &&Event| event.container_id.as_ref().is_some_and(|id| id.0 == container.id);
    let its: Vec<&Event> = of_kind(events, EventKind::Bypass).into_iter().filter(about).collect();
    let parts = [format!("process {} (gpool-tenant)", container.init_pid), REAL.into(), consequence.into()];
    let is_said = |event: &Event| parts.iter().all(|part| event.message.contains(part));
    ensure(its.len() == 1 && is_said(its[0]), || format!("of {} was said: {its:#?}", container.name))
}

/// No event about those that came through the shim, one about each of the others; and what people see of them.
fn nothing_else(host: &Host, honest: &[Container], told: &Container) -> Result<()> {
    let events = host.events()?;
    let kinds = [EventKind::Bypass, EventKind::OverCap, EventKind::Outside];
    let counts = kinds.map(|kind| of_kind(&events, kind).len());
    ensure(counts == [3, 1, 1], || format!("of bypass, over-cap and outside there are {counts:?}: {events:#?}"))?;
    let over = of_kind(&events, EventKind::OverCap)[0];
    ensure(over.container_id.as_ref().is_some_and(|id| id.0 == told.id), || format!("above its cap: {over:?}"))?;
    for (container, wanted) in [(&honest[0], "co-operative"), (&honest[1], "co-operative"), (told, "bypassed")] {
        let row = LeaseRow::from(&host.lease_of(container)?);
        ensure(row.enforcement == wanted, || format!("{} is {}", container.name, row.enforcement))?;
    }
    let (status, builds) = doctor(host)?;
    let is_found = status == Some(1) && builds == "fail";
    ensure(is_found, || format!("gpool doctor ends with {status:?}, mapped builds {builds}"))?;
    let guarded = guarded(host)?;
    for container in honest {
        let its = guarded.iter().find(|process| process.pid.0 == container.init_pid);
        let is_proven = its.is_some_and(|process| {
            process.is_registered
                && process.finding.is_none()
                && process.libraries.iter().any(|library| library.is_shim && library.path.ends_with("libcuda.so.1"))
        });
        ensure(is_proven, || format!("nothing proves what {} has mapped: {its:?}", container.name))?;
    }
    Ok(())
}

fn guarded(host: &Host) -> Result<Vec<GuardedProcess>> {
    Ok(host.client().get("/v1/guard")?)
}

/// How `gpool doctor` ends, and what state the builds that are mapped are in.
fn doctor(host: &Host) -> Result<(Option<i32>, String)> {
    let output = host.gpool(&["doctor", "--format", "json"])?;
    let said: Value = serde_json::from_slice(&output.stdout).context("what gpool doctor says")?;
    let checks = said["checks"].as_array().cloned().unwrap_or_default();
    let builds = checks.iter().find(|check| check["name"] == "mapped builds");
    let state = builds.and_then(|check| check["state"].as_str()).unwrap_or("missing");
    Ok((output.status.code(), state.to_owned()))
}

fn is_frozen(host: &Host, container: &Container) -> Result<bool> {
    let cgroup = host.lease_of(container)?.cgroup.unwrap_or_default();
    Ok(cgroups::is_anything_frozen(cgroup.trim_start_matches('/')))
}

fn of_kind(events: &[Event], kind: EventKind) -> Vec<&Event> {
    events.iter().filter(|event| event.kind == kind).collect()
}

fn wait_for(host: &Host, all_there: impl Fn(&[Event]) -> bool) -> Result<Vec<Event>> {
    let deadline = Instant::now() + PATIENCE;
    loop {
        let events = host.events()?;
        if all_there(&events) {
            return Ok(events);
        }
        ensure(Instant::now() < deadline, || format!("not all was found within {PATIENCE:?}: {events:#?}"))?;
        std::thread::sleep(Duration::from_millis(100));
    }
}

fn wait_until(what: &str, holds: impl Fn() -> Result<bool>) -> Result<()> {
    let deadline = Instant::now() + PATIENCE;
    while !holds()? {
        ensure(Instant::now() < deadline, || format!("waited for {what} for {PATIENCE:?}"))?;
        std::thread::sleep(Duration::from_millis(50));
    }
    Ok(())
}
