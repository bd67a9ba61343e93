//! `gpool stats` and `gpool wait` beside real containers: figures of an interval that agree with the shares, samples and waits that
//! go on over a restart of the supervisor, and ends and grants that are told as they come, also those that nobody saw.

use super::{finish, reload_with, start_tenants, wait_for, wait_until_running};
use crate::failure::{Context, Failure, Result, ensure};
use crate::host::{Container, Host, succeeded, text};
use crate::namespaces::{Inside, spawn_bound};
use gpool_protocol::WaitingView;
use serde_json::Value;
use std::io::{BufRead, BufReader, Lines};
use std::process::{Child, ChildStdout, Output, Stdio};
use std::time::Duration;

/// An ended container's place is free at once.
const CONFIGURATION: &str = "[lease]\nhold_ms = 0\n";
/// How far a part of what all had may be off beside other scenarios, in permille.
const OFF_PERMILLE: u64 = 100;
/// How many kernels a second of GPU time is.
const KERNELS_A_SECOND: u64 = 2000;

/// Starts three containers, of which none is left at the end.
pub fn run(inside: &Inside) -> Result<()> {
    let mut host = Host::start(inside)?;
    let outcome = reload_with(&host, CONFIGURATION).and_then(|()| all(&mut host));
    finish(host, outcome)
}

fn all(host: &mut Host) -> Result<()> {
    let tenants = [("large", "0.6", "2GiB", 500), ("small", "0.2", "2GiB", 500), ("third", "0.05", "2GiB", 500)];
    let containers = start_tenants(host, &tenants)?;
    wait_until_running(host, &containers)?;
    let [large, small, third] = containers.as_slice() else { unreachable!("three were started") };
    a_sample_agrees_with_the_shares(host, &containers)?;
    what_is_asked_wrongly_is_refused(host, large)?;
    a_reader_may_go_away(host)?;
    over_a_restart(host, small, third)?;
    who_waits_for_room(host, large)
}

/// All have work, so that what is had goes by the shares.
fn a_sample_agrees_with_the_shares(host: &Host, containers: &[Container]) -> Result<()> {
    let lines =
        json(&succeeded("gpool stats", host.gpool(&["stats", "--no-stream", "-i", "4", "--format", "json"])?)?)?;
    let of = |container: &Container| {
        let found = lines.iter().find(|line| line["container_id"] == container.id.as_str());
        found.cloned().ok_or_else(|| Failure::new(format!("no line of {} in {lines:?}", container.name)))
    };
    let all: u64 = lines.iter().filter_map(|line| line["received_permille"].as_u64()).sum();
    for (container, share) in [(&containers[0], 600), (&containers[1], 200)] {
        let line = of(container)?;
        let figure = |name: &str| line[name].as_u64().ok_or_else(|| Failure::new(format!("no {name} in {line}")));
        let (received, launched) = (figure("received_permille")?, figure("launches_per_second")?);
        // All three together are promised 850 permille.
        let is_its_part = (received * 1000 / all.max(1)).abs_diff(share * 1000 / 850) <= OFF_PERMILLE;
        // One counts the time of what the other counts.
        let is_its_work = (launched * 1000 / KERNELS_A_SECOND).abs_diff(received) <= received / 4 + 10;
        // One thread, which waits while another container has the GPU.
        let has_waited = (1..=1000).contains(&figure("gate_wait_permille")?);
        let is_right = figure("fraction_permille")? == share
            && figure("interval_ns")? >= 4_000_000_000
            && figure("memory_used_bytes")? <= figure("memory_cap_bytes")?
            && figure("processes")? == 1
            && line["time"].as_str().is_some_and(|time| time.ends_with('Z'));
        ensure(is_its_part && is_its_work && has_waited && is_right, || {
            format!("of {all} permille that all had, {} is promised {share}: {line}", container.name)
        })?;
    }
    let table = succeeded("gpool stats", host.gpool(&["stats", "--no-stream", &containers[1].id[..10]])?)?;
    let rows: Vec<&str> = table.lines().collect();
    let is_one = rows.len() == 2 && rows[1].starts_with(&containers[1].id[..12]) && !rows[1].contains("--");
    ensure(is_one && rows[0].contains("GATE WAIT"), || format!("of one container it prints {table}"))
}

