//! How long a hand-off takes and what slice follows from it.

use super::Parameters;

/// Running quantiles of measured hand-offs: each measurement moves them by a fixed part of themselves, however far away
/// it is, so that one late wake-up changes little.
///
/// The median says what a hand-off costs, and so how long a slice must be. The 90th percentile says how early one must
/// begin: opening a gate too early overlaps two tenants for a moment, which is charged fairly; opening it too late
/// leaves the device idle, which nobody gets back.
#[derive(Clone, Debug)]
pub(super) struct Handoff {
    median_ns: u64,
    late_ns: u64,
}

impl Handoff {
    pub(super) fn new(parameters: &Parameters) -> Self {
        let initial_ns = within(parameters, parameters.handoff_initial_ns);
        Self { median_ns: initial_ns, late_ns: initial_ns }
    }

    /// Takes a measurement. Steps up and down in the ratio 1:1 settle at the median, 9:1 at the 90th percentile.
    pub(super) fn learn(&mut self, parameters: &Parameters, measured_ns: u64) {
        let median_step = (self.median_ns / 32).max(1);
        self.median_ns = within(parameters, moved(self.median_ns, measured_ns, median_step, median_step));
        let late_step = (self.late_ns / 128).max(1);
        self.late_ns = within(parameters, moved(self.late_ns, measured_ns, 9 * late_step, late_step));
    }

    /// What a hand-off costs.
    pub(super) fn ns(&self) -> u64 {
        self.median_ns
    }

    /// How long before the end of the running work a hand-off should begin.
    pub(super) fn lead_ns(&self) -> u64 {
        self.late_ns.max(self.median_ns)
    }

    /// The slice that makes such a hand-off cheap: `clamp(handoff * ratio, min, max)`.
    pub(super) fn slice_ns(&self, parameters: &Parameters) -> u64 {
        let slice = self.median_ns.saturating_mul(parameters.slice_per_handoff);
        slice.min(parameters.slice_max_ns).max(parameters.slice_min_ns)
    }
}

/// `from_ns` moved towards `to_ns`, not beyond it.
fn moved(from_ns: u64, to_ns: u64, up_ns: u64, down_ns: u64) -> u64 {
    if to_ns > from_ns { from_ns + up_ns.min(to_ns - from_ns) } else { from_ns - down_ns.min(from_ns - to_ns) }
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
    fn the_lead_covers_nine_in_ten() {
        let parameters = Parameters::default();
        let mut handoff = Handoff::new(&parameters);
        (0..5000u64).for_each(|round| handoff.learn(&parameters, 50_000 + round * 7919 % 100 * 1000));
        assert!((90_000..=110_000).contains(&handoff.ns()), "median {}", handoff.ns());
        assert!((128_000..=149_000).contains(&handoff.lead_ns()), "lead {}", handoff.lead_ns());
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
