//! Requests that take longer than is promised: it is told by whose doing, and those in the way are kept out and kept from running.

use super::{finish, is_refused, reload_with, said, wait_for, wait_until_running};
use crate::failure::{Context, Failure, Result, ensure};
use crate::host::{Container, Host, succeeded, text};
use crate::meter::usage_of;
use crate::namespaces::{Inside, spawn_bound};
use crate::tenant::Tenant;
use gpool_protocol::{Event, EventKind, LeaseState, PromiseState, RequestFigures};
use std::process::Stdio;
use std::time::Duration;

const CONFIGURATION: &str =
    "[policy.env]\nallow = [\"fraction\", \"memory\", \"class\", \"p99\", \"priority\", \"mode\"]\n";
/// Requests of six kernels of 4 ms, one 16 ms after the other.
const KERNEL_US: u64 = 4000;
const REQUESTS: [&str; 4] = ["--launch-batch", "6", "--think-us", "16000"];
/// Between what they take alone and beside kernels of 100 ms, with which the hardware divides its time.
const PROMISED: &str = "36ms";
const LONG_KERNEL_US: u64 = 100_000;

/// Has one whose requests are measured, and others beside it.
pub fn run(inside: &Inside) -> Result<()> {
    let mut host = Host::start_with(inside, 1, CONFIGURATION)?;
    let outcome = what_is_no_promise(&host).and_then(|()| kept_and_missed(&mut host));
    finish(host, outcome)
}

fn what_follows(action: &str) -> String {
    format!("[latency]\naction = \"{action}\"\nhold_seconds = 10\n")
}

fn what_is_no_promise(host: &Host) -> Result<()> {
    let asks = |more: &[(&'static str, &'static str)]| {
        [&[("GPOOL_FRACTION", "0.3"), ("GPOOL_MEMORY", "1GiB"), ("GPOOL_P99", "20ms")], more].concat()
    };
    is_refused(host, &asks(&[]), &["GPOOL-E101", "p99 does not go with class=batch", "ask for class=latency"])?;
    let whole = [("GPOOL_CLASS", "latency"), ("GPOOL_MODE", "timeslice")];
    is_refused(host, &asks(&whole), &["GPOOL-E101", "p99 does not go with mode=timeslice"])?;
    said(&host.gpool(&["latency", "--check"])?, 75, &["no container runs that was promised a p99"])
}

fn kept_and_missed(host: &mut Host) -> Result<()> {
    reload_with(host, &what_follows("close"))?;
    let service = tenant(KERNEL_US).run_with(
        host,
        "service",
        &[("GPOOL_FRACTION", "0.6"), ("GPOOL_MEMORY", "2GiB"), ("GPOOL_CLASS", "latency"), ("GPOOL_P99", PROMISED)],
        &REQUESTS,
    )?;
    wait_until_running(host, std::slice::from_ref(&service))?;
    let alone = wait_for_state(host, &service, PromiseState::Kept)?;
    said(&host.gpool(&["latency", "--check", &service.id])?, 0, &[PROMISED, "  kept"])?;
    let long = start_long(host)?;
    let long = others_close_it(host, &service, &long, &alone)?;
    others_are_held_back(host, &service, &long)?;
    its_share_is_too_small(host, &service)?;
    it_misses_it_itself(host, &service)
}

fn tenant(kernel_us: u64) -> Tenant<'static> {
    Tenant { allocate_mib: Some(256), ..Tenant::greedy(kernel_us) }
}

fn start_long(host: &Host) -> Result<Container> {
    let asks = [("GPOOL_FRACTION", "0.3"), ("GPOOL_MEMORY", "2GiB"), ("GPOOL_PRIORITY", "burst")];
    let long = tenant(LONG_KERNEL_US).run(host, "long", &asks)?;
    wait_until_running(host, std::slice::from_ref(&long))?;
    Ok(long)
}

