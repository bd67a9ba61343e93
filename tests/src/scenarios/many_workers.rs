//! A container with eight worker processes has one slice at a time, not eight: a service beside it waits no longer than beside one with a
//! single process. And a worker that is stopped while it stands at the gate keeps nobody's turn.

use super::{finish, wait_for, wait_until_running};
use crate::failure::{Context, Result, ensure};
use crate::host::{Container, Host};
use crate::meter::{now_ns, usage_of};
use crate::namespaces::Inside;
use crate::tenant::{Tenant, latencies_us};
use std::time::Duration;

/// How long requests are measured beside one process and beside eight.
const WATCH: Duration = Duration::from_secs(6);
/// Kernels of the workers: most of a slice, so that each process has room for one of its own.
const KERNEL_US: u64 = 10_000;
const WORKERS: u32 = 8;

/// Measures a service beside them.
pub fn run(inside: &Inside) -> Result<()> {
    let host = Host::start(inside)?;
    let outcome = one_and_eight(&host);
    finish(host, outcome)
}

fn one_and_eight(host: &Host) -> Result<()> {
    let env = [("GPOOL_FRACTION", "0.3"), ("GPOOL_MEMORY", "2GiB")];
    let requests = ["--request-rate", "15", "--request-pieces", "2"];
    let modest = |kernel_us| Tenant { allocate_mib: Some(64), ..Tenant::greedy(kernel_us) };
    let service = modest(500).run_with(host, "service", &env, &requests)?;
    let env = [("GPOOL_FRACTION", "0.6"), ("GPOOL_MEMORY", "12GiB")];
    let workers = modest(KERNEL_US).run(host, "workers", &env)?;
    wait_until_running(host, &[service.clone(), workers.clone()])?;
    let beside_one = slow_us(host, &service)?;
    let kernel_us = KERNEL_US.to_string();
    let worker = ["exec", "-d", "workers", "gpool-tenant", "--kernel-us", &kernel_us, "--allocate-mib", "64"];
    for _ in 1..WORKERS {
        host.engine.docker_text(&worker)?;
    }
    wait_for("the lease to know all workers", || Ok(host.lease_of(&workers)?.processes == WORKERS))?;
    let (beside_eight, busy) = slow_us_and_busy(host, &service, &workers)?;
    println!(
        "    nine of ten requests within {beside_one} us beside one worker, {beside_eight} us beside {WORKERS}, which have {:.0} % of the GPU",
        100.0 * busy
    );
    ensure(busy >= 0.75, || format!("while they wait for each other they have {busy:.2} of the GPU"))?;
    ensure(beside_eight <= 2 * beside_one + 10_000, || {
        format!("requests take {beside_eight} us beside {WORKERS} workers, and {beside_one} us beside one")
    })?;
    who_is_stopped_keeps_nobodys_turn(host, &service, &workers)
}

/// All but one of them are stopped, wherever they are, and what they had issued ends.
fn who_is_stopped_keeps_nobodys_turn(host: &Host, service: &Container, workers: &Container) -> Result<()> {
    let pids = host.engine.docker_text(&["exec", "workers", "pidof", "gpool-tenant"])?;
    let others: Vec<&str> = pids.split_whitespace().filter(|pid| *pid != "1").collect();
    ensure(others.len() == WORKERS as usize - 1, || format!("the workers are {pids}"))?;
    let script = format!("kill -STOP {}", others.join(" "));
    host.engine.docker_text(&["exec", "workers", "sh", "-c", &script]).context("stopping workers")?;
    let (beside_stopped, busy) = slow_us_and_busy(host, service, workers)?;
    println!("    {beside_stopped} us beside stopped ones; the one that goes on has {:.0} % of the GPU", 100.0 * busy);
    // It has what the service leaves, which is all but a twentieth.
    ensure(busy >= 0.75, || format!("the worker that goes on has {busy:.2} of the GPU"))
}

/// [`slow_us`], and what part of the GPU the workers have meanwhile.
fn slow_us_and_busy(host: &Host, service: &Container, workers: &Container) -> Result<(u64, f64)> {
    let reader = host.meter()?;
    let busy_ns = || -> Result<u64> { Ok(usage_of(&reader.read()?, &workers.id).busy_ns) };
    let (from_ns, busy_before) = (now_ns(), busy_ns()?);
    let slow_us = slow_us(host, service)?;
    Ok((slow_us, (busy_ns()? - busy_before) as f64 / (now_ns() - from_ns) as f64))
}

/// What nine of ten requests take at most that end from now on.
fn slow_us(host: &Host, service: &Container) -> Result<u64> {
    let before = latencies_us(&service.log(&host.engine)?)?.len();
    std::thread::sleep(WATCH);
    let mut latencies = latencies_us(&service.log(&host.engine)?)?.split_off(before);
    latencies.sort_unstable();
    ensure(latencies.len() >= 40, || format!("only {} requests in {WATCH:?}", latencies.len()))?;
    Ok(latencies[latencies.len() * 9 / 10])
}
