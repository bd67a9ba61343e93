//! Containers whose memory is moved to the host's: by hand, because they are idle and somebody waits, or for a higher priority. Others have
//! their room meanwhile; they come back by themselves when their programs want the GPU and there is room, with all that they had, also
//! over a restart of the supervisor. What cannot be moved goes on as it was.

use super::{finish, know_contexts, reload_with, said, wait_for, wait_until_running};
use crate::failure::{Context, Failure, Result, ensure};
use crate::host::{Container, Host, succeeded, text};
use crate::manual::openapi;
use crate::meter::usage_of;
use crate::namespaces::{Inside, spawn_bound};
use crate::tenant::{PauseFile, Tenant};
use gpool_protocol::{Event, EventKind, LeaseState, LeaseView, SuspensionStage, WaitingView};
use gpool_simulated_hardware::DriverVersion;
use serde_json::Value;
use std::process::{Child, Stdio};
use std::time::Duration;

/// One that has the checkpoint calls, and one that is too old for them.
const DRIVER: &str = "580.95.05";
const OLD_DRIVER: &str = "555.42.06";
/// What each of them keeps on the GPU.
const MIB: u64 = 256;
/// Memory of the GPU has failed.
const DEVICE_S_XID: u64 = 48;
/// Longer than it takes to look a few times.
const LONG_ENOUGH: Duration = Duration::from_secs(3);
/// An ended container's place is free at once; notebooks make room after three seconds, and burst ones for those that are promised more.
const CONFIGURATION: &str = "[lease]\nhold_ms = 0\n\
    [policy.env]\nallow = [\"fraction\", \"memory\", \"class\", \"mode\", \"priority\", \"wait\"]\n\
    [class.notebook]\nidle_seconds = 2\nidle_grace_seconds = 1\nidle_action = \"suspend\"\n\
    [preemption]\nenabled = true\naction = \"suspend\"\nafter_seconds = 0\ngrace_seconds = 1\nleast_run_seconds = 0\nsignal = \"none\"\n";

/// Suspends in every way.
pub fn run(inside: &Inside) -> Result<()> {
    let mut host = Host::start_without_supervisor(inside, "")?;
    let outcome = all(&mut host);
    finish(host, outcome)
}

fn all(host: &mut Host) -> Result<()> {
    host.set_driver_version(&DriverVersion::parse(DRIVER).map_err(Failure::new)?)?;
    know_contexts()?;
    host.start_supervisor()?;
    reload_with(host, CONFIGURATION)?;
    by_hand(host)?;
    host.engine.remove_all_containers()?;
    by_turns(host)?;
    host.engine.remove_all_containers()?;
    for_a_higher_priority(host)?;
    host.engine.remove_all_containers()?;
    comes_back_at_once(host)?;
    host.engine.remove_all_containers()?;
    what_cannot_be(host)?;
    what_befalls_them(host)
}

