//! What happens to the three tenants while they are watched, and what the hardware's meter shows of it.

use super::process_cost::cpu_wait_us;
use super::trio::Trio;
use crate::failure::{Failure, Result};
use crate::host::{Host, succeeded};
use crate::measure::{self, Entitled};
use crate::meter::now_ns;
use crate::trace::Recorder;
use std::thread::sleep;
use std::time::Duration;

/// Between two readings where shares over seconds are wanted.
pub const EVERY: Duration = Duration::from_millis(5);
/// Between two readings where moments are wanted.
pub const EVERY_MOMENT: Duration = Duration::from_millis(1);

const SETTLE: Duration = Duration::from_secs(1);
const BUSY: Duration = Duration::from_secs(10);
const WINDOW: Duration = Duration::from_secs(1);
/// Longer than the promise by as much as a share needs to be seen.
const AFTER_UPDATE: Duration = Duration::from_millis(2500);
/// Shares this close count as the new ones.
const TOLERANCE: f64 = 0.02;
const UPDATES: usize = 4;
const AFTER_KILL: Duration = Duration::from_millis(700);

/// All three at work.
#[derive(Debug, Clone, Copy)]
pub struct Busy {
    pub error_10s: f64,
    pub error_1s_mae: f64,
    pub work_delivered: f64,
    pub work_delivered_min: f64,
    pub busy: f64,
    /// Time in which some process of this machine waited for a CPU over all time.
    pub cpu_wait: Option<f64>,
}

/// Watches ten seconds in which nothing changes.
pub fn all_busy(host: &Host, trio: &Trio) -> Result<Busy> {
    sleep(SETTLE);
    let recorder = Recorder::start(host.meter()?, EVERY);
    let (from_ns, waited_us) = (now_ns(), cpu_wait_us());
    sleep(BUSY);
    let (to_ns, waited_to_us) = (now_ns(), cpu_wait_us());
    let trace = recorder.stop()?;
    let waited = |(from_us, to_us): (u64, u64)| (to_us - from_us) as f64 * 1e3 / (to_ns - from_ns) as f64;
    let entitled = trio.entitled();
    let received = |(id, due): &Entitled| trace.share(id, from_ns, to_ns) / due;
    let total: f64 = entitled.iter().map(|(id, _)| trace.share(id, from_ns, to_ns)).sum();
    Ok(Busy {
        error_10s: measure::worst_error_points(&trace, &entitled, from_ns, to_ns),
        error_1s_mae: measure::mean_error_points(&trace, &entitled, from_ns, to_ns, WINDOW),
        work_delivered: total / entitled.iter().map(|(_, due)| due).sum::<f64>(),
        work_delivered_min: entitled.iter().map(received).fold(f64::INFINITY, f64::min),
        busy: trace.busy(from_ns, to_ns),
        cpu_wait: waited_us.zip(waited_to_us).map(waited),
    })
}

/// Changes the shares to and fro; milliseconds until each change was seen, or as long as was waited for it.
pub fn updates(host: &Host, trio: &Trio) -> Result<Vec<f64>> {
    let recorder = Recorder::start(host.meter()?, EVERY);
    let [first, _, third] = trio.containers.each_ref().map(|container| container.id.as_str());
    let mut changes = Vec::new();
    for change in 0..UPDATES {
        let there = change % 2 == 0;
        changes.push((now_ns(), if there { [0.2, 0.6, 0.2] } else { [0.3, 0.6, 0.1] }));
        // The one that gives comes first, or there is no room for the one that takes.
        let steps = if there { [(first, "0.2"), (third, "0.2")] } else { [(third, "0.1"), (first, "0.3")] };
        for (container, fraction) in steps {
            succeeded("gpool update", host.gpool(&["update", container, "--fraction", fraction])?)?;
        }
        sleep(AFTER_UPDATE);
    }
    let trace = recorder.stop()?;
    let ids = trio.entitled().map(|(id, _)| id);
    let seen = |(at_ns, dues): &(u64, [f64; 3])| {
        let entitled = [0, 1, 2].map(|index| (ids[index], dues[index]));
        let effect = measure::effect_time(&trace, &entitled, *at_ns, WINDOW, TOLERANCE);
        milliseconds(effect.unwrap_or(AFTER_UPDATE).min(AFTER_UPDATE))
    };
    Ok(changes.iter().map(seen).collect())
}

/// What the deaths of containers free.
#[derive(Debug, Clone, Default)]
pub struct Kills {
    /// Milliseconds until the killed one held no byte.
    pub freed_ms: Vec<f64>,
    /// Milliseconds until others ran after its last kernel.
    pub inherited_ms: Vec<f64>,
}

/// Kills one container after the other.
pub fn kills(host: &Host, trio: &Trio) -> Result<Kills> {
    let recorder = Recorder::start(host.meter()?, EVERY_MOMENT);
    let mut killed = Vec::new();
    for container in &trio.containers {
        killed.push((container.id.as_str(), now_ns()));
        container.kill_init()?;
        sleep(AFTER_KILL);
    }
    let trace = recorder.stop()?;
    let mut kills = Kills::default();
    for (index, (id, at_ns)) in killed.iter().enumerate() {
        let freed = measure::memory_freed(&trace, id, *at_ns);
        let freed = freed.ok_or_else(|| Failure::new(format!("{id} was killed and still holds memory")))?;
        kills.freed_ms.push(milliseconds(freed));
        let next_ns = killed.get(index + 1).map(|(_, next_ns)| *next_ns);
        // Of the last one nobody inherits.
        let inherited = next_ns.map(|next_ns| {
            let gap = measure::lend_gap(&trace, id, *at_ns, next_ns);
            milliseconds(gap.unwrap_or(Duration::from_nanos(next_ns - at_ns)))
        });
        kills.inherited_ms.extend(inherited);
    }
    Ok(kills)
}

/// For the sheet.
pub fn milliseconds(duration: Duration) -> f64 {
    duration.as_secs_f64() * 1e3
}
