//! Memory that has no room within a cap and lies in the host's: the device never holds more than the cap, what lies there is used as
//! any other, it is bounded and sold once, and a lease may be given more or less of it while it runs.

use super::{finish, is_refused, know_contexts, reload_with, wait_for};
use crate::failure::{Context, Failure, Result, ensure};
use crate::host::{Container, Host, succeeded, text};
use crate::meter::usage_of;
use crate::namespaces::{Inside, spawn_bound};
use crate::tenant::{PauseFile, Tenant, events};
use gpool_protocol::{EventKind, LeaseState, LeaseUpdate, LeaseView, SuspensionStage, WaitingView};
use gpool_simulated_hardware::DriverVersion;
use serde_json::Value;
use std::process::Stdio;

/// One that can suspend.
const DRIVER: &str = "580.95.05";
const GIB: u64 = 1 << 30;
const CAP: u64 = 2 * GIB;
const SPILL: u64 = GIB;
const PIECE: u64 = 64 << 20;
/// CUDA_ERROR_OUT_OF_MEMORY.
const OUT_OF_MEMORY: u64 = 2;
/// All that containers may have there.
const CONFIGURATION: &str = "[lease]\nhold_ms = 0\n[spill]\nmemory = \"3GiB\"\n";
const WITHOUT: &str = "[lease]\nhold_ms = 0\n";

/// On one GPU, on a host that has none of its memory for containers, and then some.
pub fn run(inside: &Inside) -> Result<()> {
    let mut host = Host::start_without_supervisor(inside, "")?;
    let outcome = start(&mut host).and_then(|()| all(&mut host));
    finish(host, outcome)
}

fn start(host: &mut Host) -> Result<()> {
    host.set_driver_version(&DriverVersion::parse(DRIVER).map_err(Failure::new)?)?;
    know_contexts()?;
    host.start_supervisor()
}

fn all(host: &mut Host) -> Result<()> {
    what_cannot_be(host)?;
    let asks = PauseFile::new("/run/gpool-read-again")?;
    let beyond = is_used_as_any_other(host, &asks)?;
    is_shown(host, &beyond)?;
    is_sold_once(host)?;
    outlives_the_supervisor(host, &beyond)?;
    stays_while_suspended(host, &beyond, &asks)?;
    beyond.kill_init()?;
    wait_for("the lease to end", || Ok(host.leases()?.is_empty()))?;
    goes_with_the_gpus(host)?;
    changes_while_it_runs(host)?;
    one_may_wait_for_it(host)?;
    is_kept_for_a_restart(host)
}

/// Where nothing may go there, by which mechanism nothing can, and more than there is.
fn what_cannot_be(host: &Host) -> Result<()> {
    let asks = |spill| [("GPOOL_FRACTION", "0.3"), ("GPOOL_MEMORY", "2GiB"), ("GPOOL_SPILL", spill)];
    is_refused(host, &asks("1GiB"), &["GPOOL-E105", "this host has none for containers", "[spill] memory"])?;
    reload_with(host, CONFIGURATION)?;
    is_refused(host, &asks("4GiB"), &["GPOOL-E105", "all containers together may have 3GiB"])?;
    is_refused(host, &asks("4"), &["GPOOL-E101", "GPOOL_SPILL", "at least 1MiB"])?;
    let said = host.gpool(&["run", "--key", "mode=exclusive", "--spill", "1GiB", "--", "true"])?;
    let said = text(&said.stderr);
    ensure(said.contains("spill does not go with mode=exclusive"), || said)
}

