//! A program's fatal fault, after which its server takes nobody in for a while.

use super::ends::signal;
use super::{ASKS, remove, wait_for};
use crate::failure::{Context, Result, ensure};
use crate::host::{Host, succeeded, text};
use crate::scenarios::is_refused;
use crate::scenarios::mps_groups::wait_for_work;
use crate::tenant::Tenant;
use gpool_protocol::{EventKind, LeaseFault};
use rustix::process::Signal;

/// What a program gets whom a fatal fault has reached: CUDA_ERROR_LAUNCH_FAILED.
const LAUNCH_FAILED: &str = "\"code\":719";

/// A program that a fault has reached and that does not end keeps its server from taking others in. Its container is named,
/// others go to another GPU or are told why there is no room, and it is over when the program has ended.
pub fn keep_others_out_until_all_have_ended(host: &Host) -> Result<()> {
    let tenant = Tenant { allocate_mib: Some(64), ..Tenant::greedy(1000) };
    let keeper = tenant.run(host, "keeper", &ASKS)?;
    // Its container outlives its program.
    let command = format!("({}); sleep 1000", tenant.command().join(" "));
    let beside = host.run_container("beside", &ASKS, &[], &["sh", "-c", &command])?;
    let gpu = wait_for_work(host, &keeper)?;
    ensure(wait_for_work(host, &beside)? == gpu, || "two of a team are on two GPUs".to_owned())?;
    signal(keeper.init_pid, Signal::STOP)?;
    let (place, process) = (gpu.to_string(), keeper.init_pid.to_string());
    let fault = host.command("gpool-simgpu").args(["fault", "--gpu", &place, "--process", &process]).output();
    succeeded("gpool-simgpu fault", fault.context("gpool-simgpu")?)?;
    let is_marked = |container| Ok(host.lease_of(container)?.fault == Some(LeaseFault::MpsServerFault));
    wait_for("the mark of the lease", || is_marked(&keeper))?;
    let listed = text(&host.gpool(&["ps"])?.stdout);
    ensure(listed.contains("mps-server-fault"), || format!("gpool ps says {listed}"))?;
    let told = host.events_of(EventKind::MpsServerFault)?;
    let names_it = told.iter().any(|event| event.container_id.as_ref().is_some_and(|id| id.0 == keeper.id));
    ensure(names_it, || format!("it is told as {told:#?}"))?;
    wait_for("the other program's end", || Ok(beside.log(&host.engine)?.contains(LAUNCH_FAILED)))?;
    wait_for("the other lease without a mark", || Ok(!is_marked(&beside)?))?;

    let with = |fraction| [ASKS[0], ASKS[1], ("GPOOL_FRACTION", fraction), ("GPOOL_MEMORY", "1GiB")];
    let elsewhere = tenant.run(host, "elsewhere", &with("0.9"))?;
    ensure(wait_for_work(host, &elsewhere)? == 1 - gpu, || "it is under the server in a fault".to_owned())?;
    let programs = format!("takes nobody in after a fault until the programs of {} have ended", &keeper.id[..12]);
    is_refused(host, &with("0.2"), &["GPOOL-E201", &programs, "gpool ps marks mps-server-fault"])?;
    let started = host.events_of(EventKind::MpsStarted)?.len();
    host.engine.docker_text(&["rm", "-f", "keeper"])?;
    let after = tenant.run(host, "after", &with("0.2"))?;
    ensure(wait_for_work(host, &after)? == gpu, || "it is on the GPU that has no room".to_owned())?;
    ensure(host.events_of(EventKind::MpsStarted)?.len() == started, || "another daemon was started".to_owned())?;
    remove(host, &["beside", "elsewhere", "after"])
}
