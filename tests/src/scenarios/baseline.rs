//! Before anything is shared: what plain containers and programs use is told after they have ended and across a killed supervisor,
//! with the request that is enough for each; and one that is started anew with that request does its work beside another one.

use super::simulated_gpu::start_running;
use super::{finish_found, wait_for};
use crate::failure::{Context, Failure, Result, ensure};
use crate::host::{Container, Host, SIMULATED_GPU, succeeded, text};
use crate::meter::usage_of;
use crate::namespaces::{Inside, spawn_bound};
use crate::tenant::Tenant;
use crate::trace::Recorder;
use gpool_protocol::{Baseline, UnleasedKind, UnleasedUse};
use serde_json::Value;
use std::process::Stdio;
use std::time::Duration;

/// A service of which twenty milliseconds of work are asked for ten times a second, at random.
const SERVICE: [&str; 4] = ["--request-rate", "10", "--request-pieces", "20"];
/// What it allocates.
const MIB: u64 = 1024;

/// Runs it.
pub fn run(inside: &Inside) -> Result<()> {
    let mut host = Host::start_with(inside, 1, "")?;
    let outcome = all(&mut host);
    finish_found(host, outcome)
}

fn all(host: &mut Host) -> Result<()> {
    nobody_is_told_where_nobody_was(host)?;
    let leased = Tenant { allocate_mib: Some(256), ..Tenant::greedy(1000) };
    let leased = leased.run_with(host, "leased", &[("GPOOL_FRACTION", "0.1"), ("GPOOL_MEMORY", "2GiB")], &SERVICE)?;
    let service = Tenant { allocate_mib: Some(MIB), ..Tenant::greedy(1000) };
    let plain = start_running(host, "plain", &service, &SERVICE)?;
    let busy_ns =
        |container: &Container| -> Result<u64> { Ok(usage_of(&host.meter()?.read()?, &container.id).busy_ns) };
    wait_for("three seconds of work", || Ok(busy_ns(&plain)? > 3_000_000_000))?;
    let duty = Recorder::watch(host.meter()?, Duration::from_millis(200), Duration::from_secs(4))?;
    let duty = duty.0.share(&plain.id, duty.1, duty.2);
    let peak_bytes = usage_of(&host.meter()?.read()?, &plain.id).bytes_peak;
    let seen_ns = busy_ns(&plain)?;
    plain.kill_init()?;
    // The device tells of nobody later than this.
    std::thread::sleep(Duration::from_secs(3));
    let before = baseline(host, &[])?;
    let its = used(&before, &plain)?;
    let told = its.busy_gpu_ns as f64 / seen_ns as f64;
    ensure((0.8..1.2).contains(&told), || format!("{told} of its {seen_ns} ns: {its:#?}"))?;
    let share = its.work_permille as f64 / 1000.0;
    ensure((0.6..1.7).contains(&(share / duty)), || format!("it worked {duty} of the time: {its:#?}"))?;
    ensure(its.memory_peak_bytes == peak_bytes && its.enough.memory_bytes > peak_bytes, || {
        format!("it held {peak_bytes} bytes: {its:#?}")
    })?;
    let is_alone = before.users.len() == 1 && used(&before, &leased).is_err();
    ensure(is_alone && its.command == "gpool-tenant" && its.enough.gpus == 1, || format!("{before:#?}"))?;

    let program = a_program_is_told(host)?;
    a_killed_supervisor_takes_nothing_along(host, &plain, (its, &program))?;
    what_would_be_enough_is(host, (its, duty), &leased)?;
    who_had_to_share_a_full_gpu_is_marked(host)
}

/// What `gpool baseline` says with these arguments.
fn baseline(host: &Host, arguments: &[&str]) -> Result<Baseline> {
    let command: Vec<&str> = ["baseline", "--format", "json"].iter().chain(arguments).copied().collect();
    let said = succeeded("gpool baseline", host.gpool(&command)?)?;
    let document: Value = serde_json::from_str(&said).context("the JSON of gpool baseline")?;
    serde_json::from_value(document["baseline"].clone()).context(&said)
}

fn used<'a>(baseline: &'a Baseline, container: &Container) -> Result<&'a UnleasedUse> {
    let is_its = |row: &&UnleasedUse| row.user.kind == UnleasedKind::Container && row.user.name == container.id;
    let found = baseline.users.iter().find(is_its);
    found.ok_or_else(|| Failure::new(format!("no row of {} in {baseline:#?}", container.id)))
}

fn nobody_is_told_where_nobody_was(host: &Host) -> Result<()> {
    let table = succeeded("gpool baseline", host.gpool(&["baseline"])?)?;
    ensure(table.contains("Nobody used a GPU without a lease."), || table.clone())?;
    let refused = host.gpool(&["baseline", "--percent", "0"])?;
    ensure(refused.status.code() == Some(2), || text(&refused.stderr))
}

