//! Waking the threads that stand at a gate.
//!
//! Who waits there is a container's to say: it may park threads without number on a word that it can read, and
//! futex_waitv(2) makes 128 waiters of each. The kernel goes through them within the call that wakes them. So no call
//! wakes more than some; what is left is woken aside, up to a bound, and looks again by itself in the end.

use rustix::thread::futex::{Flags, wake};
use std::sync::atomic::{AtomicU32, AtomicU64};

/// Woken at once: as many as a lease has processes.
const BATCH: u32 = gpool_shared_region::SLOTS as u32;
/// Batches that are woken aside for one opening, which takes about a millisecond.
const BATCHES: usize = 64;

/// Wakes some waiters of `word`, in whatever container and PID namespace; whether there may be more.
pub fn wake_some(word: &AtomicU32) -> bool {
    // A word without waiters is no error; nothing else can go wrong with a mapped, aligned word.
    wake(word, Flags::empty(), BATCH).is_ok_and(|woken| woken >= BATCH as usize)
}

/// As [`wake_some`], for those who wait on the lower half of a word of 64 bits.
pub fn wake_some_low(word: &AtomicU64) -> bool {
    // SAFETY: aligned, alive for the call, and only its address is used.
    wake_some(unsafe { &*word.as_ptr().cast::<AtomicU32>() })
}

/// Wakes those whom [`wake_some`] has left, up to a bound: not for a thread that others wait for.
pub fn wake_rest(word: &AtomicU32) {
    for _ in 0..BATCHES {
        if !wake_some(word) {
            return;
        }
    }
}

#[cfg(test)]
pub mod tests {
    use super::*;
    use rustix::thread::futex::{requeue, wait};
    use std::sync::Arc;
    use std::thread::JoinHandle;

    /// Has so many threads wait on `word`, and says how they were woken when they are waited for.
    pub fn park(count: usize, word: &AtomicU32) -> Vec<JoinHandle<rustix::io::Result<()>>> {
        // Who has been moved from another word is known to wait.
        let first = Arc::new(AtomicU32::new(0));
        let patience = rustix::time::Timespec { tv_sec: 60, tv_nsec: 0 };
        let waiter = |_| {
            let first = first.clone();
            std::thread::spawn(move || wait(&first, Flags::empty(), 0, Some(&patience)))
        };
        let threads = (0..count).map(waiter).collect();
        let mut moved = 0;
        while moved < count {
            std::thread::yield_now();
            moved += requeue(&first, Flags::empty(), 0, i32::MAX as u32, word).unwrap();
        }
        threads
    }

    #[test]
    fn one_call_wakes_a_bounded_number_of_waiters() {
        let word = AtomicU32::new(0);
        let threads = park(BATCH as usize + 3, &word);
        assert!(wake_some(&word), "there are more");
        assert_eq!(wake(&word, Flags::empty(), 1).unwrap(), 1);
        wake_rest(&word);
        assert!(!wake_some(&word));
        assert!(threads.into_iter().all(|thread| thread.join().unwrap().is_ok()));
    }
}