/// A program that takes more than its cap: what does not fit lies in the host's memory, by the driver's word, and keeps what is written.
fn is_used_as_any_other(host: &Host, asks: &PauseFile) -> Result<Container> {
    let env = [("GPOOL_FRACTION", "0.3"), ("GPOOL_MEMORY", "2GiB"), ("GPOOL_SPILL", "1GiB")];
    // Nothing is paused: the file has it read all again.
    let tenant = Tenant { pause: Some(asks), ..Tenant::greedy(500) };
    let container = tenant.run_with(host, "beyond", &env, &["--beyond"])?;
    let of = |name: &str| said(host, &container, name);
    wait_for("it to have used all of it", || Ok(of("stays")?.len() == 1))?;
    let usage = usage_of(&host.meter()?.read()?, &container.id);
    ensure(usage.bytes_peak <= CAP, || format!("the device held {} bytes of {CAP}", usage.bytes_peak))?;
    let figure = |event: &Value, name: &str| event[name].as_u64().unwrap_or(u64::MAX);
    ensure(usage.bytes_peak > CAP - PIECE, || format!("the device held {} bytes alone of {CAP}", usage.bytes_peak))?;
    // In one context, and in another one when that had gone.
    let filled = of("filled")?;
    ensure(filled.len() == 2 && filled[0] == filled[1], || format!("in two contexts {filled:?}"))?;
    let there = figure(&filled[0], "on_host");
    ensure(there == SPILL / PIECE && figure(&filled[0], "code") == OUT_OF_MEMORY, || {
        format!("in the host's memory lie {filled:?} of {}", SPILL / PIECE)
    })?;
    let told = &of("memory")?[0];
    ensure(figure(told, "total") == CAP && figure(told, "free") < PIECE, || format!("it is told {told} of {CAP}"))?;
    let kept = of("kept")?;
    ensure(kept.iter().all(|event| figure(event, "wrong") == 0), || {
        format!("what was written there is lost: {kept:?}")
    })?;
    let again = of("again")?;
    ensure(again.len() == 12, || format!("{again:?}"))?;
    for event in &again {
        let (wanted, is_right) = (u64::from(event["what"] != "device"), event["wrong"].as_u64().unwrap_or(0) == 0);
        ensure(figure(event, "on_host") == wanted && is_right, || format!("given back and taken again: {event}"))?;
    }
    for rows in of("rows")? {
        let is_right = figure(&rows, "on_host") == 1 && figure(&rows, "wrong") == 0 && figure(&rows, "pitch") == 1024;
        ensure(is_right, || format!("in rows: {rows}"))?;
    }
    let stays = &of("stays")?[0];
    let is_right = figure(stays, "on_host") == there && figure(stays, "wrong") == 0;
    ensure(is_right, || format!("in the end {stays}, and {there} at first"))?;
    let pool = &of("pool")?[0];
    ensure(figure(pool, "on_host") == 0, || format!("within the cap {pool} lie in the host's memory"))?;
    ensure(figure(pool, "same") > 0, || format!("at no address of before is what came next: {pool}"))?;
    Ok(container)
}

/// What it has printed of this kind.
fn said(host: &Host, container: &Container, name: &str) -> Result<Vec<Value>> {
    Ok(events(&container.log(&host.engine)?)?.into_iter().filter(|event| event["event"] == name).collect())
}

/// In all that people look at; refusals came when that was full, too.
fn is_shown(host: &Host, container: &Container) -> Result<()> {
    let lease = host.lease_of(container)?;
    let shown = |lease: &LeaseView| (lease.spill_bytes, lease.spilled_bytes, lease.memory_cap_bytes);
    ensure(shown(&lease) == (SPILL, SPILL, CAP), || format!("it is shown as {lease:?}"))?;
    ensure(lease.allocations_refused > 0 && lease.allocations_spilled >= SPILL / PIECE, || format!("{lease:?}"))?;
    ensure(lease.memory_used_bytes <= CAP, || format!("it is charged {lease:?}"))?;
    let wide = text(&host.gpool(&["ps", "--format", "wide"])?.stdout);
    ensure(wide.contains("SPILLED") && wide.contains("1GiB / 1GiB"), || wide.clone())?;
    wait_for("the event", || Ok(!host.events_of(EventKind::AllocationSpilled)?.is_empty()))?;
    let told = host.events_of(EventKind::AllocationSpilled)?[0].message.clone();
    ensure(told.contains("cap of 2GiB") && told.contains("of 1GiB there now"), || told.clone())?;
    wait_for("the refusal", || Ok(!host.events_of(EventKind::AllocationRefused)?.is_empty()))?;
    let told = host.events_of(EventKind::AllocationRefused)?[0].message.clone();
    ensure(told.contains("1GiB of 1GiB of the host's memory"), || told.clone())?;
    let explained = text(&host.gpool(&["explain", &container.id])?.stdout);
    ensure(explained.contains("spill: 1GiB lie in the host's memory"), || explained.clone())
}

/// Two of three are sold, so that a third is left, whatever is held.
fn is_sold_once(host: &Host) -> Result<()> {
    let asks = |spill| [("GPOOL_FRACTION", "0.3"), ("GPOOL_MEMORY", "2GiB"), ("GPOOL_SPILL", spill)];
    let other = Tenant { allocate_mib: Some(1), ..Tenant::greedy(500) }.run(host, "other", &asks("1GiB"))?;
    is_refused(host, &asks("1025MiB"), &["GPOOL-E202", "1025MiB more", "1024MiB is free", "gpool update --spill"])?;
    let more = host.gpool(&["update", &other.id, "--spill", "2049MiB"])?;
    let said = text(&more.stderr);
    ensure(!more.status.success() && said.contains("GPOOL-E202") && said.contains("1024MiB is free"), || said.clone())?;
    succeeded("gpool update --spill", host.gpool(&["update", &other.id, "--spill", "0"])?)?;
    let third = Tenant { allocate_mib: Some(1), ..Tenant::greedy(500) }.run(host, "third", &asks("2GiB"))?;
    for container in [other, third] {
        host.docker(&["rm", "-f", &container.id])?;
    }
    wait_for("their leases to end", || Ok(host.leases()?.len() == 1))
}

