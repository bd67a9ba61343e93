//! Containers of a lower priority make room for a command of a higher one that waits, and for no other: the lowest first, and no
//! more of them than are needed. They are told, and keep their GPU through the grace, and if nobody needs the room any more.

use super::ledger::history;
use super::{finish, reload_with, wait_for};
use crate::failure::{Context, Result, ensure};
use crate::host::{Container, Host, succeeded, text};
use crate::namespaces::{Inside, spawn_bound};
use crate::trace::Recorder;
use gpool_protocol::{Event, EventKind, LeaseState, WaitingView};
use std::process::{Child, Stdio};
use std::time::Duration;

/// From the notice until the GPU is taken, seconds, where that is waited for.
const GRACE: u64 = 2;
/// Over which time shares are compared.
const WATCH: Duration = Duration::from_secs(4);
/// Longer than it takes to look a few times.
const LONG_ENOUGH: Duration = Duration::from_secs(6);

/// What does not handle the signal, and ends with its program.
const ENDS_AT_ONCE: &str = "gpool-tenant --kernel-us 500 --allocate-mib 256; exit 0";
/// What ignores the signal, and goes on without its program.
const STUBBORN: &str = "trap '' TERM; gpool-tenant --kernel-us 500 --allocate-mib 256; exec sleep 600";

fn configuration(grace_seconds: u64) -> String {
    format!(
        "[policy.env]\nallow = [\"fraction\", \"memory\", \"priority\"]\n\
         [lease]\nhold_ms = 600000\n\
         [preemption]\nenabled = true\nafter_seconds = 0\nleast_run_seconds = 0\ngrace_seconds = {grace_seconds}\n"
    )
}

/// Has one of each priority on a GPU.
pub fn run(inside: &Inside) -> Result<()> {
    let host = Host::start_with(inside, 1, "")?;
    let outcome = reload_with(&host, &configuration(300)).and_then(|()| all(&host));
    // Nothing is kept of those that are ended now.
    let outcome = outcome.and_then(|()| reload_with(&host, "[lease]\nhold_ms = 0\n"));
    finish(host, outcome)
}

fn all(host: &Host) -> Result<()> {
    let guaranteed = started(host, ("guaranteed", "guaranteed", "5%"), "exec sleep 600")?;
    let burst = started(host, ("burst", "burst", "40%"), ENDS_AT_ONCE)?;
    let scavenger = started(host, ("scavenger", "scavenger", "40%"), STUBBORN)?;
    are_there(host, [&burst, &scavenger])?;

    let equal = waiting(host, &["--priority", "scavenger", "--fraction", "0.1", "--memory", "30%", "--wait", "1h"])?;
    let short = ["--fraction", "0.1", "--memory", "30%", "--wait", "305s"];
    let hasty = waiting(host, &short)?;
    std::thread::sleep(LONG_ENOUGH);
    let told = host.events_of(EventKind::LeasePreempted)?;
    ensure(told.is_empty(), || format!("for one of no higher priority, or that waits for too short: {told:?}"))?;
    [(hasty, 0), (equal, 0)].into_iter().try_for_each(|(waits, place)| given_up(host, waits, place))?;

    is_withdrawn(host, &scavenger, &burst)?;
    is_taken(host, &scavenger, &burst)?;
    leaves_by_itself(host, &burst)?;

    let states = [&guaranteed].map(|its| host.lease_of(its).map(|lease| lease.state));
    ensure(matches!(states, [Ok(LeaseState::Active)]), || format!("what was promised is {states:?}"))?;
    let metrics = text(&host.gpool(&["metrics"])?.stdout);
    for (outcome, count) in [("told", 3), ("withdrawn", 1), ("revoked", 1), ("left", 1), ("not_revoked", 0)] {
        let line = format!("gpool_preemptions_total{{outcome=\"{outcome}\"}} {count}\n");
        ensure(metrics.contains(&line), || format!("gpool metrics does not have {line}: {metrics}"))?;
    }
    Ok(())
}

