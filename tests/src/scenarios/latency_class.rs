//! A latency tenant keeps its short answers beside two busy batch tenants, and they keep their shares.

use super::{finish, wait_until_running};
use crate::failure::{Result, ensure};
use crate::host::{Container, Host};
use crate::measure::worst_proportion_error_points;
use crate::meter::now_ns;
use crate::namespaces::Inside;
use crate::tenant::{Tenant, latencies_us};
use crate::trace::Recorder;
use std::time::Duration;

/// How long requests are measured alone and in company.
const WATCH: Duration = Duration::from_secs(8);
/// Requests come so often, and each has so many pieces of work.
const RATE: &str = "30";
const PIECES: &str = "6";

/// Measures one alone, then beside two others.
pub fn run(inside: &Inside) -> Result<()> {
    let host = Host::start(inside)?;
    let outcome = alone_and_in_company(&host);
    finish(host, outcome)
}

fn alone_and_in_company(host: &Host) -> Result<()> {
    let env = [("GPOOL_FRACTION", "0.2"), ("GPOOL_MEMORY", "2GiB"), ("GPOOL_CLASS", "latency")];
    let requests = ["--request-rate", RATE, "--request-pieces", PIECES];
    let tenant = Tenant { allocate_mib: Some(256), ..Tenant::greedy(500) };
    let service = tenant.run_with(host, "service", &env, &requests)?;
    wait_until_running(host, std::slice::from_ref(&service))?;
    let alone = median_us(host, &service)?;
    let start = |name, fraction, kernel_us| {
        Tenant::greedy(kernel_us).run(host, name, &[("GPOOL_FRACTION", fraction), ("GPOOL_MEMORY", "2GiB")])
    };
    let batch = [start("batch-a", "0.5", 300)?, start("batch-b", "0.3", 2000)?];
    wait_until_running(host, &batch)?;
    let recorder = Recorder::start(host.meter()?, Duration::from_millis(5));
    let from_ns = now_ns();
    let beside = median_us(host, &service)?;
    let (trace, to_ns) = (recorder.stop()?, now_ns());
    // The tail on a busy machine is the machine's; the benchmarks hold it.
    println!("    median of a request: {alone} us alone, {beside} us beside two batch tenants");
    ensure(beside <= 4 * alone + 4_000, || format!("requests take {beside} us instead of {alone} us"))?;
    let left = 1.0 - trace.share(&service.id, from_ns, to_ns) / trace.busy(from_ns, to_ns);
    let entitled = [(batch[0].id.as_str(), 0.625 * left), (batch[1].id.as_str(), 0.375 * left)];
    let error = worst_proportion_error_points(&trace, &entitled, from_ns, to_ns);
    ensure(error <= 5.0, || format!("the batch tenants' shares are off by {error:.2} points"))
}

/// The middle of the latencies of the requests that end from now on.
fn median_us(host: &Host, service: &Container) -> Result<u64> {
    let before = latencies_us(&service.log(&host.engine)?)?.len();
    std::thread::sleep(WATCH);
    let mut latencies = latencies_us(&service.log(&host.engine)?)?.split_off(before);
    latencies.sort_unstable();
    ensure(latencies.len() >= 50, || format!("only {} requests in {WATCH:?}", latencies.len()))?;
    Ok(latencies[latencies.len() / 2])
}
