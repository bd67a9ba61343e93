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

impl Process {
    /// Starts the watcher, once. With no thread to be had the tenant still runs: its bursts end at its next launch.
    #[cold]
    pub(crate) fn start_watcher(&self) {
        if self.watcher_started.swap(1, Ordering::AcqRel) == 1 {
            return;
        }
        // SAFETY: the signal set is initialised by sigfillset before use; all signals stay with the program's own
        // threads. `self` is a static in the shim and leaked in tests, so it outlives the detached thread.
        unsafe {
            let (mut all, mut before) = (core::mem::zeroed(), core::mem::zeroed());
            libc::sigfillset(&mut all);
            libc::pthread_sigmask(libc::SIG_SETMASK, &all, &mut before);
            let mut thread = core::mem::zeroed();
            let argument = core::ptr::from_ref(self).cast_mut().cast();
            if libc::pthread_create(&mut thread, core::ptr::null(), watch, argument) == 0 {
                libc::pthread_detach(thread);
            }
            libc::pthread_sigmask(libc::SIG_SETMASK, &before, core::ptr::null_mut());
        }
    }

    /// One look: ends what nobody adds to, settles, and says when to look again; none when there is nothing to see.
    fn look(&self, place: &Place) -> Option<u64> {
        let driver = &place.driver;
        let mut bursts = self.bursts.lock();
        if self.stopping.load(Ordering::Acquire) != 0 {
            return None;
        }
        let now_ns = clock::now_ns();
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
        bursts.settle(driver, place.slot(), &self.estimates);
        let now_ns = clock::now_ns();
        if bursts.live() > 0 {
            let expected_ns = bursts.estimated_end_ns(now_ns) + LOOK_AFTER_NS;
            let open_ns = bursts.open_ends(|burst| self.credit_of(burst)).map(|(_, end_ns)| end_ns).min();
            let look_ns = open_ns.map_or(expected_ns, |open_ns| open_ns.min(expected_ns));
            return Some(look_ns.clamp(now_ns + LOOK_LEAST_NS, now_ns + LOOK_MOST_NS));
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
        if slot.demand.load(Ordering::Relaxed) == Demand::Running as u32 {
            place.say(Demand::Idle, word.0, now_ns);
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
            match self.look(place) {
                Some(at_ns) => {
                    self.watcher_parking.unmark();
                    clock::sleep_until_ns(at_ns);
                }
                None => self.watcher_parking.park(),
            }
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
