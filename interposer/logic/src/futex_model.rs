//! The kernel's side of a futex as models see it: a queue behind a lock, under which the word is compared. Nobody
//! returns early and no time passes, so a wake-up that is lost shows as a deadlock.

use gpool_shared_region::atomic::{AtomicU32, Ordering};
use loom::sync::{Condvar, Mutex};

#[derive(Default)]
struct Waiters {
    /// The word's address and the number of the wait.
    queue: Vec<(usize, u64)>,
    waits: u64,
}

loom::lazy_static! {
    static ref WAITERS: Mutex<Waiters> = Mutex::new(Waiters::default());
    static ref WOKEN: Condvar = Condvar::new();
}

/// As [`crate::futex::wait`], without a time-out.
pub fn wait(word: &AtomicU32, expected: u32, _timeout_ns: Option<u64>) {
    let mut waiters = WAITERS.lock().unwrap();
    if word.load(Ordering::Relaxed) != expected {
        return;
    }
    let own = (core::ptr::from_ref(word) as usize, waiters.waits);
    waiters.waits += 1;
    waiters.queue.push(own);
    while waiters.queue.contains(&own) {
        waiters = WOKEN.wait(waiters).unwrap();
    }
}

/// As [`crate::futex::wake`].
pub fn wake(word: &AtomicU32, count: i32) {
    let mut waiters = WAITERS.lock().unwrap();
    for _ in 0..count {
        let address = core::ptr::from_ref(word) as usize;
        let Some(first) = waiters.queue.iter().position(|(of, _)| *of == address) else { break };
        waiters.queue.remove(first);
    }
    drop(waiters);
    WOKEN.notify_all();
}
