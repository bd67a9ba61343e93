//! The GPU is taken from a container that runs: its programs on the GPU end, the others live on and can open the device no
//! more, whoever gives it back to them; its share is free; and a restart asks anew. The same follows by itself where a
//! class says so of who goes past the shims.

use super::{finish_found, start_tenants, wait_until_running};
use crate::cgroups;
use crate::failure::{Context, Result, ensure};
use crate::host::{Container, Host, succeeded, text};
use crate::meter::usage_of;
use crate::namespaces::Inside;
use crate::tenant::Tenant;
use gpool_protocol::{Event, EventKind, LeaseState};
use std::fs;
use std::path::Path;
use std::time::{Duration, Instant};

const PATIENCE: Duration = Duration::from_secs(20);
/// Where the driver's own library is in a leased container.
const REAL: &str = "/dev/gpool/real/libcuda.so.1";
/// The simulated device answers an open that the cgroup allows with this; nothing is behind its node.
const ALLOWED: &str = "No such device or address";
/// What a program says to which the driver shows no device: CUDA_ERROR_NO_DEVICE.
const NO_DEVICE: &str = r#""call":"cuInit","code":100"#;
const DENIED: &str = "Operation not permitted";

/// On this machine's cgroups.
pub fn run(inside: &Inside) -> Result<()> {
    let mut host = Host::start_with(inside, 1, "[class.train]\nbypass_action = \"revoke\"\n")?;
    let outcome = evict(&mut host).and_then(|()| by_its_class(&host));
    finish_found(host, outcome)
}

/// On version 2 alone, where the kernel asks a program.
pub fn on_version_2(inside: &Inside) -> Result<()> {
    cgroups::only_version_2()?;
    run(inside)
}

fn evict(host: &mut Host) -> Result<()> {
    let [neighbour] = &start_tenants(host, &[("neighbour", "0.2", "1GiB", 500)])?[..] else { unreachable!() };
    let evicted = start(host, "evicted", "0.7", "batch", &Tenant::greedy(500).command().join(" "))?;
    wait_until_running(host, &[neighbour.clone(), evicted.clone()])?;
    opening_is_answered(host, "evicted", ALLOWED)?;
    let rival = [("GPOOL_FRACTION", "0.5"), ("GPOOL_MEMORY", "2GiB")];
    let too_early = host.try_run_container("rival", &rival, &[], &["true"])?;
    ensure(text(&too_early.stderr).contains("GPOOL-E201"), || "there was room before".to_owned())?;
    host.engine.docker_text(&["rm", "-f", "rival"])?;

    let said = succeeded("gpool evict", host.gpool(&["evict", &evicted.id[..12]])?)?;
    ensure(said.trim() == evicted.id, || format!("gpool evict says {said}"))?;
    has_nothing(host, &evicted)?;
    let event = one_event(host, EventKind::LeaseRevoked)?;
    ensure(event.message.contains("user 0 asked for it; 1 of its processes"), || event.message.clone())?;
    succeeded("gpool evict, again", host.gpool(&["evict", &evicted.id])?)?;
    one_event(host, EventKind::LeaseRevoked)?;

    for verb in [&["update", &evicted.id, "--fraction", "0.5"][..], &["resume", &evicted.id]] {
        let refused = host.gpool(verb)?;
        let said = text(&refused.stderr);
        ensure(said.contains("GPOOL-E302") && said.contains("were taken from"), || format!("{verb:?}: {said}"))?;
    }
    // A new program of the container finds no GPU, and says so by the driver's own code.
    let anew = host.docker(&["exec", "evicted", "gpool-tenant", "--kernel-us", "500"])?;
    ensure(!anew.status.success() && text(&anew.stdout).contains(NO_DEVICE), || {
        format!("a new program: {} {}", text(&anew.stdout), text(&anew.stderr))
    })?;
    let room = Tenant::greedy(500).run(host, "room", &rival)?;
    wait_until_running(host, &[room])?;
    host.engine.docker_text(&["rm", "-f", "room"])?;

    // Places are kept a while for those that were removed.
    wait_until("the end of what is kept", || Ok(host.leases()?.iter().all(|lease| lease.state != LeaseState::Held)))?;

    let cgroup = host.lease_of(&evicted)?.cgroup.unwrap_or_default();
    host.kill_supervisor()?;
    give_back(host, &evicted, &cgroup)?;
    host.start_supervisor()?;
    wait_until("what was given back to be denied again", || Ok(opened(host, "evicted")?.contains(DENIED)))?;
    has_nothing(host, &evicted)?;
    host.engine.docker_text(&["restart", "-t", "0", "evicted"])?;
    let again = Container::inspect(&host.engine, "evicted")?;
    wait_until("the restarted container to have its share", || {
        let lease = host.lease_of(&again)?;
        Ok(lease.state == LeaseState::Active && lease.fraction_permille == 700 && lease.launches > 0)
    })?;
    opening_is_answered(host, "evicted", ALLOWED)?;
    goes_on(host, neighbour)?;
    host.engine.docker_text(&["rm", "-f", "evicted"])?;
    Ok(())
}

