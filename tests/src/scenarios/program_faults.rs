//! A program that loses its work on a GPU by a fault is told with its process and the Xid that came with it, whether it ends then or
//! lives on, and its neighbour is not touched. A GPU that fails as a whole takes the work of all that use it: they are marked and told with
//! one cause, and where their class says so their containers are ended, so that docker starts them again, on the other GPU.

use super::{finish, reload_with, wait_for};
use crate::failure::{Context, Failure, Result, ensure};
use crate::host::{Container, Host, succeeded, text};
use crate::namespaces::Inside;
use crate::tenant::Tenant;
use gpool_protocol::{Event, EventKind, LeaseFault, LeaseState};
use std::process::Command;

const ASKS: [(&str, &str); 2] = [("GPOOL_FRACTION", "0.2"), ("GPOOL_MEMORY", "1GiB")];
/// A program has used an address that is not its.
const PROGRAM_S_XID: u64 = 31;
/// The GPU has fallen off its bus.
const DEVICE_S_XID: u64 = 79;
/// An ended container's place is kept: who is started again because its GPU has failed must not come back to that.
const CONFIGURATION: &str = "[class.train]\nfailed_action = \"stop\"\n";

/// Lets two programs fail, and then the GPU that all are on.
pub fn run(inside: &Inside) -> Result<()> {
    let mut host = Host::start_with(inside, 2, CONFIGURATION)?;
    let outcome = with_all(&mut host);
    finish(host, outcome)
}

fn with_all(host: &mut Host) -> Result<()> {
    let tenant = Tenant { allocate_mib: Some(64), ..Tenant::greedy(1000) };
    let ends = tenant.run(host, "ends", &ASKS)?;
    let lives = tenant.run_with(host, "lives", &ASKS, &["--outlive-errors"])?;
    let beside = tenant.run_with(host, "beside", &ASKS, &["--outlive-errors"])?;
    let trains = trainer(host, &tenant)?;
    for container in [&ends, &lives, &beside, &trains] {
        wait_for("its work", || Ok(host.lease_of(container)?.launches > 100))?;
    }
    let gpu = host.lease_of(&beside)?.gpu_uuid;
    for container in [&ends, &lives, &trains] {
        let its = host.lease_of(container)?.gpu_uuid;
        ensure(its == gpu, || format!("{} is on {its}, and {gpu} has room for it", container.name))?;
    }
    let index = host.index_of(&gpu)?;
    programs(host, index, [&ends, &lives, &beside])?;
    whole(host, index, &lives, [&beside, &trains])?;
    late(host, [&lives, &beside])?;
    lost(host, 1 - index, &trains)
}

/// One that ends with its fault, one that lives on without its context, and a neighbour.
fn programs(host: &mut Host, index: u32, [ends, lives, beside]: [&Container; 3]) -> Result<()> {
    strike(host, index, ends)?;
    let told = fault_of(host, ends)?;
    let process = format!("process {}", ends.init_pid);
    for part in [&process, "CUDA_ERROR_LAUNCH_FAILED", "only once started anew"] {
        ensure(told.message.contains(part), || format!("{part:?} is not in {told:?}"))?;
    }
    ensure(!told.message.contains("Xid"), || format!("there was no Xid, and yet {told:?}"))?;

    host.note_xid(index, PROGRAM_S_XID)?;
    wait_for("the Xid", || Ok(!host.events_of(EventKind::GpuXid)?.is_empty()))?;
    strike(host, index, lives)?;
    let told = fault_of(host, lives)?;
    let parts = [format!("process {} (gpool-tenant)", lives.init_pid), format!("Xid {PROGRAM_S_XID}")];
    for part in &parts {
        ensure(told.message.contains(part), || format!("{part:?} is not in {told:?}"))?;
    }
    is_marked(host, lives)?;
    let figures = text(&host.gpool(&["metrics"])?.stdout);
    let counted = format!("gpool_lease_program_faults_total{{container_id=\"{}\"", lives.id);
    let is_counted = |line: &str| line.starts_with(&counted) && line.ends_with(" 1");
    ensure(figures.lines().any(is_counted), || format!("{counted} 1 is not in the metrics"))?;

    let record = format!("/run/gpool/leases/{}/lease.json", host.lease_of(lives)?.lease_id);
    let is_written = || Ok(std::fs::read_to_string(&record).context(&record)?.contains("\"faults_told\":1"));
    wait_for("what has been told in the lease's record", is_written)?;
    host.kill_supervisor()?;
    host.start_supervisor()?;
    is_marked(host, lives)?;
    let again = host.events_of(EventKind::ProgramFault)?;
    ensure(again.is_empty(), || format!("after a restart it is told again: {again:?}"))?;
    let before = host.lease_of(beside)?;
    ensure(before.fault.is_none() && before.program_faults == 0, || format!("the neighbour is {before:?}"))?;
    wait_for("the neighbour's work", || Ok(host.lease_of(beside)?.launches > before.launches + 100))
}

