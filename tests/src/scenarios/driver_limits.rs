//! Memory caps that the driver itself keeps, as drivers from 615 on do where version 2 of cgroups is alone: a program that goes past the
//! shims has no more than its container's cap, its neighbour all that it was promised, and neither the supervisor's death nor somebody
//! else's hand changes that for long.

use super::{configure, finish_found, reload_with, wait_for};
use crate::cgroups;
use crate::failure::{Context, Failure, Result, ensure};
use crate::host::{Container, Host, succeeded, text};
use crate::manual::openapi;
use crate::meter::usage_of;
use crate::namespaces::Inside;
use crate::tenant::{Tenant, report_of};
use gpool_cli::table::LeaseRow;
use gpool_protocol::{EventKind, GpuView, MemoryLimitsState};
use gpool_simulated_hardware::{DriverVersion, Layout};
use serde_json::Value;
use std::process::{Command, Output};
use std::time::Duration;

/// One that keeps limits, and one that is too old for them.
const DRIVER: &str = "615.71.05";
const OLD_DRIVER: &str = "580.95.05";
/// Where the driver's own library is in a leased container.
const REAL: &str = "/dev/gpool/real/libcuda.so.1";
/// An ended container's place is free at once.
const CONFIGURATION: &str = "[lease]\nhold_ms = 0\n";
const GIB: u64 = 1 << 30;
/// What a limit may be above what is held.
const ROOM: u64 = 2 << 20;
/// What the simulated device takes for a context.
const CONTEXT: u64 = 256 << 20;
/// Longer than it takes a program to be refused.
const LONG_ENOUGH: Duration = Duration::from_secs(2);

/// With an old driver, and with one that keeps limits.
pub fn run(inside: &Inside) -> Result<()> {
    cgroups::only_version_2()?;
    let mut host = Host::start_without_supervisor(inside, "")?;
    let outcome = all(&mut host);
    finish_found(host, outcome)
}

fn all(host: &mut Host) -> Result<()> {
    start(host, OLD_DRIVER)?;
    reload_with(host, CONFIGURATION)?;
    without(host)?;
    host.engine.remove_all_containers()?;
    host.kill_supervisor()?;
    start(host, DRIVER)?;
    past_the_shims(host)?;
    follows_the_cap(host)?;
    outlives_the_supervisor(host)?;
    is_put_right(host)?;
    may_be_left_out(host)?;
    host.engine.remove_all_containers()?;
    in_time_slices(host)
}

fn start(host: &mut Host, version: &str) -> Result<()> {
    host.set_driver_version(&DriverVersion::parse(version).map_err(Failure::new)?)?;
    host.start_supervisor()
}

/// What the rest is held against: with shims alone a program that goes past them takes what it likes until it is found.
fn without(host: &Host) -> Result<()> {
    let container = idle(host, "old", "1GiB")?;
    take_past(host, &container, 4096)?;
    wait_for("more than its cap", || Ok(held(host, &container)? > 4 * GIB))?;
    let lease = host.lease_of(&container)?;
    ensure(lease.gpus[0].memory_limit_bytes.is_none(), || format!("it is shown as {lease:?}"))?;
    wait_for("what is known of the driver", || Ok(verdict(host)? == Some(MemoryLimitsState::Absent)))
}