/// What lies there is known to the next supervisor and is not sold again.
fn outlives_the_supervisor(host: &mut Host, container: &Container) -> Result<()> {
    host.kill_supervisor()?;
    host.start_supervisor()?;
    wait_for("the lease", || Ok(host.lease_of(container).is_ok_and(|lease| lease.spilled_bytes == SPILL)))?;
    let asks = [("GPOOL_FRACTION", "0.3"), ("GPOOL_MEMORY", "2GiB"), ("GPOOL_SPILL", "2049MiB")];
    is_refused(host, &asks, &["GPOOL-E202", "2048MiB is free"])?;
    // Nor where the host has less for it than was sold.
    reload_with(host, WITHOUT)?;
    is_refused(host, &asks, &["GPOOL-E105"])?;
    let lease = host.lease_of(container)?;
    ensure((lease.spill_bytes, lease.spilled_bytes) == (SPILL, SPILL), || format!("it is shown as {lease:?}"))?;
    reload_with(host, CONFIGURATION)
}

/// What lies there stays, and is sold to nobody, while the rest of it is moved there too.
fn stays_while_suspended(host: &Host, container: &Container, reads: &PauseFile) -> Result<()> {
    succeeded("gpool suspend", host.gpool(&["suspend", &container.id])?)?;
    wait_for("it to be suspended", || {
        let suspension = host.lease_of(container)?.suspension;
        Ok(suspension.is_some_and(|its| its.stage == SuspensionStage::Suspended))
    })?;
    let lease = host.lease_of(container)?;
    ensure((lease.spill_bytes, lease.spilled_bytes) == (SPILL, SPILL), || format!("it is shown as {lease:?}"))?;
    let asks = [("GPOOL_FRACTION", "0.3"), ("GPOOL_MEMORY", "2GiB"), ("GPOOL_SPILL", "2049MiB")];
    is_refused(host, &asks, &["GPOOL-E202", "2048MiB is free"])?;
    ensure(said(host, container, "read-again")?.is_empty(), || "it was read before".to_owned())?;
    reads.pause()?;
    wait_for("it to read all of it again", || Ok(said(host, container, "read-again")?.len() == 1))?;
    let again = &said(host, container, "read-again")?[0];
    ensure(again["wrong"] == 0, || format!("what was there is lost: {again}"))
}

/// Whose GPUs are taken gives its part back, and has nothing more go there.
fn goes_with_the_gpus(host: &Host) -> Result<()> {
    let all = [("GPOOL_FRACTION", "0.3"), ("GPOOL_MEMORY", "2GiB"), ("GPOOL_SPILL", "3GiB")];
    let program = format!("({}); sleep 100000", Tenant::greedy(500).command().join(" "));
    let evicted = host.run_container("evicted", &all, &[], &["sh", "-c", &program])?;
    wait_for("both to be full", || Ok(host.lease_of(&evicted)?.spilled_bytes == 3 * GIB))?;
    succeeded("gpool evict", host.gpool(&["evict", &evicted.id])?)?;
    wait_for("nothing to be its own", || Ok(host.lease_of(&evicted)?.fraction_permille == 0))?;
    let lease = host.lease_of(&evicted)?;
    ensure((lease.spill_bytes, lease.spilled_bytes) == (0, 0) && evicted.is_alive(), || format!("it has {lease:?}"))?;
    let other = Tenant { allocate_mib: Some(1), ..Tenant::greedy(500) }.run(host, "after", &all)?;
    for container in [evicted, other] {
        host.docker(&["rm", "-f", &container.id])?;
    }
    wait_for("the leases to end", || Ok(host.leases()?.is_empty()))
}

