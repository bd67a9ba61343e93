//! Waiting for room: in order, across a restart of the supervisor, and for no longer than was asked for; what is kept for the
//! first is not taken by those behind it; who gives up, or is taken out, is gone.

use super::{finish, is_refused, reload_with, wait_for};
use crate::failure::{Context, Failure, Result, ensure};
use crate::host::{Container, Host, succeeded, text};
use crate::namespaces::{Inside, spawn_bound};
use crate::tenant::Tenant;
use gpool_protocol::{EventKind, LeaseAnswer, WaitingView};
use rustix::process::{Pid, Signal, kill_process};
use serde_json::{Value, json};
use std::process::{Child, Output, Stdio};
use std::time::{Duration, Instant};

/// An ended container's place is free at once.
const CONFIGURATION: &str = "[lease]\nhold_ms = 0\n";
/// Nobody here waits for so long.
const LONG: &str = "300s";

/// Has containers and commands wait on one GPU.
pub fn run(inside: &Inside) -> Result<()> {
    let mut host = Host::start(inside)?;
    let outcome = reload_with(&host, CONFIGURATION).and_then(|()| in_order(&mut host)).and_then(|holder| {
        for_no_longer_than_asked(&host)?;
        some_give_up(&host)?;
        what_cannot_be_is_not_waited_for(&host)?;
        an_answer_that_was_lost(&host)?;
        holder.kill_init()
    });
    finish(host, outcome)
}

/// A container waits for another one's end, and a command for the container's. The container that runs at the end.
fn in_order(host: &mut Host) -> Result<Container> {
    let env = |share| [("GPOOL_FRACTION", share), ("GPOOL_MEMORY", "1GiB")];
    let holder = Tenant::greedy(500).run(host, "holder", &env("0.7"))?;
    let first = waiting_container(host, "first", "0.6")?;
    let id = waits(host, 1)?[0].container_id.to_string();
    let second = waiting_command(host, "0.5", LONG)?;
    let before = waits(host, 2)?;
    let kept = &before[0].kept_on;
    ensure(before[0].container_id.0 == id && kept.len() == 1, || format!("nothing is kept for the first: {before:?}"))?;
    // A tenth is free, and kept: for one that does not wait, for a lease that runs, and for the command.
    is_refused(
        host,
        &[("GPOOL_FRACTION", "0.1"), ("GPOOL_MEMORY", "1GiB")],
        &["GPOOL-E201", "1 container that waits"],
    )?;
    let grown = host.gpool(&["update", &holder.id, "--fraction", "0.8"])?;
    let said = text(&grown.stderr);
    ensure(said.contains("kept for 1 container"), || format!("a lease grew past the queue: {said}"))?;
    host.kill_supervisor()?;
    host.start_supervisor()?;
    let places = |all: &[WaitingView]| -> Vec<(String, u64)> {
        all.iter().map(|one| (one.container_id.to_string(), one.since_unix_ms)).collect()
    };
    let after = waits(host, 2)?;
    ensure(places(&after) == places(&before), || format!("after a restart {after:?} wait in place of {before:?}"))?;
    holder.kill_init()?;
    succeeded("docker run of the container that waited", first.wait_with_output().context("docker run")?)?;
    ensure(waits(host, 1)?[0].container_id == before[1].container_id, || "the wrong one waits".into())?;
    Container::inspect(&host.engine, "first")?.kill_init()?;
    let ended = second.wait_with_output().context("gpool run")?;
    let told = text(&ended.stderr);
    ensure(ended.status.success() && told.contains("waits for room, at place 2"), || {
        format!("{}: {told}", ended.status)
    })?;
    let left = host.events_of(EventKind::LeaseUnqueued)?;
    let has_room = left.iter().filter(|event| event.message.contains("has room after")).count();
    ensure(left.len() == 2 && has_room == 2, || format!("they left the queue so: {left:?}"))?;
    Tenant::greedy(500).run(host, "last", &env("0.3"))
}

fn for_no_longer_than_asked(host: &Host) -> Result<()> {
    let begun = Instant::now();
    let ended = waiting_command(host, "0.9", "1s")?.wait_with_output().context("gpool run")?;
    let said = text(&ended.stderr);
    ensure(ended.status.code() == Some(125), || format!("{}: {said}", ended.status))?;
    ensure(said.contains("the time to wait for room is over") && said.contains("GPOOL-E201"), || said.clone())?;
    ensure(begun.elapsed() >= Duration::from_secs(1), || format!("it waited for {:?}", begun.elapsed()))?;
    waits(host, 0).map(drop)
}

