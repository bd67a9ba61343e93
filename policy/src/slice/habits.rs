//! What is learnt of a tenant from what it did: how long its bursts and its requests are, and whether it keeps to its
//! announcements. None of it is ever charged.

use super::Parameters;

/// Turns that are remembered.
const HISTORY: u32 = 10;
/// So many of them outrun make a tenant that is not to be believed.
const OUTRUNS: u32 = 3;
/// Bursts of up to this part of a slice divide it well enough.
const DIVISIBLE: u64 = 4;
/// A longest burst is forgotten after one to two of these.
const EPOCH_NS: u64 = 10_000_000_000;

/// The habits of one tenant.
#[derive(Clone, Debug)]
pub(super) struct Habits {
    /// Median length of a burst, by steps.
    burst_ns: u64,
    longest_now_ns: u64,
    longest_before_ns: u64,
    epoch_ns: u64,
    /// 95th percentile of the GPU time of a request, by steps.
    request_ns: u64,
    /// What it had been charged when the request began.
    request_from_ns: i64,
    /// Bit by bit, the newest lowest: whether a turn was outrun.
    outrun: u32,
    cautious_until_ns: u64,
}

impl Habits {
    pub(super) fn new(parameters: &Parameters) -> Self {
        Self {
            burst_ns: 0,
            longest_now_ns: 0,
            longest_before_ns: 0,
            epoch_ns: 0,
            request_ns: parameters.slack_initial_ns / 4,
            request_from_ns: 0,
            outrun: 0,
            cautious_until_ns: 0,
        }
    }

    /// A burst has ended.
    pub(super) fn burst(&mut self, now_ns: u64, length_ns: u64) {
        self.burst_ns = match self.burst_ns {
            0 => length_ns,
            known => stepped(known, length_ns, 1, 1),
        };
        if now_ns >= self.epoch_ns.saturating_add(EPOCH_NS) {
            (self.epoch_ns, self.longest_before_ns, self.longest_now_ns) = (now_ns, self.longest_now_ns, 0);
        }
        self.longest_now_ns = self.longest_now_ns.max(length_ns);
    }

    /// The slice of about `slice_ns` that suits it: as many whole bursts as come closest, at least one. What is launched
    /// cannot be taken back, so the slice ends half a usual burst before the last of them does, and a burst that is
    /// somewhat shorter than usual lets no other one in. A burst counts as `max_ns` at most. Of a tenant whose bursts
    /// are far shorter than a slice it is `slice_ns`.
    pub(super) fn slice_ns(&self, slice_ns: u64, max_ns: u64) -> u64 {
        let burst_ns = self.burst_ns.min(max_ns);
        if burst_ns <= slice_ns / DIVISIBLE {
            return slice_ns;
        }
        let bursts = ((slice_ns + burst_ns / 2) / burst_ns).max(1);
        bursts * burst_ns - burst_ns / 2
    }

    /// The longest burst of the last ten to twenty seconds.
    pub(super) fn longest_ns(&self) -> u64 {
        self.longest_now_ns.max(self.longest_before_ns)
    }

    /// A request begins, or what passes for one: the tenant wants after it was idle.
    pub(super) fn begin_request(&mut self, charged_ns: i64) {
        self.request_from_ns = charged_ns;
    }

    /// The tenant is idle: the request has ended.
    pub(super) fn end_request(&mut self, parameters: &Parameters, charged_ns: i64) {
        let used_ns = u64::try_from(charged_ns - self.request_from_ns).unwrap_or(0);
        self.request_from_ns = charged_ns;
        if used_ns > 0 {
            // A long one among few is not waited for dozens of times before it counts. One that is very long counts as much.
            let at_once_ns = used_ns.min(parameters.slack_max_ns / 2) / 2;
            self.request_ns = stepped(self.request_ns, used_ns, 19, 1).max(at_once_ns);
        }
    }

    /// How far it may run ahead of its share if somebody waits for its answers: four times a long request.
    pub(super) fn slack_ns(&self, parameters: &Parameters) -> u64 {
        self.request_ns.saturating_mul(4).clamp(parameters.slack_min_ns, parameters.slack_max_ns)
    }

    /// A turn begins.
    pub(super) fn begin_turn(&mut self) {
        self.outrun = (self.outrun << 1) & ((1 << HISTORY) - 1);
    }

