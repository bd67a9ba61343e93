//! A supervisor that is stopped for seconds and goes on: a container of a class that fails open runs on unpaced, one
//! that fails closed waits, and afterwards the shares hold again.

use super::{finish, wait_until_running};
use crate::failure::{Context, Failure, Result, ensure};
use crate::host::Host;
use crate::measure::worst_proportion_error_points;
use crate::meter::now_ns;
use crate::namespaces::Inside;
use crate::tenant::Tenant;
use crate::trace::Recorder;
use gpool_protocol::EventKind;
use rustix::process::{Pid, Signal, kill_process};
use std::time::Duration;

/// Longer than the heartbeat may be stale, by as much as is watched.
const STOPPED: Duration = Duration::from_secs(7);

/// Stops and continues the supervisor.
pub fn run(inside: &Inside) -> Result<()> {
    let host = Host::start_with(inside, 1, "[class.batch]\nfail_open = true\n\n[class.notebook]\nfail_open = false\n")?;
    let outcome = stop_and_continue(&host);
    finish(host, outcome)
}

fn stop_and_continue(host: &Host) -> Result<()> {
    let start = |name, fraction, class| {
        let env = [("GPOOL_FRACTION", fraction), ("GPOOL_MEMORY", "2GiB"), ("GPOOL_CLASS", class)];
        Tenant::greedy(1000).run(host, name, &env)
    };
    let (open, closed) = (start("open", "0.4", "batch")?, start("closed", "0.6", "notebook")?);
    wait_until_running(host, &[open.clone(), closed.clone()])?;
    let pid = host.supervisor_pid().and_then(|pid| Pid::from_raw(i32::try_from(pid).ok()?));
    let pid = pid.ok_or_else(|| Failure::new("no supervisor runs"))?;
    let recorder = Recorder::start(host.meter()?, Duration::from_millis(5));
    kill_process(pid, Signal::STOP).context("stop the supervisor")?;
    let stopped_ns = now_ns();
    std::thread::sleep(STOPPED);
    let continued_ns = now_ns();
    kill_process(pid, Signal::CONT).context("continue the supervisor")?;
    std::thread::sleep(Duration::from_secs(5));
    let (trace, end_ns) = (recorder.stop()?, now_ns());
    let away_ns = stopped_ns + 3_500_000_000;
    let (ran_open, ran_closed) =
        (trace.share(&open.id, away_ns, continued_ns), trace.share(&closed.id, away_ns, continued_ns));
    ensure(ran_open >= 0.6, || format!("without a supervisor the class that fails open got {ran_open:.3} of the GPU"))?;
    ensure(ran_closed <= 0.02, || format!("without a supervisor the class that fails closed got {ran_closed:.3}"))?;
    let back_ns = continued_ns + 1_500_000_000;
    let entitled = [(open.id.as_str(), 0.4), (closed.id.as_str(), 0.6)];
    let error = worst_proportion_error_points(&trace, &entitled, back_ns, end_ns);
    ensure(error <= 8.0, || {
        let shares = entitled.map(|(id, _)| trace.share(id, back_ns, end_ns));
        let leases = host.leases().map(|leases| format!("{leases:#?}")).unwrap_or_default();
        format!("afterwards the shares are {shares:.3?}, off by {error:.2} points; {leases}")
    })?;
    let told = host.events_of(EventKind::SupervisorStalled)?;
    ensure(told.len() == 1 && told[0].message.contains(" stood still for "), || format!("it is told {told:?}"))
}