fn some_give_up(host: &Host) -> Result<()> {
    let cancelled = waiting_command(host, "0.9", LONG)?;
    let id = waits(host, 1)?[0].container_id.to_string();
    for (verb, is_held, is_first) in [("hold", true, false), ("release", false, false), ("first", false, true)] {
        succeeded("gpool queue", host.gpool(&["queue", verb, &id])?)?;
        let all = waits(host, 1)?;
        let is_so = (all[0].held_by.is_some(), all[0].is_first) == (is_held, is_first);
        ensure(is_so, || format!("after gpool queue {verb} it is {:?}", all[0]))?;
    }
    let printed = succeeded("gpool queue cancel", host.gpool(&["queue", "cancel", &id])?)?;
    ensure(printed.contains(&id), || format!("it printed {printed:?}"))?;
    let said = failed(cancelled.wait_with_output().context("gpool run")?)?;
    ensure(said.contains("GPOOL-E205"), || said.clone())?;
    let interrupted = waiting_command(host, "0.9", LONG)?;
    waits(host, 1)?;
    kill_process(Pid::from_child(&interrupted), Signal::TERM).context("gpool run is gone")?;
    failed(interrupted.wait_with_output().context("gpool run")?)?;
    waits(host, 0).map(drop)
}

fn what_cannot_be_is_not_waited_for(host: &Host) -> Result<()> {
    let refused = |arguments: &[&str], code: &str| {
        let words = [&["run", "--fraction", "0.1"], arguments, &["--", "/bin/true"]].concat();
        let said = failed(host.gpool(&words)?)?;
        ensure(said.contains(code) && !said.contains("waits for room"), || said)
    };
    refused(&["--wait", LONG, "--memory", "1000GiB"], "GPOOL-E202")?;
    refused(&["--wait", LONG, "--gpus", "2"], "GPOOL-E203")?;
    refused(&["--wait", LONG, "--model", "Quantum"], "GPOOL-E203")?;
    refused(&["--wait", "8d"], "GPOOL-E105")
}

/// Who asks again before there is a container has not heard that it was granted, as when the supervisor ended meanwhile.
fn an_answer_that_was_lost(host: &Host) -> Result<()> {
    let asked = json!({"container_id": "lost", "request": {"fraction_permille": 600, "wait_seconds": 60}});
    let ask = || host.client().post::<_, LeaseAnswer>("/v1/leases", &asked);
    let leases = [ask()?, ask()?].map(|answer| match answer {
        LeaseAnswer::Granted(granted) => Some(granted.lease_id),
        LeaseAnswer::Waiting(_) => None,
    });
    let is_one_after_the_other = leases[0].is_some() && leases[1].is_some() && leases[0] != leases[1];
    ensure(is_one_after_the_other, || format!("{leases:?}"))?;
    let mut left = host.leases()?;
    left.retain(|lease| lease.container_id.0 == "lost");
    // Who asked for it says that nothing came of it.
    for lease in &left {
        host.client().post::<_, Value>(&format!("/v1/leases/{}/ended", lease.lease_id), &json!({}))?;
    }
    ensure(left.len() == 1, || format!("{} leases for one container", left.len()))
}

/// `docker run`, which does not come back before there is room.
fn waiting_container(host: &Host, name: &str, share: &str) -> Result<Child> {
    let tenant = Tenant::greedy(500);
    let mount = tenant.mount();
    let (share, wait) = (format!("GPOOL_FRACTION={share}"), format!("GPOOL_WAIT={LONG}"));
    let mut words = vec!["run", "-d", "--runtime=gpool", "--network=none", "--name", name, "-e", &share, "-e", &wait];
    words.extend(["-e", "GPOOL_MEMORY=1GiB"]);
    words.extend(mount.iter().flat_map(|mount| ["-v", mount.as_str()]));
    let command = tenant.command();
    words.push(crate::image::NAME);
    words.extend(command.iter().map(String::as_str));
    let mut docker = host.docker_command(&words);
    spawn_bound(docker.stdout(Stdio::piped()).stderr(Stdio::piped())).context("docker run")
}

fn waiting_command(host: &Host, share: &str, wait: &str) -> Result<Child> {
    let mut command = host.command("gpool");
    command.args(["run", "--fraction", share, "--memory", "1GiB", "--wait", wait, "--", "/bin/true"]);
    spawn_bound(command.stdout(Stdio::piped()).stderr(Stdio::piped())).context("gpool run")
}

/// Who waits once these are so many.
fn waits(host: &Host, count: usize) -> Result<Vec<WaitingView>> {
    let all = || host.client().get::<Vec<WaitingView>>("/v1/queue");
    wait_for(&format!("{count} to wait for room"), || Ok(all()?.len() == count))?;
    Ok(all()?)
}

fn failed(ended: Output) -> Result<String> {
    let said = text(&ended.stderr);
    match ended.status.success() {
        true => Err(Failure::new("a command ran that had no room")),
        false => Ok(said),
    }
}
