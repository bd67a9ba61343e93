//! The lender falls idle and comes back, again and again: how fast its time goes to the others, and how fast it returns.

use super::phases::{EVERY_MOMENT, milliseconds};
use super::trio::{LENDER, Trio};
use crate::failure::Result;
use crate::host::Host;
use crate::measure;
use crate::meter::now_ns;
use crate::trace::{Recorder, Trace};
use std::thread::sleep;
use std::time::Duration;

const LONG_PAUSE: Duration = Duration::from_secs(2);
/// The least length of a short pause and of the time between two; up to as much again is added.
const SHORT_PAUSE: Duration = Duration::from_millis(70);
/// The last look at a pause, so that it does not see the first kernel after it.
const BEFORE_RESUMED: Duration = Duration::from_millis(3);

/// Idle time of the lender.
#[derive(Debug, Clone)]
pub struct Lending {
    /// Part of a long pause in which the others ran.
    pub used: f64,
    /// Milliseconds, for each short pause.
    pub lent_ms: Vec<f64>,
    /// The same.
    pub reclaimed_ms: Vec<f64>,
    /// The longest time in which nobody ran, in milliseconds.
    pub longest_gap_ms: f64,
}

/// Pauses the lender once for long and `events` times for a moment.
pub fn lend(host: &Host, trio: &Trio, events: usize) -> Result<Lending> {
    let recorder = Recorder::start(host.meter()?, EVERY_MOMENT);
    let pause = &trio.pauses[LENDER];
    let long_ns = now_ns();
    pause.pause()?;
    sleep(LONG_PAUSE);
    let long_end_ns = now_ns();
    pause.resume()?;
    let mut moments = Vec::new();
    for event in 0..events {
        sleep(short_pause(2 * event));
        let paused_ns = now_ns();
        pause.pause()?;
        sleep(short_pause(2 * event + 1));
        moments.push((paused_ns, now_ns()));
        pause.resume()?;
    }
    sleep(2 * SHORT_PAUSE);
    let trace = recorder.stop()?;
    let lender = trio.lender();
    // What was never seen counts as long as was waited for it: left out, it would make the figures better.
    let lent = |(from_ns, to_ns): &(u64, u64)| {
        let gap = measure::lend_gap(&trace, lender, *from_ns, to_ns - BEFORE_RESUMED.as_nanos() as u64);
        milliseconds(gap.unwrap_or(Duration::from_nanos(to_ns - from_ns)))
    };
    let end_ns = trace.readings().last().map_or(long_ns, |meter| meter.now_ns);
    let reclaimed = |(_, at_ns): &(u64, u64)| {
        let run = measure::first_run(&trace, lender, *at_ns);
        milliseconds(run.unwrap_or(Duration::from_nanos(end_ns.saturating_sub(*at_ns))))
    };
    Ok(Lending {
        used: used_by_others(&trace, lender, long_ns, long_end_ns),
        lent_ms: moments.iter().map(lent).collect(),
        reclaimed_ms: moments.iter().map(reclaimed).collect(),
        longest_gap_ms: longest_gap_ms(&trace),
    })
}

/// From 70 to 140 ms, in steps that have nothing to do with the length of a slice.
fn short_pause(index: usize) -> Duration {
    SHORT_PAUSE + SHORT_PAUSE * (index as u32 * 37 % 100) / 100
}

/// Busy time of the others from the lender's last kernel to the end.
fn used_by_others(trace: &Trace, lender: &str, from_ns: u64, to_ns: u64) -> f64 {
    let had_ns = |at_ns: u64| trace.share(lender, from_ns, at_ns) * (at_ns - from_ns) as f64;
    let all_ns = had_ns(to_ns);
    let readings = trace.since(from_ns).iter().map(|meter| meter.now_ns);
    let silent_ns = readings.take_while(|at_ns| *at_ns < to_ns).find(|at_ns| had_ns(*at_ns) >= all_ns - 1.0);
    silent_ns.map_or(0.0, |silent_ns| trace.busy(silent_ns, to_ns) - trace.share(lender, silent_ns, to_ns))
}

/// The longest time from one reading to another between which the device was not busy.
fn longest_gap_ms(trace: &Trace) -> f64 {
    let mut gaps_ns = Vec::new();
    let mut last = (0, 0);
    for meter in trace.readings() {
        if meter.busy_ns > last.1 || last.0 == 0 {
            last = (meter.now_ns, meter.busy_ns);
        }
        gaps_ns.push(meter.now_ns - last.0);
    }
    milliseconds(Duration::from_nanos(gaps_ns.into_iter().max().unwrap_or(0)))
}
