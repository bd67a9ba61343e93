//! The figures of the demo and of the benchmarks, each a function of a recorded [`Trace`].

use crate::meter::usage_of;
use crate::trace::{Trace, nanoseconds};
use gpool_device_model::Meter;
use std::time::Duration;

/// A container and the share that it should receive, 0 to 1.
pub type Entitled<'a> = (&'a str, f64);

/// The largest difference between the share received and the share due, in points of a hundred.
pub fn worst_error_points(trace: &Trace, entitled: &[Entitled], from_ns: u64, to_ns: u64) -> f64 {
    let error = |(id, due): &Entitled| (trace.share(id, from_ns, to_ns) - due).abs() * 100.0;
    entitled.iter().map(error).fold(0.0, f64::max)
}

/// The same for shares of what the GPU delivered, so that time in which it did nothing is no error.
pub fn worst_proportion_error_points(trace: &Trace, entitled: &[Entitled], from_ns: u64, to_ns: u64) -> f64 {
    let busy = trace.busy(from_ns, to_ns);
    if busy <= 0.0 {
        return f64::INFINITY;
    }
    let error = |(id, due): &Entitled| (trace.share(id, from_ns, to_ns) / busy - due).abs() * 100.0;
    entitled.iter().map(error).fold(0.0, f64::max)
}

/// The least and the mean of several shares. A busy machine may cost any of them a third of a second: a defect shows in
/// the mean, and a tenant that is kept out in the least.
pub fn least_and_mean(shares: &[f64]) -> (f64, f64) {
    let least = shares.iter().copied().fold(f64::INFINITY, f64::min);
    (least, shares.iter().sum::<f64>() / shares.len() as f64)
}

/// Mean absolute error over consecutive windows, in points of a hundred.
pub fn mean_error_points(trace: &Trace, entitled: &[Entitled], from_ns: u64, to_ns: u64, window: Duration) -> f64 {
    let window_ns = nanoseconds(window);
    let starts: Vec<u64> =
        (0..).map(|n| from_ns + n * window_ns).take_while(|start| start + window_ns <= to_ns).collect();
    let errors = starts.iter().flat_map(|start| {
        entitled.iter().map(move |(id, due)| (trace.share(id, *start, start + window_ns) - due).abs() * 100.0)
    });
    errors.sum::<f64>() / (starts.len() * entitled.len()).max(1) as f64
}

/// How long after `from_ns` the shares were as due: the start of the first window in which every container's share is
/// within `tolerance` (0 to 1) of what is due. None when that never came.
pub fn effect_time(
    trace: &Trace,
    entitled: &[Entitled],
    from_ns: u64,
    window: Duration,
    tolerance: f64,
) -> Option<Duration> {
    let window_ns = nanoseconds(window);
    let last_ns = trace.readings().last()?.now_ns;
    let holds = |start: u64| {
        entitled.iter().all(|(id, due)| (trace.share(id, start, start + window_ns) - due).abs() <= tolerance)
    };
    let starts = std::iter::once(from_ns).chain(trace.since(from_ns).iter().map(|meter| meter.now_ns));
    let first = starts.take_while(|start| start + window_ns <= last_ns).find(|start| holds(*start))?;
    Some(Duration::from_nanos(first - from_ns))
}

/// How long the GPU ran nobody's kernel after `idle`'s last one between the two moments: the time until its idle
/// share was lent. None when it never fell silent in between or nobody followed.
pub fn lend_gap(trace: &Trace, idle: &str, from_ns: u64, to_ns: u64) -> Option<Duration> {
    let busy_of = |meter: &Meter| usage_of(meter, idle).busy_ns;
    let until = trace.since(to_ns).first()?;
    let within = || trace.since(from_ns).iter().take_while(|meter| meter.now_ns <= until.now_ns);
    // The first reading that already holds everything the container did.
    let silent = within().find(|meter| busy_of(meter) == busy_of(until))?;
    let others = |meter: &Meter| meter.busy_ns - busy_of(meter);
    let lent = within().find(|meter| meter.now_ns > silent.now_ns && others(meter) > others(silent))?;
    Some(Duration::from_nanos(lent.now_ns - silent.now_ns))
}

/// How long after `from_ns` the container's first kernel executed.
pub fn first_run(trace: &Trace, container_id: &str, from_ns: u64) -> Option<Duration> {
    let readings = trace.since(from_ns);
    let before = usage_of(readings.first()?, container_id).busy_ns;
    let ran = readings.iter().find(|meter| usage_of(meter, container_id).busy_ns > before)?;
    Some(Duration::from_nanos(ran.now_ns - from_ns))
}

/// How long after `from_ns` the container held no byte any more.
pub fn memory_freed(trace: &Trace, container_id: &str, from_ns: u64) -> Option<Duration> {
    let freed = trace.since(from_ns).iter().find(|meter| usage_of(meter, container_id).bytes_now == 0)?;
    Some(Duration::from_nanos(freed.now_ns - from_ns))
}

/// The most bytes that the container ever held, contexts included, as the hardware saw it.
pub fn peak_bytes(trace: &Trace, container_id: &str) -> u64 {
    trace.readings().last().map_or(0, |meter| usage_of(meter, container_id).bytes_peak)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::trace::tests::traced;

    const MS: u64 = 1_000_000;

    #[test]
    fn errors_are_points_of_a_hundred() {
        let trace = traced(2000, |ms| vec![("a", ms * 310_000), ("b", ms * 600_000)]);
        let entitled = [("a", 0.3), ("b", 0.6)];
        assert!((worst_error_points(&trace, &entitled, 0, 2000 * MS) - 1.0).abs() < 1e-6);
        assert!(
            (worst_proportion_error_points(&trace, &entitled, 0, 2000 * MS) - 5.934).abs() < 0.01,
            "60 of 91 instead of 60 of 100"
        );
        assert!((mean_error_points(&trace, &entitled, 0, 2000 * MS, Duration::from_secs(1)) - 0.5).abs() < 1e-6);
    }

    #[test]
    fn an_effect_is_seen_where_its_window_starts() {
        // From 30 % to 20 % at 500 ms.
        let trace = traced(2000, |ms| vec![("a", ms.min(500) * 300_000 + ms.saturating_sub(500) * 200_000)]);
        let effect = effect_time(&trace, &[("a", 0.2)], 400 * MS, Duration::from_millis(500), 0.001).unwrap();
        assert!((90..=100).contains(&effect.as_millis()), "{effect:?}");
        assert_eq!(effect_time(&trace, &[("a", 0.5)], 400 * MS, Duration::from_millis(500), 0.001), None);
    }

    #[test]
    fn idle_time_is_lent_and_taken_back() {
        // `a` runs to 100 ms, nobody to 106 ms, then `b`; `a` again from 200 ms.
        let trace = traced(300, |ms| {
            let a = ms.min(100) + ms.saturating_sub(200);
            vec![("a", a * MS), ("b", (ms.clamp(106, 200) - 106) * MS)]
        });
        let gap = lend_gap(&trace, "a", 50 * MS, 190 * MS).unwrap();
        assert_eq!(gap.as_millis(), 7, "the reading after the first kernel of b");
        assert_eq!(first_run(&trace, "a", 190 * MS).unwrap().as_millis(), 11);
        assert_eq!(memory_freed(&trace, "a", 10 * MS), Some(Duration::ZERO));
    }
}