/// A program of root's on the host itself, in no container. Its row is returned.
fn a_program_is_told(host: &Host) -> Result<UnleasedUse> {
    let mut command = host.command("gpool-tenant");
    command.env("LD_LIBRARY_PATH", format!("{SIMULATED_GPU}/lib")).args(["--allocate-mib", "512", "--seconds", "4"]);
    let child = spawn_bound(command.args(SERVICE).stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped()));
    let output = child.context("gpool-tenant")?.wait_with_output().context("gpool-tenant")?;
    ensure(output.status.success(), || text(&output.stderr))?;
    let is_its = |row: &&UnleasedUse| row.user.name == "gpool-tenant" && row.user.uid == Some(0);
    let all = baseline(host, &["--user", "0"])?;
    let found = all.users.iter().find(is_its).filter(|row| row.user.kind == UnleasedKind::Program);
    let its = found.ok_or_else(|| Failure::new(format!("the program is not in {all:#?}")))?;
    let is_right = its.memory_peak_bytes >= 512 << 20 && (2..=6).contains(&(its.held_gpu_ns / 1_000_000_000));
    ensure(is_right && all.users.len() == 1, || format!("{all:#?}"))?;
    Ok(its.clone())
}

fn a_killed_supervisor_takes_nothing_along(
    host: &mut Host,
    plain: &Container,
    (its, program): (&UnleasedUse, &UnleasedUse),
) -> Result<()> {
    host.kill_supervisor()?;
    host.start_supervisor()?;
    let after = baseline(host, &[])?;
    let again = used(&after, plain)?;
    ensure(again == its && after.users.iter().any(|row| row.user == program.user), || format!("{after:#?}"))
}

/// The same service in a container with the request that was told works as much as before, beside one that never rests.
fn what_would_be_enough_is(host: &Host, (its, duty): (&UnleasedUse, f64), leased: &Container) -> Result<()> {
    host.engine.docker_text(&["rm", "-f", &leased.name])?;
    let table = succeeded("gpool baseline", host.gpool(&["baseline"])?)?;
    let line = table.lines().find(|line| line.contains(&its.user.name[..12]));
    let words: Vec<(&str, &str)> =
        line.into_iter().flat_map(str::split_whitespace).filter_map(|word| word.split_once('=')).collect();
    let names: Vec<&str> = words.iter().map(|(name, _)| *name).collect();
    ensure(names == ["GPOOL_FRACTION", "GPOOL_MEMORY"], || table.clone())?;
    let hog = Tenant { allocate_mib: Some(256), ..Tenant::greedy(2000) };
    hog.run(host, "hog", &[("GPOOL_FRACTION", "0.3"), ("GPOOL_MEMORY", "2GiB")])?;
    let service = Tenant { allocate_mib: Some(MIB), ..Tenant::greedy(1000) };
    let shared = service.run_with(host, "shared", &words, &SERVICE)?;
    let works = || -> Result<bool> { Ok(usage_of(&host.meter()?.read()?, &shared.id).busy_ns > 300_000_000) };
    wait_for("it to work", works)?;
    let (trace, from_ns, to_ns) = Recorder::watch(host.meter()?, Duration::from_millis(200), Duration::from_secs(6))?;
    let share = trace.share(&shared.id, from_ns, to_ns);
    ensure(share > 0.7 * duty && shared.is_alive(), || {
        format!("with {words:?} it had {share} of the GPU, and {duty} with the GPU to itself")
    })?;
    host.engine.docker_text(&["rm", "-f", "hog", "shared"]).map(drop)
}

/// Two that never rest: each may have wanted more, which its share does not say.
fn who_had_to_share_a_full_gpu_is_marked(host: &Host) -> Result<()> {
    let busy = Tenant { allocate_mib: Some(256), ..Tenant::greedy(1000) };
    let both = [start_running(host, "one", &busy, &[])?, start_running(host, "other", &busy, &[])?];
    let crowded = || -> Result<bool> {
        let all = baseline(host, &[])?;
        Ok(both.iter().all(|its| used(&all, its).is_ok_and(|row| row.crowded_gpu_ns > 2_000_000_000)))
    };
    wait_for("a full GPU to be told", crowded)?;
    let table = succeeded("gpool baseline", host.gpool(&["baseline", "--percent", "100"])?)?;
    let is_marked = |its: &Container| {
        let mut lines = table.lines().filter(|line| line.contains(&its.id[..12]));
        lines.any(|line| line.split_whitespace().any(|word| word.ends_with('+')))
    };
    let is_summed = table.contains("shared by all: ") && table.contains("whole ones for each");
    ensure(both.iter().all(is_marked) && is_summed, || table.clone())?;
    let csv = succeeded("gpool baseline", host.gpool(&["baseline", "--format", "csv"])?)?;
    ensure(csv.lines().filter(|line| line.contains(",container,")).count() == 3, || csv.clone())
}
