//! The thread that looks when the program is silent: it ends bursts that nobody adds to, settles what has finished,
//! and tells the supervisor when nothing is outstanding, so that an idle tenant does not hold the GPU.

use crate::bursts::Bursts;
use crate::clock;
use crate::process::{Place, Process};
use core::ffi::c_void;
use core::sync::atomic::Ordering;
use gpool_shared_region::Demand;

/// Looks are at least so far apart ...
const LOOK_LEAST_NS: u64 = 100_000;
/// ... and at most so far while work is outstanding.
const LOOK_MOST_NS: u64 = 5_000_000;
/// Looked a little after the expected end, when the answer is likely there.
const LOOK_AFTER_NS: u64 = 30_000;

/// Every signal that a program may use; signal `n` is bit `n - 1`. The two that glibc keeps to itself (32 and 33) reach
/// all threads, or setuid would wait for this one for ever.
const ALL_SIGNALS: u64 = !(0b11 << 31);

/// Sets what signals this thread does not take; what it was. The system call itself: before glibc 2.34 the function is in
/// libpthread, which the shim does not ask for.
fn exchange_signal_mask(mask: u64) -> u64 {
    let mut before = 0u64;
    let (new, old) = (&raw const mask, &raw mut before);
    // SAFETY: two live sets of the kernel's size, eight bytes.
    unsafe { libc::syscall(libc::SYS_rt_sigprocmask, libc::SIG_SETMASK, new, old, size_of::<u64>()) };
    before
}

type CreateThread = unsafe extern "C" fn(
    *mut libc::pthread_t,
    *const c_void,
    extern "C" fn(*mut c_void) -> *mut c_void,
    *mut c_void,
) -> i32;
type DetachThread = unsafe extern "C" fn(libc::pthread_t) -> i32;

/// pthread_create and pthread_detach of this process's glibc: in libpthread before 2.34, which every driver's libcuda
/// needs, and in libc since.
fn thread_functions() -> Option<(CreateThread, DetachThread)> {
    let find = |name: &core::ffi::CStr| {
        // SAFETY: a terminated name.
        let address = unsafe { libc::dlsym(libc::RTLD_DEFAULT, name.as_ptr()) };
        (!address.is_null()).then_some(address)
    };
    let (create, detach) = (find(c"pthread_create")?, find(c"pthread_detach")?);
    // SAFETY: glibc's functions of these names have these types.
    Some(unsafe {
        (
            core::mem::transmute::<*mut c_void, CreateThread>(create),
            core::mem::transmute::<*mut c_void, DetachThread>(detach),
        )
    })
}

impl Process {
    /// Starts the watcher, once. With no thread to be had the tenant still runs: its bursts end at its next launch.
    #[cold]
    pub(crate) fn start_watcher(&self) {
        if self.watcher_started.swap(1, Ordering::AcqRel) == 1 {
            return;
        }
        let Some((create, detach)) = thread_functions() else { return };
        let before = exchange_signal_mask(ALL_SIGNALS);
        // SAFETY: functions of glibc of these types. `self` is a static in the shim and leaked in tests, so it outlives the
        // detached thread.
        unsafe {
            let mut thread = 0;
            let argument = core::ptr::from_ref(self).cast_mut().cast();
            if create(&mut thread, core::ptr::null(), watch, argument) == 0 {
                detach(thread);
            }
        }
        exchange_signal_mask(before);
    }

