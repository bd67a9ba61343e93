//! What a lease has had of one GPU, as the scheduler last said.

use super::record::GpuStanding;
use crate::memory_limits::MemoryLimitNote;
use std::collections::VecDeque;

/// Seconds over which a received share is averaged.
pub const SHARE_WINDOW: usize = 10;

/// What has been charged at the moments of the last seconds.
#[derive(Debug, Clone, Default)]
pub struct Charges {
    /// (when, all until then), newest last.
    moments: VecDeque<(u64, u64)>,
    /// The most that has ever been charged. What others turn out to have had is taken back, but whoever adds up a total takes
    /// one that falls for one that begins anew.
    most_ns: u64,
}

impl Charges {
    /// At `at_ns`, all that has been charged is `charged_ns`.
    fn note(&mut self, at_ns: u64, charged_ns: u64) {
        self.moments.push_back((at_ns, charged_ns));
        while self.moments.len() > SHARE_WINDOW + 1 {
            self.moments.pop_front();
        }
        self.most_ns = self.most_ns.max(charged_ns);
    }

    /// At `at_ns`, `more_ns` have been charged since the moment before; less than none where more was taken back.
    pub fn add(&mut self, at_ns: u64, more_ns: i64) {
        self.note(at_ns, self.all_ns().saturating_add_signed(more_ns));
    }

    /// Adds to the newest moment what was charged until then and is heard of at `now_ns`, between two moments.
    pub fn add_late(&mut self, now_ns: u64, more_ns: i64) {
        let (at_ns, charged_ns) = self.moments.pop_back().unwrap_or((now_ns, 0));
        self.note(at_ns, charged_ns.saturating_add_signed(more_ns));
    }

    fn all_ns(&self) -> u64 {
        self.moments.back().map_or(0, |(_, charged_ns)| *charged_ns)
    }

    /// When the newest moment was.
    fn at_ns(&self) -> u64 {
        self.moments.back().map_or(0, |(at_ns, _)| *at_ns)
    }

    /// All that has been charged. It never falls: what is taken back is left out of what follows.
    pub fn total_ns(&self) -> u64 {
        self.most_ns
    }

    /// What was charged of the time from the first moment to the last, in permille.
    pub fn permille(&self) -> u16 {
        let (Some(first), Some(last)) = (self.moments.front(), self.moments.back()) else { return 0 };
        let elapsed_ns = last.0.saturating_sub(first.0);
        let charged_ns = last.1.saturating_sub(first.1);
        (charged_ns.saturating_mul(1000) + elapsed_ns / 2).checked_div(elapsed_ns).unwrap_or(0).min(1000) as u16
    }
}

/// A lease's account on one GPU.
#[derive(Debug, Clone, Default)]
pub struct GpuAccount {
    /// Index of the GPU on this host.
    pub gpu: usize,
    /// Charged in earlier lives of the supervisor.
    before_ns: u64,
    /// By the second, in this life.
    charges: Charges,
    /// What it was owed at the newest of them; below zero, what it owed.
    lag_ns: i64,
    /// GPU time that the device saw in this life: all that is known of who has no shims.
    seen_ns: u64,
    /// Until when, in microseconds of the device's clock; from an earlier life if nothing was seen in this one.
    seen_until_us: u64,
    /// Memory that the device saw last.
    seen_bytes: u64,
    /// The limit by which the driver keeps the cap, as was seen last.
    pub memory_limit: MemoryLimitNote,
    /// The part of its memory that the device saw last beyond the cap.
    excess_bytes: u64,
    /// Its part of what the device has drawn in this life of the supervisor.
    energy_millijoules: u64,
    /// What of all that was charged in this life was found by the audit, and comes in lumps.
    pub found_ns: u64,
    /// What had been charged in this life when that was divided last.
    divided_ns: u64,
}

impl GpuAccount {
    /// An account on GPU `gpu` of a lease that had been charged `before_ns` earlier.
    pub fn new(gpu: usize, before_ns: u64) -> Self {
        Self { gpu, before_ns, ..Self::default() }
    }