/// The lowest priority is told, sees how long it has, and may stay when nobody waits any more.
fn is_withdrawn(host: &Host, scavenger: &Container, burst: &Container) -> Result<()> {
    let waits = waiting(host, &["--fraction", "0.1", "--memory", "30%", "--wait", "1h"])?;
    wait_for("the lowest priority to be told", || Ok(!about(host, scavenger)?.is_empty()))?;
    let said = about(host, scavenger)?[0].message.clone();
    let parts = ["makes room for", "comes before scavenger", "in 5m", "its program there was sent SIGTERM"];
    ensure(parts.iter().all(|part| said.contains(part)), || format!("it was said {said:?}"))?;
    let ps = text(&host.gpool(&["ps"])?.stdout);
    let is_shown = ps.lines().filter(|line| line.contains("  leaving  ")).count() == 1;
    let explained = text(&host.gpool(&["explain", &scavenger.id])?.stdout);
    ensure(is_shown && explained.contains("\nleaving: its GPUs are taken from it in 2"), || {
        format!("{ps}\n{explained}")
    })?;
    wait_for("who waits to be told as well", || {
        let queue: Vec<WaitingView> = host.client().get("/v1/queue")?;
        Ok(queue[0].cause.contains("a container of a lower priority makes room for it, in "))
    })?;

    given_up(host, waits, 0)?;
    wait_for("it to be told that it may stay", || Ok(about(host, scavenger)?.len() == 2))?;
    let lease = host.lease_of(scavenger)?;
    let stays = lease.state == LeaseState::Active && lease.leaves_unix_ms.is_none() && lease.processes == 1;
    ensure(stays, || format!("one that may stay is {lease:?}"))?;
    let of_burst = about(host, burst)?;
    ensure(of_burst.is_empty(), || format!("the higher of both, which need not go, was told {of_burst:?}"))
}

/// It has its grace, and then its GPU is taken and who waits begins.
fn is_taken(host: &Host, scavenger: &Container, burst: &Container) -> Result<()> {
    reload_with(host, &configuration(GRACE))?;
    let waits = waiting(host, &["--fraction", "0.1", "--memory", "30%", "--wait", "1h"])?;
    succeeded("gpool run of who waited", waits.wait_with_output().context("gpool run")?)?;
    let told = about(host, scavenger)?;
    let revoked: Vec<Event> = of(host, EventKind::LeaseRevoked, scavenger)?;
    let is_said = revoked.len() == 1 && revoked[0].message.contains("waits for the room and comes before scavenger");
    let has_had_its_grace =
        told.len() == 3 && revoked.iter().all(|event| event.unix_ms >= told[2].unix_ms + GRACE * 1000);
    ensure(is_said && has_had_its_grace, || format!("{told:?}, then {revoked:?}"))?;
    let (taken, kept) = (host.lease_of(scavenger)?.state, host.lease_of(burst)?.state);
    ensure((taken, kept) == (LeaseState::Revoked, LeaseState::Active), || format!("{taken:?} and {kept:?}"))?;
    ensure(scavenger.is_alive(), || "what does not use the GPU has ended with it".to_owned())
}

/// Who ends at the signal makes room at once, and no place is kept for it: it would have it before who waits.
fn leaves_by_itself(host: &Host, burst: &Container) -> Result<()> {
    reload_with(host, &configuration(300))?;
    let waits = waiting(host, &["--fraction", "0.1", "--memory", "70%", "--wait", "1h"])?;
    succeeded("gpool run of who waited", waits.wait_with_output().context("gpool run")?)?;
    let revoked = of(host, EventKind::LeaseRevoked, burst)?;
    let held = host.leases()?.into_iter().filter(|lease| lease.container_id.0 == burst.id).count();
    ensure(about(host, burst)?.len() == 1 && revoked.is_empty() && held == 0, || format!("{revoked:?}, {held} held"))?;
    let past = history(host, &[&burst.id])?;
    let ending = past.first().and_then(|lease| lease.ending.as_deref());
    ensure(past.len() == 1 && ending == Some("preempted"), || format!("{past:#?}"))?;
    // It waited through somebody's grace.
    let all = history(host, &[])?;
    ensure(all.iter().any(|lease| lease.waited_ms.is_some_and(|ms| ms >= GRACE * 1000)), || format!("{all:#?}"))
}

