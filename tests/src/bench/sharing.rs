//! Shares, lending, kills and the supervisor's own cost: three tenants with gpool beside the same three without.

use super::containers::Way;
use super::figures::MACHINE;
use super::lending::{Lending, lend};
use super::phases::{self, Busy, Kills};
use super::process_cost::{cpu_ns, resident_mib};
use super::sheet::Sheet;
use super::trio::Trio;
use crate::failure::{Failure, Result, ensure};
use crate::host::Host;
use gpool_protocol::SupervisorInfo;
use std::time::{Duration, Instant};

/// Pauses in one round; three rounds hold more than the 300 events that a 99th percentile needs.
const PAUSES: usize = 105;
/// The same without gpool, where they vary less.
const PLAIN_PAUSES: usize = 35;
/// Hand-offs that each round needs at least: three rounds hold the 300 that a 99th percentile needs.
const HANDOFFS: u64 = 100;
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
    let busy = phases::all_busy(host, &trio)?;
    trio.make_lender_prompt(host)?;
    let lending = lend(host, &trio, PLAIN_PAUSES)?;
    let kills = phases::kills(host, &trio)?;
    host.engine.remove_all_containers()?;
    Ok(Plain { busy, lending, kills })
}

/// Ten busy seconds, with what the supervisor says and costs meanwhile.
fn supervised(host: &Host, trio: &Trio, sheet: &mut Sheet) -> Result<Busy> {
    let pid = supervisor(host)?;
    let (start, before_ns) = (Instant::now(), cpu_ns(pid)?);
    let busy = phases::all_busy(host, trio)?;
    // All of the last ten seconds, and so of the busy ones.
    let info: SupervisorInfo = host.client().get("/v1/info")?;
    let used = (cpu_ns(pid)? - before_ns) as f64 / start.elapsed().as_nanos() as f64;
    sheet.add("supervisor.cpu_busy", &[used], &[])?;
    sheet.add("supervisor.rss", &[resident_mib(pid)?], &[])?;
    let [p50_us, p99_us] = handoffs_us(&info)?;
    sheet.add("handoff.p50", &[p50_us], &[])?;
    sheet.add("handoff.p99", &[p99_us], &[])?;
    Ok(busy)
}

/// The middle and the 99th percentile of the hand-offs that `info` is about, in microseconds.
fn handoffs_us(info: &SupervisorInfo) -> Result<[f64; 2]> {
    let count = info.handoff_count.unwrap_or(0);
    ensure(count >= HANDOFFS, || format!("{count} hand-offs in the last seconds, {HANDOFFS} are needed"))?;
    let us = |ns: Option<u64>| ns.map(|ns| ns as f64 / 1e3).ok_or_else(|| Failure::new("no hand-off was measured"));
    Ok([us(info.handoff_p50_ns)?, us(info.handoff_p99_ns)?])
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

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn info(count: u64) -> SupervisorInfo {
        let told = json!({"version": "0", "pid": 1, "started_unix_ms": 1, "region_version": 1, "handoff_ns": 1,
            "slice_ns": 1, "handoff_count": count, "handoff_p50_ns": 98304, "handoff_p99_ns": 294912});
        serde_json::from_value(told).unwrap()
    }

    #[test]
    fn hand_offs_are_microseconds_and_enough_of_them() {
        assert_eq!(handoffs_us(&info(100)), Ok([98.304, 294.912]));
        assert!(handoffs_us(&info(99)).unwrap_err().to_string().contains("99 hand-offs"));
    }
}
