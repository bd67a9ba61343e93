//! Copies of rows and between contexts are work like kernels: who does nothing else stands at the gate, and what passed
//! it is counted.

use super::{finish, wait_until_running};
use crate::failure::{Result, ensure};
use crate::host::{Container, Host, succeeded};
use crate::meter::usage_of;
use crate::namespaces::Inside;
use crate::tenant::Tenant;
use std::time::Duration;

/// How long is watched before, in and after the pause.
const WATCH: Duration = Duration::from_millis(1500);
/// From a pause until what was issued before has run.
const SETTLE: Duration = Duration::from_millis(500);
/// Of each copy. Long enough to be gated, and short: the simulated GPU moves the bytes on the CPU.
const COPY_MIB: &str = "1";

/// Runs a container that only copies, pauses and resumes it.
pub fn run(inside: &Inside) -> Result<()> {
    let host = Host::start(inside)?;
    let outcome = pause_and_resume(&host);
    finish(host, outcome)
}

fn pause_and_resume(host: &Host) -> Result<()> {
    let env = [("GPOOL_FRACTION", "0.5"), ("GPOOL_MEMORY", "2GiB")];
    let tenant = Tenant { allocate_mib: Some(64), ..Tenant::greedy(100) };
    let copier = tenant.run_with(host, "copier", &env, &["--only-copies", "--copy-mib", COPY_MIB])?;
    wait_until_running(host, std::slice::from_ref(&copier))?;
    let before = executed(host, &copier)?;
    ensure(before > 0, || "it copied nothing while its gate was open".to_owned())?;
    succeeded("gpool pause", host.gpool(&["pause", &copier.id])?)?;
    std::thread::sleep(SETTLE);
    let paused = executed(host, &copier)?;
    ensure(paused == 0, || format!("{paused} copies passed a closed gate, {before} in the same time an open one"))?;
    let busy_ns = usage_of(&host.meter()?.read()?, &copier.id).busy_ns;
    let charged_ns = host.lease_of(&copier)?.charged_gpu_ns;
    ensure(charged_ns >= busy_ns / 2, || {
        format!("its copies took {busy_ns} ns of the GPU and {charged_ns} ns were charged")
    })?;
    succeeded("gpool resume", host.gpool(&["resume", &copier.id])?)?;
    std::thread::sleep(SETTLE);
    let after = executed(host, &copier)?;
    ensure(after > 0, || "it copied nothing after it was resumed".to_owned())
}

/// Pieces of work of the container that the device executed while it was watched.
fn executed(host: &Host, container: &Container) -> Result<u64> {
    let meter = host.meter()?;
    let before = usage_of(&meter.read()?, &container.id).kernels;
    std::thread::sleep(WATCH);
    Ok(usage_of(&meter.read()?, &container.id).kernels - before)
}
