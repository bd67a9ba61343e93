//! How long a launch waits for the end of others.

use super::{Burst, Bursts};
use crate::estimates::Work;
use gpool_shared_region::GPUS;

/// A wait for a first launch to end looks at it so often in the beginning, without sleeping ...
const FIRST_LOOK_LEAST_NS: u64 = 5_000;
/// ... for so long; then after each quarter of its age ...
const FIRST_AWAKE_NS: u64 = 50_000;
/// ... and at least so often.
const FIRST_LOOK_MOST_NS: u64 = 1_000_000;
/// What should have ended so long ago may be waiting for the launch that waits for it, or for what that thread does next: one
/// goes all the same ...
const PATIENCE_NS: u64 = 100_000_000;
/// ... and the next one after this part of the time that the first one has been late by then, so that work which is merely
/// long does not gather a queue ...
const PATIENCE_DIVISOR: u64 = 2;
/// ... but no longer than this, so that a long chain comes to its end.
const PATIENCE_MOST_NS: u64 = 1_000_000_000;

/// When one more launch goes, if the oldest one that is under way should have ended at `due_ns` and the newest one went at
/// `last_ns`.
fn patience_ends_ns(due_ns: u64, last_ns: u64) -> u64 {
    let since_ns = due_ns.max(last_ns);
    since_ns + ((since_ns - due_ns) / PATIENCE_DIVISOR).clamp(PATIENCE_NS, PATIENCE_MOST_NS)
}

impl Bursts {
    /// Whether what runs on GPU `gpu` of the lease is so late that one more launch may go there, whatever is expected of it.
    pub fn is_overdue(&self, gpu: usize, now_ns: u64) -> bool {
        let there = self.table.iter().filter(|burst| burst.state.is_live() && burst.tag.gpu() == gpu);
        let Some(oldest) = there.min_by_key(|burst| burst.sequence) else { return false };
        let due_ns = oldest.resumed_ns.max(self.last_ends_ns[gpu % GPUS]) + oldest.estimate_ns;
        now_ns >= patience_ends_ns(due_ns, self.last_issues_ns[gpu % GPUS])
    }

    /// When to look again before one more launch of `work` on GPU `gpu` of the lease, whose cost is not known; none when it
    /// may go now. One launch of it is enough to know, and of different work only so much goes at once as has proved short.
    /// What another GPU does is no reason to wait.
    pub fn first_wait_ns(&self, work: Work, gpu: usize, depth_ns: u64, now_ns: u64) -> Option<u64> {
        let is_first = |burst: &&Burst| burst.state.is_live() && burst.is_first && burst.tag.gpu() == gpu;
        let firsts = || self.table.iter().filter(is_first);
        let is_under_way = firsts().any(|burst| burst.work == Some(work));
        if !is_under_way && firsts().count() < self.learning.first_limit(depth_ns) {
            return None;
        }
        let oldest_ns = firsts().map(|burst| burst.opened_ns).min()?;
        if now_ns >= patience_ends_ns(oldest_ns, firsts().map(|burst| burst.opened_ns).max()?) {
            return None;
        }
        let age_ns = now_ns.saturating_sub(oldest_ns);
        let awake_ns = if age_ns < FIRST_AWAKE_NS { FIRST_LOOK_LEAST_NS } else { age_ns / 4 };
        Some(now_ns + awake_ns.min(FIRST_LOOK_MOST_NS))
    }
}