/// A program that asks again and again has more as soon as it may, and keeps what it has when it may not.
fn changes_while_it_runs(host: &Host) -> Result<()> {
    let tenant = Tenant { allocate_mib: Some(8 << 10), ..Tenant::greedy(500) };
    let env = [("GPOOL_FRACTION", "0.3"), ("GPOOL_MEMORY", "2GiB")];
    let container = tenant.run_with(host, "grows", &env, &["--retry-allocation-ms", "10"])?;
    wait_for("its cap to be full", || Ok(host.lease_of(&container)?.allocations_refused > 0))?;
    let spilled = |bytes: u64| {
        wait_for("what lies in the host's memory", || Ok(host.lease_of(&container)?.spilled_bytes == bytes))
    };
    spilled(0)?;
    succeeded("gpool update --spill", host.gpool(&["update", &container.id, "--spill", "512MiB"])?)?;
    spilled(GIB / 2)?;
    // Less than it has: that stays, and is not sold to others.
    let less = LeaseUpdate { spill_bytes: Some(256 << 20), ..LeaseUpdate::default() };
    let lease: LeaseView = host.client().patch(&format!("/v1/leases/{}", container.id), &less)?;
    ensure((lease.spill_bytes, lease.spilled_bytes) == (256 << 20, GIB / 2), || format!("it is shown as {lease:?}"))?;
    let asks = [("GPOOL_FRACTION", "0.3"), ("GPOOL_MEMORY", "2GiB"), ("GPOOL_SPILL", "2561MiB")];
    is_refused(host, &asks, &["GPOOL-E202", "2560MiB is free"])?;
    succeeded("gpool update --spill", host.gpool(&["update", &container.id, "--spill", "2GiB"])?)?;
    spilled(2 * GIB)?;
    let usage = usage_of(&host.meter()?.read()?, &container.id);
    ensure(usage.bytes_peak <= CAP, || format!("the device held {} bytes of {CAP}", usage.bytes_peak))
}

/// There is room on the GPU and none in the host's memory, until the one that has it ends.
fn one_may_wait_for_it(host: &Host) -> Result<()> {
    let tenant = Tenant { allocate_mib: Some(1), ..Tenant::greedy(500) };
    let command = tenant.command();
    let env = ["GPOOL_FRACTION=0.3", "GPOOL_MEMORY=2GiB", "GPOOL_SPILL=2GiB", "GPOOL_WAIT=60s"];
    let mut words = vec!["run", "-d", "--runtime=gpool", "--network=none", "--name", "waits"];
    words.extend(env.iter().flat_map(|variable| ["-e", variable]));
    words.push(crate::image::NAME);
    words.extend(command.iter().map(String::as_str));
    let mut docker = host.docker_command(&words);
    let waits = spawn_bound(docker.stdout(Stdio::piped()).stderr(Stdio::piped())).context("docker run")?;
    let queue = || host.client().get::<Vec<WaitingView>>("/v1/queue");
    wait_for("it to wait", || Ok(queue()?.len() == 1))?;
    let cause = queue()?[0].cause.clone();
    ensure(cause.contains("of the host's memory"), || cause.clone())?;
    // Nobody takes what is free of it from before it, and it is in nobody's way on the GPU.
    let asks = [("GPOOL_FRACTION", "0.1"), ("GPOOL_MEMORY", "2GiB"), ("GPOOL_SPILL", "1MiB")];
    is_refused(host, &asks, &["GPOOL-E202", "beside what those ask for who wait"])?;
    tenant.run(host, "beside", &[("GPOOL_FRACTION", "0.7"), ("GPOOL_MEMORY", "2GiB")])?.kill_init()?;
    host.docker(&["rm", "-f", "grows"])?;
    succeeded("docker run of the one that waited", waits.wait_with_output().context("docker run")?)?;
    let waited = Container::inspect(&host.engine, "waits")?;
    let lease = host.lease_of(&waited)?;
    ensure(lease.spill_bytes == 2 * GIB, || format!("it is shown as {lease:?}"))?;
    waited.kill_init()?;
    wait_for("the lease to end", || Ok(host.leases()?.is_empty()))
}

/// An ended container's part is kept with its place, also from a host that has less for it now.
fn is_kept_for_a_restart(host: &Host) -> Result<()> {
    reload_with(host, &CONFIGURATION.replace("hold_ms = 0", "hold_ms = 300000"))?;
    let tenant = Tenant { allocate_mib: Some(1), ..Tenant::greedy(500) };
    let asks = [("GPOOL_FRACTION", "0.3"), ("GPOOL_MEMORY", "2GiB"), ("GPOOL_SPILL", "3GiB")];
    let container = tenant.run(host, "restarted", &asks)?;
    container.kill_init()?;
    wait_for("its place to be kept", || {
        let leases = host.leases()?;
        Ok(leases.len() == 1 && leases[0].state == LeaseState::Held)
    })?;
    let other = [("GPOOL_FRACTION", "0.3"), ("GPOOL_MEMORY", "2GiB"), ("GPOOL_SPILL", "1MiB")];
    is_refused(host, &other, &["GPOOL-E202", "of the host's memory"])?;
    reload_with(host, &WITHOUT.replace("hold_ms = 0", "hold_ms = 300000"))?;
    succeeded("docker start", host.docker(&["start", "restarted"])?)?;
    let lease = host.lease_of(&Container::inspect(&host.engine, "restarted")?)?;
    ensure(lease.spill_bytes == 3 * GIB, || format!("it is shown as {lease:?}"))?;
    reload_with(host, WITHOUT)
}
