//! The meter read every few milliseconds, in the background, so that how fast something took effect can be seen.

use crate::failure::{Failure, Result};
use crate::meter::{MeterReader, now_ns, usage_of};
use gpool_device_model::Meter;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread::JoinHandle;
use std::time::Duration;

/// Between two readings when something is watched closely.
const CLOSE: Duration = Duration::from_millis(2);

/// A recording that goes on.
#[derive(Debug)]
pub struct Recorder {
    stop: Arc<AtomicBool>,
    every_ns: Arc<AtomicU64>,
    thread: JoinHandle<Result<Trace>>,
}

impl Recorder {
    /// Reads the meter `every` so often until [`Recorder::stop`].
    pub fn start(reader: MeterReader, every: Duration) -> Self {
        let stop = Arc::new(AtomicBool::new(false));
        let every_ns = Arc::new(AtomicU64::new(nanoseconds(every)));
        let (is_over, pause_ns) = (Arc::clone(&stop), Arc::clone(&every_ns));
        let thread = std::thread::spawn(move || {
            let mut readings = vec![reader.read()?];
            while !is_over.load(Ordering::Relaxed) {
                std::thread::sleep(Duration::from_nanos(pause_ns.load(Ordering::Relaxed)));
                readings.push(reader.read()?);
            }
            Ok(Trace { readings })
        });
        Self { stop, every_ns, thread }
    }

    /// Watches `event` closely: reads every two milliseconds around it and for `after` it, then as before.
    ///
    /// Not all the time, because each reading takes the device's lock and thus the tenants' time.
    pub fn closely<R>(&self, after: Duration, event: impl FnOnce() -> R) -> R {
        let before_ns = self.every_ns.swap(nanoseconds(CLOSE), Ordering::Relaxed);
        // The pause that has begun is still a long one.
        std::thread::sleep(Duration::from_nanos(before_ns));
        let result = event();
        std::thread::sleep(after);
        self.every_ns.store(before_ns, Ordering::Relaxed);
        result
    }

    /// Records for `length` from now on: the trace, and when that began and ended.
    pub fn watch(reader: MeterReader, every: Duration, length: Duration) -> Result<(Trace, u64, u64)> {
        let recorder = Self::start(reader, every);
        let from_ns = now_ns();
        std::thread::sleep(length);
        let to_ns = now_ns();
        Ok((recorder.stop()?, from_ns, to_ns))
    }

    /// Ends the recording.
    pub fn stop(self) -> Result<Trace> {
        self.stop.store(true, Ordering::Relaxed);
        self.thread.join().unwrap_or_else(|_| Err(Failure::new("the recording panicked")))
    }
}

/// Readings of the meter in the order of time.
#[derive(Debug, Clone, Default)]
pub struct Trace {
    readings: Vec<Meter>,
}

impl Trace {
    /// A trace of these readings.
    pub fn new(readings: Vec<Meter>) -> Self {
        Self { readings }
    }

    /// The readings.
    pub fn readings(&self) -> &[Meter] {
        &self.readings
    }

    /// The readings from `from_ns` on.
    pub fn since(&self, from_ns: u64) -> &[Meter] {
        &self.readings[self.readings.partition_point(|meter| meter.now_ns < from_ns)..]
    }

    /// GPU time of a container between two moments over the time between them, 0 to 1.
    pub fn share(&self, container_id: &str, from_ns: u64, to_ns: u64) -> f64 {
        self.rate(from_ns, to_ns, |meter| usage_of(meter, container_id).busy_ns)
    }

    /// Time in which the GPU executed anybody's kernel over all time, 0 to 1. Switches are not busy.
    pub fn busy(&self, from_ns: u64, to_ns: u64) -> f64 {
        self.rate(from_ns, to_ns, |meter| meter.busy_ns)
    }

    /// Time in which the GPU exchanged contexts over all time, 0 to 1.
    pub fn switching(&self, from_ns: u64, to_ns: u64) -> f64 {
        self.rate(from_ns, to_ns, |meter| meter.switch_ns)
    }

    /// Growth of a counter in nanoseconds over the time, with readings interpolated at both ends.
    fn rate(&self, from_ns: u64, to_ns: u64, counter: impl Fn(&Meter) -> u64) -> f64 {
        if to_ns <= from_ns {
            return 0.0;
        }
        (self.value_at(to_ns, &counter) - self.value_at(from_ns, &counter)) / (to_ns - from_ns) as f64
    }

    fn value_at(&self, at_ns: u64, counter: &impl Fn(&Meter) -> u64) -> f64 {
        let after = self.readings.partition_point(|meter| meter.now_ns < at_ns);
        match (self.readings.get(after.wrapping_sub(1)), self.readings.get(after)) {
            (Some(a), Some(b)) => {
                let (low, high) = (counter(a) as f64, counter(b) as f64);
                low + (high - low) * (at_ns - a.now_ns) as f64 / (b.now_ns - a.now_ns).max(1) as f64
            }
            (Some(only), None) | (None, Some(only)) => counter(only) as f64,
            (None, None) => 0.0,
        }
    }
}

/// A duration as the meter counts.
pub(crate) fn nanoseconds(duration: Duration) -> u64 {
    u64::try_from(duration.as_nanos()).unwrap_or(u64::MAX)
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;

    /// A trace with a reading each millisecond and the busy time of containers as `busy` says.
    pub(crate) fn traced(milliseconds: u64, busy: impl Fn(u64) -> Vec<(&'static str, u64)>) -> Trace {
        let reading = |ms: u64| {
            let mut meter = Meter::default();
            meter.now_ns = ms * 1_000_000;
            for (id, busy_ns) in busy(ms) {
                meter.busy_ns += busy_ns;
                meter.owners.entry(format!("/x/{id}")).or_default().busy_ns = busy_ns;
            }
            meter
        };
        Trace::new((0..=milliseconds).map(reading).collect())
    }

    #[test]
    fn a_share_is_interpolated_between_readings() {
        let trace = traced(100, |ms| vec![("a", ms * 300_000), ("b", ms * 600_000)]);
        assert!((trace.share("a", 10_500_000, 90_250_000) - 0.3).abs() < 1e-9);
        assert!((trace.busy(0, 100_000_000) - 0.9).abs() < 1e-9);
        assert_eq!(trace.share("nobody", 0, 100_000_000), 0.0);
        assert_eq!(trace.share("a", 5, 5), 0.0);
        assert_eq!(trace.since(99_500_000).len(), 1);
    }
}
