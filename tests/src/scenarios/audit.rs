//! The audit: what happened stays known when the supervisor was killed and started again, in the order in which it did, and what is
//! changed in it afterwards is seen. While it cannot be written, containers start all the same, and it is written later.

use super::{finish, wait_for};
use crate::failure::{Context, Failure, Result, ensure};
use crate::host::{AUDIT, Host, succeeded, text};
use crate::namespaces::Inside;
use crate::tenant::Tenant;
use gpool_protocol::{Event, EventKind};
use std::fs;
use std::path::{Path, PathBuf};

/// Runs it.
pub fn run(inside: &Inside) -> Result<()> {
    let mut host = Host::start(inside)?;
    let outcome = it_outlives_the_supervisor(&mut host)
        .and_then(|known| what_is_changed_is_seen(&host, &known))
        .and_then(|()| a_place_that_cannot_be_written_stops_nobody(&mut host));
    finish(host, outcome)
}

/// What `gpool audit show` prints with these arguments.
fn shown(host: &Host, arguments: &[&str]) -> Result<Vec<Event>> {
    let said =
        succeeded("gpool audit show", host.gpool(&[&["audit", "show", "--format", "json"], arguments].concat())?)?;
    said.lines().map(|line| serde_json::from_str(line).context(line)).collect()
}

/// What the audit ends with, `NUMBER:CHAIN`, if it is whole.
fn verified(host: &Host, arguments: &[&str]) -> Result<String> {
    let said = succeeded("gpool audit verify", host.gpool(&[&["audit", "verify"], arguments].concat())?)?;
    let end = said.lines().find_map(|line| line.strip_prefix("It ends with "));
    end.map(str::to_owned).ok_or_else(|| Failure::new(said.clone()))
}

/// Those of a container, in the order in which they were written.
fn kinds(events: &[Event]) -> Vec<EventKind> {
    events.iter().map(|event| event.kind).collect()
}

/// Gives what the audit ended with before the supervisor was killed.
fn it_outlives_the_supervisor(host: &mut Host) -> Result<String> {
    // It asks for less than it may have: how soon it would be refused more is another matter.
    let modest = Tenant { allocate_mib: Some(256), ..Tenant::greedy(1000) };
    let container = modest.run(host, "one", &[("GPOOL_FRACTION", "0.3"), ("GPOOL_MEMORY", "1GiB")])?;
    succeeded("gpool update", host.gpool(&["update", &container.id, "--fraction", "0.4"])?)?;
    let short = &container.id[..12];
    wait_for(
        "the change to be written down",
        || Ok(kinds(&shown(host, &[short])?).contains(&EventKind::LeaseUpdated)),
    )?;
    let known = verified(host, &[])?;
    host.kill_supervisor()?;
    ensure(verified(host, &["--known", &known])? == known, || "it is read without a supervisor".to_owned())?;
    host.start_supervisor()?;
    container.kill_init()?;
    wait_for("the end to be written down", || Ok(kinds(&shown(host, &[short])?).contains(&EventKind::LeaseEnded)))?;
    let all = shown(host, &[short])?;
    let want = [
        EventKind::LeaseGranted,
        EventKind::LeaseBound,
        EventKind::LeaseUpdated,
        EventKind::LeaseTakenOver,
        EventKind::LeaseEnded,
    ];
    ensure(kinds(&all) == want, || format!("{all:#?}"))?;
    ensure(all[2].uid == Some(0) && all[2].message.contains("30 % to 40 %"), || format!("{:#?}", all[2]))?;
    // Numbers go on where the supervisor's own begin anew.
    let whole = shown(host, &[])?;
    let numbers: Vec<u64> = whole.iter().map(|event| event.sequence).collect();
    ensure(numbers == (1..=whole.len() as u64).collect::<Vec<_>>(), || format!("{numbers:?}"))?;
    let started = shown(host, &["--kind", "supervisor-started"])?;
    ensure(started.len() == 2 && shown(host, &["--user", "1234"])?.is_empty(), || format!("{started:#?}"))?;
    verified(host, &["--known", &known])?;
    let log = host.supervisor_log();
    let said = log.lines().filter(|line| line.contains("the audit in ") && line.contains(", chain ")).count();
    ensure(said >= 1, || format!("the log does not say what the audit ends with: {log}"))?;
    let metrics = succeeded("gpool metrics", host.gpool(&["metrics"])?)?;
    let written = metrics.lines().find_map(|line| line.strip_prefix("gpool_audit_events_total "));
    let is_counted = written.and_then(|count| count.parse::<f64>().ok()).is_some_and(|count| count > 0.0);
    ensure(is_counted && metrics.contains("\ngpool_audit_lost_total 0\n"), || metrics.clone())?;
    Ok(known)
}