/// Its memory is out, another one has its room and it waits for that; what it had is there when it comes back.
fn by_hand(host: &mut Host) -> Result<()> {
    let pause = PauseFile::new("/run/gpool-by-hand")?;
    let kept = remembering(host, "kept", &[("GPOOL_FRACTION", "0.6"), ("GPOOL_MEMORY", "60%")], &pause)?;
    remembers(host, &kept, 1)?;
    pause.pause()?;
    let before = bytes_of(host, &kept)?;
    ensure(before > MIB << 20, || format!("it holds {before} bytes, less than it keeps there"))?;

    suspend(host, &kept)?;
    answers_are_documented(host, &kept)?;
    ensure(bytes_of(host, &kept)? == 0, || "the device has something of a suspended container".into())?;
    let lease = host.lease_of(&kept)?;
    let its = lease.suspension.clone().ok_or_else(|| Failure::new(format!("it is not suspended: {lease:?}")))?;
    let is_shown = its.stage == SuspensionStage::Suspended && its.host_bytes >= before && !its.is_wanted;
    ensure(is_shown && lease.state == LeaseState::Active && kept.is_alive(), || format!("it is shown as {lease:?}"))?;
    let gpus = text(&host.gpool(&["gpu", "ls", "--format", "json"])?.stdout);
    ensure(gpus.contains("\"fraction_leased_permille\": 0"), || format!("its room is not free: {gpus}"))?;
    said(&host.gpool(&["update", &kept.id, "--fraction", "0.5"])?, 4, &["is suspended", "gpool resume"])?;

    let other = Tenant { allocate_mib: Some(MIB), ..Tenant::greedy(500) };
    let other = other.run(host, "other", &[("GPOOL_FRACTION", "0.9"), ("GPOOL_MEMORY", "90%")])?;
    wait_until_running(host, std::slice::from_ref(&other))?;
    pause.resume()?;
    waits(host, &kept)?;
    host.kill_supervisor()?;
    host.start_supervisor()?;
    waits(host, &kept)?;
    std::thread::sleep(LONG_ENOUGH);
    ensure(rounds(host, &kept)?.len() == 1, || "it went on without room".into())?;

    host.engine.docker_text(&["rm", "-f", "other"])?;
    remembers(host, &kept, 2)?;
    ensure(bytes_of(host, &kept)? == before, || {
        format!("before it held {before} bytes, now {:?}", bytes_of(host, &kept))
    })?;
    let woken = about(host, EventKind::LeaseWoken, &kept)?;
    ensure(woken.len() == 1 && woken[0].message.contains("is back on its GPUs"), || format!("told was {woken:?}"))?;

    stays_away_while_it_is_paused(host, &kept, &pause)?;
    let metrics = text(&host.gpool(&["metrics"])?.stdout);
    let counted = metrics.contains("gpool_suspensions_total{outcome=\"woken\"} 2\n");
    ensure(counted && metrics.contains("gpool_lease_suspended{"), || format!("gpool metrics says {metrics}"))
}

/// Whoever pauses it keeps it away, though it was asked for and its program wants the GPU; whoever resumes it has it back at once.
fn stays_away_while_it_is_paused(host: &Host, kept: &Container, pause: &PauseFile) -> Result<()> {
    pause.pause()?;
    suspend(host, kept)?;
    let other = Tenant { allocate_mib: Some(MIB), ..Tenant::greedy(500) };
    other.run(host, "another", &[("GPOOL_FRACTION", "0.9"), ("GPOOL_MEMORY", "90%")])?;
    succeeded("gpool resume", host.gpool(&["resume", &kept.id])?)?;
    waits(host, kept)?;
    succeeded("gpool pause", host.gpool(&["pause", &kept.id])?)?;
    wait_for("it to leave the queue", || Ok(host.client().get::<Vec<WaitingView>>("/v1/queue")?.is_empty()))?;
    host.engine.docker_text(&["rm", "-f", "another"])?;
    pause.resume()?;
    std::thread::sleep(LONG_ENOUGH);
    ensure(rounds(host, kept)?.len() == 2 && is_out(&host.lease_of(kept)?), || "a paused container went on".into())?;
    succeeded("gpool resume", host.gpool(&["resume", &kept.id])?)?;
    remembers(host, kept, 3)
}

/// Two that need more than half of the memory each work in turn: the one that is idle makes room for the other.
fn by_turns(host: &Host) -> Result<()> {
    let pauses = [PauseFile::new("/run/gpool-first")?, PauseFile::new("/run/gpool-second")?];
    let env = [("GPOOL_FRACTION", "0.5"), ("GPOOL_MEMORY", "60%"), ("GPOOL_CLASS", "notebook"), ("GPOOL_WAIT", "2m")];
    let first = remembering(host, "first", &env, &pauses[0])?;
    remembers(host, &first, 1)?;
    pauses[0].pause()?;
    let second = remembering(host, "second", &env, &pauses[1])?;
    remembers(host, &second, 1)?;
    pauses[1].pause()?;
    let told = about(host, EventKind::LeaseSuspended, &first)?;
    let parts = ["idle_action = \"suspend\"", "waits for the room"];
    ensure(told.len() == 1 && parts.iter().all(|part| told[0].message.contains(part)), || {
        format!("told was {told:?}")
    })?;
    for round in 2..4 {
        for (container, pause) in [(&first, &pauses[0]), (&second, &pauses[1])] {
            pause.resume()?;
            remembers(host, container, round)?;
            pause.pause()?;
        }
    }
    let all = [&first, &second].map(|its| about(host, EventKind::LeaseRevoked, its).map(|events| events.len()));
    ensure(matches!(all, [Ok(0), Ok(0)]), || format!("GPUs were taken: {all:?}"))
}

