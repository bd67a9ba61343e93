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
}

impl Context {
    pub(crate) fn new(id: ContextId, process: u32, owner: &str, bytes: u64) -> Self {
        let owner = owner.to_owned();
        Self { id, process, owner, bytes, queue: WorkQueue::default(), completed: 0, marker_times: Vec::new() }
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
