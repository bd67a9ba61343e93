//! Containers that make no use of their GPU: they are told, and by their class's word lose it, at once or to who waits for the
//! room and comes before nobody by it. Who works, or works again, keeps it. A restart of the supervisor forgets no idle time.

use super::{finish, reload_with, wait_for};
use crate::failure::{Context, Result, ensure};
use crate::host::{Container, Host, succeeded, text};
use crate::namespaces::{Inside, spawn_bound};
use crate::tenant::{PauseFile, Tenant};
use gpool_protocol::{Event, EventKind, LeaseState, LeaseView, WaitingView};
use std::process::{Child, Stdio};
use std::time::Duration;

/// An ended container's place is free at once; who is idle is so after two seconds, and may lose its GPU a second later.
const CONFIGURATION: &str = "[lease]\nhold_ms = 0\n\
    [policy.env]\nallow = [\"fraction\", \"memory\", \"class\", \"mode\"]\n\
    [class.notebook]\nidle_seconds = 2\nidle_grace_seconds = 1\nidle_action = \"revoke\"\n\
    [class.batch]\nidle_seconds = 2\nidle_grace_seconds = 1\nidle_action = \"yield\"\n\
    [class.train]\nidle_seconds = 2\n";
/// What each of them allocates.
const MIB: u64 = 512;
/// Longer than until the GPU is taken from who may lose it.
const LONG_ENOUGH: Duration = Duration::from_secs(5);

/// Has one of each class idle beside one that works.
pub fn run(inside: &Inside) -> Result<()> {
    let mut host = Host::start_with(inside, 2, "")?;
    let outcome = reload_with(&host, CONFIGURATION).and_then(|()| all(&mut host));
    finish(host, outcome)
}

fn all(host: &mut Host) -> Result<()> {
    let (left_pause, kept_pause) = (PauseFile::new("/run/gpool-left")?, PauseFile::new("/run/gpool-kept")?);
    [&left_pause, &kept_pause].into_iter().try_for_each(PauseFile::pause)?;
    // All of one GPU, where the device's figures are all that use is seen by.
    let whole_pause = PauseFile::new("/run/gpool-whole")?;
    let whole = Tenant { pause: Some(&whole_pause), ..Tenant::greedy(500) };
    let whole = whole.run(host, "whole", &[("GPOOL_MODE", "exclusive"), ("GPOOL_CLASS", "train")])?;
    let busy = Tenant { allocate_mib: Some(MIB), ..Tenant::greedy(500) };
    let busy = busy.run(host, "busy", &[("GPOOL_FRACTION", "0.2"), ("GPOOL_MEMORY", "5%")])?;
    let left = started(host, ("left", "notebook"), ("0.2", "5%"), &left_pause)?;
    let kept = started(host, ("kept", "batch"), ("0.5", "60%"), &kept_pause)?;
    let told = started(host, ("told", "train"), ("0.1", "5%"), &kept_pause)?;

    for (container, parts) in [
        (&left, ["[class.notebook] idle_seconds = 2", "unless it is used again in 1s", "idle_action = \"revoke\""]),
        (&kept, ["[class.batch] idle_seconds = 2", "the first who waits", "idle_action = \"yield\""]),
        (&told, ["[class.train] idle_seconds = 2", "nothing follows", "gpool evict"]),
    ] {
        wait_for("an idle container to be told", || Ok(!about(host, EventKind::LeaseIdle, container)?.is_empty()))?;
        let said = &about(host, EventKind::LeaseIdle, container)?[0].message;
        ensure(parts.iter().all(|part| said.contains(part)), || format!("of {} was said {said:?}", container.name))?;
    }
    is_taken(host, &left, &["idle_action = \"revoke\"", "made no use"])?;
    survives_a_restart(host, &told)?;
    gives_way(host, &kept, &kept_pause)?;

    let of_busy = about(host, EventKind::LeaseIdle, &busy)?;
    ensure(of_busy.is_empty() && busy.is_alive(), || format!("of one that works was said {of_busy:?}"))?;
    let of_whole = about(host, EventKind::LeaseIdle, &whole)?;
    ensure(of_whole.is_empty(), || format!("of one that works on a whole GPU was said {of_whole:?}"))?;
    whole_pause.pause()?;
    wait_for("an idle whole GPU to be told", || Ok(!about(host, EventKind::LeaseIdle, &whole)?.is_empty()))?;
    let state = host.lease_of(&told)?.state;
    ensure(state == LeaseState::Active, || format!("one whose class asks for an event alone is {state:?}"))?;
    let metrics = text(&host.gpool(&["metrics"])?.stdout);
    // Since the restart.
    let revoked = metrics.contains("gpool_idle_actions_total{action=\"revoked\"} 1");
    ensure(revoked && metrics.contains("gpool_lease_idle_seconds{"), || format!("gpool metrics says {metrics}"))
}

