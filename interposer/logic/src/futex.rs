//! Futex waits, and a mutex on top of them for use inside one process.

#[cfg(not(loom))]
use crate::clock;
use core::cell::UnsafeCell;
use core::ops::{Deref, DerefMut};
use gpool_shared_region::atomic::{AtomicU32, Ordering};
#[cfg(not(loom))]
use gpool_shared_region::atomic::{AtomicU64, AtomicUsize};

#[cfg(loom)]
pub use crate::futex_model::{wait, wake};

/// Waits while `*word == expected`, at most `timeout_ns`. May return early.
///
/// Works on a read-only shared mapping and across PID namespaces, because the key is the page.
#[cfg(not(loom))]
pub fn wait(word: &AtomicU32, expected: u32, timeout_ns: Option<u64>) {
    let timeout = timeout_ns.map(|ns| libc::timespec {
        tv_sec: (ns / 1_000_000_000) as libc::time_t,
        tv_nsec: (ns % 1_000_000_000) as libc::c_long,
    });
    let timeout = timeout.as_ref().map_or(core::ptr::null(), |time| time as *const libc::timespec);
    // SAFETY: `word` outlives the call; FUTEX_WAIT only reads it; `timeout` is null or points to a live timespec.
    unsafe { libc::syscall(libc::SYS_futex, word.as_ptr(), libc::FUTEX_WAIT, expected, timeout) };
}

/// As [`wait`], on the lower half of a word of 64 bits: where it lies, and what a read-only mapping shows of it.
#[cfg(not(loom))]
pub fn wait_low(word: &AtomicU64, expected: u64, timeout_ns: u64) {
    // SAFETY: aligned, alive for the call, and only its address is used: the kernel reads it.
    let low = unsafe { &*word.as_ptr().cast::<AtomicU32>() };
    wait(low, expected as u32, Some(timeout_ns));
}

/// Wakes up to `count` waiters of `word`.
#[cfg(not(loom))]
pub fn wake(word: &AtomicU32, count: i32) {
    // SAFETY: `word` outlives the call; FUTEX_WAKE does not touch the memory.
    unsafe { libc::syscall(libc::SYS_futex, word.as_ptr(), libc::FUTEX_WAKE, count) };
}

/// A mutex of one process: no allocation, no poisoning, never in shared memory.
pub struct Mutex<T> {
    /// 0 free, 1 held, 2 held with waiters.
    word: AtomicU32,
    value: UnsafeCell<T>,
}

// SAFETY: the value is only reachable through the guard, and the word admits one guard at a time.
unsafe impl<T: Send> Sync for Mutex<T> {}

impl<T> Mutex<T> {
    /// A free mutex.
    #[cfg(not(loom))]
    pub const fn new(value: T) -> Self {
        Self { word: AtomicU32::new(0), value: UnsafeCell::new(value) }
    }

    /// A free mutex; loom's atomics cannot be made at compile time.
    #[cfg(loom)]
    pub fn new(value: T) -> Self {
        Self { word: AtomicU32::new(0), value: UnsafeCell::new(value) }
    }

    /// Waits for the mutex.
    pub fn lock(&self) -> Guard<'_, T> {
        if self.word.compare_exchange(0, 1, Ordering::Acquire, Ordering::Relaxed).is_err() {
            while self.word.swap(2, Ordering::Acquire) != 0 {
                wait(&self.word, 2, None);
            }
        }
        Guard { mutex: self }
    }
}

impl<T> Mutex<T> {
    /// Takes the mutex if it is free.
    pub fn try_lock(&self) -> Option<Guard<'_, T>> {
        let taken = self.word.compare_exchange(0, 1, Ordering::Acquire, Ordering::Relaxed);
        taken.is_ok().then(|| Guard { mutex: self })
    }
}

/// A wait looks at the clock so often.
#[cfg(not(loom))]
const LOOK_NS: u64 = 10_000_000;

#[cfg(not(loom))]
impl<T> Mutex<T> {
    /// Waits for the mutex for so long at most.
    #[inline(never)]
    fn lock_within(&self, patience_ns: u64) -> Option<Guard<'_, T>> {
        if let Some(guard) = self.try_lock() {
            return Some(guard);
        }
        let until_ns = clock::now_ns().saturating_add(patience_ns);
        // Whoever gives up leaves it marked as waited for, which costs whoever has it a call of the kernel.
        while self.word.swap(2, Ordering::Acquire) != 0 {
            let left_ns = until_ns.saturating_sub(clock::now_ns());
            if left_ns == 0 {
                return None;
            }
            wait(&self.word, 2, Some(left_ns.min(LOOK_NS)));
        }
        Some(Guard { mutex: self })
    }
}

/// The right to use a mutex's value.
pub struct Guard<'a, T> {
    mutex: &'a Mutex<T>,
}

impl<T> Deref for Guard<'_, T> {
    type Target = T;

    fn deref(&self) -> &T {
        // SAFETY: the guard holds the mutex.
        unsafe { &*self.mutex.value.get() }
    }
}