/// One that takes all that it gets past the shims, beside one that comes through them.
fn past_the_shims(host: &Host) -> Result<()> {
    let past = idle(host, "past", "2GiB")?;
    let lease = host.lease_of(&past)?;
    ensure(lease.gpus[0].memory_limit_bytes == Some(2 * GIB), || format!("it is shown as {lease:?}"))?;
    ensure(LeaseRow::from(&lease).cap_kept_by == "driver", || format!("its cap is kept by {lease:?}"))?;
    let wide = text(&host.gpool(&["ps", "--format", "wide"])?.stdout);
    ensure(wide.contains("CAP BY") && wide.contains("  driver  "), || wide.clone())?;
    ensure(driver_says(&past, host, None)? == 2 * GIB, || "NVML says something else".to_owned())?;

    take_past(host, &past, 100_000)?;
    // Within what a piece is large that it asks for.
    wait_for("its cap to be full", || Ok(held(host, &past)? > 2 * GIB - CONTEXT))?;
    take_past(host, &past, 100_000)?;
    let beside = Tenant::greedy(500);
    let beside = beside.run(host, "beside", &[("GPOOL_FRACTION", "0.2"), ("GPOOL_MEMORY", "90%")])?;
    let report = report_of(host, &beside)?;
    let promised = host.lease_of(&beside)?.memory_cap_bytes;
    ensure(report.allocated_bytes + 3 * CONTEXT > promised && report.cuda_total_bytes == promised, || {
        format!("beside it one had {report:?} of {promised}")
    })?;
    std::thread::sleep(LONG_ENOUGH);
    let most = peak(host, &past)?;
    ensure(most <= 2 * GIB, || format!("past the shims it had {most} bytes"))?;
    ensure(peak(host, &beside)? <= promised, || format!("through them one had {:?}", peak(host, &beside)))?;
    let over = host.events_of(EventKind::OverCap)?;
    ensure(over.is_empty(), || format!("somebody is above a cap: {over:?}"))?;
    answers_are_documented(host, &past)?;
    let said = text(&host.gpool(&["doctor"])?.stdout);
    ensure(said.contains("the driver keeps memory caps"), || said.clone())?;
    host.engine.docker_text(&["rm", "-f", "beside"]).map(drop)
}

fn answers_are_documented(host: &Host, container: &Container) -> Result<()> {
    let (document, client) = (openapi::document()?, host.client());
    let of_lease: Value = client.get(&format!("/v1/leases/{}", container.id))?;
    let of_gpus: Value = client.get("/v1/gpus")?;
    let is_told =
        of_lease["gpus"][0]["memory_limit_bytes"] == 2 * GIB && of_gpus[0]["memory_limits"]["state"] == "kept";
    ensure(is_told, || format!("the answers are {of_lease} and {of_gpus}"))?;
    for (path, answer) in [("/v1/leases/{id}", of_lease), ("/v1/gpus", of_gpus)] {
        let defects = openapi::defects(&document, openapi::answer_schema(&document, "GET", path), &answer);
        ensure(defects.is_empty(), || format!("GET {path} gives {answer}: {defects:?}"))?;
    }
    Ok(())
}

/// Before `gpool update` comes back.
fn follows_the_cap(host: &Host) -> Result<()> {
    let past = Container::inspect(&host.engine, "past")?;
    let update = |memory: &str| succeeded("gpool update", host.gpool(&["update", &past.id, "--memory", memory])?);
    update("3GiB")?;
    ensure(driver_says(&past, host, None)? == 3 * GIB, || "the limit is not the new cap".to_owned())?;
    take_past(host, &past, 100_000)?;
    wait_for("its new cap to be full", || Ok(held(host, &past)? > 3 * GIB - CONTEXT))?;
    update("1GiB")?;
    let full = held(host, &past)?;
    let lease = host.lease_of(&past)?;
    // No driver takes a limit below what is held: it is what is held then, so that nothing is added.
    let is_next_to = |bytes: u64| (full..=full + ROOM).contains(&bytes);
    let is_shown = lease.gpus[0].memory_limit_bytes.is_some_and(is_next_to);
    ensure(is_next_to(driver_says(&past, host, None)?) && is_shown, || {
        format!("full with {full} it is shown as {lease:?}")
    })?;
    ensure(LeaseRow::from(&lease).cap_kept_by == "shims", || format!("its cap is kept by {lease:?}"))?;
    empty(host, &past)?;
    wait_for("the limit to be the lower cap", || Ok(driver_says(&past, host, None)? == GIB))?;
    update("3GiB").map(drop)
}

/// It holds while nobody is there to set it, and the next supervisor finds it.
fn outlives_the_supervisor(host: &mut Host) -> Result<()> {
    let past = Container::inspect(&host.engine, "past")?;
    host.kill_supervisor()?;
    take_past(host, &past, 100_000)?;
    std::thread::sleep(LONG_ENOUGH);
    let most = peak(host, &past)?;
    ensure(most <= 3 * GIB, || format!("without a supervisor it had {most} bytes"))?;
    host.start_supervisor()?;
    wait_for("the limit to be known again", || Ok(host.lease_of(&past)?.gpus[0].memory_limit_bytes == Some(3 * GIB)))
}

