//! A container that is frozen, wherever in its slice it is, does not keep the GPU from its neighbour.

use super::{finish, start_tenants, wait_until_running};
use crate::failure::{Result, ensure};
use crate::host::Host;
use crate::measure;
use crate::meter::now_ns;
use crate::namespaces::Inside;
use crate::trace::Recorder;
use std::time::Duration;

/// Freezes one of two again and again.
pub fn run(inside: &Inside) -> Result<()> {
    let host = Host::start(inside)?;
    let outcome = freeze_one(&host);
    finish(host, outcome)
}

fn freeze_one(host: &Host) -> Result<()> {
    let containers = start_tenants(host, &[("frozen", "0.7", "2GiB", 700), ("neighbour", "0.3", "2GiB", 1500)])?;
    wait_until_running(host, &containers)?;
    let recorder = Recorder::start(host.meter()?, Duration::from_millis(2));
    let (mut frozen, mut thawed) = (Vec::new(), Vec::new());
    for round in 0..6 {
        host.engine.docker_text(&["pause", "frozen"])?;
        let from_ns = now_ns();
        std::thread::sleep(Duration::from_millis(400 + 13 * round));
        frozen.push((from_ns + 100_000_000, now_ns()));
        host.engine.docker_text(&["unpause", "frozen"])?;
        let from_ns = now_ns();
        std::thread::sleep(Duration::from_millis(600));
        thawed.push((from_ns + 200_000_000, now_ns()));
    }
    let trace = recorder.stop()?;
    let alone = |(from_ns, to_ns): &(u64, u64)| trace.share(&containers[1].id, *from_ns, *to_ns);
    let shares: Vec<f64> = frozen.iter().map(alone).collect();
    let (least, mean) = measure::least_and_mean(&shares);
    ensure(least >= 0.25 && mean >= 0.7, || {
        format!("beside a frozen tenant the neighbour got {shares:.2?} of the GPU")
    })?;
    let back: Vec<f64> =
        thawed.iter().map(|(from_ns, to_ns)| trace.share(&containers[0].id, *from_ns, *to_ns)).collect();
    let (least, mean) = measure::least_and_mean(&back);
    ensure(least >= 0.25 && (0.5..=0.9).contains(&mean), || format!("thawed it got {back:.2?} instead of 0.7"))
}
