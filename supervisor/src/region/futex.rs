//! Waking the threads that stand at a gate.

use rustix::thread::futex::{Flags, wake};
use std::sync::atomic::{AtomicU32, AtomicU64};

/// Wakes every waiter of `word`, in whatever container and PID namespace.
pub fn wake_all(word: &AtomicU32) {
    // A word without waiters is no error; nothing else can go wrong with a mapped, aligned word.
    let _ = wake(word, Flags::empty(), i32::MAX as u32);
}

/// As [`wake_all`], for those who wait on the lower half of a word of 64 bits.
pub fn wake_all_low(word: &AtomicU64) {
    // SAFETY: aligned, alive for the call, and only its address is used.
    wake_all(unsafe { &*word.as_ptr().cast::<AtomicU32>() });
}
