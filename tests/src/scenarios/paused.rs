//! A container that is paused gets nothing of the GPU, also while no supervisor is there and after one was started again,
//! while the others have all of it; resumed, it has its share again.

use super::{finish, start_tenants, wait_for, wait_until_running};
use crate::failure::{Result, ensure};
use crate::host::{Container, Host, succeeded};
use crate::namespaces::Inside;
use crate::trace::Recorder;
use gpool_protocol::LeaseState;
use gpool_shared_region::HEARTBEAT_STALE_NS;
use std::time::Duration;

/// How long is watched before and after.
const WATCH: Duration = Duration::from_secs(3);

/// Pauses, restarts the supervisor and resumes.
pub fn run(inside: &Inside) -> Result<()> {
    let mut host = Host::start(inside)?;
    let outcome = pause_and_resume(&mut host);
    finish(host, outcome)
}

fn pause_and_resume(host: &mut Host) -> Result<()> {
    let containers = start_tenants(host, &[("paused", "0.6", "2GiB", 500), ("other", "0.4", "2GiB", 500)])?;
    wait_until_running(host, &containers)?;
    let [paused, other] = containers.as_slice() else { unreachable!("two were started") };
    succeeded("gpool pause", host.gpool(&["pause", &paused.id])?)?;
    watch(host, paused, other, "paused", 0.0)?;
    host.kill_supervisor()?;
    // Longer than the heartbeat is believed: the others go on by themselves.
    std::thread::sleep(Duration::from_nanos(HEARTBEAT_STALE_NS));
    watch(host, paused, other, "paused, without a supervisor", 0.0)?;
    host.start_supervisor()?;
    ensure(host.lease_of(paused)?.paused, || "the restarted supervisor takes a paused lease for a running one".into())?;
    let explained = succeeded("gpool explain", host.gpool(&["explain", &paused.id])?)?;
    ensure(explained.contains("paused"), || format!("gpool explain says nothing of the pause: {explained}"))?;
    watch(host, paused, other, "paused, after a restart of the supervisor", 0.0)?;
    succeeded("gpool resume", host.gpool(&["resume", "--all", "--timeout", "20s"])?)?;
    watch(host, paused, other, "resumed", 0.6)?;
    // A place that is kept of one that has ended, or whose GPUs were taken, is nothing that could go on.
    succeeded("gpool pause", host.gpool(&["pause", &paused.id, &other.id])?)?;
    paused.kill_init()?;
    let is_kept = || Ok(host.leases()?.iter().any(|lease| lease.state == LeaseState::Held));
    wait_for("the place of the ended one to be kept", is_kept)?;
    let resumed = succeeded("gpool resume", host.gpool(&["resume", "--all", "--timeout", "20s"])?)?;
    ensure(resumed.trim() == other.id, || format!("of all that were paused {resumed} was resumed"))
}

/// Watches who gets what: `entitled` of it is for the container that is or was paused.
fn watch(host: &Host, paused: &Container, other: &Container, when: &str, entitled: f64) -> Result<()> {
    std::thread::sleep(Duration::from_millis(500));
    let (trace, from_ns, to_ns) = Recorder::watch(host.meter()?, Duration::from_millis(5), WATCH)?;
    let busy = trace.busy(from_ns, to_ns);
    let share = trace.share(&paused.id, from_ns, to_ns);
    let off = (share / busy - entitled).abs();
    ensure(busy >= 0.6, || format!("{when}: the GPU was busy for {busy:.3} of the time"))?;
    ensure(if entitled == 0.0 { share == 0.0 } else { off <= 0.1 }, || {
        format!(
            "{when}: it got {share:.3} of the GPU and {} got {:.3}",
            other.name,
            trace.share(&other.id, from_ns, to_ns)
        )
    })
}