fn what_is_asked_wrongly_is_refused(host: &Host, running: &Container) -> Result<()> {
    for (words, status, part) in [
        (["stats", "--no-stream", "nobody"].as_slice(), 3, "GPOOL-E301"),
        (&["wait", "nobody"], 3, "GPOOL-E301"),
        (&["wait", "--for", "grant", "nobody"], 3, "GPOOL-E301"),
        (&["wait", "--timeout", "1s", &running.id], 75, "after 1s this one has not ended"),
    ] {
        let output = host.gpool(words)?;
        let said = text(&output.stderr);
        let is_refused = output.status.code() == Some(status) && said.contains(part) && output.stdout.is_empty();
        ensure(is_refused, || format!("gpool {words:?} ends with {}: {said}", output.status))?;
    }
    // It has its lease already.
    let granted = succeeded("gpool wait", host.gpool(&["wait", "--for", "grant", &running.id])?)?;
    ensure(granted.contains("granted 60 %"), || format!("gpool wait --for grant prints {granted}"))
}

fn a_reader_may_go_away(host: &Host) -> Result<()> {
    let mut stream = start(host, &["stats", "-i", "0.1", "--format", "csv"])?;
    let mut lines = BufReader::new(stream.stdout.take().context("stdout")?).lines();
    let header = lines.next().context("a header")?.context("a header")?;
    let row = lines.next().context("a row")?.context("a row")?;
    let is_table = header.starts_with("time,container_id,") && row.matches(',').count() == header.matches(',').count();
    ensure(is_table, || format!("{header}\n{row}"))?;
    drop(lines);
    succeeded("gpool stats without a reader", ended(stream)?).map(drop)
}

/// One ends while no supervisor is there, and one afterwards.
fn over_a_restart(host: &mut Host, small: &Container, third: &Container) -> Result<()> {
    let wait = Waiting::begin(host, &[&small.id, &third.id[..12], &small.id])?;
    let mut samples = start(host, &["stats", "-i", "0.5", "--format", "json", &small.id])?;
    let mut lines = BufReader::new(samples.stdout.take().context("stdout")?).lines();
    lines.next().context("a sample")?.context("a sample")?;
    host.kill_supervisor()?;
    third.kill_init()?;
    // Longer than between two looks.
    std::thread::sleep(Duration::from_secs(1));
    host.start_supervisor()?;
    // They go on, know nothing of what was meanwhile, and know GPU time again when it has been counted twice.
    let (mut is_after_the_gap, mut is_known) = (false, false);
    while !is_after_the_gap || !is_known {
        let line = lines.next().context("samples end at a restart")?.context("a sample")?;
        let sample: Value = serde_json::from_str(&line).context("a sample")?;
        is_known = sample["received_permille"].is_u64();
        is_after_the_gap |= !is_known && sample["interval_ns"].is_null();
    }
    small.kill_init()?;
    let samples = samples.wait_with_output().context("gpool stats")?;
    let said = text(&samples.stderr);
    ensure(samples.status.success() && said.contains("samples go on"), || format!("{}: {said}", samples.status))?;
    let (output, lines) = wait.end()?;
    let said = text(&output.stderr);
    let is_said = said.contains("waiting goes on") && said.contains("the supervisor is back");
    ensure(output.status.success() && is_said, || format!("gpool wait ends with {}: {said}", output.status))?;
    // Nobody has seen the first one end, and what it had had is known as it was written down last.
    let is_right = lines.len() == 2
        && lines[0].contains(&format!("Z,{},", third.id))
        && lines[0].contains(" while no supervisor saw it: its container has ended")
        && lines[1].contains(&format!("Z,{},", small.id))
        && lines[1].contains(",ended,ended ")
        && lines[1].contains("its container has ended");
    ensure(is_right, || format!("gpool wait prints {lines:?}"))
}

