//! How long a hand-off takes and what slice follows from it.

use super::Parameters;

/// A running median of measured hand-offs: each measurement moves it by 1/32 towards itself, however far away it is,
/// so that one late wake-up changes little.
#[derive(Clone, Debug)]
pub(super) struct Handoff {
    estimate_ns: u64,
}

impl Handoff {
    pub(super) fn new(parameters: &Parameters) -> Self {
        Self { estimate_ns: within(parameters, parameters.handoff_initial_ns) }
    }

    /// Takes a measurement.
    pub(super) fn learn(&mut self, parameters: &Parameters, measured_ns: u64) {
        let step = (self.estimate_ns / 32).max(1).min(self.estimate_ns.abs_diff(measured_ns));
        let moved = if measured_ns > self.estimate_ns { self.estimate_ns + step } else { self.estimate_ns - step };
        self.estimate_ns = within(parameters, moved);
    }

    /// The hand-off to expect.
    pub(super) fn ns(&self) -> u64 {
        self.estimate_ns
    }

    /// The slice that makes such a hand-off cheap: `clamp(handoff * ratio, min, max)`.
    pub(super) fn slice_ns(&self, parameters: &Parameters) -> u64 {
        let slice = self.estimate_ns.saturating_mul(parameters.slice_per_handoff);
        slice.min(parameters.slice_max_ns).max(parameters.slice_min_ns)
    }
}

fn within(parameters: &Parameters, ns: u64) -> u64 {
    ns.min(parameters.handoff_max_ns).max(parameters.handoff_min_ns)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_follows_the_median_and_not_the_tail() {
        let parameters = Parameters::default();
        let mut handoff = Handoff::new(&parameters);
        for round in 0..1000 {
            handoff.learn(&parameters, if round % 20 == 0 { 50_000_000 } else { 60_000 });
        }
        assert!((55_000..=66_000).contains(&handoff.ns()), "{}", handoff.ns());
        assert_eq!(handoff.slice_ns(&parameters), 6_000_000.max(handoff.ns() * 100));
    }

    #[test]
    fn it_stays_within_its_limits() {
        let parameters = Parameters::default();
        let mut handoff = Handoff::new(&parameters);
        (0..1000).for_each(|_| handoff.learn(&parameters, u64::MAX));
        assert_eq!((handoff.ns(), handoff.slice_ns(&parameters)), (2_000_000, 20_000_000));
        (0..1000).for_each(|_| handoff.learn(&parameters, 0));
        assert_eq!((handoff.ns(), handoff.slice_ns(&parameters)), (20_000, 6_000_000));
    }
}
