//! Two processes in one container, the second through `docker exec`: one slice and one memory cap for both.

use super::{finish, start_tenants, wait_until_running};
use crate::failure::{Result, ensure};
use crate::host::Host;
use crate::measure;
use crate::meter::{now_ns, usage_of};
use crate::namespaces::Inside;
use crate::trace::Recorder;
use std::time::Duration;

/// Runs a container with two processes beside one with one.
pub fn run(inside: &Inside) -> Result<()> {
    let host = Host::start(inside)?;
    let outcome = two_beside_one(&host);
    finish(host, outcome)
}

fn two_beside_one(host: &Host) -> Result<()> {
    let containers = start_tenants(host, &[("twofold", "0.4", "4GiB", 500), ("single", "0.6", "4GiB", 1000)])?;
    wait_until_running(host, &containers)?;
    let [twofold, single] = [&containers[0], &containers[1]];
    let command = ["exec", "-d", "twofold", "gpool-tenant", "--kernel-us", "700", "--chunk-mib", "16"];
    host.engine.docker_text(&command)?;
    std::thread::sleep(Duration::from_secs(1));
    let processes = host.lease_of(twofold)?.processes;
    ensure(processes == 2, || format!("the lease knows {processes} processes of the two"))?;
    let recorder = Recorder::start(host.meter()?, Duration::from_millis(5));
    let start = now_ns();
    std::thread::sleep(Duration::from_secs(6));
    let trace = recorder.stop()?;
    let error = measure::worst_error_points(&trace, &[(&twofold.id, 0.4), (&single.id, 0.6)], start, now_ns());
    ensure(error <= 1.5, || format!("two processes in one container shift the shares by {error:.2} points"))?;
    let peak = usage_of(&host.meter()?.read()?, &twofold.id).bytes_peak;
    ensure(peak <= 4 << 30, || format!("both together held {peak} bytes of a cap of 4 GiB"))
}