/// One of a lower priority that is at work makes room, and goes on where it was when that is over.
fn for_a_higher_priority(host: &Host) -> Result<()> {
    let lower = Tenant { allocate_mib: Some(MIB), ..Tenant::greedy(500) };
    let env = [("GPOOL_FRACTION", "0.5"), ("GPOOL_MEMORY", "60%"), ("GPOOL_PRIORITY", "burst")];
    let lower = lower.run(host, "lower", &env)?;
    wait_until_running(host, std::slice::from_ref(&lower))?;
    let higher = waiting(host, &["--fraction", "0.5", "--memory", "60%"], &["sleep", "4"])?;
    wait_for("it to make room", || Ok(is_out(&host.lease_of(&lower)?)))?;
    waits(host, &lower)?;
    ensure(bytes_of(host, &lower)? == 0 && lower.is_alive(), || "it holds something of the GPU".into())?;
    let launches = host.lease_of(&lower)?.launches;
    succeeded("gpool run of who waited", higher.wait_with_output().context("gpool run")?)?;
    wait_for("it to go on", || {
        let lease = host.lease_of(&lower)?;
        Ok(lease.suspension.is_none() && lease.launches > launches + 100)
    })?;
    let errors = lower.log(&host.engine)?;
    ensure(!errors.contains("\"error\""), || format!("it has failed: {errors}"))?;
    let metrics = text(&host.gpool(&["metrics"])?.stdout);
    let counted = metrics.contains("gpool_preemptions_total{outcome=\"suspended\"} 1\n");
    ensure(counted, || format!("gpool metrics says {metrics}"))
}

/// A whole GPU has no gate, what is frozen cannot be moved, and an old driver moves nothing: all go on as before.
fn what_cannot_be(host: &Host) -> Result<()> {
    let whole = Tenant { allocate_mib: Some(MIB), ..Tenant::greedy(500) };
    let whole = whole.run(host, "whole", &[("GPOOL_MODE", "exclusive")])?;
    said(&host.gpool(&["suspend", &whole.id])?, 4, &["it has no slices", "gpool evict"])?;
    host.engine.docker_text(&["rm", "-f", "whole"])?;
    let pause = PauseFile::new("/run/gpool-frozen")?;
    let env = [("GPOOL_FRACTION", "0.5"), ("GPOOL_MEMORY", "60%")];
    let frozen = remembering(host, "frozen", &env, &pause)?;
    remembers(host, &frozen, 1)?;
    pause.pause()?;
    host.engine.docker_text(&["pause", "frozen"])?;
    said(&host.gpool(&["suspend", &frozen.id])?, 4, &["frozen or stopped", "docker unpause"])?;
    host.engine.docker_text(&["unpause", "frozen"])?;

    host.set_driver_version(&DriverVersion::parse(OLD_DRIVER).map_err(Failure::new)?)?;
    let refused = said(
        &host.gpool(&["suspend", &frozen.id])?,
        4,
        &["could not be suspended", "no checkpoint calls", "gpool evict"],
    );
    host.set_driver_version(&DriverVersion::parse(DRIVER).map_err(Failure::new)?)?;
    refused?;
    let told = about(host, EventKind::LeaseSuspended, &frozen)?;
    let is_told = told.last().is_some_and(|event| event.message.contains("the driver has no checkpoint calls"));
    ensure(is_told, || format!("told was {told:?}"))?;
    pause.resume()?;
    remembers(host, &frozen, 2)?;
    // What was tried in vain a moment ago is not tried at once again.
    said(&host.gpool(&["suspend", &frozen.id])?, 4, &["could not be suspended before", "half a minute later"])?;
    host.engine.docker_text(&["kill", "frozen"])?;
    wait_for("its lease to be over", || Ok(host.leases()?.is_empty()))
}

