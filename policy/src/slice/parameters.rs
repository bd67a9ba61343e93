//! The numbers a scheduler is set up with.

/// Times and limits of a [`SliceScheduler`](super::SliceScheduler). All are nanoseconds, but for the ratios.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Parameters {
    /// The shortest slice of a tenant without debt. Longer than the depth: who issues all of a slice when it opens announces
    /// an end that does not know of the exchange before it, and the next one's gate opens too early for that.
    pub slice_min_ns: u64,
    /// The longest slice.
    pub slice_max_ns: u64,
    /// A slice is so many times as long as it costs to hand the device over, within the two limits above: 40 makes that
    /// 2.5 % where every slice is followed by somebody else's. Longer slices lose less, and shares over a second are further
    /// off: with 50, half as far again in the simulated scenario `coarse`.
    pub slice_per_handover: u64,
    /// What exchanging contexts costs the device, beside the hand-off on the host. Nobody measures it on the way: it is
    /// over before the first kernel runs. An H100 (driver 580) loses 11 % by it to its driver's slices of 2 ms.
    pub exchange_ns: u64,
    /// The slice of a batch tenant while nobody else is active. Whoever may be served before it is asked again ends it, so
    /// it only says how seldom the tenant is bothered with a renewal.
    pub alone_ns: u64,
    /// The same while nobody else has joined. Several bursts, so that it can be renewed after some of them.
    pub sole_ns: u64,
    /// The shortest slice of a tenant in debt, and the least that a cut leaves of a slice.
    pub least_slice_ns: u64,
    /// How long the next tenant waits for one that has not answered at the end of its slice, before both overlap.
    pub drain_limit_ns: u64,
    /// How long the gate of the tenant that fell idle last is left open: see [`SliceScheduler::left_open`](super::SliceScheduler). No
    /// longer than a tenant that fails closed may work without a supervisor.
    pub left_open_ns: u64,
    /// How long an idle tenant still counts as active, so that a short pause costs it nothing.
    pub linger_ns: u64,
    /// The measured hand-off that is assumed before the first measurement.
    pub handoff_initial_ns: u64,
    /// The least hand-off that is believed.
    pub handoff_min_ns: u64,
    /// The greatest hand-off that is believed.
    pub handoff_max_ns: u64,
    /// Estimated unfinished work that a tenant may have on the device while no latency tenant is about: as much as a thread
    /// that wakes up late, at the 99th percentile of a loaded host, leaves the device without. It is charged like all work, so
    /// it costs nobody his share.
    pub depth_ns: u64,
    /// The same while one is, or while others come back often from short pauses: less stands in their way.
    pub latency_depth_ns: u64,
    /// Within which time so many returns are often.
    pub returns_ns: u64,
    /// GPU time that one burst should hold.
    pub burst_ns: u64,
    /// The same while nobody else has joined, at most; as much may be unfinished then. Whoever joins may find that before it,
    /// and what one more burst holds, for each process; two if it uses several streams. Each burst costs its tenant two events
    /// among its kernels: 6 to 12 us on an H200 (driver 580), 0.6 to 1.2 % of bursts of 1 ms.
    pub sole_burst_ns: u64,
    /// The same while others have joined and none of them has been at work for [`quiet_ns`](Self::quiet_ns). No longer than the
    /// depth: whoever comes back finds that and one such burst before him at most, and half a burst and a little for each further
    /// stream of each process. A training step on an H200 took 0.9 % longer beside somebody idle, with bursts of 1 ms.
    pub quiet_burst_ns: u64,
    /// For how long nobody else may have been at work.
    pub quiet_ns: u64,
    /// Such a burst is as long as its tenant has had GPU time for so many of them: what is under way when a program is killed
    /// nobody reports, and that must be little beside the rest.
    pub bursts_had: u64,
    /// How long a latency tenant that is idle still counts as being about.
    pub latency_about_ns: u64,
    /// How far a latency tenant may run ahead of its share before its requests have been measured.
    pub slack_initial_ns: u64,
    /// The least that is learnt.
    pub slack_min_ns: u64,
    /// The most that is learnt.
    pub slack_max_ns: u64,
    /// The most of it that it has always, and the longest slice within it. It has more while it has had no more than that beyond its share
    /// lately, and no other one of the class is at work.
    pub slack_usual_ns: u64,
    /// How long a tenant whose work has outrun its announcements again and again may not work ahead.
    pub cautious_ns: u64,
    /// How long a debt outlives its owner's last activity.
    pub debt_keep_ns: u64,
}

impl Parameters {
    /// Those of a host.
    pub const DEFAULT: Self = Self {
        slice_min_ns: 8_000_000,
        slice_max_ns: 20_000_000,
        slice_per_handover: 40,
        exchange_ns: 220_000,
        alone_ns: 100_000_000,
        sole_ns: 400_000_000,
        least_slice_ns: 1_000_000,
        drain_limit_ns: 20_000_000,
        left_open_ns: 1_000_000_000,
        linger_ns: 2_000_000,
        handoff_initial_ns: 100_000,
        handoff_min_ns: 20_000,
        handoff_max_ns: 2_000_000,
        depth_ns: 6_000_000,
        latency_depth_ns: 1_000_000,
        returns_ns: 1_000_000_000,
        burst_ns: 1_000_000,
        sole_burst_ns: 50_000_000,
        quiet_burst_ns: 5_000_000,
        quiet_ns: 1_000_000_000,
        bursts_had: 16,
        latency_about_ns: 10_000_000_000,
        slack_initial_ns: 25_000_000,
        slack_min_ns: 5_000_000,
        slack_max_ns: 200_000_000,
        slack_usual_ns: 50_000_000,
        cautious_ns: 1_000_000_000,
        debt_keep_ns: 10_000_000_000,
    };

    /// The same scheduler in a world where everything takes `factor` times as long.
    #[must_use]
    pub fn scaled(self, factor: u64) -> Self {
        let times = |ns: u64| ns.saturating_mul(factor);
        Self {
            slice_min_ns: times(self.slice_min_ns),
            slice_max_ns: times(self.slice_max_ns),
            slice_per_handover: self.slice_per_handover,
            exchange_ns: times(self.exchange_ns),
            alone_ns: times(self.alone_ns),
            sole_ns: times(self.sole_ns),
            least_slice_ns: times(self.least_slice_ns),
            drain_limit_ns: times(self.drain_limit_ns),
            left_open_ns: times(self.left_open_ns),
            linger_ns: times(self.linger_ns),
            handoff_initial_ns: times(self.handoff_initial_ns),
            handoff_min_ns: times(self.handoff_min_ns),
            handoff_max_ns: times(self.handoff_max_ns),
            depth_ns: times(self.depth_ns),
            latency_depth_ns: times(self.latency_depth_ns),
            returns_ns: times(self.returns_ns),
            burst_ns: times(self.burst_ns),
            sole_burst_ns: times(self.sole_burst_ns),
            quiet_burst_ns: times(self.quiet_burst_ns),
            quiet_ns: times(self.quiet_ns),
            bursts_had: self.bursts_had,
            latency_about_ns: times(self.latency_about_ns),
            slack_initial_ns: times(self.slack_initial_ns),
            slack_min_ns: times(self.slack_min_ns),
            slack_max_ns: times(self.slack_max_ns),
            slack_usual_ns: times(self.slack_usual_ns),
            cautious_ns: times(self.cautious_ns),
            debt_keep_ns: times(self.debt_keep_ns),
        }
    }
}

impl Default for Parameters {
    fn default() -> Self {
        Self::DEFAULT
    }
}
