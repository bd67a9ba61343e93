//! `gpool run`: a signal that comes before there is a command.

use super::{finish, wait_for};
use crate::failure::{Context, Failure, Result, ensure};
use crate::host::Host;
use crate::namespaces::{Inside, spawn_bound};
use rustix::process::{Pid, Signal, kill_process};
use std::collections::BTreeSet;
use std::fs;
use std::os::unix::process::ExitStatusExt;
use std::path::PathBuf;
use std::process::{Child, Command};
use std::time::{Duration, Instant};

/// A person at a terminal does not wait for longer.
const PROMPT: Duration = Duration::from_secs(2);
const SHARE: [&str; 7] = ["run", "--fraction", "0.9", "--memory", "1GiB", "--", "true"];

/// Interrupts it while it waits for its lease, and while the command's mounts are made.
pub fn run(inside: &Inside) -> Result<()> {
    let host = Host::start(inside)?;
    let before = traces();
    let outcome = it_ends_while_it_waits_for_its_lease(&host, &before)
        .and_then(|()| it_ends_while_it_prepares(&host, &before))
        .and_then(|()| it_stays_where_the_caller_ignores_the_signal(&host, &before));
    finish(host, outcome)
}

/// What a supervisor that does not answer holds up.
fn with_a_hung_supervisor<T>(host: &Host, what: impl FnOnce() -> Result<T>) -> Result<T> {
    let pid = host.supervisor_pid().and_then(|pid| Pid::from_raw(pid.cast_signed()));
    let pid = pid.ok_or_else(|| Failure::new("no supervisor runs"))?;
    kill_process(pid, Signal::STOP).context("the supervisor")?;
    let outcome = what();
    kill_process(pid, Signal::CONT).context("the supervisor")?;
    outcome
}

/// `gpool run` with the signals as a shell leaves them: whoever runs this test may ignore some, as a job in the background
/// of a script does.
fn heeding_signals(host: &Host) -> Command {
    let mut command = host.command_named("env");
    command.args(["--default-signal=HUP,INT,TERM", "gpool"]).args(SHARE);
    command
}

fn start_waiting(command: &mut Command) -> Result<Child> {
    let started = spawn_bound(command).context("gpool run")?;
    wait_for("gpool run", || Ok(name(Pid::from_child(&started)) == "gpool-run"))?;
    std::thread::sleep(Duration::from_millis(200));
    Ok(started)
}

fn it_ends_while_it_waits_for_its_lease(host: &Host, before: &BTreeSet<PathBuf>) -> Result<()> {
    for signal in [Signal::INT, Signal::TERM, Signal::HUP] {
        with_a_hung_supervisor(host, || {
            let waiting = start_waiting(&mut heeding_signals(host))?;
            ends_at_once_by(waiting, signal).context("while it waits for its lease")
        })?;
        nothing_is_left(host, before)?;
    }
    Ok(())
}

/// Stops the inner half as soon as there is one: most often it is making mounts.
fn it_ends_while_it_prepares(host: &Host, before: &BTreeSet<PathBuf>) -> Result<()> {
    for signal in [Signal::INT, Signal::TERM, Signal::HUP] {
        let (outer, inner) = prepared_half_way(host, before)?;
        let begun = Instant::now();
        ends_at_once_by(outer, signal).context("while it prepares")?;
        ensure(!exists(inner), || "the inner half is left".into())?;
        nothing_is_left(host, before)?;
        // The supervisor is told: it looks for whoever it is not told of later than that.
        ensure(begun.elapsed() < PROMPT, || format!("{signal:?} took {:?} until nothing was left", begun.elapsed()))?;
    }
    Ok(())
}

/// `gpool run` and its inner half, which is stopped before there is a command.
fn prepared_half_way(host: &Host, before: &BTreeSet<PathBuf>) -> Result<(Child, Pid)> {
    for _ in 0..20 {
        let mut outer = spawn_bound(&mut heeding_signals(host)).context("gpool run")?;
        let inner = loop {
            // Its own name it has from its first steps on.
            if let Some(inner) = child_of(Pid::from_child(&outer)).filter(|inner| name(*inner) == "share-init") {
                break inner;
            }
            ensure(outer.try_wait().context("gpool run")?.is_none(), || "gpool run has ended by itself".into())?;
        };
        let _ = kill_process(inner, Signal::STOP);
        std::thread::sleep(Duration::from_millis(50));
        if exists(inner) && child_of(inner).is_none() && outer.try_wait().context("gpool run")?.is_none() {
            return Ok((outer, inner));
        }
        // Too late; the command has ended or goes on to its end.
        let _ = kill_process(inner, Signal::CONT);
        outer.wait().context("gpool run")?;
        nothing_is_left(host, before)?;
    }
    Err(Failure::new("its inner half was never stopped in time"))
}

/// As under `nohup`.
fn it_stays_where_the_caller_ignores_the_signal(host: &Host, before: &BTreeSet<PathBuf>) -> Result<()> {
    let mut waiting = with_a_hung_supervisor(host, || {
        let mut command = host.command_named("env");
        let waiting = start_waiting(command.args(["--ignore-signal=HUP", "gpool"]).args(SHARE))?;
        kill_process(Pid::from_child(&waiting), Signal::HUP).context("gpool run is gone")?;
        std::thread::sleep(Duration::from_millis(200));
        Ok(waiting)
    })?;
    let status = waiting.wait().context("gpool run")?;
    ensure(status.success(), || format!("with SIGHUP ignored it ends with {status}"))?;
    nothing_is_left(host, before)
}

fn ends_at_once_by(mut outer: Child, signal: Signal) -> Result<()> {
    kill_process(Pid::from_child(&outer), signal).context("gpool run is gone")?;
    let deadline = Instant::now() + PROMPT;
    loop {
        if let Some(status) = outer.try_wait().context("gpool run")? {
            let ended = status.signal();
            return ensure(ended == Some(signal.as_raw()), || format!("{signal:?} ended it with {status}"));
        }
        if Instant::now() > deadline {
            let _ = outer.kill();
            return Err(Failure::new(format!("{signal:?} did not end it within {PROMPT:?}")));
        }
        std::thread::sleep(Duration::from_millis(5));
    }
}

fn nothing_is_left(host: &Host, before: &BTreeSet<PathBuf>) -> Result<()> {
    wait_for("the end of its lease", || Ok(host.leases()?.is_empty()))?;
    let after = traces();
    let left: Vec<&PathBuf> = after.difference(before).collect();
    ensure(left.is_empty(), || format!("left: {left:?}"))
}

/// Folders of leases, and cgroups, of which the machine may have others.
fn traces() -> BTreeSet<PathBuf> {
    let places = crate::cgroups::hierarchies().into_iter().chain([PathBuf::from("/run/gpool/leases")]);
    let names = places.flat_map(fs::read_dir).flatten().flatten().map(|entry| entry.path());
    names.filter(|path| path.starts_with("/run") || path.to_string_lossy().contains("gpool-run-")).collect()
}

fn child_of(pid: Pid) -> Option<Pid> {
    let pid = pid.as_raw_nonzero();
    let children = fs::read_to_string(format!("/proc/{pid}/task/{pid}/children")).ok()?;
    Pid::from_raw(children.split_whitespace().next()?.parse().ok()?)
}

fn name(pid: Pid) -> String {
    let name = fs::read_to_string(format!("/proc/{}/comm", pid.as_raw_nonzero())).unwrap_or_default();
    name.trim_end().to_owned()
}

fn exists(pid: Pid) -> bool {
    rustix::process::test_kill_process(pid).is_ok()
}