/// One that is frozen or killed while it is suspended, and one whose GPUs are taken from it.
fn what_befalls_them(host: &Host) -> Result<()> {
    let pause = PauseFile::new("/run/gpool-befalls")?;
    let env = [("GPOOL_FRACTION", "0.5"), ("GPOOL_MEMORY", "60%")];
    let thawed = remembering(host, "thawed", &env, &pause)?;
    remembers(host, &thawed, 1)?;
    pause.pause()?;
    suspend(host, &thawed)?;
    host.engine.docker_text(&["pause", "thawed"])?;
    succeeded("gpool resume", host.gpool(&["resume", &thawed.id])?)?;
    std::thread::sleep(LONG_ENOUGH);
    ensure(is_out(&host.lease_of(&thawed)?), || "a frozen container was moved".into())?;
    host.engine.docker_text(&["unpause", "thawed"])?;
    wait_for("it to come back", || Ok(host.lease_of(&thawed)?.suspension.is_none()))?;
    pause.resume()?;
    remembers(host, &thawed, 2)?;

    // It was on its GPU before that was drained.
    pause.pause()?;
    suspend(host, &thawed)?;
    succeeded("gpool gpu drain", host.gpool(&["gpu", "drain", "0"])?)?;
    pause.resume()?;
    remembers(host, &thawed, 3)?;
    succeeded("gpool gpu undrain", host.gpool(&["gpu", "undrain", "0"])?)?;

    // Not where that is for a fault of the GPU's own.
    pause.pause()?;
    suspend(host, &thawed)?;
    host.note_xid(0, DEVICE_S_XID)?;
    let is_fault = |event: &Event| event.message.contains("by the supervisor: Xid 48");
    wait_for("its GPU to be drained", || Ok(host.events_of(EventKind::GpuDrained)?.iter().any(is_fault)))?;
    pause.resume()?;
    std::thread::sleep(LONG_ENOUGH);
    ensure(is_out(&host.lease_of(&thawed)?), || "it came back to a GPU with a fault of its own".into())?;
    succeeded("gpool gpu undrain", host.gpool(&["gpu", "undrain", "0", "--fault"])?)?;
    remembers(host, &thawed, 4)?;

    pause.pause()?;
    suspend(host, &thawed)?;
    host.engine.docker_text(&["kill", "thawed"])?;
    wait_for("its lease to be over", || Ok(host.leases()?.is_empty()))?;

    let tenant = Tenant { pause: Some(&pause), ..Tenant::greedy(500) };
    let program = format!("{} --remember {MIB} & exec sleep 600", tenant.command().join(" "));
    let mount = tenant.mount().unwrap_or_default();
    let taken = host.run_container("taken", &env, &["-v", &mount], &["sh", "-c", &program])?;
    wait_for("its program to have a context", || Ok(bytes_of(host, &taken)? > MIB << 20))?;
    suspend(host, &taken)?;
    succeeded("gpool evict", host.gpool(&["evict", &taken.id])?)?;
    let lease = host.lease_of(&taken)?;
    let is_over = lease.state == LeaseState::Revoked && lease.memory_cap_bytes == 0 && taken.is_alive();
    ensure(is_over, || format!("one whose GPUs were taken is {lease:?}"))
}

/// What the socket says of one that is suspended, which is not suspended once more.
fn answers_are_documented(host: &Host, container: &Container) -> Result<()> {
    let (document, client) = (openapi::document()?, host.client());
    let of = |end: &str| format!("/v1/leases/{}{end}", container.id);
    let answers: [(&str, &str, Value); 3] = [
        ("POST", "/v1/leases/{id}/suspend", client.post(&of("/suspend"), &())?),
        ("GET", "/v1/leases/{id}", client.get(&of(""))?),
        ("GET", "/v1/leases/{id}/explain", client.get(&of("/explain"))?),
    ];
    for (method, path, answer) in &answers {
        let defects = openapi::defects(&document, openapi::answer_schema(&document, method, path), answer);
        let is_told = answer["suspension"]["stage"] == "suspended";
        ensure(defects.is_empty() && is_told, || format!("{method} {path} gives {answer}: {defects:?}"))?;
    }
    Ok(())
}

