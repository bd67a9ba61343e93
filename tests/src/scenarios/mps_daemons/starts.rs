//! The start of a daemon: who waits for it, and what is left of one that fails.

use super::{ASKS, Unreliable, hold, mps_leases, release, remove, started, wait_for};
use crate::failure::{Context, Result, ensure};
use crate::host::{Host, text};
use crate::namespaces::spawn_bound;
use gpool_protocol::{EventKind, LeaseState, LeaseView, Mechanism};
use std::process::Stdio;
use std::thread;

/// While the daemon of two containers is held up, a slice on the other GPU is granted, changed and given back. Then both
/// containers are under one daemon.
pub fn keep_nobody_else_waiting(host: &Host, program: &Unreliable) -> Result<()> {
    let run = |name: &'static str| move || host.try_run_container(name, &ASKS, &[], &["sleep", "1000"]);
    hold(&program.held)?;
    thread::scope(|scope| {
        let (one, two) = (scope.spawn(run("one")), scope.spawn(run("two")));
        let outcome = wait_for("a lease whose daemon starts", || Ok(!mps_leases(host)?.is_empty()))
            .and_then(|()| a_slice_comes_and_goes(host))
            .and_then(|()| ensure(!one.is_finished() && !two.is_finished(), || "a held daemon has started".to_owned()))
            .and_then(|()| wait_for("the second lease", || Ok(mps_leases(host)?.len() == 2)));
        release(&program.held)?;
        let (one, two) = (started(host, "one", one.join()), started(host, "two", two.join()));
        outcome?;
        let leases = [host.lease_of(&one?)?, host.lease_of(&two?)?];
        ensure(leases[0].gpu_uuid == leases[1].gpu_uuid, || format!("they are apart: {leases:?}"))
    })?;
    ensure(host.events_of(EventKind::MpsStarted)?.len() == 1, || "they are not under one daemon".to_owned())?;
    let granted = host.events_of(EventKind::LeaseGranted)?;
    ensure(granted.len() == 3, || format!("two containers and a slice were granted {granted:#?}"))?;
    remove(host, &["one", "two"])
}

fn a_slice_comes_and_goes(host: &Host) -> Result<()> {
    let mut command = host.command("gpool");
    command.args(["run", "--fraction", "0.3", "--memory", "1GiB", "--", "sleep", "1000"]).stdin(Stdio::null());
    let mut process = spawn_bound(&mut command).context("gpool run")?;
    let slice = || -> Result<Option<LeaseView>> {
        Ok(host.leases()?.into_iter().find(|lease| lease.mechanism == Mechanism::Slice))
    };
    wait_for("a slice beside it", || Ok(slice()?.is_some_and(|lease| lease.state == LeaseState::Active)))?;
    let id = slice()?.map(|lease| lease.lease_id.0).unwrap_or_default();
    let changed = host.gpool(&["update", &id, "--fraction", "0.2"])?;
    ensure(changed.status.success(), || format!("gpool update says {}", text(&changed.stderr)))?;
    process.kill().context("gpool run")?;
    process.wait().context("gpool run")?;
    wait_for("the end of the slice", || Ok(slice()?.is_none()))?;
    ensure(host.events_of(EventKind::MpsStarted)?.is_empty(), || "the daemon was not held".to_owned())
}

/// Both that wait for a daemon that does not start are refused with its words, and their places are free.
pub fn that_fail_leave_nothing(host: &Host, program: &Unreliable) -> Result<()> {
    let granted = host.events_of(EventKind::LeaseGranted)?.len();
    hold(&program.failing)?;
    for name in ["three", "four"] {
        let output = host.try_run_container(name, &ASKS, &[], &["sleep", "1000"])?;
        let said = text(&output.stderr);
        let is_told = said.contains("the MPS daemon does not start") && said.contains("no such luck");
        ensure(!output.status.success() && is_told, || format!("a daemon that fails: {said}"))?;
        host.engine.docker_text(&["rm", "-f", name])?;
    }
    release(&program.failing)?;
    ensure(mps_leases(host)?.is_empty(), || "a refused container has a lease".to_owned())?;
    let told = [host.events_of(EventKind::LeaseGranted)?.len(), host.events_of(EventKind::MpsStarted)?.len()];
    ensure(told == [granted, 1], || format!("what failed is told as granted or started: {told:?}"))?;
    // All of both GPUs is free again.
    let whole = [ASKS[0], ASKS[1], ("GPOOL_FRACTION", "1"), ("GPOOL_MEMORY", "20GiB")];
    host.run_container("five", &whole, &[], &["sleep", "1000"])?;
    let other = [ASKS[0], ("GPOOL_TEAM", "speech"), whole[2], whole[3]];
    host.run_container("six", &other, &[], &["sleep", "1000"])?;
    remove(host, &["five", "six"])
}

/// A daemon that starts for somebody who has gone is stopped, and the place is free.
pub fn of_nobody_are_undone(host: &Host, program: &Unreliable) -> Result<()> {
    hold(&program.held)?;
    let mut command = host.command("gpool");
    command.args(["run", "--fraction", "0.4", "--memory", "1GiB", "--key", "mode=mps", "--key", "team=vision"]);
    let mut process = spawn_bound(command.args(["--", "true"]).stdin(Stdio::null())).context("gpool run")?;
    let outcome = wait_for("a lease whose daemon starts", || Ok(!mps_leases(host)?.is_empty()));
    process.kill().context("gpool run")?;
    process.wait().context("gpool run")?;
    release(&program.held)?;
    outcome?;
    wait_for("the end of its lease", || Ok(mps_leases(host)?.is_empty()))?;
    remove(host, &[])
}