/// Somebody lifts it, and it is told and set again.
fn is_put_right(host: &Host) -> Result<()> {
    let past = Container::inspect(&host.engine, "past")?;
    driver_says(&past, host, Some(u64::MAX))?;
    reload_with(host, CONFIGURATION)?;
    wait_for("the limit to be set again", || Ok(driver_says(&past, host, None)? == 3 * GIB))?;
    let events = host.events_of(EventKind::MemoryLimit)?;
    let is_told = events.len() == 1 && events[0].message.contains("lifted by somebody; it is 3GiB again");
    ensure(is_told, || format!("told was {events:?}"))
}

/// An administrator may want shims alone, also of a supervisor that begins; and may want it back where more is held by then.
fn may_be_left_out(host: &mut Host) -> Result<()> {
    let past = Container::inspect(&host.engine, "past")?;
    let lifted = |host: &Host| {
        wait_for("the limit to be lifted", || Ok(driver_says(&past, host, None)? == u64::MAX))?;
        wait_for("nobody to say that there is one", || {
            Ok(host.lease_of(&past)?.gpus[0].memory_limit_bytes.is_none() && verdict(host)?.is_none())
        })
    };
    let without = format!("{CONFIGURATION}[driver]\nmemory_limits = false\n");
    reload_with(host, &without)?;
    lifted(host)?;
    reload_with(host, CONFIGURATION)?;
    wait_for("it to be back", || Ok(driver_says(&past, host, None)? == 3 * GIB))?;
    host.kill_supervisor()?;
    configure(&without)?;
    host.start_supervisor()?;
    lifted(host)?;
    empty(host, &past)?;
    take_past(host, &past, 5000)?;
    wait_for("more than its cap", || Ok(held(host, &past)? > 5000 << 20))?;
    reload_with(host, CONFIGURATION)?;
    let full = held(host, &past)?;
    wait_for("a limit at what is held", || Ok((full..=full + ROOM).contains(&driver_says(&past, host, None)?)))?;
    empty(host, &past)?;
    wait_for("it to be the cap", || Ok(driver_says(&past, host, None)? == 3 * GIB))
}

/// Ends all programs in it that use the GPU.
fn empty(host: &Host, container: &Container) -> Result<()> {
    host.engine.docker_text(&["exec", &container.id, "killall", "-9", "gpool-tenant"])?;
    wait_for("it to be empty", || Ok(held(host, container)? == 0))
}

/// Where there is no shim the driver alone keeps a cap: two that take all that they get, by the driver's own library.
fn in_time_slices(host: &Host) -> Result<()> {
    let timeslice = format!("{CONFIGURATION}[policy]\ntimeslice = true\n");
    let allowed = "[policy.env]\nallow = [\"fraction\", \"memory\", \"mode\"]\n";
    reload_with(host, &format!("{timeslice}{allowed}[driver]\nmemory_limits = false\n"))?;
    let refused = in_slices(host, "refused", "4GiB")?;
    let told = text(&refused.stderr);
    ensure(!refused.status.success() && told.contains("memory_limits in config.toml is false"), || told.clone())?;
    reload_with(host, &format!("{timeslice}{allowed}"))?;
    for (name, memory) in [("four", "4GiB"), ("half", "50%")] {
        let output = in_slices(host, name, memory)?;
        ensure(output.status.success(), || format!("docker run {name}: {}", text(&output.stderr)))?;
    }
    for name in ["four", "half"] {
        let container = Container::inspect(&host.engine, name)?;
        let lease = host.lease_of(&container)?;
        let cap = lease.memory_cap_bytes;
        ensure(
            lease.gpus[0].memory_limit_bytes == Some(cap) && LeaseRow::from(&lease).cap_kept_by == "driver",
            || format!("{name} is shown as {lease:?}"),
        )?;
        let report = report_of(host, &container)?;
        let is_all = report.cuda_total_bytes == cap && report.allocated_bytes + 2 * CONTEXT > cap;
        ensure(is_all && peak(host, &container)? <= cap, || format!("{name} has {report:?} of {cap}"))?;
    }
    // 24 GiB, of which 4 and 12 are promised.
    let refused = in_slices(host, "too-much", "9GiB")?;
    let told = text(&refused.stderr);
    ensure(!refused.status.success() && told.contains("has 8GiB free of the 9GiB needed"), || told.clone())?;
    let four = Container::inspect(&host.engine, "four")?;
    let output = host.gpool(&["update", &four.id, "--memory", "2GiB"])?;
    ensure(text(&output.stderr).contains("nothing takes that from it in time slices"), || text(&output.stderr))?;
    succeeded("gpool update", host.gpool(&["update", &four.id, "--memory", "6GiB"])?)?;
    ensure(driver_says(&four, host, None)? == 6 * GIB, || "the limit is not the new cap".to_owned())?;
    let said = text(&host.gpool(&["update", &four.id, "--fraction", "0.5"])?.stderr);
    ensure(said.contains("the memory alone can be changed"), || said.clone())
}