/// One that waits for room is taken out of the queue, and one has it when the container that had it ends.
fn who_waits_for_room(host: &Host, large: &Container) -> Result<()> {
    let (cancelled, id) = waiting_command(host)?;
    let early = host.gpool(&["wait", &id])?;
    let said = text(&early.stderr);
    ensure(early.status.code() == Some(3) && said.contains("--for grant"), || format!("{}: {said}", early.status))?;
    let in_vain = Waiting::begin(host, &["--for", "grant", &id[..id.len() - 1]])?;
    let late = host.gpool(&["wait", "--for", "grant", "--timeout", "1s", &id])?;
    ensure(late.status.code() == Some(75), || format!("{}: {}", late.status, text(&late.stderr)))?;
    succeeded("gpool queue cancel", host.gpool(&["queue", "cancel", &id])?)?;
    let (output, lines) = in_vain.end()?;
    let is_told = lines.len() == 1 && lines[0].contains(",left,") && lines[0].contains("was taken out of the queue");
    ensure(output.status.code() == Some(1) && is_told, || {
        format!("{}: {lines:?} {}", output.status, text(&output.stderr))
    })?;
    ended(cancelled)?;

    let (waiting, id) = waiting_command(host)?;
    let wait = Waiting::begin(host, &["--for", "grant", &id])?;
    let end = Waiting::begin(host, &[&large.id])?;
    large.kill_init()?;
    for (wait, part) in [(end, "its container has ended"), (wait, "granted 90 %")] {
        let (output, lines) = wait.end()?;
        ensure(output.status.success() && lines.len() == 1 && lines[0].contains(part), || {
            format!("{}: {lines:?} {}", output.status, text(&output.stderr))
        })?;
    }
    succeeded("gpool run of who waited", ended(waiting)?).map(drop)
}

/// A command for which there is no room, and the id under which it waits.
fn waiting_command(host: &Host) -> Result<(Child, String)> {
    let run = start(host, &["run", "--fraction", "0.9", "--memory", "1GiB", "--wait", "300s", "--", "/bin/true"])?;
    let all = || host.client().get::<Vec<WaitingView>>("/v1/queue");
    wait_for("a command to wait for room", || Ok(all()?.len() == 1))?;
    Ok((run, all()?[0].container_id.to_string()))
}

/// A `gpool wait` that knows for what it waits.
struct Waiting {
    program: Child,
    lines: Lines<BufReader<ChildStdout>>,
}

impl Waiting {
    /// The header is printed when the ids have been found.
    fn begin(host: &Host, words: &[&str]) -> Result<Self> {
        let mut program = start(host, &[&["wait", "--format", "csv"], words].concat())?;
        let mut lines = BufReader::new(program.stdout.take().context("stdout")?).lines();
        let header = lines.next().context("gpool wait prints no header")?.context("a header")?;
        ensure(header.starts_with("time,container_id,lease_id,outcome,"), || header.clone())?;
        Ok(Self { program, lines })
    }

    /// How it ends, and the lines that it has printed.
    fn end(self) -> Result<(Output, Vec<String>)> {
        let lines = self.lines.collect::<std::io::Result<_>>().context("gpool wait")?;
        Ok((ended(self.program)?, lines))
    }
}

fn start(host: &Host, words: &[&str]) -> Result<Child> {
    let mut command = host.command("gpool");
    spawn_bound(command.args(words).stdout(Stdio::piped()).stderr(Stdio::piped())).context("gpool")
}

fn ended(child: Child) -> Result<Output> {
    child.wait_with_output().context("gpool")
}

fn json(lines: &str) -> Result<Vec<Value>> {
    lines.lines().map(|line| serde_json::from_str(line).context(line)).collect()
}
