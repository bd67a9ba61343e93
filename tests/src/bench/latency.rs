//! Requests of a latency tenant, alone and beside two batch tenants that always have work.

use super::containers::{Way, start};
use super::sheet::Sheet;
use crate::failure::{Result, ensure};
use crate::host::{Container, Host};
use crate::scenarios::wait_until_running;
use crate::tenant::{Tenant, latencies_us};
use std::thread::sleep;
use std::time::{Duration, Instant};

/// Requests of each kind in one round; three rounds hold the 300 that a 99th percentile needs.
const REQUESTS: usize = 105;
/// At 30 requests a second about as long as that many need.
const WATCH: Duration = Duration::from_millis(3500);
/// Between two looks at a log that holds too few.
const AGAIN: Duration = Duration::from_millis(200);
/// So many come in this time by any chance.
const PATIENCE: Duration = Duration::from_secs(20);
/// After containers have started, until the scheduler knows them.
const SETTLE: Duration = Duration::from_secs(1);
/// The same where nobody has to learn anything.
const SETTLE_PLAIN: Duration = Duration::from_millis(300);
const PERMILLE: u16 = 1000;
const ALLOCATE_MIB: u64 = 256;

/// Poisson with 30 requests a second, each with 6 kernels of 0.5 ms.
const OPTIONS: [&str; 4] = ["--request-rate", "30", "--request-pieces", "6"];
const KERNEL_US: u64 = 500;

/// Name, share and kernel length in microseconds.
const BATCH: [(&str, &str, u64); 2] = [("batch-a", "0.5", 300), ("batch-b", "0.3", 2000)];

/// Latencies of requests in milliseconds.
struct Latencies {
    alone_ms: Vec<f64>,
    beside_ms: Vec<f64>,
}

/// Adds one round.
pub fn measure(host: &Host, sheet: &mut Sheet) -> Result<()> {
    let plain = alone_and_beside(host, Way::Plain)?;
    super::wait_for_room(host, PERMILLE)?;
    let leased = alone_and_beside(host, Way::Leased)?;
    sheet.add("latency.p99_alone", &leased.alone_ms, &plain.alone_ms)?;
    for name in ["latency.p99_beside", "latency.p50_beside_batch"] {
        sheet.add(name, &leased.beside_ms, &plain.beside_ms)?;
    }
    Ok(())
}

fn alone_and_beside(host: &Host, way: Way) -> Result<Latencies> {
    let settle = if way == Way::Leased { SETTLE } else { SETTLE_PLAIN };
    let request = [("GPOOL_FRACTION", "0.2"), ("GPOOL_MEMORY", "1GiB"), ("GPOOL_CLASS", "latency")];
    let service = start(host, way, "service", &tenant(KERNEL_US), &request, &OPTIONS)?;
    wait_until_running(host, std::slice::from_ref(&service))?;
    sleep(settle);
    let alone_ms = watch(host, &service)?;
    let start_batch = |(name, fraction, kernel_us): (&str, &str, u64)| {
        let request = [("GPOOL_FRACTION", fraction), ("GPOOL_MEMORY", "1GiB")];
        start(host, way, name, &tenant(kernel_us), &request, &[])
    };
    let batch = [start_batch(BATCH[0])?, start_batch(BATCH[1])?];
    wait_until_running(host, &batch)?;
    sleep(settle);
    let beside_ms = watch(host, &service)?;
    host.engine.remove_all_containers()?;
    Ok(Latencies { alone_ms, beside_ms })
}

fn tenant(kernel_us: u64) -> Tenant<'static> {
    Tenant { allocate_mib: Some(ALLOCATE_MIB), ..Tenant::greedy(kernel_us) }
}

/// The latencies of the requests that end from now on: at least [`REQUESTS`].
fn watch(host: &Host, service: &Container) -> Result<Vec<f64>> {
    let before = latencies_us(&service.log(&host.engine)?)?.len();
    let deadline = Instant::now() + PATIENCE;
    sleep(WATCH);
    loop {
        let since_ms = ended_after(before, &service.log(&host.engine)?)?;
        if since_ms.len() >= REQUESTS {
            return Ok(since_ms);
        }
        ensure(Instant::now() < deadline, || format!("only {} requests ended within {PATIENCE:?}", since_ms.len()))?;
        // Seldom: reading a log takes the tenants' CPU time.
        sleep(AGAIN);
    }
}

/// Milliseconds of all requests in the log but the first so many.
fn ended_after(before: usize, log: &str) -> Result<Vec<f64>> {
    Ok(latencies_us(log)?.into_iter().skip(before).map(|us| us as f64 / 1e3).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn earlier_requests_are_left_out() {
        let request = |us: u64| format!("{{\"event\":\"request\",\"gpu\":0,\"latency_us\":{us}}}\n");
        let log = [3100, 2900, 4500].map(request).concat();
        assert_eq!(ended_after(1, &log), Ok(vec![2.9, 4.5]));
        assert_eq!(ended_after(3, &log), Ok(vec![]));
    }
}
