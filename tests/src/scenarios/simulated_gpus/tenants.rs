//! The tenant program in its several ways, on two GPUs.

use super::{GPU, PATIENCE, meter};
use crate::failure::{Context, Failure, Result, ensure};
use crate::namespaces::spawn_bound;
use crate::stage::Stage;
use crate::tenant::latencies_us;
use gpool_device_model::Meter;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

const KERNEL_NS: u64 = 500_000;

/// Runs a tenant for a second after another, and kills one.
pub(super) fn run(stage: &Stage) -> Result<()> {
    let second_only = grown(|| tenant(stage, &[], Some("1")).map(drop))?;
    ensure(second_only[0] == 0 && second_only[1] > 0, || format!("CUDA_VISIBLE_DEVICES=1 used {second_only:?} ns"))?;
    let both = grown(|| tenant(stage, &["--all-gpus"], Some("1,0")).map(drop))?;
    ensure(both.iter().all(|busy_ns| *busy_ns > 0), || format!("--all-gpus used {both:?} ns"))?;
    let graphs = grown(|| tenant(stage, &["--graph", "20"], Some("0")).map(drop))?;
    let is_whole = graphs[0] > 0 && graphs[0] % (20 * KERNEL_NS) == 0;
    ensure(is_whole, || format!("graphs of 20 kernels used {graphs:?} ns"))?;
    let log = tenant(stage, &["--request-rate", "40", "--request-pieces", "4", "--contexts", "2"], Some("0"))?;
    let latencies = latencies_us(&log)?;
    let are_possible = !latencies.is_empty() && latencies.iter().all(|latency| latency * 1000 >= 4 * KERNEL_NS);
    ensure(are_possible, || format!("requests of 2 ms took {latencies:?} us"))?;
    killed(stage)
}

/// By how much each device's busy time grows while `work` runs.
fn grown(work: impl FnOnce() -> Result<()>) -> Result<[u64; 2]> {
    let busy_ns = || Ok::<_, Failure>([meter(0)?.busy_ns, meter(1)?.busy_ns]);
    let before = busy_ns()?;
    work()?;
    let after = busy_ns()?;
    Ok([after[0] - before[0], after[1] - before[1]])
}

fn command(stage: &Stage, more: &[&str], visible: Option<&str>) -> Command {
    let mut command = Command::new(stage.program("gpool-tenant"));
    command.args(["--allocate-mib", "64", "--kernel-us", "500"]).args(more);
    command.env("LD_LIBRARY_PATH", format!("{GPU}/lib"));
    if let Some(visible) = visible {
        command.env("CUDA_VISIBLE_DEVICES", visible);
    }
    command
}

/// Runs one for a second and returns what it said.
fn tenant(stage: &Stage, more: &[&str], visible: Option<&str>) -> Result<String> {
    let output = command(stage, more, visible).args(["--seconds", "1"]).output().context("the tenant")?;
    let said = String::from_utf8_lossy(&output.stdout).into_owned();
    ensure(output.status.success(), || format!("gpool-tenant {more:?} ended with {}: {said}", output.status))?;
    Ok(said)
}

/// What a killed one held is free again on both devices.
fn killed(stage: &Stage) -> Result<()> {
    let held = || Ok::<_, Failure>([held_bytes(&meter(0)?), held_bytes(&meter(1)?)]);
    let mut process = spawn_bound(command(stage, &["--all-gpus"], None).stdout(Stdio::null())).context("the tenant")?;
    let holds = until(|| Ok(held()?.iter().all(|bytes| *bytes > 0)));
    process.kill().and_then(|()| process.wait()).context("kill the tenant")?;
    ensure(holds?, || "a tenant with --all-gpus does not hold memory on both devices".to_owned())?;
    let is_free = until(|| Ok(held()? == [0, 0]))?;
    ensure(is_free, || "what a killed tenant held is not free".to_owned())
}

fn held_bytes(meter: &Meter) -> u64 {
    meter.owners.values().map(|usage| usage.bytes_now).sum()
}

fn until(holds: impl Fn() -> Result<bool>) -> Result<bool> {
    let deadline = Instant::now() + PATIENCE;
    while !holds()? {
        if Instant::now() > deadline {
            return Ok(false);
        }
        std::thread::sleep(Duration::from_millis(10));
    }
    Ok(true)
}
