//! Shares, lending, kills and the supervisor's own cost: three tenants with gpool beside the same three without.

use super::containers::Way;
use super::figures::MACHINE;
use super::lending::{Lending, lend};
use super::phases::{self, Busy, Kills};
use super::process_cost::{cpu_ns, resident_mib};
use super::sheet::Sheet;
use super::trio::Trio;
use crate::failure::{Failure, Result};
use crate::host::Host;
use gpool_protocol::SupervisorInfo;
use std::time::{Duration, Instant};

/// Pauses in one round; three rounds hold more than the 300 events that a 99th percentile needs.
const PAUSES: usize = 105;
/// The same without gpool, where they vary less.
const PLAIN_PAUSES: usize = 35;
const IDLE: Duration = Duration::from_secs(10);
/// After the last tenant has fallen idle.
const IDLE_SETTLE: Duration = Duration::from_secs(1);

/// Adds one round.
pub fn measure(host: &Host, sheet: &mut Sheet) -> Result<()> {
    let plain = plain(host)?;
    super::wait_for_room(host, 1000)?;
    let trio = Trio::start(host, Way::Leased)?;
    let busy = supervised(host, &trio, sheet)?;
    let updates = phases::updates(host, &trio)?;
    let lending = lend(host, &trio, PAUSES)?;
    idle(host, &trio, sheet)?;
    let kills = phases::kills(host, &trio)?;
    host.engine.remove_all_containers()?;

    let mut add = |name, of: fn(&Busy) -> f64| sheet.add(name, &[of(&busy)], &[of(&plain.busy)]);
    add("share.error_10s", |busy| busy.error_10s)?;
    add("share.error_1s_mae", |busy| busy.error_1s_mae)?;
    add("share.work_delivered", |busy| busy.work_delivered)?;
    add("share.work_delivered_min", |busy| busy.work_delivered_min)?;
    add("gpu.busy", |busy| busy.busy)?;
    if let (Some(own), Some(native)) = (busy.cpu_wait, plain.busy.cpu_wait) {
        sheet.add(MACHINE, &[own], &[native])?;
    }
    sheet.add("update.effect", &updates, &[])?;
    sheet.add("gpu.longest_gap", &[lending.longest_gap_ms], &[plain.lending.longest_gap_ms])?;
    sheet.add("lend.idle", &[lending.used], &[plain.lending.used])?;
    for name in ["lend.time", "lend.p99"] {
        sheet.add(name, &lending.lent_ms, &plain.lending.lent_ms)?;
    }
    for name in ["reclaim.p50", "reclaim.p99"] {
        sheet.add(name, &lending.reclaimed_ms, &plain.lending.reclaimed_ms)?;
    }
    sheet.add("kill.free", &kills.freed_ms, &plain.kills.freed_ms)?;
    sheet.add("kill.slice", &kills.inherited_ms, &plain.kills.inherited_ms)
}

/// The native control.
struct Plain {
    busy: Busy,
    lending: Lending,
    kills: Kills,
}

fn plain(host: &Host) -> Result<Plain> {
    let mut trio = Trio::start(host, Way::Plain)?;
    let busy = phases::all_busy(host, &trio, || Ok(()))?;
    trio.make_lender_prompt(host)?;
    let lending = lend(host, &trio, PLAIN_PAUSES)?;
    let kills = phases::kills(host, &trio)?;
    host.engine.remove_all_containers()?;
    Ok(Plain { busy, lending, kills })
}

/// Ten busy seconds, with what the supervisor says and costs meanwhile.
fn supervised(host: &Host, trio: &Trio, sheet: &mut Sheet) -> Result<Busy> {
    let pid = supervisor(host)?;
    let mut handoffs_us = Vec::new();
    let (start, before_ns) = (Instant::now(), cpu_ns(pid)?);
    let busy = phases::all_busy(host, trio, || {
        let info: SupervisorInfo = host.client().get("/v1/info")?;
        handoffs_us.push(info.handoff_ns as f64 / 1e3);
        Ok(())
    })?;
    let used = (cpu_ns(pid)? - before_ns) as f64 / start.elapsed().as_nanos() as f64;
    sheet.add("supervisor.cpu_busy", &[used], &[])?;
    sheet.add("supervisor.rss", &[resident_mib(pid)?], &[])?;
    sheet.add("handoff.p50", &handoffs_us, &[])?;
    Ok(busy)
}

/// Three leases whose tenants want nothing.
fn idle(host: &Host, trio: &Trio, sheet: &mut Sheet) -> Result<()> {
    let pid = supervisor(host)?;
    trio.pauses.iter().try_for_each(|pause| pause.pause())?;
    std::thread::sleep(IDLE_SETTLE);
    let (start, before_ns) = (Instant::now(), cpu_ns(pid)?);
    std::thread::sleep(IDLE);
    let used = (cpu_ns(pid)? - before_ns) as f64 / start.elapsed().as_nanos() as f64;
    trio.pauses.iter().try_for_each(|pause| pause.resume())?;
    std::thread::sleep(IDLE_SETTLE);
    sheet.add("supervisor.cpu_idle", &[used], &[])
}

fn supervisor(host: &Host) -> Result<u32> {
    host.supervisor_pid().ok_or_else(|| Failure::new("the supervisor does not run"))
}