    /// One look: ends what nobody adds to, settles, and says when to look again; none when there is nothing to see.
    fn look(&self, place: &Place) -> Option<u64> {
        let driver = &place.driver;
        let mut bursts = self.bursts.take()?;
        if self.stopping.load(Ordering::Acquire) != 0 {
            return None;
        }
        let gone_by_ns = self.catch_up(place, &mut bursts);
        let now_ns = clock::now_ns();
        bursts.note_added(now_ns, |burst| self.credit_of(burst));
        let silent = |bursts: &Bursts| {
            bursts
                .open_ends(|burst| self.credit_of(burst))
                .find(|(_, end_ns)| *end_ns <= now_ns)
                .map(|(burst, _)| burst)
        };
        while let Some(burst) = silent(&bursts) {
            let spent = self.revoke_credit_of(burst);
            bursts.close_late(driver, burst, spent);
        }
        bursts.settle(place, &self.estimates);
        let now_ns = clock::now_ns();
        if bursts.live() > 0 {
            let expected_ns = bursts.estimated_end_ns(now_ns) + LOOK_AFTER_NS;
            let open_ns = bursts.open_ends(|burst| self.credit_of(burst)).map(|(_, end_ns)| end_ns).min();
            let look_ns = open_ns.map_or(expected_ns, |open_ns| open_ns.min(expected_ns));
            return Some(look_ns.clamp(now_ns + LOOK_LEAST_NS, now_ns + LOOK_MOST_NS));
        }
        if let Some(end_ns) = gone_by_ns {
            return Some(end_ns.clamp(now_ns + LOOK_LEAST_NS, now_ns + LOOK_MOST_NS));
        }
        let slot = place.slot();
        let word = place.region.gate();
        if slot.waiters.load(Ordering::Acquire) > 0 {
            // Drained before the announced end, and nothing has been decided yet: say so, or the device idles.
            // Drained behind a closed gate: say so once, because until then the work may still go on. And where another
            // thread's issue has hidden that this one waits, say that too.
            let said_ns = slot.estimated_end_ns.load(Ordering::Relaxed);
            let here = slot.demand_word.load(Ordering::Relaxed) == word.0;
            let early = word.is_open() && here && said_ns > now_ns;
            let drained = !word.is_open() && said_ns != 0;
            if early || drained || slot.demand.load(Ordering::Relaxed) == Demand::Running as u32 {
                place.say(Demand::Waiting, word.0, 0);
                drop(bursts);
                place.ring();
            }
            return None;
        }
        let quiet_until_ns = bursts.last_end_ns() + bursts.pause().keep_ns();
        if now_ns < quiet_until_ns {
            return Some(quiet_until_ns);
        }
        if place.say_idle(word.0, now_ns) {
            drop(bursts);
            place.ring();
        }
        None
    }

    fn watch(&self, place: &Place) {
        // Relaxed for the life of this thread: our queries must not break somebody's capture. Never put back: at the
        // end of the process the driver may be gone.
        core::mem::forget(place.driver.relaxed_capture());
        while self.stopping.load(Ordering::Acquire) == 0 {
            self.watcher_parking.mark();
            let look_ns = self.look(place);
            #[cfg(test)]
            self.watcher_rest.begin(look_ns);
            match look_ns {
                Some(at_ns) => {
                    self.watcher_parking.unmark();
                    clock::sleep_until_ns(at_ns);
                }
                None => self.watcher_parking.park(),
            }
            #[cfg(test)]
            self.watcher_rest.end();
        }
    }
}

extern "C" fn watch(process: *mut c_void) -> *mut c_void {
    // SAFETY: start_watcher passes a `Process` that lives for ever.
    let process = unsafe { &*process.cast::<Process>() };
    if let Some(place) = process.place() {
        process.watch(place);
    }
    core::ptr::null_mut()
}

#[cfg(test)]
pub(crate) use rest::Rest;

/// For tests, whose clock must not be turned while the watcher has something to do: on a busy machine it would look late.
#[cfg(test)]
mod rest {
    use crate::clock;
    use crate::process::Process;
    use std::sync::atomic::{AtomicU64, Ordering};

    /// Until when the watcher does nothing of its own accord: no time while it looks, [`u64::MAX`] while it is parked.
    pub(crate) struct Rest(AtomicU64);

    impl Rest {
        pub(crate) const fn new() -> Self {
            Self(AtomicU64::new(0))
        }

        pub(super) fn begin(&self, look_ns: Option<u64>) {
            self.0.store(look_ns.unwrap_or(u64::MAX), Ordering::SeqCst);
        }

        pub(super) fn end(&self) {
            self.0.store(0, Ordering::SeqCst);
        }
    }

    impl Process {
        /// Whether the watcher has nothing to do before the clock is turned or somebody calls it.
        pub(crate) fn watcher_rests(&self) -> bool {
            let until_ns = self.watcher_rest.0.load(Ordering::SeqCst);
            let is_parked = until_ns == u64::MAX && self.watcher_parking.is_marked();
            let sleeps = until_ns != u64::MAX && until_ns > clock::now_ns();
            is_parked || sleeps || self.watcher_started.load(Ordering::SeqCst) == 0
        }
    }
}
