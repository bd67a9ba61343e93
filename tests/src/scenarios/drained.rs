//! A GPU that is drained takes no new containers and keeps those that it has, also across a restart of the supervisor. Who waits
//! for room has it when that ends. The supervisor does the same by itself where the driver tells of a fault of the GPU's own, and
//! not for a program's.

use super::{finish, is_refused, reload_with, wait_for};
use crate::failure::{Context, Result, ensure};
use crate::host::{Container, Host, succeeded, text};
use crate::namespaces::{Inside, spawn_bound};
use crate::tenant::Tenant;
use gpool_protocol::{Event, EventKind, WaitingView};
use serde_json::Value;
use std::process::{Output, Stdio};

/// An ended container's place is free at once.
const CONFIGURATION: &str = "[lease]\nhold_ms = 0\n";
const REASON: &str = "new fans";
const ASKED: [(&str, &str); 2] = [("GPOOL_FRACTION", "0.3"), ("GPOOL_MEMORY", "1GiB")];
/// A program has used an address that is not its.
const PROGRAM_S_XID: u64 = 31;
/// The GPU has fallen off its bus.
const DEVICE_S_XID: u64 = 79;
/// Memory that failed under one program.
const CONTAINED_XID: u64 = 94;
/// The number of the check "drained GPUs".
const CHECK: &str = "24";

/// Drains one of two GPUs, then both.
pub fn run(inside: &Inside) -> Result<()> {
    let mut host = Host::start_with(inside, 2, "")?;
    let outcome = reload_with(&host, CONFIGURATION)
        .and_then(|()| one(&mut host))
        .and_then(|()| both(&host))
        .and_then(|()| evicted(&host))
        .and_then(|()| by_itself(&host));
    finish(host, outcome)
}

fn one(host: &mut Host) -> Result<()> {
    let (there, beside) = (start(host, "there", "0.6")?, start(host, "beside", "0.6")?);
    let (drained, open) = (host.lease_of(&there)?.gpu_uuid, host.lease_of(&beside)?.gpu_uuid);
    ensure(drained != open, || format!("both containers are on {drained}"))?;
    let index = host.index_of(&drained)?.to_string();
    may_not(host, &index)?;
    let said = succeeded("gpool gpu drain", host.gpool(&["gpu", "drain", &index, "--reason", REASON])?)?;
    ensure(said.contains("1 lease is on it"), || format!("gpool gpu drain says {said}"))?;
    // It has room for another 0.4, as the other one has.
    let new = start(host, "new", "0.3")?;
    ensure(host.lease_of(&new)?.gpu_uuid == open, || format!("a new container is on {drained}, which is drained"))?;
    let cause = format!("{drained} is drained by user 0: {REASON}");
    is_refused(host, &ASKED, &["GPOOL-E201", &cause])?;
    let two = [("GPOOL_GPUS", "2"), ("GPOOL_FRACTION", "0.05"), ("GPOOL_MEMORY", "1GiB")];
    is_refused(host, &two, &["GPOOL-E201", "GPUs that would do take no new leases", &cause])?;
    succeeded("gpool update", host.gpool(&["update", &there.id, "--fraction", "0.7"])?)?;
    is_shown(host, &index, "draining")?;

    host.kill_supervisor()?;
    host.start_supervisor()?;
    is_shown(host, &index, "draining")?;
    is_refused(host, &ASKED, &["GPOOL-E201", &cause])?;
    let mut wait = host.command("gpool");
    wait.args(["gpu", "drain", drained.0.as_str(), "--reason", REASON, "--wait", "60s"]);
    let wait = spawn_bound(wait.stdout(Stdio::piped()).stderr(Stdio::piped())).context("gpool gpu drain --wait")?;
    there.kill_init()?;
    let said = succeeded("gpool gpu drain --wait", wait.wait_with_output().context("gpool")?)?;
    ensure(said.ends_with("no lease is left"), || format!("gpool gpu drain --wait says {said}"))?;
    is_shown(host, &index, "drained")?;
    ensure(host.events_of(EventKind::GpuDrained)?.is_empty(), || "what was said again is told again".to_owned())
}