/// On two GPUs, one goes within the grace and would have its place back, and the other one does not: what the first has left is
/// nobody else's, though room is kept for who waits on the other GPU, where less is missing.
pub fn run_beside_others(inside: &Inside) -> Result<()> {
    let host = Host::start_with(inside, 2, "")?;
    let outcome = reload_with(&host, &configuration(8)).and_then(|()| room_is_kept(&host));
    let outcome = outcome.and_then(|()| reload_with(&host, "[lease]\nhold_ms = 0\n"));
    finish(host, outcome)
}

fn room_is_kept(host: &Host) -> Result<()> {
    started(host, ("guaranteed", "guaranteed", "58%"), "exec sleep 600")?;
    let first = started(host, ("first", "burst", "45%"), ENDS_AT_ONCE)?;
    let second = started(host, ("second", "burst", "45%"), STUBBORN)?;
    are_there(host, [&first, &second])?;
    let (of_first, of_second) = (host.lease_of(&first)?.gpu_uuid, host.lease_of(&second)?.gpu_uuid);
    ensure(of_first == of_second, || "two that fit on the free GPU only are on one".to_owned())?;

    let waits = waiting(host, &["--fraction", "0.1", "--memory", "60%", "--wait", "1h"])?;
    wait_for("the first to be gone", || Ok(!host.leases()?.iter().any(|lease| lease.container_id.0 == first.id)))?;
    ensure(host.lease_of(&second)?.leaves_unix_ms.is_some(), || "the second does not leave".to_owned())?;
    let again = host.docker(&["start", "first"])?;
    let said = text(&again.stderr);
    ensure(!again.status.success() && said.contains("kept for"), || {
        format!("the first, started anew, was told {said}")
    })?;
    succeeded("gpool run of who waited", waits.wait_with_output().context("gpool run")?)?;
    let events =
        [of(host, EventKind::LeaseRevoked, &second)?.len(), about(host, &first)?.len(), about(host, &second)?.len()];
    ensure(events == [1, 1, 1], || format!("taken from the second, and told once: {events:?}"))
}

/// Beside work that is promised its share and never rests, one of a lower priority has nothing; in its grace it has what is kept for
/// who waits, and the other one what it was promised; and afterwards nothing again.
pub fn run_in_the_grace(inside: &Inside) -> Result<()> {
    let host = Host::start_with(inside, 1, "")?;
    let silent = format!("{}signal = \"none\"\n", configuration(300));
    let outcome = reload_with(&host, &silent).and_then(|()| is_served_in_the_grace(&host));
    let outcome = outcome.and_then(|()| reload_with(&host, "[lease]\nhold_ms = 0\n"));
    finish(host, outcome)
}

