//! Seven tenants of 5 to 40 % on one GPU.

use super::{finish, start_tenants, wait_until_running};
use crate::failure::{Result, ensure};
use crate::host::Host;
use crate::measure::worst_proportion_error_points;
use crate::meter::now_ns;
use crate::namespaces::Inside;
use crate::trace::Recorder;
use std::time::Duration;

/// Name, share, memory and kernel length in microseconds.
pub(crate) const TENANTS: [(&str, &str, &str, u64); 7] = [
    ("t1", "0.4", "1GiB", 500),
    ("t2", "0.15", "1GiB", 300),
    ("t3", "0.1", "1GiB", 1000),
    ("t4", "0.1", "1GiB", 2000),
    ("t5", "0.1", "1GiB", 700),
    ("t6", "0.1", "1GiB", 3000),
    ("t7", "0.05", "1GiB", 500),
];

/// Runs them for ten seconds.
pub fn run(inside: &Inside) -> Result<()> {
    let host = Host::start(inside)?;
    let outcome = watch(&host);
    finish(host, outcome)
}

fn watch(host: &Host) -> Result<()> {
    let containers = start_tenants(host, &TENANTS)?;
    wait_until_running(host, &containers)?;
    std::thread::sleep(Duration::from_secs(1));
    let recorder = Recorder::start(host.meter()?, Duration::from_millis(5));
    let from_ns = now_ns();
    std::thread::sleep(Duration::from_secs(10));
    let (trace, to_ns) = (recorder.stop()?, now_ns());
    let shares: Vec<f64> = TENANTS.iter().map(|(_, fraction, ..)| fraction.parse().unwrap_or(0.0)).collect();
    let entitled: Vec<_> = containers.iter().map(|container| container.id.as_str()).zip(shares).collect();
    let error = worst_proportion_error_points(&trace, &entitled, from_ns, to_ns);
    ensure(error <= 5.0, || format!("the shares of seven are off by {error:.2} points"))?;
    let busy = trace.busy(from_ns, to_ns);
    ensure(busy >= 0.75, || format!("with seven tenants at work the GPU is busy for {busy:.3} of the time"))
}
