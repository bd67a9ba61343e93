//! One context: what a process holds on the device.

use crate::queue::WorkQueue;
use serde::{Deserialize, Serialize};

/// A context of the device, never used twice.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(transparent)]
pub struct ContextId(pub u64);

/// A place in a context's order of work: 1 for the first submission, counting up. `Ticket(0)` is always complete.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Ticket(pub u64);

/// All of the device.
pub(crate) const WHOLE_PERCENT: u32 = 100;

/// Completed markers whose times nobody fetched are forgotten beyond this number, oldest first.
const MARKER_TIMES_LIMIT: usize = 4096;

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Context {
    pub(crate) id: ContextId,
    /// The host pid.
    pub(crate) process: u32,
    pub(crate) owner: String,
    /// Allocations, rounded, and the context itself.
    pub(crate) bytes: u64,
    pub(crate) queue: WorkQueue,
    pub(crate) completed: u64,
    pub(crate) marker_times: Vec<(Ticket, u64)>,
    /// Whose turns it has: its own, which is its id, or those of its MPS server.
    pub(crate) seat: ContextId,
    /// The most of the device that it may have while it is on it, in per cent.
    pub(crate) percent: u32,
    /// As a client of an MPS server: the most memory that its process may hold.
    pub(crate) limit_bytes: Option<u64>,
    /// Work that is done and makes no whole nanosecond: so many parts of one, and how many parts one has.
    remainder: (u64, u64),
}

impl Context {
    pub(crate) fn new(id: ContextId, process: u32, owner: &str, bytes: u64) -> Self {
        Self {
            id,
            process,
            owner: owner.to_owned(),
            bytes,
            queue: WorkQueue::default(),
            completed: 0,
            marker_times: Vec::new(),
            seat: id,
            percent: WHOLE_PERCENT,
            limit_bytes: None,
            remainder: (0, WHOLE_PERCENT.into()),
        }
    }

    /// How long a kernel with `remaining_ns` of work takes while this context has its percentage of `all` parts of the
    /// device.
    pub(crate) fn lasts_ns(&self, remaining_ns: u64, all: u64) -> u64 {
        let own = u64::from(self.percent);
        if own == all && self.remainder.0 == 0 {
            return remaining_ns;
        }
        let work = u128::from(remaining_ns) * u128::from(all) - u128::from(self.remainder_of(all));
        u64::try_from(work.div_ceil(own.into())).unwrap_or(u64::MAX)
    }

    /// Works for `elapsed_ns` with its percentage of `all` parts: how much of its kernel that is, and whether the kernel is
    /// complete.
    pub(crate) fn execute(&mut self, elapsed_ns: u64, all: u64) -> (u64, bool) {
        let work = u128::from(elapsed_ns) * u128::from(self.percent) + u128::from(self.remainder_of(all));
        let done_ns = u64::try_from(work / u128::from(all)).unwrap_or(u64::MAX);
        self.remainder = (u64::try_from(work % u128::from(all)).unwrap_or(0), all);
        let is_complete = self.queue.execute(done_ns);
        self.completed += u64::from(is_complete);
        (done_ns, is_complete)
    }

    /// The remainder in parts of which a nanosecond has `all`; rounded only when who shares the device has changed.
    fn remainder_of(&self, all: u64) -> u64 {
        let (parts, of) = self.remainder;
        if of == all { parts } else { parts * all / of }
    }

    /// The ticket of the newest submission.
    pub(crate) fn issued(&self) -> Ticket {
        Ticket(self.completed + self.queue.length())
    }

    /// Completes the marker at the head at `now_ns`.
    pub(crate) fn complete_marker(&mut self, now_ns: u64) {
        self.queue.pop();
        self.completed += 1;
        if self.marker_times.len() >= MARKER_TIMES_LIMIT {
            self.marker_times.remove(0);
        }
        self.marker_times.push((Ticket(self.completed), now_ns));
    }
}
