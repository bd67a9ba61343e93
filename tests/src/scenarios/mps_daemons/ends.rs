//! The end of a daemon that takes its time.

use super::{ASKS, Unreliable, hold, mps_leases, release, remove, wait_for};
use crate::failure::{Context, Failure, Result, ensure};
use crate::host::{Host, succeeded, text};
use crate::scenarios::mps_groups::process_of;
use crate::tenant::Tenant;
use gpool_protocol::EventKind;
use rustix::process::{Pid, Signal, kill_process};
use std::fs;

/// A daemon that is stopped and does not quit when it is told to: while it is ended by force, its server is nobody's who
/// uses a GPU without a lease, and nobody else's starts on its GPU.
pub fn of_a_daemon_make_no_strangers(host: &Host) -> Result<()> {
    let tenant = Tenant { allocate_mib: Some(64), ..Tenant::greedy(1000) };
    tenant.run(host, "seven", &ASKS)?;
    wait_for("its server", || Ok(process_of("vision", "server").is_ok()))?;
    let stopped = host.events_of(EventKind::MpsStopped)?.len();
    signal(process_of("vision", "daemon")?, Signal::STOP)?;
    host.engine.docker_text(&["rm", "-f", "seven"])?;
    wait_for("the end of its lease", || Ok(mps_leases(host)?.is_empty()))?;
    ensure(host.events_of(EventKind::MpsStopped)?.len() == stopped, || {
        "the daemon was not in the way of its end".to_owned()
    })?;
    on_both_gpus(host)?;
    wait_for("the end of the daemon", || Ok(host.events_of(EventKind::MpsStopped)?.len() == stopped + 1))?;
    let told = [host.events_of(EventKind::Outside)?, host.events_of(EventKind::Bypass)?].concat();
    ensure(told.is_empty(), || format!("its processes are taken for others': {told:#?}"))?;
    remove(host, &["both"])
}

/// A container from which its GPU is taken lives on; its program was ended by its server before it was killed, and its daemon
/// ends before another team's starts.
pub fn of_a_daemon_follow_an_eviction(host: &Host, program: &Unreliable) -> Result<()> {
    let tenant = Tenant { allocate_mib: Some(64), ..Tenant::greedy(1000) };
    let command = format!("({}); sleep 1000", tenant.command().join(" "));
    let evicted = host.run_container("evicted", &ASKS, &[], &["sh", "-c", &command])?;
    wait_for("its program at work", || Ok(evicted.log(&host.engine)?.contains("progress")))?;
    wait_for("its server", || Ok(process_of("vision", "server").is_ok()))?;
    let ending = format!("terminate_client {} ", process_of("vision", "server")?);
    let stopped = host.events_of(EventKind::MpsStopped)?.len();
    hold(&program.heard)?;
    succeeded("gpool evict", host.gpool(&["evict", &evicted.id])?)?;
    let heard = fs::read_to_string(&program.heard).context(program.heard.display())?;
    release(&program.heard)?;
    ensure(heard.contains(&ending), || format!("its daemon was told {heard}"))?;
    on_both_gpus(host)?;
    let ends = host.events_of(EventKind::MpsStopped)?.len();
    ensure(ends == stopped + 1, || format!("{ends} daemons have ended, of {stopped} before the eviction"))?;
    ensure(evicted.is_alive(), || "the evicted container has ended".to_owned())?;
    let told = [host.events_of(EventKind::Outside)?, host.events_of(EventKind::Bypass)?].concat();
    ensure(told.is_empty(), || format!("its processes are taken for others': {told:#?}"))?;
    remove(host, &["both", "evicted"])
}

/// Another team's daemon starts on all GPUs, after the first one has ended.
fn on_both_gpus(host: &Host) -> Result<()> {
    let asks = [ASKS[0], ("GPOOL_TEAM", "speech"), ASKS[2], ASKS[3], ("GPOOL_GPUS", "2")];
    wait_for("both GPUs", || {
        let output = host.try_run_container("both", &asks, &[], &["sleep", "1000"])?;
        if !output.status.success() {
            let said = text(&output.stderr);
            ensure(said.contains("GPOOL-E"), || format!("docker run says {said}"))?;
            host.engine.docker_text(&["rm", "-f", "both"])?;
        }
        Ok(output.status.success())
    })?;
    let daemons: Vec<EventKind> = host.events()?.into_iter().map(|event| event.kind).collect();
    let last = |kind| daemons.iter().rposition(|event| *event == kind);
    let (stopped, started) = (last(EventKind::MpsStopped), last(EventKind::MpsStarted));
    ensure(stopped.is_some() && stopped < started, || "two daemons were on one GPU".to_owned())
}

/// Sends a signal to a process of the host.
pub fn signal(pid: u32, signal: Signal) -> Result<()> {
    let process = i32::try_from(pid).ok().and_then(Pid::from_raw);
    let process = process.ok_or_else(|| Failure::new(format!("{pid} is no process")))?;
    kill_process(process, signal).context(format!("a signal to {pid}"))
}