/// A tenant in time slices that takes all that it gets.
fn in_slices(host: &Host, name: &str, memory: &str) -> Result<Output> {
    let command = Tenant::greedy(500).command();
    let command: Vec<&str> = command.iter().map(String::as_str).collect();
    host.try_run_container(name, &[("GPOOL_MODE", "timeslice"), ("GPOOL_MEMORY", memory)], &[], &command)
}

/// A container whose first program does nothing.
fn idle(host: &Host, name: &str, memory: &str) -> Result<Container> {
    let env = [("GPOOL_FRACTION", "0.1"), ("GPOOL_MEMORY", memory)];
    host.run_container(
        name,
        &env,
        &[],
        &["sh", "-c", &format!("mkdir /tmp/past && ln -s {REAL} /tmp/past/ && sleep 600")],
    )
}

/// A program in it whose loader finds the driver's own library takes so much, or what it gets of that, and keeps it.
fn take_past(host: &Host, container: &Container, mib: u64) -> Result<()> {
    let tenant = Tenant { allocate_mib: (mib < 100_000).then_some(mib), ..Tenant::greedy(500) };
    let command = tenant.command();
    let mut arguments = vec!["exec", "-d", "-e", "LD_LIBRARY_PATH=/tmp/past", &container.id];
    arguments.extend(command.iter().map(String::as_str));
    host.engine.docker_text(&arguments).map(drop)
}

fn held(host: &Host, container: &Container) -> Result<u64> {
    Ok(usage_of(&host.meter()?.read()?, &container.id).bytes_now)
}

fn peak(host: &Host, container: &Container) -> Result<u64> {
    Ok(usage_of(&host.meter()?.read()?, &container.id).bytes_peak)
}

fn verdict(host: &Host) -> Result<Option<MemoryLimitsState>> {
    let gpus: Vec<GpuView> = host.client().get("/v1/gpus")?;
    Ok(gpus.first().and_then(|gpu| gpu.memory_limits.as_ref()).map(|limits| limits.state))
}

/// What the driver keeps for the container's cgroup, in bytes, asked by somebody else than gpool: all ones if nothing. Sets it first
/// if that is wanted.
fn driver_says(container: &Container, host: &Host, set_bytes: Option<u64>) -> Result<u64> {
    // The structures as nvidia-ml-py 13.615 has them.
    const ASK: &str = "\
import ctypes as c, sys
class Limits(c.Structure):
    _fields_ = [('nameSpace', c.c_char_p), ('softLimit', c.c_ulonglong), ('hardLimit', c.c_ulonglong), ('currentUsed', c.c_ulonglong)]
nvml, device = c.CDLL(sys.argv[1]), c.c_void_p()
def call(name, *arguments):
    code = getattr(nvml, name)(*arguments)
    assert code == 0, (name, code)
call('nvmlInit_v2')
call('nvmlDeviceGetHandleByIndex_v2', 0, c.byref(device))
limits = Limits(sys.argv[2].encode(), 0, int(sys.argv[3] or 0), 0)
if sys.argv[3]:
    call('nvmlDeviceSetMemoryLimits_v1', device, c.byref(limits))
call('nvmlDeviceGetMemoryLimits_v1', device, c.byref(limits))
print(limits.hardLimit)
";
    let lease = host.lease_of(container)?;
    let cgroup = lease.cgroup.ok_or_else(|| Failure::new(format!("{} has no cgroup", container.name)))?;
    let library = Layout::default().libraries().join("libnvidia-ml.so.1");
    let mut python = Command::new("/usr/bin/python3");
    python.args(["-c", ASK]).arg(library).arg(format!("/sys/fs/cgroup{cgroup}"));
    python.arg(set_bytes.map(|bytes| bytes.to_string()).unwrap_or_default());
    let said = succeeded("NVML", python.output().context("python3")?)?;
    said.trim().parse().context(format!("what NVML says: {said}"))
}