    /// An account that goes on from what was written down of it.
    pub fn going_on(gpu: usize, standing: &GpuStanding) -> Self {
        Self { seen_until_us: standing.seen_until_us, ..Self::new(gpu, standing.charged_ns) }
    }

    /// Adds the figures of one moment; keeps a window of them. How much more has been charged than at the moment before, or
    /// less: what others are known by now to have had at the same time is taken back.
    pub fn note(&mut self, at_ns: u64, charged_ns: u64, lag_ns: i64) -> i64 {
        let more_ns = charged_ns.wrapping_sub(self.charges.all_ns()).cast_signed();
        self.lag_ns = lag_ns;
        self.charges.note(at_ns, charged_ns);
        more_ns
    }

    /// Adds GPU time that the device saw, until `until_us` of its clock.
    pub fn see(&mut self, busy_ns: u64, until_us: u64) {
        if busy_ns > 0 {
            self.seen_ns = self.seen_ns.saturating_add(busy_ns);
            self.seen_until_us = until_us;
        }
    }

    /// Until when what the device saw is among what was seen: microseconds of its clock, 0 if that is not known.
    pub fn seen_until_us(&self) -> u64 {
        self.seen_until_us
    }

    /// Whether anything was charged since [`GpuAccount::take_used`].
    pub fn has_used(&self) -> bool {
        self.charges.total_ns() > self.divided_ns
    }

    /// What was charged since this was asked last.
    pub fn take_used(&mut self) -> u64 {
        let charged_ns = self.charges.total_ns();
        charged_ns.saturating_sub(std::mem::replace(&mut self.divided_ns, charged_ns))
    }

    /// Adds its part of what the device has drawn.
    pub fn note_energy(&mut self, millijoules: u64) {
        self.energy_millijoules = self.energy_millijoules.saturating_add(millijoules);
    }

    /// Its part of what the device has drawn in this life of the supervisor.
    pub fn energy_millijoules(&self) -> u64 {
        self.energy_millijoules
    }

    /// Notes memory that the device sees now.
    pub fn see_memory(&mut self, bytes: u64) {
        self.seen_bytes = bytes;
    }

    /// Notes by how much what the device sees now is above the cap.
    pub fn see_excess(&mut self, bytes: u64) {
        self.excess_bytes = bytes;
    }

    /// Notes that at least so much is held beyond a cap that has just been lowered. How much more that is than was known.
    pub fn raise_excess(&mut self, bytes: u64) -> u64 {
        let more = bytes.saturating_sub(self.excess_bytes);
        self.excess_bytes += more;
        more
    }

    /// By how much what the device saw last was above the cap of then.
    pub fn excess_bytes(&self) -> u64 {
        self.excess_bytes
    }

    /// GPU time that the device saw in this life of the supervisor.
    pub fn seen_ns(&self) -> u64 {
        self.seen_ns
    }

    /// Memory that the device saw last.
    pub fn seen_bytes(&self) -> u64 {
        self.seen_bytes
    }

    /// Charged GPU time over the window, in permille of it.
    pub fn received_permille(&self) -> u16 {
        self.charges.permille()
    }

    /// All GPU time charged since the lease began, in all lives of the supervisor, as far as is known. It never falls.
    pub fn charged_ns(&self) -> u64 {
        self.before_ns.saturating_add(self.charges.total_ns())
    }

    /// When the charges were heard of last, in nanoseconds of the monotonic clock.
    pub fn charged_at_ns(&self) -> u64 {
        self.charges.at_ns()
    }

    /// What the lease was owed then; below zero, what it owed.
    pub fn lag_ns(&self) -> i64 {
        self.lag_ns
    }