/// `lives` and `beside` are marked, `trains` is ended and starts again on the other GPU.
fn whole(host: &Host, index: u32, lives: &Container, [beside, trains]: [&Container; 2]) -> Result<()> {
    let failed = host.lease_of(beside)?.gpu_uuid;
    host.note_xid(index, DEVICE_S_XID)?;
    wait_for("the events of all three", || Ok(host.events_of(EventKind::GpuFailed)?.len() == 3))?;
    let told = host.events_of(EventKind::GpuFailed)?;
    let has_cause = |event: &Event| event.message.contains("Xid 79, it has fallen off its bus");
    ensure(told.iter().all(has_cause), || format!("it is told as {told:#?}"))?;
    for container in [lives, beside] {
        let lease = host.lease_of(container)?;
        ensure(lease.fault == Some(LeaseFault::GpuFailed), || format!("{} is {lease:?}", container.name))?;
        ensure(container.is_alive(), || format!("{} has ended, which its class does not ask for", container.name))?;
    }
    wait_for("the other container on the other GPU", || {
        let leases = host.leases()?;
        let its = leases.iter().find(|lease| lease.container_id.0 == trains.id && lease.state == LeaseState::Active);
        Ok(its.is_some_and(|its| its.gpu_uuid != failed && its.fault.is_none() && its.launches > 100))
    })?;
    let ended = host.events_of(EventKind::LeaseEnded)?;
    let why = "its container was stopped because its GPU has failed";
    ensure(ended.iter().any(|event| event.message.contains(why)), || format!("{why:?} is not in {ended:#?}"))
}

/// Those that are marked are ended when their class comes to ask for it.
fn late(host: &Host, marked: [&Container; 2]) -> Result<()> {
    reload_with(host, &format!("{CONFIGURATION}[class.batch]\nfailed_action = \"stop\"\n"))?;
    for container in marked {
        wait_for("a container that is marked to be ended", || Ok(!container.is_alive()))?;
    }
    let is_told = |event: &Event| event.message.contains("by [class.batch] failed_action");
    wait_for("both to be told", || Ok(host.events_of(EventKind::GpuFailed)?.into_iter().filter(is_told).count() == 2))
}

/// The other GPU is lost as well, by NVML's word alone.
fn lost(host: &Host, index: u32, trains: &Container) -> Result<()> {
    let is_told = |event: &Event| {
        let is_its = event.container_id.as_ref().is_some_and(|id| id.0 == trains.id);
        is_its && event.message.contains("which has failed: NVML does not answer")
    };
    host.set_lost(index, true)?;
    wait_for("the event about the GPU that is lost", || Ok(host.events_of(EventKind::GpuFailed)?.iter().any(is_told)))
}

/// One whose containers of this class are ended with their GPU, and that docker starts again.
fn trainer(host: &Host, tenant: &Tenant<'_>) -> Result<Container> {
    let env = [ASKS[0], ASKS[1], ("GPOOL_CLASS", "train")];
    let command = tenant.command();
    let command: Vec<&str> = command.iter().map(String::as_str).collect();
    host.run_container("trains", &env, &["--restart", "always"], &command)
}

fn is_marked(host: &Host, container: &Container) -> Result<()> {
    let lease = host.lease_of(container)?;
    let is_so = lease.fault == Some(LeaseFault::ProgramFault) && lease.program_faults == 1;
    ensure(is_so, || format!("{} is {lease:?}", container.name))?;
    let listed = text(&host.gpool(&["ps"])?.stdout);
    let is_its = |line: &&str| line.starts_with(lease.container_id.short());
    let is_listed = listed.lines().find(is_its).is_some_and(|line| line.contains(" program-fault "));
    ensure(is_listed, || format!("gpool ps says {listed}"))?;
    let explained = text(&host.gpool(&["explain", &container.id])?.stdout);
    ensure(explained.contains("program-fault: "), || format!("gpool explain says {explained}"))
}

fn strike(host: &Host, index: u32, container: &Container) -> Result<()> {
    let mut fault: Command = host.command("gpool-simgpu");
    fault.args(["fault", "--gpu", &index.to_string(), "--process", &container.init_pid.to_string()]);
    succeeded("gpool-simgpu fault", fault.output().context("gpool-simgpu")?).map(drop)
}

/// The event about a lost context of the container.
fn fault_of(host: &Host, container: &Container) -> Result<Event> {
    let find = || -> Result<Option<Event>> {
        let of_it = |event: &Event| event.container_id.as_ref().is_some_and(|id| id.0 == container.id);
        Ok(host.events_of(EventKind::ProgramFault)?.into_iter().find(of_it))
    };
    wait_for("the event about the program's fault", || Ok(find()?.is_some()))?;
    find()?.ok_or_else(|| Failure::new(format!("no event tells of the fault of {} any more", container.name)))
}