/// Nobody finds room; who waits for it has it when one GPU is open again.
fn both(host: &Host) -> Result<()> {
    succeeded("gpool gpu drain", host.gpool(&["gpu", "drain", "0", "1"])?)?;
    is_refused(host, &ASKED, &["GPOOL-E201", "GPUs that would do take no new leases", REASON, "gpool gpu undrain"])?;
    let mut waiting = host.command("gpool");
    waiting.args(["run", "--fraction", "0.3", "--memory", "1GiB", "--wait", "300s", "--", "/bin/true"]);
    let waiting = spawn_bound(waiting.stdout(Stdio::piped()).stderr(Stdio::piped())).context("gpool run")?;
    let waits = || Ok(host.client().get::<Vec<WaitingView>>("/v1/queue")?.len() == 1);
    wait_for("a command that waits for a GPU that is drained", waits)?;
    let said = succeeded("gpool gpu undrain", host.gpool(&["gpu", "undrain", "0", "1"])?)?;
    ensure(said.matches("takes leases again").count() == 2, || format!("gpool gpu undrain says {said}"))?;
    succeeded("gpool run", waiting.wait_with_output().context("gpool run")?)?;
    let again = host.gpool(&["gpu", "undrain", "0"])?;
    is_usage(&again, "is not drained")?;
    is_usage(&host.gpool(&["gpu", "drain", "7"])?, "no GPU \"7\"")?;
    ensure(host.events_of(EventKind::GpuUndrained)?.len() == 2, || "not two GPUs were opened again".to_owned())
}

/// Who is left when the time is over loses the GPU that is drained, and nobody else loses another.
fn evicted(host: &Host) -> Result<()> {
    let left = start(host, "left", "0.6")?;
    let index = host.index_of(&host.lease_of(&left)?.gpu_uuid)?.to_string();
    let drain = ["gpu", "drain", &index, "--reason", REASON, "--wait", "1s"];
    let waited = host.gpool(&drain)?;
    ensure(waited.status.code() == Some(1) && left.is_alive(), || format!("without --evict it says {waited:?}"))?;
    let said = succeeded("--evict", host.gpool(&[&drain[..], &["--evict"]].concat())?)?;
    ensure(said.contains(&left.id) && said.ends_with("no lease is left"), || format!("--evict says {said}"))?;
    let taken = host.events_of(EventKind::LeaseRevoked)?;
    let whose = taken.first().and_then(|event| event.container_id.as_ref().map(|id| &id.0));
    ensure(taken.len() == 1 && whose == Some(&left.id), || format!("GPUs were taken: {taken:?}"))?;
    is_shown(host, &index, "drained")?;
    succeeded("gpool gpu undrain", host.gpool(&["gpu", "undrain", &index])?).map(drop)
}

/// Of a program's fault is told, with whose it may be; after one of the GPU's own nobody comes there any more.
fn by_itself(host: &Host) -> Result<()> {
    let tenant = Tenant::greedy(500).run(host, "tenant", &ASKED)?;
    let hurt = host.lease_of(&tenant)?.gpu_uuid;
    let index = host.index_of(&hurt)?.to_string();
    let number: u32 = index.parse().context("the index of a GPU")?;
    wait_for("its program to be known", || Ok(host.lease_of(&tenant)?.processes > 0))?;
    let told = |number: u64| -> Result<Vec<Event>> {
        let is_it = |event: &Event| event.message.contains(&format!("Xid {number}:"));
        Ok(host.events_of(EventKind::GpuXid)?.into_iter().filter(is_it).collect())
    };
    host.note_xid(number, PROGRAM_S_XID)?;
    wait_for("an event about a program's Xid", || Ok(told(PROGRAM_S_XID)?.len() == 1))?;
    let event = &told(PROGRAM_S_XID)?[0];
    let only = event.container_id.as_ref().map(|id| id.0.as_str());
    ensure(only == Some(tenant.id.as_str()), || format!("the only container there is not named: {event:?}"))?;
    ensure(state_of(host, &index)? == "ready", || "a program's fault drains a GPU".to_owned())?;

    // Memory that has failed once may be chance.
    host.note_xid(number, CONTAINED_XID)?;
    wait_for("an event about memory that has failed", || Ok(told(CONTAINED_XID)?.len() == 1))?;
    ensure(state_of(host, &index)? == "ready", || "one contained fault drains a GPU".to_owned())?;
    // What comes at once is the same one.
    std::thread::sleep(std::time::Duration::from_millis(1500));
    host.note_xid(number, CONTAINED_XID)?;
    wait_for("the GPU to be drained for the second", || Ok(state_of(host, &index)? == "draining"))?;
    let listed = text(&host.gpool(&["gpu", "ls"])?.stdout);
    ensure(listed.contains("Xid 94, 2 times within a day"), || format!("it says {listed}"))?;
    is_known(host, &index, "Xid 94, 2 times within a day")?;

    host.note_xid(number, DEVICE_S_XID)?;
    wait_for("the GPU to be drained", || Ok(state_of(host, &index)? == "draining"))?;
    ensure(told(DEVICE_S_XID)?.len() == 1, || "no event tells of the Xid".to_owned())?;
    let elsewhere = start(host, "elsewhere", "0.1")?;
    ensure(host.lease_of(&elsewhere)?.gpu_uuid != hurt, || "a new container is on the GPU that failed".to_owned())?;
    ensure(tenant.is_alive(), || "the container on it has ended".to_owned())?;
    let listed = text(&host.gpool(&["gpu", "ls"])?.stdout);
    ensure(listed.contains("by the supervisor: Xid 79, it has fallen off its bus"), || format!("it says {listed}"))?;
    let metrics = text(&host.gpool(&["metrics"])?.stdout);
    let counted = format!("gpool_gpu_xids_total{{gpu_uuid=\"{hurt}\",xid=\"{DEVICE_S_XID}\"}} 1");
    ensure(metrics.contains(&counted), || format!("gpool metrics lacks {counted}"))?;
    is_known(host, &index, "Xid 79, it has fallen off its bus")?;
    ensure(state_of(host, &index)? == "ready", || "it is still drained".to_owned())
}

