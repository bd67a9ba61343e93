//! How long a hand-off takes and what slice follows from it.

use super::Parameters;

/// What hand-offs cost and how late they are, learnt from measurements that are bounded by
/// [`Parameters::handoff_max_ns`], so that one late wake-up changes little.
///
/// The mean says what a hand-off costs on the host, tail included, and so how long a slice must be: on a loaded host
/// slices grow.
/// The 90th percentile says how early one must begin: opening a gate too early overlaps two tenants for a moment, which
/// is charged fairly; opening it too late leaves the device idle, which nobody gets back.
#[derive(Clone, Debug)]
pub(super) struct Handoff {
    mean_ns: u64,
    late_ns: u64,
}

impl Handoff {
    pub(super) fn new(parameters: &Parameters) -> Self {
        let initial_ns = within(parameters, parameters.handoff_initial_ns);
        Self { mean_ns: initial_ns, late_ns: initial_ns }
    }

    /// Takes a measurement: an EWMA of 1/32 for the mean, and steps up and down in the ratio 9:1, which settle at the
    /// 90th percentile.
    pub(super) fn learn(&mut self, parameters: &Parameters, measured_ns: u64) {
        let measured_ns = within(parameters, measured_ns);
        let part_ns = (self.mean_ns.abs_diff(measured_ns) / 32).max(1);
        self.mean_ns = moved(self.mean_ns, measured_ns, part_ns, part_ns);
        let step_ns = (self.late_ns / 128).max(1);
        self.late_ns = moved(self.late_ns, measured_ns, 9 * step_ns, step_ns);
    }

    /// What a hand-off costs.
    pub(super) fn ns(&self) -> u64 {
        self.mean_ns
    }

    /// How long before the end of the running work a hand-off should begin.
    pub(super) fn lead_ns(&self) -> u64 {
        self.late_ns
    }

    /// The slice that makes handing the device over cheap: `clamp((handoff + exchange) * ratio, min, max)`.
    pub(super) fn slice_ns(&self, parameters: &Parameters) -> u64 {
        let cost_ns = self.mean_ns.saturating_add(parameters.exchange_ns);
        let slice_ns = cost_ns.saturating_mul(parameters.slice_per_handover);
        slice_ns.min(parameters.slice_max_ns).max(parameters.slice_min_ns)
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
    fn a_tail_lengthens_slices_and_one_late_wake_up_hardly() {
        let parameters = Parameters::default();
        let mut handoff = Handoff::new(&parameters);
        (0..1000).for_each(|_| handoff.learn(&parameters, 60_000));
        assert_eq!((handoff.ns(), handoff.slice_ns(&parameters)), (60_000, 11_200_000));
        handoff.learn(&parameters, 50_000_000);
        assert!((110_000..=125_000).contains(&handoff.ns()), "{}", handoff.ns());
        (0..1000u64).for_each(|round| handoff.learn(&parameters, if round % 10 == 0 { 1_000_000 } else { 60_000 }));
        assert!((110_000..=200_000).contains(&handoff.ns()), "{}", handoff.ns());
    }

    #[test]
    fn the_lead_covers_nine_in_ten() {
        let parameters = Parameters::default();
        let mut handoff = Handoff::new(&parameters);
        (0..5000u64).for_each(|round| handoff.learn(&parameters, 50_000 + round * 7919 % 100 * 1000));
        assert!((90_000..=110_000).contains(&handoff.ns()), "mean {}", handoff.ns());
        assert!((128_000..=149_000).contains(&handoff.lead_ns()), "lead {}", handoff.lead_ns());
    }

    #[test]
    fn it_stays_within_its_limits() {
        let parameters = Parameters::default();
        let mut handoff = Handoff::new(&parameters);
        (0..1000).for_each(|_| handoff.learn(&parameters, u64::MAX));
        assert_eq!((handoff.ns(), handoff.slice_ns(&parameters)), (2_000_000, 20_000_000));
        (0..1000).for_each(|_| handoff.learn(&parameters, 0));
        assert_eq!((handoff.ns(), handoff.slice_ns(&parameters)), (20_000, 9_600_000));
    }
}