/// One at work is back before anybody has looked.
fn comes_back_at_once(host: &Host) -> Result<()> {
    let busy = Tenant { allocate_mib: Some(MIB), ..Tenant::greedy(500) };
    let busy = busy.run(host, "busy", &[("GPOOL_FRACTION", "0.3"), ("GPOOL_MEMORY", "30%")])?;
    wait_until_running(host, std::slice::from_ref(&busy))?;
    let output = host.gpool(&["suspend", &busy.id])?;
    if !output.status.success() {
        said(&output, 4, &["was suspended and has come back", "gpool pause"])?;
    }
    wait_for("it to go on", || {
        let lease = host.lease_of(&busy)?;
        Ok(lease.suspension.is_none() && lease.received_permille > 0)
    })
}

fn suspend(host: &Host, container: &Container) -> Result<()> {
    succeeded("gpool suspend", host.gpool(&["suspend", &container.id])?)?;
    let lease = host.lease_of(container)?;
    ensure(is_out(&lease), || format!("{} is {lease:?}", container.name))
}

fn is_out(lease: &LeaseView) -> bool {
    lease.suspension.as_ref().is_some_and(|its| its.stage == SuspensionStage::Suspended)
}

/// It wants to come back, and stands in the queue for that.
fn waits(host: &Host, container: &Container) -> Result<()> {
    wait_for("it to wait for its room", || {
        let queue: Vec<WaitingView> = host.client().get("/v1/queue")?;
        Ok(queue.iter().any(|waits| waits.container_id.0 == container.id))
    })?;
    let ps = text(&host.gpool(&["ps"])?.stdout);
    ensure(ps.contains("  waking  "), || format!("gpool ps says {ps}"))
}

/// A container that keeps something on the GPU.
fn remembering(host: &Host, name: &str, env: &[(&str, &str)], pause: &PauseFile) -> Result<Container> {
    let tenant = Tenant { pause: Some(pause), ..Tenant::greedy(500) };
    tenant.run_with(host, name, env, &["--remember", &MIB.to_string()])
}

/// Waits until it has looked so often, and fails unless all was there each time.
fn remembers(host: &Host, container: &Container, times: usize) -> Result<()> {
    wait_for("it to look at what it keeps", || Ok(rounds(host, container)?.len() >= times))?;
    let rounds = rounds(host, container)?;
    let is_right = rounds.len() == times && rounds.iter().all(|round| round["wrong"] == 0);
    ensure(is_right, || format!("{}: after {times} looks it said {rounds:?}", container.name))
}

fn rounds(host: &Host, container: &Container) -> Result<Vec<Value>> {
    let log = container.log(&host.engine)?;
    let lines: Vec<Value> = log.lines().filter_map(|line| serde_json::from_str(line).ok()).collect();
    let error = lines.iter().find(|line| line["event"] == "error");
    ensure(error.is_none(), || format!("{} has failed: {error:?}", container.name))?;
    Ok(lines.into_iter().filter(|line| line["event"] == "remembered").collect())
}

/// What the device has of it.
fn bytes_of(host: &Host, container: &Container) -> Result<u64> {
    Ok(usage_of(&host.meter()?.read()?, &container.id).bytes_now)
}

/// A command that waits for room and then runs.
fn waiting(host: &Host, asked: &[&str], program: &[&str]) -> Result<Child> {
    let mut command = host.command("gpool");
    command.arg("run").args(asked).args(["--wait", "300s", "--"]).args(program);
    spawn_bound(command.stdout(Stdio::piped()).stderr(Stdio::piped())).context("gpool run")
}

fn about(host: &Host, kind: EventKind, container: &Container) -> Result<Vec<Event>> {
    let is_its = |event: &Event| event.container_id.as_ref().is_some_and(|id| id.0 == container.id);
    Ok(host.events_of(kind)?.into_iter().filter(is_its).collect())
}
