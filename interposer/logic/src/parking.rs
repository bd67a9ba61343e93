//! Where the watcher waits while there is nothing to see, and how it is called back.

use crate::futex;
use gpool_shared_region::atomic::{AtomicU32, Ordering};

/// A place for one thread.
#[cfg_attr(loom, derive(Default))]
pub struct Parking {
    /// 1 while the watcher is parked or about to be. Only ever swapped, so that each change is ordered behind the last.
    parked: AtomicU32,
}

impl Parking {
    /// Nobody is parked.
    #[cfg(not(loom))]
    pub const fn new() -> Self {
        Self { parked: AtomicU32::new(0) }
    }

    /// The watcher will park unless it sees something to do. Marked first, then it looks: whoever brings something
    /// after that look finds the mark.
    pub fn mark(&self) {
        self.parked.swap(1, Ordering::AcqRel);
    }

    /// It has something to do.
    pub fn unmark(&self) {
        self.parked.swap(0, Ordering::AcqRel);
    }

    /// Waits until it is called, or not at all if it was called since the mark.
    pub fn park(&self) {
        futex::wait(&self.parked, 1, None);
    }

    /// Whether nobody has called since the mark.
    #[cfg(test)]
    pub fn is_marked(&self) -> bool {
        self.parked.load(Ordering::Acquire) == 1
    }

    /// There is something to see. Called after it can be seen.
    pub fn call(&self) {
        if self.parked.swap(0, Ordering::AcqRel) == 1 {
            futex::wake(&self.parked, 1);
        }
    }
}

#[cfg(not(loom))]
impl Default for Parking {
    fn default() -> Self {
        Self::new()
    }
}
