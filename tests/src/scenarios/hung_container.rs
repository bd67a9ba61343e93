//! A container whose kernel does not end, in a class that stops such ones: it ends and nobody else does, its neighbour
//! gets the GPU, and the events say why.

use super::{finish, reload_with, start_tenants, wait_for, wait_until_running};
use crate::failure::{Failure, Result, ensure};
use crate::host::Host;
use crate::meter::{now_ns, usage_of};
use crate::namespaces::Inside;
use crate::tenant::Tenant;
use crate::trace::Recorder;
use gpool_protocol::{Event, EventKind};
use std::time::{Duration, Instant};

/// Its kernel lasts longer than the whole scenario.
const ENDLESS_US: u64 = 100_000_000;
/// From the first launch to the end: a second until it counts as hung, and what a busy machine takes.
const PATIENCE: Duration = Duration::from_secs(15);
/// How long the share is watched afterwards.
const WATCH: Duration = Duration::from_secs(2);

/// Starts the hung one beside one of another class and one of its own class whose kernels end.
pub fn run(inside: &Inside) -> Result<()> {
    let classes = "[class.train]\nhang_action = \"stop\"\nhang_seconds = 1\n\
                   [class.notebook]\nhang_action = \"stop\"\nhang_seconds = 3\n\
                   [class.batch]\nhang_seconds = 1\n";
    let host = Host::start_with(inside, 1, classes)?;
    let outcome = hang_one(&host).and_then(|()| freeze_one(&host)).and_then(|()| leave_one(&host));
    finish(host, outcome)
}

fn hang_one(host: &Host) -> Result<()> {
    let train = |fraction| [("GPOOL_FRACTION", fraction), ("GPOOL_MEMORY", "2GiB"), ("GPOOL_CLASS", "train")];
    let mut others = start_tenants(host, &[("neighbour", "0.4", "2GiB", 1000)])?;
    others.push(Tenant::greedy(100_000).run(host, "patient", &train("0.1"))?);
    wait_until_running(host, &others)?;
    let hung = Tenant::greedy(ENDLESS_US).run(host, "hung", &train("0.5"))?;
    let deadline = Instant::now() + PATIENCE;
    while hung.is_alive() {
        ensure(Instant::now() < deadline, || format!("the hung container lives after {PATIENCE:?}"))?;
        std::thread::sleep(Duration::from_millis(50));
    }
    let recorder = Recorder::start(host.meter()?, Duration::from_millis(5));
    let from_ns = now_ns() + 200_000_000;
    std::thread::sleep(WATCH);
    let (trace, to_ns) = (recorder.stop()?, now_ns());
    let shares: Vec<f64> = others.iter().map(|container| trace.share(&container.id, from_ns, to_ns)).collect();
    ensure(shares.iter().sum::<f64>() >= 0.8 && shares[0] >= 0.5, || {
        format!("after the hung container its neighbours got {shares:.3?} of the GPU")
    })?;
    ensure(others.iter().all(|container| container.is_alive()), || "a neighbour was stopped too".to_owned())?;
    says_why(&host.events()?, &hung.id)
}

/// A hung one that is frozen when its time is over: it is told once and left, and stopped after the thaw.
fn freeze_one(host: &Host) -> Result<()> {
    let env = [("GPOOL_FRACTION", "0.3"), ("GPOOL_MEMORY", "1GiB"), ("GPOOL_CLASS", "notebook")];
    wait_for("the place to be free that is kept for the one that hung", || Ok(host.leases()?.len() == 2))?;
    let frozen = Tenant::greedy(ENDLESS_US).run(host, "frozen", &env)?;
    let (reader, deadline) = (host.meter()?, Instant::now() + PATIENCE);
    while usage_of(&reader.read()?, &frozen.id).busy_ns == 0 {
        ensure(Instant::now() < deadline, || format!("the one to be frozen has no work within {PATIENCE:?}"))?;
        std::thread::sleep(Duration::from_millis(20));
    }
    host.engine.docker_text(&["pause", "frozen"])?;
    let told = || -> Result<Vec<String>> {
        let about = |event: &Event| {
            event.kind == EventKind::Hung && event.container_id.as_ref().is_some_and(|id| id.0 == frozen.id)
        };
        Ok(host.events()?.into_iter().filter(about).map(|event| event.message).collect())
    };
    let deadline = Instant::now() + PATIENCE;
    while told()?.is_empty() {
        ensure(Instant::now() < deadline, || "nothing is said of the one that hangs and is frozen".to_owned())?;
        std::thread::sleep(Duration::from_millis(50));
    }
    // Longer than until it is looked at again.
    std::thread::sleep(Duration::from_secs(4));
    let said = told()?;
    let is_left = frozen.is_alive() && said.len() == 1 && said[0].contains("it is frozen");
    ensure(is_left, || format!("of the frozen one was said {said:?}, and it lives: {}", frozen.is_alive()))?;
    host.engine.docker_text(&["unpause", "frozen"])?;
    let deadline = Instant::now() + PATIENCE;
    while frozen.is_alive() {
        ensure(Instant::now() < deadline, || format!("thawed, it hangs on for {PATIENCE:?}"))?;
        std::thread::sleep(Duration::from_millis(50));
    }
    Ok(())
}

/// A hung one whose class leaves it: it is told and lives, and is stopped when the class says so afterwards.
fn leave_one(host: &Host) -> Result<()> {
    let left = Tenant::greedy(ENDLESS_US).run(host, "left", &[("GPOOL_FRACTION", "0.1"), ("GPOOL_MEMORY", "1GiB")])?;
    let is_its =
        |event: &Event| event.kind == EventKind::Hung && event.container_id.as_ref().is_some_and(|id| id.0 == left.id);
    wait_for("it to be told", || Ok(host.events()?.iter().any(is_its)))?;
    ensure(left.is_alive(), || "one whose class asks for an event alone has ended".to_owned())?;
    reload_with(host, "[class.batch]\nhang_action = \"stop\"\n")?;
    wait_for("the end of the container that was left", || Ok(!left.is_alive()))
}

/// One event that the container hangs, with the key, and one that its lease has ended for that; none of anybody else.
fn says_why(events: &[Event], hung: &str) -> Result<()> {
    let of_kind = |kind| -> Vec<&Event> { events.iter().filter(|event| event.kind == kind).collect() };
    let (told, ended) = (of_kind(EventKind::Hung), of_kind(EventKind::LeaseEnded));
    let is_its = |event: &Event| event.container_id.as_ref().is_some_and(|id| id.0 == hung);
    let ([told], [ended]) = (told.as_slice(), ended.as_slice()) else {
        return Err(Failure::new(format!("events of one hung container were expected: {events:#?}")));
    };
    let parts = ["[class.train] hang_seconds = 1", "hang_action = \"stop\""];
    let is_said = is_its(told) && is_its(ended) && parts.iter().all(|part| told.message.contains(part));
    ensure(is_said && ended.message.contains("stopped as hung"), || {
        format!("the events say {:?} and {:?}", told.message, ended.message)
    })
}