fn is_served_in_the_grace(host: &Host) -> Result<()> {
    let guaranteed = started(host, ("guaranteed", "guaranteed", "20%"), ENDS_AT_ONCE)?;
    let burst = started(host, ("burst", "burst", "40%"), ENDS_AT_ONCE)?;
    are_there(host, [&guaranteed, &burst])?;
    let shares = |when: &str, (least, most): (f64, f64)| {
        let [of_guaranteed, of_burst] = shares_of(host, [&guaranteed, &burst])?;
        let as_promised = of_guaranteed >= 0.27 && of_guaranteed + of_burst >= 0.6;
        let part = of_burst / (of_guaranteed + of_burst);
        ensure(as_promised && (least..=most).contains(&part), || {
            format!("{when}: 30 % guaranteed have {of_guaranteed:.3} of the GPU, and the other one {of_burst:.3}")
        })
    };
    shares("nobody waits", (0.0, 0.02))?;

    let waits = waiting(host, &["--fraction", "0.2", "--memory", "60%", "--wait", "1h"])?;
    wait_for("the lower priority to be told", || Ok(!about(host, &burst)?.is_empty()))?;
    let said = about(host, &burst)?[0].message.clone();
    ensure(said.ends_with("; until then it is served with 20 % as guaranteed"), || format!("it was said {said:?}"))?;
    // By weights of 20 and 30: half of it would be by its own share.
    shares("in the grace", (0.36, 0.44))?;
    // What somebody changes meanwhile does not take it away.
    succeeded("gpool update", host.gpool(&["update", &burst.id, "--memory", "39%"])?)?;
    shares("in the grace, changed", (0.36, 0.44))?;
    let explained = text(&host.gpool(&["explain", &burst.id])?.stdout);
    ensure(explained.contains("\nuntil then it is served with 20 % as guaranteed\n"), || explained)?;

    given_up(host, waits, 0)?;
    wait_for("it to be told that it may stay", || Ok(about(host, &burst)?.len() == 2))?;
    shares("after it", (0.0, 0.02))
}

/// Which part of the GPU they have over some seconds from now on.
fn shares_of(host: &Host, containers: [&Container; 2]) -> Result<[f64; 2]> {
    std::thread::sleep(Duration::from_millis(500));
    let (trace, from_ns, to_ns) = Recorder::watch(host.meter()?, Duration::from_millis(5), WATCH)?;
    Ok(containers.map(|its| trace.share(&its.id, from_ns, to_ns)))
}

/// A container of this priority and memory.
fn started(host: &Host, (name, priority, memory): (&str, &str, &str), program: &str) -> Result<Container> {
    let env = [("GPOOL_FRACTION", "0.3"), ("GPOOL_MEMORY", memory), ("GPOOL_PRIORITY", priority)];
    host.run_container(name, &env, &[], &["sh", "-c", program])
}

/// Their programs use the GPU.
fn are_there(host: &Host, containers: [&Container; 2]) -> Result<()> {
    wait_for("both programs to be there", || {
        let [one, other] = containers.map(|container| host.lease_of(container));
        Ok(one?.processes == 1 && other?.processes == 1)
    })
}

/// A command that waits for room.
fn waiting(host: &Host, asked: &[&str]) -> Result<Child> {
    let before = host.client().get::<Vec<WaitingView>>("/v1/queue")?.len();
    let mut command = host.command("gpool");
    command.arg("run").args(asked).args(["--", "/bin/true"]);
    let waiting = spawn_bound(command.stdout(Stdio::piped()).stderr(Stdio::piped())).context("gpool run")?;
    wait_for("a command to wait", || Ok(host.client().get::<Vec<WaitingView>>("/v1/queue")?.len() > before))?;
    Ok(waiting)
}

/// Takes the one at this place out of the queue.
fn given_up(host: &Host, waits: Child, place: usize) -> Result<()> {
    let queue: Vec<WaitingView> = host.client().get("/v1/queue")?;
    succeeded("gpool queue cancel", host.gpool(&["queue", "cancel", &queue[place].container_id.0])?)?;
    waits.wait_with_output().context("gpool run").map(drop)
}

fn about(host: &Host, container: &Container) -> Result<Vec<Event>> {
    of(host, EventKind::LeasePreempted, container)
}

fn of(host: &Host, kind: EventKind, container: &Container) -> Result<Vec<Event>> {
    let is_its = |event: &Event| event.container_id.as_ref().is_some_and(|id| id.0 == container.id);
    Ok(host.events_of(kind)?.into_iter().filter(is_its).collect())
}
