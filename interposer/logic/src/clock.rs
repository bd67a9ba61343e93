//! CLOCK_MONOTONIC, the one clock of gpool.

#[cfg(not(test))]
pub use host::{now_ns, sleep_until_ns};
#[cfg(test)]
pub use turned::{now_ns, sleep_until_ns, turn_ns};

#[cfg(not(test))]
mod host {
    /// A sleep takes tens of microseconds at least: so short a time is waited for awake.
    const AWAKE_NS: u64 = 10_000;

    /// Nanoseconds of CLOCK_MONOTONIC.
    pub fn now_ns() -> u64 {
        let mut time = libc::timespec { tv_sec: 0, tv_nsec: 0 };
        // SAFETY: `time` is a valid place for the answer; the call cannot fail for this clock.
        unsafe { libc::clock_gettime(libc::CLOCK_MONOTONIC, &mut time) };
        time.tv_sec as u64 * 1_000_000_000 + time.tv_nsec as u64
    }

    /// Sleeps until `at_ns`, or shorter when a signal comes; the caller looks at the clock again.
    pub fn sleep_until_ns(at_ns: u64) {
        if at_ns <= now_ns() + AWAKE_NS {
            while now_ns() < at_ns {
                core::hint::spin_loop();
            }
            return;
        }
        let time = libc::timespec {
            tv_sec: (at_ns / 1_000_000_000) as libc::time_t,
            tv_nsec: (at_ns % 1_000_000_000) as libc::c_long,
        };
        // The system call itself: a thread of the program that is cancelled goes nowhere in here, where others wait for it.
        let rest = core::ptr::null_mut::<libc::timespec>();
        // SAFETY: `time` is valid, and no remainder is asked for.
        unsafe {
            libc::syscall(libc::SYS_clock_nanosleep, libc::CLOCK_MONOTONIC, libc::TIMER_ABSTIME, &raw const time, rest)
        };
    }
}

/// In tests time stands still until a test turns the clock or sleeps; a busy machine changes nothing.
#[cfg(test)]
mod turned {
    use std::cell::Cell;
    use std::sync::atomic::{AtomicU64, Ordering};

    static NOW_NS: AtomicU64 = AtomicU64::new(1_000_000_000_000);

    thread_local! {
        /// Whether this thread turns the clock by sleeping; the others wait for it to be turned.
        static TURNS: Cell<bool> = const { Cell::new(false) };
    }

    /// The time of the test.
    pub fn now_ns() -> u64 {
        NOW_NS.load(Ordering::SeqCst)
    }

    /// Turns the clock, or waits for it.
    pub fn sleep_until_ns(at_ns: u64) {
        if TURNS.get() {
            NOW_NS.fetch_max(at_ns, Ordering::SeqCst);
        }
        while now_ns() < at_ns {
            std::thread::sleep(std::time::Duration::from_micros(20));
        }
    }

    /// Turns the clock by `by_ns`, and makes sleeps of this thread turn it from now on.
    pub fn turn_ns(by_ns: u64) {
        TURNS.set(true);
        NOW_NS.fetch_add(by_ns, Ordering::SeqCst);
    }
}