/// Goes past the shims, in a class from which the GPU is taken for that.
fn by_its_class(host: &Host) -> Result<()> {
    let past = format!(
        "mkdir /tmp/past; ln -s {REAL} /tmp/past/; LD_LIBRARY_PATH=/tmp/past gpool-tenant --kernel-us 800 --allocate-mib 64"
    );
    let taken = start(host, "taken", "0.1", "train", &past)?;
    wait_until("the guard to take the GPU from who goes past the shims", || {
        Ok(host.lease_of(&taken)?.state == LeaseState::Revoked)
    })?;
    wait_until("the event", || Ok(host.events()?.iter().any(|event| event.kind == EventKind::Bypass)))?;
    let event = one_event(host, EventKind::Bypass)?;
    ensure(event.message.contains("are taken from it, as [class.train]"), || event.message.clone())?;
    has_nothing(host, &taken)?;
    host.engine.docker_text(&["rm", "-f", "taken"])?;
    Ok(())
}

/// A container whose init does not use the GPU and lives on when the program has ended that does.
fn start(host: &Host, name: &str, fraction: &str, class: &str, program: &str) -> Result<Container> {
    let env = [("GPOOL_FRACTION", fraction), ("GPOOL_MEMORY", "2GiB"), ("GPOOL_CLASS", class)];
    host.run_container(name, &env, &[], &["sh", "-c", &format!("({program}); sleep 100000")])
}

/// Its share is free and its memory back, it cannot open the device, and it lives.
fn has_nothing(host: &Host, container: &Container) -> Result<()> {
    wait_until("a share to be free", || Ok(host.lease_of(container)?.fraction_permille == 0))?;
    let lease = host.lease_of(container)?;
    let left = (lease.state, lease.memory_cap_bytes, lease.processes);
    ensure(left == (LeaseState::Revoked, 0, 0), || format!("of an evicted container there is {left:?}"))?;
    let held = usage_of(&host.meter()?.read()?, &container.id).bytes_now;
    ensure(held == 0, || format!("it holds {held} bytes"))?;
    opening_is_answered(host, &container.name, DENIED)?;
    ensure(container.is_alive(), || "it has ended".to_owned())
}

fn opening_is_answered(host: &Host, name: &str, with: &str) -> Result<()> {
    let said = opened(host, name)?;
    ensure(said.contains(with), || format!("opening the device in {name}: {said}"))
}

fn opened(host: &Host, name: &str) -> Result<String> {
    Ok(text(&host.docker(&["exec", name, "sh", "-c", "true < /dev/nvidia0"])?.stderr))
}

/// What a reloaded service manager does to a cgroup of version 1; version 2 has no such way back, as each program has to
/// allow an access.
fn give_back(host: &Host, container: &Container, cgroup: &str) -> Result<()> {
    let file = Path::new("/sys/fs/cgroup/devices").join(cgroup.trim_start_matches('/')).join("devices.allow");
    if !file.exists() {
        return Ok(());
    }
    fs::write(&file, "c 195:0 rw").context(file.display())?;
    opening_is_answered(host, &container.name, ALLOWED)
}

fn goes_on(host: &Host, container: &Container) -> Result<()> {
    let kernels = || -> Result<u64> { Ok(usage_of(&host.meter()?.read()?, &container.id).kernels) };
    let before = kernels()?;
    wait_until("the neighbour to go on", || Ok(kernels()? > before))
}

fn one_event(host: &Host, kind: EventKind) -> Result<Event> {
    let mut found: Vec<Event> = host.events()?.into_iter().filter(|event| event.kind == kind).collect();
    ensure(found.len() == 1, || format!("of {kind:?} there is {found:#?}"))?;
    Ok(found.remove(0))
}

fn wait_until(what: &str, holds: impl Fn() -> Result<bool>) -> Result<()> {
    let deadline = Instant::now() + PATIENCE;
    while !holds()? {
        ensure(Instant::now() < deadline, || format!("waited for {what} for {PATIENCE:?}"))?;
        std::thread::sleep(Duration::from_millis(50));
    }
    Ok(())
}
