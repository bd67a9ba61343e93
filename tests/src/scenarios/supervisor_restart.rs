//! The supervisor killed with SIGKILL and started again while containers run: no lease lost, none doubled, no error in
//! a tenant, and the shares hold afterwards.

use super::{finish, start_tenants, wait_until_running};
use crate::failure::{Result, ensure};
use crate::host::{Container, Host};
use crate::measure;
use crate::meter::{now_ns, usage_of};
use crate::namespaces::Inside;
use crate::tenant::report;
use crate::trace::{Recorder, Trace};
use std::time::Duration;

/// No tenant may wait longer at a closed gate: two seconds until the heartbeat is stale, and what a busy machine adds.
const LONGEST_WAIT: Duration = Duration::from_millis(3500);

/// Runs two containers across a restart.
pub fn run(inside: &Inside) -> Result<()> {
    let mut host = Host::start(inside)?;
    let outcome = across_a_restart(&mut host);
    finish(host, outcome)
}

fn across_a_restart(host: &mut Host) -> Result<()> {
    let containers = start_tenants(host, &[("small", "0.3", "4GiB", 300), ("large", "0.7", "10GiB", 2000)])?;
    wait_until_running(host, &containers)?;
    let before = host.leases()?;
    let recorder = Recorder::start(host.meter()?, Duration::from_millis(5));
    host.kill_supervisor()?;
    // Longer than the heartbeat may be stale: tenants are at closed gates meanwhile.
    std::thread::sleep(Duration::from_secs(4));
    host.start_supervisor()?;
    let back = now_ns() + 1_000_000_000;
    std::thread::sleep(Duration::from_secs(6));
    let end = now_ns();
    let trace = recorder.stop()?;
    let ids = |leases: &[gpool_protocol::LeaseView]| {
        let mut ids: Vec<_> = leases.iter().map(|lease| (lease.lease_id.clone(), lease.container_id.clone())).collect();
        ids.sort();
        ids
    };
    let after = host.leases()?;
    ensure(ids(&before) == ids(&after), || format!("leases before: {before:?}\nafter: {after:?}"))?;
    for container in &containers {
        ensure(container.is_alive(), || format!("{} ended", container.name))?;
        report(&container.log(&host.engine)?)?;
        let wait = longest_silence(&trace, container);
        ensure(wait <= LONGEST_WAIT, || format!("{} ran nothing for {wait:?}", container.name))?;
    }
    let busy = trace.busy(back, end);
    ensure(busy >= 0.75, || format!("after the restart the GPU is busy for {busy:.3} of the time"))?;
    let entitled = [(containers[0].id.as_str(), 0.3), (containers[1].id.as_str(), 0.7)];
    let error = measure::worst_proportion_error_points(&trace, &entitled, back, end);
    ensure(error <= 5.0, || {
        let shares = entitled.map(|(id, _)| trace.share(id, back, end));
        format!("shares after the restart are {shares:.3?}, off by {error:.2} points")
    })
}

/// The longest time between two readings in which the container got nothing.
fn longest_silence(trace: &Trace, container: &Container) -> Duration {
    let (mut last_ns, mut busy_ns, mut longest_ns) = (None, 0, 0);
    for meter in trace.readings() {
        let now = usage_of(meter, &container.id).busy_ns;
        if now > busy_ns || last_ns.is_none() {
            longest_ns = longest_ns.max(last_ns.map_or(0, |last: u64| meter.now_ns - last));
            (last_ns, busy_ns) = (Some(meter.now_ns), now);
        }
    }
    let end_ns = trace.readings().last().map_or(0, |meter| meter.now_ns - last_ns.unwrap_or(meter.now_ns));
    Duration::from_nanos(longest_ns.max(end_ns))
}