/// Beside another one's long kernels its requests take twice as long. Nobody else is let in then, but who was there.
fn others_close_it(host: &Host, service: &Container, long: &Container, alone: &RequestFigures) -> Result<Container> {
    let beside = wait_for_state(host, service, PromiseState::MissedOthers)?;
    let p99 = |figures: &RequestFigures| figures.p99_ns.unwrap_or(0) as f64;
    let (p99_ns, alone_ns) = (p99(&beside), beside.p99_alone_ns.unwrap_or(0) as f64);
    println!(
        "    p99 {:.1} ms, {:.1} ms alone and {:.1} ms as it was alone",
        p99_ns / 1e6,
        alone_ns / 1e6,
        p99(alone) / 1e6
    );
    ensure(p99_ns > 1.5 * p99(alone), || format!("{beside:?} beside another one, {alone:?} alone"))?;
    let error = (alone_ns / p99(alone) - 1.0).abs();
    ensure(error < 0.25, || format!("alone it would be {beside:?}, and was {alone:?}"))?;
    said(&host.gpool(&["latency", "--check"])?, 10, &["missed-others", "requests take longer than is promised"])?;
    let short = &service.id[..12];
    let told = wait_for_event(host, service, "99 of 100 requests of")?;
    ensure(told.contains("with its GPUs to itself that would be") && told.contains("no new containers"), || {
        told.clone()
    })?;
    said(&host.gpool(&["explain", &service.id])?, 0, &["; promised: 36ms, missed because of others"])?;

    let closed = format!("takes nobody in while requests of {short} take longer than the {PROMISED} that are promised");
    let little = [("GPOOL_FRACTION", "0.1"), ("GPOOL_MEMORY", "1GiB")];
    let least = [&little[..], &[("GPOOL_PRIORITY", "scavenger")]].concat();
    for newcomer in [&little[..], &least] {
        is_refused(host, newcomer, &["GPOOL-E201", &closed, "add wait, for example GPOOL_WAIT=10m"])?;
    }
    said(&host.gpool(&["explain", "--request", "fraction=0.1,memory=1GiB"])?, 75, &[&closed])?;
    said(&host.gpool(&["gpu", "ls"])?, 0, &["  closed", "takes no new leases while requests of"])?;
    succeeded("gpool update of whom it is closed for", host.gpool(&["update", &service.id, "--fraction", "0.65"])?)?;
    succeeded("docker restart", host.docker(&["restart", "--time", "0", "long"])?)?;
    let again = Container::inspect(&host.engine, "long")?;
    let is_back = host.lease_of(&again)?.state == LeaseState::Active && again.id == long.id;
    ensure(is_back, || "it is not back".to_owned())?;
    Ok(again)
}

/// Who was promised nothing is kept from running for its sake: for a while, and then for twice as long.
fn others_are_held_back(host: &Host, service: &Container, long: &Container) -> Result<()> {
    reload_with(host, &what_follows("hold"))?;
    wait_for("the other one to be held back", || is_held(host, long))?;
    std::thread::sleep(Duration::from_millis(500));
    let before = kernels(host, long)?;
    said(&host.gpool(&["explain", &long.id])?, 0, &["held back: it is kept from running for", "held back\n"])?;
    said(&host.gpool(&["ps"])?, 0, &["  held-back  "])?;
    // Whoever else wants its gate opened does not open it.
    succeeded("gpool pause", host.gpool(&["pause", &long.id])?)?;
    succeeded("gpool resume", host.gpool(&["resume", &long.id])?)?;
    std::thread::sleep(Duration::from_secs(2));
    let (after, is_held_still) = (kernels(host, long)?, is_held(host, long)?);
    ensure(is_held_still && before == after, || format!("{} kernels ran, held back: {is_held_still}", after - before))?;
    wait_for_state(host, service, PromiseState::Kept)?;
    wait_for("it to run again", || Ok(!is_held(host, long)? && kernels(host, long)? > after))?;
    let lengths = || -> Result<Vec<String>> {
        let told = of(host, service)?;
        let length = |event: &Event| Some(event.message.split_once("are kept from running for ")?.1.to_owned());
        Ok(told.iter().filter_map(length).collect())
    };
    wait_for("it to be held back again", || is_held(host, long))?;
    ensure(lengths()? == ["10s", "20s"], || format!("it was held back for {:?}", lengths()))?;
    // Who waits is let in when nobody is in the way any more.
    let mut waits = host.command("gpool");
    waits.args(["run", "--fraction", "0.1", "--memory", "1GiB", "--wait", "100s", "--", "/bin/true"]);
    let waits = spawn_bound(waits.stdout(Stdio::piped()).stderr(Stdio::piped())).context("gpool run")?;
    long.kill_init()?;
    let before = of(host, service)?.len();
    succeeded("gpool run of who waited", waits.wait_with_output().context("gpool run")?)?;
    wait_for("that nobody is held back for it, and that it is told what has become of that", || {
        let told = of(host, service)?;
        let is_told = |part: &str| told[before..].iter().any(|event| event.message.contains(part));
        Ok(is_told("run again") && is_told("or less again, of 36ms that are promised"))
    })?;
    wait_for_event(host, service, "take new containers again").map(drop)
}