/// In copies of it, each with one change.
fn what_is_changed_is_seen(host: &Host, known: &str) -> Result<()> {
    let copy = Path::new("/run/gpool-audit-copy");
    fs::create_dir_all(copy).context(copy.display())?;
    let file = only_file()?;
    let name = file.file_name().unwrap_or_default();
    let whole = fs::read_to_string(&file).context(file.display())?;
    let directory = copy.display().to_string();
    let refused = |what: &str, changed: String, arguments: &[&str], part: &str| {
        fs::write(copy.join(name), changed).context(copy.display())?;
        let all = [&["audit", "verify", "--directory", &directory], arguments].concat();
        let output = host.gpool(&all)?;
        let said = text(&output.stderr);
        ensure(output.status.code() == Some(1) && said.contains(part), || format!("{what}: {said} lacks {part:?}"))
    };
    let without = |number: usize| {
        let lines = whole.lines().enumerate().filter(|(line, _)| *line != number);
        lines.map(|(_, line)| format!("{line}\n")).collect::<String>()
    };
    refused("changed", whole.replacen("30 % to 40 %", "30 % to 31 %", 1), &[], "was changed, taken out or put in")?;
    refused("taken out", without(2), &[], "line 3: this line")?;
    let cut: String = whole.lines().take(3).map(|line| format!("{line}\n")).collect();
    refused("cut off", cut, &["--known", known], "is known: its end was taken out")?;
    fs::write(copy.join(name), &whole).context(copy.display())?;
    verified(host, &["--directory", &directory, "--known", known]).map(drop)
}

fn only_file() -> Result<PathBuf> {
    let entries = fs::read_dir(AUDIT).context(AUDIT)?;
    let found = entries.map(|entry| entry.map(|entry| entry.path()).context(AUDIT)).collect::<Result<Vec<_>>>()?;
    match <[PathBuf; 1]>::try_from(found) {
        Ok([only]) => Ok(only),
        Err(found) => Err(Failure::new(format!("{found:?}"))),
    }
}

/// A file stands where the directory was.
fn a_place_that_cannot_be_written_stops_nobody(host: &mut Host) -> Result<()> {
    host.stop_supervisor()?;
    let aside = format!("{AUDIT}.aside");
    fs::rename(AUDIT, &aside).context(AUDIT)?;
    fs::write(AUDIT, "").context(AUDIT)?;
    host.start_supervisor()?;
    let container = Tenant::greedy(1000).run(host, "late", &[("GPOOL_FRACTION", "0.3"), ("GPOOL_MEMORY", "1GiB")])?;
    let is_told = |log: &str| log.lines().filter(|line| line.contains("the audit is not written")).count();
    wait_for("it to be told", || Ok(is_told(&host.supervisor_log()) > 0))?;
    fs::remove_file(AUDIT).context(AUDIT)?;
    fs::rename(&aside, AUDIT).context(AUDIT)?;
    wait_for("it to be written", || Ok(kinds(&shown(host, &[&container.id])?).contains(&EventKind::LeaseBound)))?;
    ensure(is_told(&host.supervisor_log()) == 1, || host.supervisor_log())?;
    verified(host, &[]).map(drop)
}
