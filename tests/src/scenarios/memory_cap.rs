//! A tenant that asks for four times its cap gets its cap and no byte more, whichever of the driver's allocators it
//! asks; killed with SIGKILL in between, it leaves nothing. Of programs that take most of it one after the other none is refused for
//! what the one before held.

use super::finish;
use crate::failure::{Failure, Result, ensure};
use crate::host::{Container, Host};
use crate::meter::{MeterReader, usage_of};
use crate::namespaces::Inside;
use crate::tenant::{Tenant, report_of};
use std::time::{Duration, Instant};

const ALLOCATORS: [&str; 10] =
    ["alloc", "create", "async", "pool", "graph", "array", "module", "library", "mix", "refill"];
const GIB: u64 = 1 << 30;
const CAP_BYTES: u64 = 8 * GIB;
/// What a context takes that NVML lists for no process: as much as on an H200.
const UNLISTED: &str = "9024KiB";
const PATIENCE: Duration = Duration::from_secs(10);

/// Runs a tenant for each allocator, one after the other.
pub fn run(inside: &Inside) -> Result<()> {
    let host = Host::start_with_gpu(inside, &["--unlisted-memory", UNLISTED])?;
    let outcome = ALLOCATORS.iter().try_for_each(|allocator| fill(&host, allocator));
    let outcome = outcome.and_then(|()| one_after_the_other(&host));
    finish(host, outcome)
}

/// The shell starts each as soon as the one before has ended, of which the supervisor may not know yet.
fn one_after_the_other(host: &Host) -> Result<()> {
    let env = [("GPOOL_FRACTION", "0.8"), ("GPOOL_MEMORY", "8GiB")];
    let container = host.run_container("turns", &env, &[], &["sleep", "1000"])?;
    let turns = "for turn in 1 2 3 4 5 6; do gpool-tenant --allocate-mib 6144 --chunk-mib 6144 --seconds 1; done";
    host.engine.docker_text(&["exec", "turns", "sh", "-c", turns])?;
    let lease = host.lease_of(&container)?;
    ensure(lease.allocations_refused == 0 && lease.launches > 0, || format!("one after the other: {lease:?}"))?;
    host.docker(&["rm", "-f", &container.id]).map(drop)
}

fn fill(host: &Host, allocator: &str) -> Result<()> {
    let reader = host.meter()?;
    let env = [("GPOOL_FRACTION", "0.8"), ("GPOOL_MEMORY", "8GiB")];
    let tenant = Tenant { allocate_mib: Some(32 << 10), ..Tenant::greedy(500) };
    // It asks again and again, every millisecond.
    let more = ["--allocator", allocator, "--chunk-mib", "1024", "--retry-allocation-ms", "1"];
    let container = tenant.run_with(host, &format!("by-{allocator}"), &env, &more)?;
    let allocated = report_of(host, &container)?.allocated_bytes;
    // Asked some hundred times more, and with work in between that a pool may give back at.
    std::thread::sleep(Duration::from_millis(500));
    let usage = usage_of(&reader.read()?, &container.id);
    let context = usage.bytes_now - allocated;
    ensure(allocated == (CAP_BYTES - context) / GIB * GIB, || {
        format!("{allocator}: {allocated} bytes of a cap of {CAP_BYTES}, with {context} bytes of context")
    })?;
    ensure(usage.bytes_peak <= CAP_BYTES, || format!("{allocator}: held {} bytes", usage.bytes_peak))?;
    account_agrees(host, &container, allocator, usage.bytes_now)?;
    refusal_is_told(host, &container, allocator)?;
    container.kill_init()?;
    nothing_is_held(&reader, &container, allocator)?;
    host.docker(&["rm", "-f", &container.id])?;
    // Its place is kept for a moment, in which there is no room for the next.
    let deadline = Instant::now() + PATIENCE;
    while !host.leases()?.is_empty() {
        ensure(Instant::now() < deadline, || format!("{allocator}: the lease stays"))?;
        std::thread::sleep(Duration::from_millis(50));
    }
    Ok(())
}

/// The supervisor says what the device says, once it has learnt what a context costs.
fn account_agrees(host: &Host, container: &Container, allocator: &str, held: u64) -> Result<()> {
    let deadline = Instant::now() + PATIENCE;
    loop {
        let said = host.lease_of(container)?.memory_used_bytes;
        if said == held {
            return Ok(());
        }
        let differ = || format!("{allocator}: the supervisor says {said} bytes, the device {held}");
        ensure(Instant::now() < deadline, differ)?;
        std::thread::sleep(Duration::from_millis(50));
    }
}

/// An event names the process and the call that was refused.
fn refusal_is_told(host: &Host, container: &Container, allocator: &str) -> Result<()> {
    let call = match allocator {
        "create" => "cuMemCreate",
        "async" => "cuMemAllocAsync",
        "pool" => "cuMemAllocFromPoolAsync",
        "graph" => "cuGraphLaunch",
        "array" => "cuArrayCreate",
        "module" => "cuModuleLoad",
        "library" => "cuLibraryLoad",
        "mix" => "",
        _ => "cuMemAlloc",
    };
    let (by, process) = (format!(" by {call}"), format!("process {} (gpool-tenant)", container.init_pid));
    let deadline = Instant::now() + PATIENCE;
    loop {
        let told = host.gpool(&["events"])?.stdout;
        let told = String::from_utf8_lossy(&told).into_owned();
        let mut refusals = told.lines().filter(|line| line.contains("refused") && line.contains(&process));
        if refusals.any(|line| line.contains(&by) && line.contains(" were free; of a cap of 8GiB hold ")) {
            return Ok(());
        }
        ensure(Instant::now() < deadline, || format!("{allocator}: no event names{by} of {process}: {told}"))?;
        std::thread::sleep(Duration::from_millis(100));
    }
}

fn nothing_is_held(reader: &MeterReader, container: &Container, allocator: &str) -> Result<()> {
    let deadline = Instant::now() + PATIENCE;
    while usage_of(&reader.read()?, &container.id).bytes_now > 0 {
        if Instant::now() > deadline {
            return Err(Failure::new(format!("{allocator}: memory stays after SIGKILL")));
        }
        std::thread::sleep(Duration::from_millis(20));
    }
    Ok(())
}