    /// Its work has gone on beyond the end of its turn by more than another slice. Work that cannot be divided does
    /// that without anybody's fault.
    pub(super) fn outran(&mut self, parameters: &Parameters, now_ns: u64, slice_ns: u64) {
        if self.burst_ns >= slice_ns {
            return;
        }
        self.outrun |= 1;
        if self.outrun.count_ones() >= OUTRUNS {
            self.outrun = 0;
            self.cautious_until_ns = now_ns.saturating_add(parameters.cautious_ns);
        }
    }

    /// Whether it may not work ahead now.
    pub(super) fn is_cautious(&self, now_ns: u64) -> bool {
        now_ns < self.cautious_until_ns
    }
}

/// `from` moved towards `to` by steps of 1/64, up and down in the ratio given, which settle at the quantile
/// `up / (up + down)`.
fn stepped(from: u64, to: u64, up: u64, down: u64) -> u64 {
    let step = (from / 64).max(1);
    let scale = up + down;
    if to > from {
        from + (2 * up * step / scale).max(1).min(to - from)
    } else {
        from - (2 * down * step / scale).max(1).min(from - to)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn slack_is_four_long_requests() {
        let parameters = Parameters::default();
        let mut habits = Habits::new(&parameters);
        assert_eq!(habits.slack_ns(&parameters), 25_000_000);
        let mut charged_ns = 0;
        for _ in 0..3000 {
            habits.begin_request(charged_ns);
            charged_ns += 3_000_000;
            habits.end_request(&parameters, charged_ns);
        }
        let slack_ns = habits.slack_ns(&parameters);
        assert!((11_500_000..=13_000_000).contains(&slack_ns), "{slack_ns}");
        habits.end_request(&parameters, charged_ns);
        assert_eq!(habits.slack_ns(&parameters), slack_ns, "a pause without work is no request");
        let mut request = |used_ns: i64| {
            habits.begin_request(charged_ns);
            charged_ns += used_ns;
            habits.end_request(&parameters, charged_ns);
            habits.slack_ns(&parameters)
        };
        assert_eq!(request(26_000_000), 52_000_000, "two of a long one at once");
        assert!((0..30).map(|_| request(26_000_000)).last() > Some(95_000_000), "and four once they are many");
        assert_eq!(request(2_000_000_000), parameters.slack_max_ns);
        assert!((0..2000).map(|_| request(3_000_000)).last() < Some(14_000_000), "one alone is forgotten");
    }

    #[test]
    fn a_slice_is_a_whole_number_of_usual_bursts() {
        let slice_ns = |burst_ns| {
            let mut habits = Habits::new(&Parameters::default());
            habits.burst(0, burst_ns);
            habits.slice_ns(12_000, 20_000)
        };
        assert_eq!([0, 1, 3000].map(slice_ns), [12_000; 3]);
        // Two bursts of 5, two of 6 or 7, one of 9, one of whatever length.
        assert_eq!([5000, 6000, 7000, 9000, 20_000].map(slice_ns), [7500, 9000, 10_500, 4500, 10_000]);
        assert_eq!(slice_ns(1_000_000), 10_000);
    }

    #[test]
    fn three_outrun_turns_of_ten_end_working_ahead_for_a_second() {
        let parameters = Parameters::default();
        let mut habits = Habits::new(&parameters);
        habits.burst(0, 1_000_000);
        for turn in 0..20 {
            habits.begin_turn();
            if turn % 9 == 0 {
                habits.outran(&parameters, turn, 6_000_000);
            }
        }
        assert!(!habits.is_cautious(20), "two in ten are bad luck");
        (0..3).for_each(|_| {
            habits.begin_turn();
            habits.outran(&parameters, 100, 6_000_000);
        });
        assert!(habits.is_cautious(100) && !habits.is_cautious(100 + parameters.cautious_ns));
    }

    #[test]
    fn the_longest_burst_is_forgotten_in_time() {
        let mut habits = Habits::new(&Parameters::default());
        habits.burst(1, 50_000_000);
        habits.burst(EPOCH_NS + 1, 1_000_000);
        assert_eq!(habits.longest_ns(), 50_000_000);
        habits.burst(2 * EPOCH_NS + 1, 1_000_000);
        assert_eq!(habits.longest_ns(), 1_000_000);
    }
}