/// Who wants more than its share waits while others have theirs, and nobody is kept out for that.
fn its_share_is_too_small(host: &Host, service: &Container) -> Result<()> {
    reload_with(host, &what_follows("event"))?;
    succeeded("gpool update", host.gpool(&["update", &service.id, "--fraction", "0.1"])?)?;
    let batch = tenant(500).run(host, "batch", &[("GPOOL_FRACTION", "0.8"), ("GPOOL_MEMORY", "2GiB")])?;
    wait_until_running(host, std::slice::from_ref(&batch))?;
    wait_for_state(host, service, PromiseState::MissedShare)?;
    let told = wait_for_event(host, service, "it wants more than its share of 10 %")?;
    ensure(!told.contains("no new containers"), || told.clone())?;
    // That it is missed for that closes nothing.
    reload_with(host, &what_follows("close"))?;
    std::thread::sleep(Duration::from_secs(2));
    let little = host.gpool(&["run", "--fraction", "0.05", "--memory", "1GiB", "--", "/bin/true"])?;
    succeeded("gpool run beside it", little)?;
    batch.kill_init()
}

/// What alone would take longer than is promised is nobody else's doing; and what is promised outlives the supervisor.
fn it_misses_it_itself(host: &mut Host, service: &Container) -> Result<()> {
    let update = |host: &Host, more: &[&str]| host.gpool(&[&["update", &service.id], more].concat());
    succeeded("gpool update", update(host, &["--p99", "10ms"])?)?;
    wait_for_state(host, service, PromiseState::MissedItself)?;
    let shown = text(&host.gpool(&["metrics"])?.stdout);
    let is_shown = |line: &str| shown.lines().any(|its| its.starts_with(line) && its.ends_with(" 1"));
    ensure(is_shown("gpool_lease_p99_missed{") && shown.contains("cause=\"itself\"} 1"), || shown.clone())?;
    said(&update(host, &["--class", "batch"])?, 2, &["GPOOL-E101", "p99 does not go with class=batch", "--no-p99"])?;
    host.kill_supervisor()?;
    host.start_supervisor()?;
    wait_for("it to be taken over", || Ok(host.lease_of(service)?.state == LeaseState::Active))?;
    ensure(host.lease_of(service)?.p99_ns == Some(10_000_000), || "what was promised is forgotten".to_owned())?;
    wait_for_state(host, service, PromiseState::MissedItself)?;
    succeeded("gpool update", update(host, &["--no-p99"])?)?;
    said(&host.gpool(&["latency", "--check", &service.id])?, 2, &["was promised no p99"])
}

fn wait_for_state(host: &Host, service: &Container, state: PromiseState) -> Result<RequestFigures> {
    let mut found = None;
    wait_for(&format!("the promise to be {}", state.text()), || {
        let figures = host.lease_of(service)?.requests.filter(|figures| figures.promise == Some(state));
        found = figures.or(found);
        Ok(figures.is_some())
    })?;
    found.ok_or_else(|| Failure::new("no figures"))
}

/// The latest event about it that says so.
fn wait_for_event(host: &Host, service: &Container, part: &str) -> Result<String> {
    let mut found = None;
    wait_for(&format!("an event with {part:?}"), || {
        found = of(host, service)?.into_iter().rfind(|event| event.message.contains(part));
        Ok(found.is_some())
    })?;
    Ok(found.map(|event| event.message).unwrap_or_default())
}

fn of(host: &Host, container: &Container) -> Result<Vec<Event>> {
    let is_its = |event: &Event| event.container_id.as_ref().is_some_and(|id| id.0 == container.id);
    Ok(host.events_of(EventKind::Latency)?.into_iter().filter(is_its).collect())
}

fn is_held(host: &Host, container: &Container) -> Result<bool> {
    Ok(host.lease_of(container)?.held_for.is_some())
}

fn kernels(host: &Host, container: &Container) -> Result<u64> {
    Ok(usage_of(&host.meter()?.read()?, &container.id).kernels)
}