/// It gives way to nobody of a lower priority, and to nobody while it is used; then to the first who waits for what it has.
fn gives_way(host: &Host, kept: &Container, pause: &PauseFile) -> Result<()> {
    let lower = waiting(host, &["--priority", "burst", "--fraction", "0.1", "--memory", "50%"])?;
    std::thread::sleep(LONG_ENOUGH);
    is_kept(host, kept, "a waiter of a lower priority")?;
    let waits: Vec<WaitingView> = host.client().get("/v1/queue")?;
    succeeded("gpool queue cancel", host.gpool(&["queue", "cancel", &waits[0].container_id.0])?)?;
    lower.wait_with_output().context("gpool run")?;

    pause.resume()?;
    wait_for("it to be in use again", || Ok(host.lease_of(kept)?.idle_seconds.is_some_and(|seconds| seconds < 2)))?;
    let equal = waiting(host, &["--fraction", "0.6", "--memory", "1GiB"])?;
    std::thread::sleep(LONG_ENOUGH);
    is_kept(host, kept, "a waiter while it worked")?;
    let peak = host.lease_of(kept)?;
    let is_within = (MIB << 20..=peak.memory_cap_bytes).contains(&peak.memory_peak_bytes);
    ensure(is_within, || format!("of {MIB} MiB and a context at most {} bytes were held", peak.memory_peak_bytes))?;

    pause.pause()?;
    succeeded("gpool run of who waited", equal.wait_with_output().context("gpool run")?)?;
    is_taken(host, kept, &["idle_action = \"yield\"", "waits for the room"])?;
    let times = about(host, EventKind::LeaseIdle, kept)?.len();
    ensure(times == 2, || format!("it was idle twice and told {times} times"))
}

fn survives_a_restart(host: &mut Host, idle: &Container) -> Result<()> {
    let idle_seconds = |lease: LeaseView| lease.idle_seconds.unwrap_or(0);
    let before = idle_seconds(host.lease_of(idle)?);
    host.kill_supervisor()?;
    host.start_supervisor()?;
    wait_for("the lease to be taken over", || Ok(host.lease_of(idle)?.state == LeaseState::Active))?;
    std::thread::sleep(Duration::from_secs(2));
    let after = idle_seconds(host.lease_of(idle)?);
    ensure(before > 0 && after >= before, || {
        format!("before a restart it was idle for {before} s, after it for {after} s")
    })
}

/// Its GPU was taken from it, and what of it does not use that goes on.
fn is_taken(host: &Host, container: &Container, parts: &[&str]) -> Result<()> {
    wait_for(
        "the GPU of an idle container to be taken",
        || Ok(host.lease_of(container)?.state == LeaseState::Revoked),
    )?;
    // That is told when it is done.
    let told = || about(host, EventKind::LeaseRevoked, container);
    wait_for("that to be told", || Ok(!told()?.is_empty()))?;
    let events = told()?;
    let is_said = events.len() == 1 && parts.iter().all(|part| events[0].message.contains(part));
    ensure(is_said && container.is_alive(), || {
        format!("{} lives: {}; {events:?}", container.name, container.is_alive())
    })
}

fn is_kept(host: &Host, container: &Container, from: &str) -> Result<()> {
    let state = host.lease_of(container)?.state;
    ensure(state == LeaseState::Active, || format!("{from} has made {} {state:?}", container.name))
}

/// A container with a program that allocates and then stands still, beside one that does not use the GPU.
fn started(
    host: &Host,
    (name, class): (&str, &str),
    (share, memory): (&str, &str),
    pause: &PauseFile,
) -> Result<Container> {
    let tenant = Tenant { allocate_mib: Some(MIB), pause: Some(pause), ..Tenant::greedy(500) };
    let program = format!("{} & exec sleep 600", tenant.command().join(" "));
    let env = [("GPOOL_FRACTION", share), ("GPOOL_MEMORY", memory), ("GPOOL_CLASS", class)];
    let mount = tenant.mount();
    let options: Vec<&str> = mount.iter().flat_map(|mount| ["-v", mount.as_str()]).collect();
    host.run_container(name, &env, &options, &["sh", "-c", &program])
}

/// A command that waits for room.
fn waiting(host: &Host, asked: &[&str]) -> Result<Child> {
    let mut command = host.command("gpool");
    command.arg("run").args(asked).args(["--wait", "300s", "--", "/bin/true"]);
    let waiting = spawn_bound(command.stdout(Stdio::piped()).stderr(Stdio::piped())).context("gpool run")?;
    wait_for("a command to wait", || Ok(host.client().get::<Vec<WaitingView>>("/v1/queue")?.len() == 1))?;
    Ok(waiting)
}

fn about(host: &Host, kind: EventKind, container: &Container) -> Result<Vec<Event>> {
    let is_its = |event: &Event| event.container_id.as_ref().is_some_and(|id| id.0 == container.id);
    Ok(host.events_of(kind)?.into_iter().filter(is_its).collect())
}
