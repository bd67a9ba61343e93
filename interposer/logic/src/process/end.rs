//! How a process ends, and how a forked child begins.

use super::Process;
use crate::clock;
use core::sync::atomic::Ordering;

/// How long the end of the process may wait for a look in progress.
const STOP_LIMIT_NS: u64 = 100_000_000;

impl Process {
    /// The process is ending: the watcher makes no more driver calls. Waits a moment for a look in progress, and makes the last
    /// one, unless the driver may not answer that.
    pub fn stop(&self) {
        // One of the two sees the other: this end, or the thread that is about to start the watcher.
        self.stopping.swap(1, Ordering::SeqCst);
        if self.watcher_started.load(Ordering::SeqCst) == 0 {
            return;
        }
        // A forked child has neither, and one that was forked past the C library has its parent's: its locks may be held by threads that it
        // does not have.
        let (Some(control), Some(place)) = (self.control(), self.place()) else { return };
        if !place.registration.is_own() {
            return;
        }
        let limit_ns = clock::now_ns() + STOP_LIMIT_NS;
        loop {
            if let Some(mut bursts) = self.bursts.take_within(0) {
                if !control.is_suspended() {
                    bursts.ask_at_end(place);
                }
                return;
            }
            if clock::now_ns() >= limit_ns {
                return;
            }
            clock::sleep_until_ns(clock::now_ns() + 100_000);
        }
    }

    /// A forked child has no driver and no place: locks may be held by threads that it does not have, and its
    /// parent's slot is not its own.
    pub fn forked(&self) {
        self.is_forked.store(1, Ordering::Release);
        self.control.store(core::ptr::null_mut(), Ordering::Release);
    }
}
