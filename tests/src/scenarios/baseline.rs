//! Before anything is shared: what plain containers and programs use is told after they have ended and across a killed supervisor,
//! with the request that is enough for each; and one that is started anew with that request does its work beside another one.

use super::simulated_gpu::start_running;
use super::{finish_found, wait_for};
use crate::failure::{Context, Failure, Result, ensure};
use crate::host::{Container, Host, SIMULATED_GPU, succeeded, text};
use crate::meter::usage_of;
use crate::namespaces::{Inside, spawn_bound};
use crate::tenant::Tenant;
use gpool_protocol::{Baseline, UnleasedKind, UnleasedUse};
use rustix::time::{ClockId, clock_gettime};
use serde_json::Value;
use std::process::Stdio;
use std::time::{Duration, Instant};

/// A service of which twenty milliseconds of work are asked for ten times a second, at random.
const SERVICE: [&str; 4] = ["--request-rate", "10", "--request-pieces", "20"];
/// What it allocates.
const MIB: u64 = 1024;
/// How much of its work is waited for, in nanoseconds of GPU time.
const WORK_NS: u64 = 2_500_000_000;
/// How long a minute of the clock is, in seconds, and so much of one the service needs from its start on until it is killed.
const MINUTE_S: u64 = 60;
const NEEDS_S: u64 = 22;

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
    wait_for_a_minute_with_room();
    let plain = start_running(host, "plain", &service, &SERVICE)?;
    let alone = until_done(host, &plain)?;
    let duty = WORK_NS as f64 / alone.as_nanos() as f64;
    let at_the_end = usage_of(&host.meter()?.read()?, &plain.id);
    let (peak_bytes, seen_ns) = (at_the_end.bytes_peak, at_the_end.busy_ns);
    plain.kill_init()?;
    // The device tells of nobody later than this.
    std::thread::sleep(Duration::from_secs(3));
    let before = baseline(host, &[])?;
    let its = used(&before, &plain)?;
    let told = its.busy_gpu_ns as f64 / seen_ns as f64;
    ensure((0.8..1.2).contains(&told), || format!("{told} of its {seen_ns} ns: {its:#?}"))?;
    let share = its.work_permille as f64 / 1000.0;
    ensure((0.6..1.7).contains(&(share / duty)), || format!("it worked {duty} of the time: {its:#?}"))?;
    let has_room = its.enough.is_some_and(|enough| enough.memory_bytes > peak_bytes && enough.gpus == 1);
    ensure(its.memory_peak_bytes == peak_bytes && has_room, || format!("it held {peak_bytes} bytes: {its:#?}"))?;
    let is_alone = before.users.len() == 1 && used(&before, &leased).is_err();
    ensure(is_alone && its.command == "gpool-tenant", || format!("{before:#?}"))?;

    let program = a_program_is_told(host, &plain)?;
    a_killed_supervisor_takes_nothing_along(host, &plain, (its, &program))?;
    what_would_be_enough_is(host, (its, alone), &leased)?;
    who_had_to_share_a_full_gpu_is_marked(host)
}

/// The ledger keeps minutes of the clock, and of a minute in which it was there for a second alone, as much of its time as that is,
/// what is enough is what it did in that second: its requests come at random, and that may be twice what it does in the mean.
fn wait_for_a_minute_with_room() {
    let of_minute_s = clock_gettime(ClockId::Realtime).tv_sec as u64 % MINUTE_S;
    if of_minute_s + NEEDS_S > MINUTE_S {
        std::thread::sleep(Duration::from_secs(MINUTE_S - of_minute_s));
    }
}

/// How long the service takes for its work, from its first kernel on. Its requests come at the same times each time.
fn until_done(host: &Host, container: &Container) -> Result<Duration> {
    let reader = host.meter()?;
    let busy_ns = || -> Result<u64> { Ok(usage_of(&reader.read()?, &container.id).busy_ns) };
    wait_for("the first kernel", || Ok(busy_ns()? > 0))?;
    let begun = Instant::now();
    wait_for("the work to be done", || Ok(busy_ns()? > WORK_NS))?;
    Ok(begun.elapsed())
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
fn a_program_is_told(host: &Host, plain: &Container) -> Result<UnleasedUse> {
    let mut command = host.command("gpool-tenant");
    command.env("LD_LIBRARY_PATH", format!("{SIMULATED_GPU}/lib")).args(["--allocate-mib", "512", "--seconds", "4"]);
    let child = spawn_bound(command.args(SERVICE).stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped()));
    let output = child.context("gpool-tenant")?.wait_with_output().context("gpool-tenant")?;
    ensure(output.status.success(), || text(&output.stderr))?;
    let all = baseline(host, &[])?;
    // What the tests run in may be a service or a container itself.
    let is_its = |row: &&UnleasedUse| row.command == "gpool-tenant" && row.user.name != plain.id;
    let its = all.users.iter().find(is_its).ok_or_else(|| Failure::new(format!("it is not in {all:#?}")))?;
    let is_right = its.memory_peak_bytes >= 512 << 20 && (2..=6).contains(&(its.held_gpu_ns / 1_000_000_000));
    ensure(is_right && all.users.len() == 2, || format!("{all:#?}"))?;
    let of_root = baseline(host, &["--user", "0"])?;
    let is_of_root = its.user.uid == Some(0);
    ensure(of_root.users.len() == usize::from(is_of_root), || format!("{of_root:#?}"))?;
    let its = its.clone();
    ensure(its.user.kind != UnleasedKind::Program || its.user.name == "gpool-tenant", || format!("{its:#?}"))?;
    Ok(its)
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

/// The same service in a container with the request that was told does its work nearly as soon, beside one that never rests.
fn what_would_be_enough_is(host: &Host, (its, alone): (&UnleasedUse, Duration), leased: &Container) -> Result<()> {
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
    let took = until_done(host, &shared)?;
    ensure(took < alone.mul_f64(1.4) && shared.is_alive(), || {
        format!("with {words:?} it took {took:?} for the work, and {alone:?} with the GPU nearly to itself")
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
    let is_summed = table.contains("shared by all as they work") && table.contains("whole ones for each");
    ensure(both.iter().all(is_marked) && is_summed, || table.clone())?;
    let csv = succeeded("gpool baseline", host.gpool(&["baseline", "--format", "csv"])?)?;
    ensure(csv.lines().filter(|line| line.contains(",container,")).count() == 3, || csv.clone())
}
