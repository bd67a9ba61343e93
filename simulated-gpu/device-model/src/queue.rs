//! The work of one context, in order, with equal neighbours stored once.

use serde::{Deserialize, Serialize};
use std::collections::VecDeque;

/// Equal pieces of work in a row.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
enum Run {
    Kernels { duration_ns: u64, count: u64 },
    Markers { count: u64 },
}

/// What is at the head of a queue.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Head {
    /// A kernel that still needs this much GPU time.
    Kernel { remaining_ns: u64 },
    /// A marker, which takes no time.
    Marker,
}

/// An in-order queue. Repeated launches of one kernel take the room of one entry, which keeps the state that is
/// written out for every operation small.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct WorkQueue {
    runs: VecDeque<Run>,
    length: u64,
    /// How much of the first kernel has been executed.
    head_done_ns: u64,
}

impl WorkQueue {
    pub(crate) fn length(&self) -> u64 {
        self.length
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.length == 0
    }

    /// Appends a kernel. Every kernel takes at least one nanosecond.
    pub(crate) fn push_kernel(&mut self, duration_ns: u64) {
        let wanted_ns = duration_ns.max(1);
        self.length += 1;
        if let Some(Run::Kernels { duration_ns, count }) = self.runs.back_mut()
            && *duration_ns == wanted_ns
        {
            *count += 1;
            return;
        }
        self.runs.push_back(Run::Kernels { duration_ns: wanted_ns, count: 1 });
    }

    /// Appends a marker.
    pub(crate) fn push_marker(&mut self) {
        self.length += 1;
        if let Some(Run::Markers { count }) = self.runs.back_mut() {
            *count += 1;
            return;
        }
        self.runs.push_back(Run::Markers { count: 1 });
    }

    pub(crate) fn head(&self) -> Option<Head> {
        self.runs.front().map(|run| match run {
            Run::Kernels { duration_ns, .. } => Head::Kernel { remaining_ns: duration_ns - self.head_done_ns },
            Run::Markers { .. } => Head::Marker,
        })
    }

    /// Executes `elapsed_ns` of the kernel at the head; true when that completes it. At most what remains.
    pub(crate) fn execute(&mut self, elapsed_ns: u64) -> bool {
        let Some(Run::Kernels { duration_ns, .. }) = self.runs.front() else { return false };
        let duration_ns = *duration_ns;
        self.head_done_ns += elapsed_ns;
        let complete = self.head_done_ns >= duration_ns;
        if complete {
            self.pop();
        }
        complete
    }

    /// Takes the head away.
    pub(crate) fn pop(&mut self) {
        self.head_done_ns = 0;
        let Some(Run::Kernels { count, .. } | Run::Markers { count }) = self.runs.front_mut() else { return };
        self.length -= 1;
        *count -= 1;
        if *count == 0 {
            self.runs.pop_front();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn order_and_remainders_survive_the_compact_form() {
        let mut queue = WorkQueue::default();
        queue.push_kernel(5);
        queue.push_kernel(5);
        queue.push_marker();
        queue.push_kernel(0);
        assert_eq!((queue.length(), queue.runs.len()), (4, 3));
        assert!(!queue.execute(3));
        assert_eq!(queue.head(), Some(Head::Kernel { remaining_ns: 2 }));
        assert!(queue.execute(2));
        assert!(queue.execute(5));
        assert_eq!(queue.head(), Some(Head::Marker));
        queue.pop();
        assert_eq!(queue.head(), Some(Head::Kernel { remaining_ns: 1 }));
        queue.pop();
        assert!(queue.is_empty() && queue.head().is_none());
    }
}
