//! Bursts that nobody adds to.

use super::{Burst, Bursts, Spent, State};
use crate::clock;
use crate::driver::Driver;
use gpool_driver_abi::cuda::CUcontext;
use gpool_shared_region::{BurstTag, GPUS};

/// A program that adds nothing to its burst for so long, and not before so long after the burst's expected end, has stopped
/// adding.
const ADD_PATIENCE_NS: u64 = 100_000;
/// From so much work on a look at a stream that has drained, some 10 us after its end, says what the work cost.
const DRAINED_EXACT_NS: u64 = 500_000;
/// The thread whose burst holds one launch ends it itself, when the launch returns; a copy may block for long, and so may what
/// the driver compiles at its first launch.
const LONE_PATIENCE_NS: u64 = 1_000_000_000;

impl Bursts {
    /// Looks to which bursts launches were added since the last look: those go on. Where their work should have ended the device
    /// has waited for it, and their length does not say what launches cost.
    pub fn note_added(&mut self, now_ns: u64, left_ns: impl Fn(usize) -> u32) {
        for (index, burst) in self.table.iter_mut().enumerate().filter(|(_, burst)| burst.state == State::Open) {
            let left_ns = left_ns(index);
            if left_ns != burst.seen_left_ns {
                (burst.seen_left_ns, burst.seen_ns) = (left_ns, now_ns);
                let used_ns = self.learning.real_ns(burst.expected_ns.saturating_sub(left_ns.into()));
                burst.is_exact &= burst.resumed_ns + used_ns + ADD_PATIENCE_NS > now_ns;
            }
        }
    }

    /// When each burst that has not been ended should be, if no more launches are added: (index, time). `left_ns` says
    /// how much of its credit is left.
    pub fn open_ends(&self, left_ns: impl Fn(usize) -> u32) -> impl Iterator<Item = (usize, u64)> {
        self.table.iter().enumerate().filter_map(move |(index, burst)| {
            let used_ns = |expected_ns: u64| self.learning.real_ns(expected_ns.saturating_sub(left_ns(index).into()));
            let end_ns = match burst.state {
                State::Open => burst.seen_ns.max(burst.resumed_ns + used_ns(burst.expected_ns)) + ADD_PATIENCE_NS,
                State::Lone if self.lasts(burst) => return None,
                State::Lone => burst.opened_ns + burst.estimate_ns + LONE_PATIENCE_NS,
                State::Free | State::Away | State::Closed | State::Resting | State::Leaving | State::LeavingFree => {
                    return None;
                }
            };
            Some((index, end_ns))
        })
    }

    /// Whether its one launch returns no sooner than its work has ended, whatever it is: no end can be recorded before, and what
    /// the driver compiles in it cannot be told from work.
    fn lasts(&self, burst: &Burst) -> bool {
        self.is_blocking && burst.work.is_some_and(|work| !work.is_bytes())
    }

    /// Any open burst of `context` on whose stream all work has ended.
    pub fn drained_in(&self, driver: &Driver, context: CUcontext) -> Option<usize> {
        (0..self.table.len()).find(|index| self.has_drained(driver, context, *index))
    }

    /// Whether burst `index` is open, of `context`, and all work on its stream has ended. Nothing is asked about a stream in capture.
    pub fn has_drained(&self, driver: &Driver, context: CUcontext, index: usize) -> bool {
        let burst = &self.table[index];
        let is_open = burst.state == State::Open && burst.context == context;
        is_open && !driver.is_capturing(burst.stream) && driver.has_drained(burst.stream)
    }

    /// Ends burst `index`, whose work has ended shortly before: of a short one that counts as silence.
    pub fn close_drained(&mut self, driver: &Driver, index: usize, spent: Spent) {
        let used_ns = self.table[index].expected_ns.saturating_sub(spent.left_ns.into());
        self.table[index].is_exact &= used_ns >= DRAINED_EXACT_NS;
        self.close(driver, index, spent);
    }

    /// Says whether the driver returns from launches only when their work has ended.
    pub fn set_blocking(&mut self, is_blocking: bool) {
        self.is_blocking = is_blocking;
    }

    /// A launch that took so long says nothing of what its work costs.
    pub(super) fn doubt_long(&mut self, index: usize) {
        let burst = &mut self.table[index];
        if clock::now_ns() >= burst.opened_ns + burst.estimate_ns + LONE_PATIENCE_NS {
            (burst.is_exact, burst.is_first) = (false, false);
        }
    }

    /// The launch of a burst that was given up on has returned: what was before was the host's time, and its length says nothing.
    /// Whether it was.
    pub(super) fn come_back(&mut self, index: usize) -> bool {
        let burst = &mut self.table[index];
        let was_away = burst.state == State::Away;
        if was_away {
            burst.state = State::Lone;
            burst.resumed_ns = clock::now_ns();
            burst.begins_ns = burst.resumed_ns;
            self.live += 1;
        }
        was_away
    }

    /// The launch of the lone burst with this number has returned, and nobody could end it then: whose it was, when it began and how
    /// long it was expected to take. None if it has ended; no burst has the number 0.
    pub fn give_up(&mut self, number: u64) -> Option<(BurstTag, u64, u64)> {
        let is_it = |burst: &&mut Burst| matches!(burst.state, State::Lone | State::Away) && burst.sequence == number;
        let burst = self.table.iter_mut().find(is_it)?;
        self.live -= usize::from(burst.state == State::Lone);
        burst.state = State::Free;
        Some((burst.tag, burst.resumed_ns, burst.estimate_ns))
    }

    /// What goes by on GPU `gpu` of the lease, unmeasured, is expected to end then; 0 for nothing.
    pub fn note_gone_by(&mut self, gpu: usize, end_ns: u64) {
        let gpu = gpu % GPUS;
        self.gone_by_ends_ns[gpu] = end_ns;
        self.estimated_ends_ns[gpu] = self.estimated_ends_ns[gpu].max(end_ns);
    }

    /// Launches have gone by that may lie within open bursts: the length of these does not say what theirs cost.
    pub fn doubt_open(&mut self) {
        for burst in self.table.iter_mut().filter(|burst| burst.state == State::Open) {
            (burst.is_exact, burst.is_first) = (false, false);
        }
    }

    /// Ends burst `index`, to which the program has stopped adding; its length includes the silence.
    pub fn close_late(&mut self, driver: &Driver, index: usize, spent: Spent) {
        let burst = &mut self.table[index];
        burst.is_exact = false;
        let is_launch = burst.work.is_some_and(|work| !work.is_bytes());
        if burst.state == State::Lone && (is_launch || burst.of != burst.context) {
            // An end that is recorded now would come before the launch, and in a part only that thread can record it.
            burst.state = State::Away;
            self.live -= 1;
            return;
        }
        self.close(driver, index, spent);
    }
}