    /// What is written down of it.
    pub fn standing(&self) -> GpuStanding {
        GpuStanding {
            charged_ns: self.charged_ns(),
            debt_ns: self.lag_ns.min(0).unsigned_abs(),
            seen_until_us: self.seen_until_us,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const S: u64 = 1_000_000_000;

    #[test]
    fn a_share_is_averaged_over_ten_seconds_and_a_total_outlives_the_supervisor() {
        let mut account = GpuAccount::new(0, 7 * S);
        assert_eq!((account.received_permille(), account.charged_ns()), (0, 7 * S));
        for second in 0..30 {
            // Half of the GPU for twenty seconds, all of it afterwards.
            let charged_ns = if second < 20 { second * S / 2 } else { 10 * S + (second - 20) * S };
            account.note(second * S, charged_ns, -3);
        }
        assert_eq!((account.received_permille(), account.charged_ns()), (950, 26 * S));
        assert_eq!(account.standing(), GpuStanding { charged_ns: 26 * S, debt_ns: 3, seen_until_us: 0 });
        account.note(30 * S, 19 * S, 9);
        assert_eq!(account.standing().debt_ns, 0, "what it is owed is no debt");
        assert!(account.has_used() && account.take_used() > 0 && !account.has_used());
        account.note(31 * S, 27 * S, 0);
        assert!(account.has_used());
    }

    #[test]
    fn what_is_held_beyond_a_lowered_cap_is_counted_once() {
        let mut account = GpuAccount::new(0, 0);
        assert_eq!((account.raise_excess(5), account.raise_excess(3)), (5, 0), "it was lowered less far before");
        assert_eq!((account.raise_excess(7), account.excess_bytes()), (2, 7));
        account.see_excess(1);
        assert_eq!((account.excess_bytes(), account.raise_excess(4)), (1, 3), "the device has said what is left");
    }

    #[test]
    fn a_total_does_not_fall_when_something_is_taken_back_and_a_gpu_s_share_counts_no_time_twice() {
        let (mut first, mut second) = (GpuAccount::new(0, 7 * S), GpuAccount::new(0, 0));
        let mut gpu = Charges::default();
        // The second one reports late what both had at the same time: half of it is taken back from the first.
        for (at, ours, theirs) in [(0, 0, 0), (1, S, 0), (2, S / 2, S / 2), (3, S, S)] {
            let more_ns = first.note(at * S, ours, 0) + second.note(at * S, theirs, 0);
            gpu.add(at * S, more_ns);
            assert_eq!(first.charged_ns(), 7 * S + if at == 0 { 0 } else { S }, "after {at} s");
        }
        assert_eq!(gpu.permille(), 667, "2 of 3 s: what took the place of what was taken back is no more");
        assert_eq!(first.standing().charged_ns, 8 * S);
        first.note(4 * S, 2 * S, 0);
        assert_eq!(first.charged_ns(), 9 * S);
    }

    #[test]
    fn what_is_heard_of_between_two_looks_is_no_look_of_its_own() {
        let mut gpu = Charges::default();
        gpu.add_late(S, 5);
        for second in 1..=10 {
            gpu.add(second * S, S.cast_signed() / 2);
            // Ten leases that end within a second leave the window as long as it is.
            (0..10).for_each(|_| gpu.add_late(second * S + 7, S.cast_signed() / 20));
        }
        assert_eq!((gpu.permille(), gpu.at_ns()), (1000, 10 * S));
        assert_eq!(gpu.total_ns(), 10 * S + 5);
        gpu.add_late(11 * S, -S.cast_signed());
        assert_eq!(gpu.total_ns(), 10 * S + 5, "what is taken back is left out of what follows");
    }

    #[test]
    fn what_a_gpu_was_charged_is_of_its_own_time_whoever_came_and_went() {
        let (mut gpu, mut whole) = (Charges::default(), Vec::new());
        for second in 0..30 {
            // One lease works for eight seconds, others for a second each, and nobody from the twentieth on.
            gpu.add(second * S, if second < 20 { S.cast_signed() } else { 0 });
            whole.push(gpu.permille());
        }
        assert_eq!(whole[1..20], [1000; 19]);
        assert_eq!((whole[24], whole[29]), (500, 0));
    }
}