/// Who drains it for something else is told of its fault, and opens it by no word that does not name that.
fn is_known(host: &Host, index: &str, fault: &str) -> Result<()> {
    let said = succeeded("gpool gpu drain", host.gpool(&["gpu", "drain", index, "--reason", REASON])?)?;
    ensure(said.contains("a fault of its own") && said.contains(fault), || format!("gpool gpu drain says {said}"))?;
    let refused = host.gpool(&["gpu", "undrain", index])?;
    let told = text(&refused.stderr);
    let is_refused = refused.status.code() == Some(4) && told.contains(fault) && told.contains("--fault");
    ensure(is_refused, || format!("gpool gpu undrain says {told}"))?;
    ensure(state_of(host, index)? != "ready", || "it is open all the same".to_owned())?;
    let said = succeeded("gpool gpu undrain", host.gpool(&["gpu", "undrain", index, "--fault"])?)?;
    ensure(said.contains(&format!("it was drained for {fault}")), || format!("gpool gpu undrain says {said}"))
}

/// Another user than root does not drain.
fn may_not(host: &Host, index: &str) -> Result<()> {
    let mut command = host.command_named("setpriv");
    command.args(["--reuid=1234", "--regid=1234", "--clear-groups", "gpool", "gpu", "drain", index]);
    let output = command.output().context("setpriv")?;
    let said = text(&output.stderr);
    ensure(output.status.code() == Some(77) && said.contains("may not drain a GPU"), || format!("{output:?}"))
}

/// What `gpool gpu ls` says of a GPU.
fn state_of(host: &Host, index: &str) -> Result<String> {
    let listed = text(&host.gpool(&["gpu", "ls", "--format", "csv"])?.stdout);
    let column = listed.lines().next().and_then(|header| header.split(',').position(|name| name == "state"));
    let row = listed.lines().find(|line| line.starts_with(&format!("{index},")));
    let state = row.zip(column).and_then(|(row, column)| row.split(',').nth(column));
    Ok(state.ok_or_else(|| crate::failure::Failure::new(format!("no GPU {index} in {listed}")))?.to_owned())
}

/// What people and programs are told of it.
fn is_shown(host: &Host, index: &str, state: &str) -> Result<()> {
    let listed = text(&host.gpool(&["gpu", "ls"])?.stdout);
    let is_it = |line: &&str| line.trim_start().starts_with(&format!("{index} ")) && line.ends_with(state);
    let is_told = |line: &&str| line.contains("drained by user 0") && line.contains(REASON);
    let count = (listed.lines().filter(is_it).count(), listed.lines().filter(is_told).count());
    ensure(count == (1, 1), || format!("gpool gpu ls says {listed}"))?;
    let document = text(&host.gpool(&["gpu", "ls", "--format", "json"])?.stdout);
    let document: Value = serde_json::from_str(&document).context("gpool gpu ls --format json")?;
    let reasons: Vec<&Value> =
        document["gpus"].as_array().into_iter().flatten().map(|gpu| &gpu["drained"]["reason"]).collect();
    ensure(reasons.iter().filter(|reason| **reason == REASON).count() == 1, || format!("it says {document}"))?;
    let metrics = text(&host.gpool(&["metrics"])?.stdout);
    let drained = metrics.lines().filter(|line| line.starts_with("gpool_gpu_drained{") && line.ends_with(" 1"));
    ensure(drained.count() == 1, || format!("gpool metrics says {metrics}"))?;
    let examined = text(&host.gpool(&["doctor"])?.stdout);
    let is_found = |line: &str| line.contains(CHECK) && line.contains("warn") && line.contains(REASON);
    ensure(examined.lines().any(is_found), || format!("gpool doctor says {examined}"))
}

fn is_usage(output: &Output, what: &str) -> Result<()> {
    let said = text(&output.stderr);
    ensure(output.status.code() == Some(2) && said.contains(what), || format!("{}: {said}", output.status))
}

fn start(host: &Host, name: &str, fraction: &str) -> Result<Container> {
    host.run_container(name, &[("GPOOL_FRACTION", fraction), ("GPOOL_MEMORY", "1GiB")], &[], &["sleep", "600"])
}
