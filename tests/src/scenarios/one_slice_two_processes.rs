//! Two processes in one container, the second through `docker exec` and with two threads: one slice and one memory cap
//! for all, NVML in the container shows these two and nobody else, and `gpool ps` says what each of them holds.

use super::{finish, wait_for, wait_until_running};
use crate::failure::{Context, Result, ensure};
use crate::host::{Container, Host};
use crate::measure;
use crate::meter::{now_ns, usage_of};
use crate::namespaces::Inside;
use crate::tenant::{Tenant, monitored};
use crate::trace::Recorder;
use gpool_shared_region::ROSTER_OFFSET;
use serde_json::Value;
use std::collections::BTreeMap;
use std::fs::File;
use std::os::unix::fs::FileExt;
use std::time::Duration;

/// Runs a container with two processes beside one with one.
pub fn run(inside: &Inside) -> Result<()> {
    let host = Host::start(inside)?;
    let outcome = two_beside_one(&host);
    finish(host, outcome)
}

fn two_beside_one(host: &Host) -> Result<()> {
    // The first process leaves room below the cap for the context of the second, which then takes all the rest.
    let modest = Tenant { allocate_mib: Some(1024), ..Tenant::greedy(500) };
    let twofold = &modest.run(host, "twofold", &[("GPOOL_FRACTION", "0.4"), ("GPOOL_MEMORY", "4GiB")])?;
    let single = &Tenant::greedy(1000).run(host, "single", &[("GPOOL_FRACTION", "0.6"), ("GPOOL_MEMORY", "4GiB")])?;
    wait_until_running(host, &[twofold.clone(), single.clone()])?;
    let tenant = ["gpool-tenant", "--kernel-us", "700", "--chunk-mib", "16", "--threads", "2"];
    let command = [&["exec", "-d", "twofold"][..], &tenant].concat();
    host.engine.docker_text(&command)?;
    wait_for("the lease to know both processes", || Ok(host.lease_of(twofold)?.processes == 2))?;
    who_looks_around_takes_no_place(host, twofold)?;
    check_what_nvml_shows(host, "--monitor")?;
    check_what_nvml_shows(host, "--monitor-by-crate").context("by nvml-wrapper")?;
    each_is_listed_with_what_it_holds(host, twofold)?;
    let recorder = Recorder::start(host.meter()?, Duration::from_millis(5));
    let start = now_ns();
    std::thread::sleep(Duration::from_secs(6));
    let end = now_ns();
    let trace = recorder.stop()?;
    let error = measure::worst_proportion_error_points(&trace, &[(&twofold.id, 0.4), (&single.id, 0.6)], start, end);
    ensure(error <= 5.0, || format!("two processes in one container shift the shares by {error:.2} points"))?;
    let peak = usage_of(&host.meter()?.read()?, &twofold.id).bytes_peak;
    let is_full = (3 << 30..=4_u64 << 30).contains(&peak);
    ensure(is_full, || format!("both together held {peak} bytes of a cap of 4 GiB"))
}

/// A program that initialises the driver and leaves registers nowhere: the places that were ever taken are still those of
/// the two that work.
fn who_looks_around_takes_no_place(host: &Host, container: &Container) -> Result<()> {
    host.engine.docker_text(&["exec", "twofold", "gpool-tenant", "--only-start"])?;
    let path = format!("/run/gpool/leases/{}/region/report", host.lease_of(container)?.lease_id);
    let mut taken = [0; 4];
    File::open(&path).and_then(|file| file.read_exact_at(&mut taken, ROSTER_OFFSET as u64)).context(path)?;
    let taken = u32::from_le_bytes(taken);
    ensure(taken == 2, || format!("two processes have taken {taken} places"))
}

/// `gpool ps --processes` has both with what they hold: the first one what it was told to and a context, and both together no more than
/// their cap, which they come near.
fn each_is_listed_with_what_it_holds(host: &Host, container: &Container) -> Result<()> {
    let mut listed = BTreeMap::new();
    let is_near = |all: &BTreeMap<u64, [Option<u64>; 2]>, place: usize| {
        let sum: Option<u64> = all.values().map(|its| its[place]).sum();
        sum.is_some_and(|sum| sum >= 3 << 30)
    };
    wait_for("both processes to be listed with their memory", || {
        listed = memory_of_processes(host, container)?;
        Ok(listed.len() == 2 && is_near(&listed, 0) && is_near(&listed, 1))
    })
    .context(format!("listed are {listed:?}"))?;
    for (place, by) in ["charged", "by NVML"].into_iter().enumerate() {
        let bytes = |its: &[Option<u64>; 2]| its[place].unwrap_or(0);
        let first = listed.get(&u64::from(container.init_pid)).map_or(0, bytes);
        let sum: u64 = listed.values().map(bytes).sum();
        let is_all = (1 << 30..2_u64 << 30).contains(&first) && sum <= 4 << 30;
        ensure(is_all, || format!("{by} the first of {listed:?} holds {first} bytes, and both hold {sum} of 4 GiB"))?;
    }
    Ok(())
}

/// What `gpool ps --processes` says of a container's processes, by their pids: what each is charged, and what NVML lists for it.
fn memory_of_processes(host: &Host, container: &Container) -> Result<BTreeMap<u64, [Option<u64>; 2]>> {
    let output = host.gpool(&["ps", "--processes", "--sort", "container", "--format", "json"])?;
    let said: Value = serde_json::from_slice(&output.stdout).context("what gpool ps --processes says")?;
    let all = said["processes"].as_array().cloned().unwrap_or_default();
    let its = all.iter().filter(|process| process["container_id"] == container.id.as_str());
    let memory = |process: &Value| ["memory_charged_bytes", "memory_nvml_bytes"].map(|name| process[name].as_u64());
    Ok(its.filter_map(|process| Some((process["pid"].as_u64()?, memory(process)))).collect())
}

/// A monitoring program in the container sees its two processes, under the pids that they have there, and the
/// container's part of the GPU in full use; the neighbour does the same and is not seen.
fn check_what_nvml_shows(host: &Host, option: &str) -> Result<()> {
    let pids = host.engine.docker_text(&["exec", "twofold", "pidof", "gpool-tenant"])?;
    let said = host.engine.docker_text(&["exec", "twofold", "gpool-tenant", option, "10"])?;
    let looks = monitored(&said)?;
    let mut expected: Vec<u64> = pids.split_whitespace().filter_map(|pid| pid.parse().ok()).collect();
    expected.sort_unstable();
    ensure(expected.len() == 2 && expected[0] == 1, || format!("the container's tenants are {pids}"))?;
    for look in &looks {
        let mut seen: Vec<u64> = look.processes.iter().map(|(pid, _)| *pid).collect();
        seen.sort_unstable();
        ensure(seen == expected, || format!("NVML shows the processes {seen:?} instead of {expected:?}"))?;
        let bytes: u64 = look.processes.iter().map(|(_, bytes)| bytes).sum();
        ensure((1 << 30..=4 << 30).contains(&bytes), || format!("NVML shows {bytes} bytes of them"))?;
        let is_own = look.sampled.iter().all(|(pid, percent)| expected.contains(pid) && *percent <= 100);
        ensure(is_own, || format!("NVML samples {:?}", look.sampled))?;
    }
    let percents: Vec<u64> = looks.iter().map(|look| look.percent).collect();
    let mean = percents.iter().sum::<u64>() / percents.len().max(1) as u64;
    // It has 40 % of the GPU, which is all that it is entitled to.
    ensure(percents.len() == 10 && mean >= 70, || format!("NVML shows a slice in full use at {percents:?} percent"))
}
