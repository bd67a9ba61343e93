//! The numbers a scheduler is set up with.

/// Times and limits of a [`SliceScheduler`](super::SliceScheduler). All are nanoseconds, but for the ratio.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Parameters {
    /// The shortest slice of a tenant without debt.
    pub slice_min_ns: u64,
    /// The longest slice.
    pub slice_max_ns: u64,
    /// A slice is so many hand-offs long, within the two limits above: 100 makes a hand-off cost 1 %.
    pub slice_per_handoff: u64,
    /// The shortest slice of a tenant in debt.
    pub least_slice_ns: u64,
    /// How long the next tenant waits for one that has not answered at the end of its slice, before both overlap.
    pub drain_limit_ns: u64,
    /// How long an idle tenant still counts as active, so that a short pause costs it nothing.
    pub linger_ns: u64,
    /// The measured hand-off that is assumed before the first measurement.
    pub handoff_initial_ns: u64,
    /// The least hand-off that is believed.
    pub handoff_min_ns: u64,
    /// The greatest hand-off that is believed.
    pub handoff_max_ns: u64,
    /// Estimated unfinished work that a tenant may have on the device while no latency tenant has joined.
    pub depth_ns: u64,
    /// The same while one has: less stands in its way.
    pub latency_depth_ns: u64,
    /// A tenant of which nothing has ended for so long, though it should have, is reported as hung.
    pub hang_ns: u64,
    /// How long a debt outlives its owner's last activity.
    pub debt_keep_ns: u64,
}

impl Default for Parameters {
    fn default() -> Self {
        Self {
            slice_min_ns: 6_000_000,
            slice_max_ns: 20_000_000,
            slice_per_handoff: 100,
            least_slice_ns: 1_000_000,
            drain_limit_ns: 20_000_000,
            linger_ns: 2_000_000,
            handoff_initial_ns: 100_000,
            handoff_min_ns: 20_000,
            handoff_max_ns: 2_000_000,
            depth_ns: 6_000_000,
            latency_depth_ns: 1_000_000,
            hang_ns: 30_000_000_000,
            debt_keep_ns: 10_000_000_000,
        }
    }
}