impl<T> DerefMut for Guard<'_, T> {
    fn deref_mut(&mut self) -> &mut T {
        // SAFETY: the guard holds the mutex.
        unsafe { &mut *self.mutex.value.get() }
    }
}

impl<T> Drop for Guard<'_, T> {
    fn drop(&mut self) {
        unlock(&self.mutex.word);
    }
}

#[inline(never)] // dozens of places call it
fn unlock(word: &AtomicU32) {
    if word.swap(0, Ordering::Release) == 2 {
        wake(word, 1);
    }
}

/// A number that no other thread has while this one lives: its thread pointer, which is free to read, with no ELF TLS
/// relocation.
#[inline(always)]
pub(crate) fn this_thread() -> usize {
    let pointer: usize;
    // SAFETY: on x86-64 Linux fs:0 holds the thread pointer itself.
    unsafe { core::arch::asm!("mov {}, fs:0", out(reg) pointer, options(nostack, preserves_flags, readonly, pure)) };
    pointer
}

/// A mutex for what must not change while the driver is called: a thread that has it comes again when a profiler's callback
/// within that call does, and is told so, or it would wait for itself.
#[cfg(not(loom))]
pub struct Turn<T> {
    mutex: Mutex<T>,
    /// The thread that has it; 0 for none.
    thread: AtomicUsize,
}

#[cfg(not(loom))]
impl<T> Turn<T> {
    /// Nobody has it.
    pub const fn new(value: T) -> Self {
        Self { mutex: Mutex::new(value), thread: AtomicUsize::new(0) }
    }

    /// Whether this thread has it.
    #[inline(never)]
    pub fn is_ours(&self) -> bool {
        // Of what others write here nothing is this thread's number, in whatever order that is seen.
        self.thread.load(Ordering::Relaxed) == this_thread()
    }

    /// Waits for it; none for the thread that has it.
    #[inline(never)]
    pub fn take(&self) -> Option<Taken<'_, T>> {
        if self.is_ours() {
            return None;
        }
        Some(self.taken(self.mutex.lock()))
    }

    /// Waits for it for so long at most; none at once for the thread that has it.
    #[inline(never)]
    pub fn take_within(&self, patience_ns: u64) -> Option<Taken<'_, T>> {
        if self.is_ours() {
            return None;
        }
        self.mutex.lock_within(patience_ns).map(|guard| self.taken(guard))
    }

    fn taken<'a>(&'a self, guard: Guard<'a, T>) -> Taken<'a, T> {
        self.thread.store(this_thread(), Ordering::Relaxed);
        Taken { thread: &self.thread, guard }
    }
}

/// The right to use what is behind a [`Turn`].
#[cfg(not(loom))]
pub struct Taken<'a, T> {
    thread: &'a AtomicUsize,
    guard: Guard<'a, T>,
}

#[cfg(not(loom))]
impl<T> Deref for Taken<'_, T> {
    type Target = T;

    fn deref(&self) -> &T {
        &self.guard
    }
}

#[cfg(not(loom))]
impl<T> DerefMut for Taken<'_, T> {
    fn deref_mut(&mut self) -> &mut T {
        &mut self.guard
    }
}

#[cfg(not(loom))]
impl<T> Drop for Taken<'_, T> {
    fn drop(&mut self) {
        // Before the next one writes: the guard goes after this.
        self.thread.store(0, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn whoever_has_a_turn_is_told_so_and_others_wait() {
        let turn = Turn::new(0u64);
        std::thread::scope(|scope| {
            let counting = [(); 4].map(|()| {
                scope.spawn(|| {
                    for _ in 0..5_000 {
                        let mut taken = turn.take().expect("this thread does not have it");
                        *taken += 1;
                        assert!(turn.take().is_none(), "it has it now");
                    }
                })
            });
            counting.into_iter().for_each(|thread| thread.join().unwrap());
        });
        assert_eq!(turn.take().map(|count| *count), Some(20_000));
    }

    #[test]
    fn who_has_no_patience_left_goes_without() {
        let turn = Turn::new(1u64);
        let taken = turn.take();
        std::thread::scope(|scope| {
            let other = scope.spawn(|| turn.take_within(0).is_none());
            assert!(other.join().unwrap());
        });
        drop(taken);
        assert_eq!(turn.take_within(0).map(|value| *value), Some(1));
    }

    #[test]
    fn the_mutex_admits_one_at_a_time() {
        let counter = Mutex::new(0u64);
        std::thread::scope(|scope| {
            let counting = [(); 4].map(|()| scope.spawn(|| (0..20_000).for_each(|_| *counter.lock() += 1)));
            // Joined: a checker of threads does not see how a scope waits.
            counting.into_iter().for_each(|thread| thread.join().unwrap());
        });
        assert_eq!(*counter.lock(), 80_000);
    }
}
