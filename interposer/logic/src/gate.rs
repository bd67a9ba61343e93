//! The gate before each launch: a hot path of a few loads, and the slow path behind it.
//!
//! A launch passes on the hot path while three things hold: the lease's gate word is the one under which this
//! thread's credit was given, the launch goes to the same stream, and there is credit left. Credit is given on the
//! slow path, one burst at a time; the estimates live there.

use crate::bursts::Bursts;
use crate::clock;
use crate::futex;
use crate::process::{Place, Process};
use core::sync::atomic::{AtomicU32, AtomicUsize, Ordering};
use gpool_driver_abi::cuda::CUstream;
use gpool_shared_region::{Demand, HEARTBEAT_STALE_NS};

/// Credit lines; a thread picks one by its thread pointer. A prime.
pub const STRIPES: usize = 61;
/// A thread at the gate looks at the heartbeat this often.
const GATE_TIMEOUT_NS: u64 = 500_000_000;
/// The longest sleep for depth, so that a wrong estimate cannot stall a tenant.
const DEPTH_SLEEP_LIMIT_NS: u64 = 10_000_000;
/// How long to wait for a place in a full table of bursts.
const FULL_SLEEP_NS: u64 = 200_000;
/// The per-thread default stream as a handle (CU_STREAM_PER_THREAD); only its own thread can name it.
const STREAM_PER_THREAD: usize = 2;

/// Launch credit of the threads that map to it, alone on its cache line.
#[repr(align(64))]
pub struct Stripe {
    /// The gate word that the credit belongs to; the all-ones word never occurs with credit.
    word: AtomicU32,
    credit: AtomicU32,
    stream: AtomicUsize,
    /// The open burst that the credit belongs to, plus one.
    burst: AtomicUsize,
}

impl Stripe {
    /// No credit.
    pub const fn new() -> Self {
        Self {
            word: AtomicU32::new(0),
            credit: AtomicU32::new(0),
            stream: AtomicUsize::new(0),
            burst: AtomicUsize::new(0),
        }
    }

    /// Takes the credit away; returns the burst it belonged to and how much was left.
    pub(crate) fn revoke(&self) -> Option<(usize, u32)> {
        let left = self.credit.swap(0, Ordering::AcqRel);
        self.burst.swap(0, Ordering::AcqRel).checked_sub(1).map(|burst| (burst, left))
    }

    fn grant(&self, word: u32, stream: usize, burst: usize, credit: u32) {
        self.word.store(word, Ordering::Relaxed);
        self.stream.store(stream, Ordering::Relaxed);
        self.burst.store(burst + 1, Ordering::Relaxed);
        self.credit.store(credit, Ordering::Release);
    }

    pub(crate) fn holds(&self, burst: usize) -> bool {
        self.burst.load(Ordering::Relaxed) == burst + 1
    }
}

impl Default for Stripe {
    fn default() -> Self {
        Self::new()
    }
}

/// What a launch may do.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Admission {
    /// Launch.
    Pass,
    /// Launch, then call [`Process::launched_alone`]: the burst ends with this launch.
    PassAlone(usize),
    /// Do not launch: the process has not registered, or is a forked child, which has no driver.
    NotInitialized,
}

enum Verdict {
    Issue(u32),
    SleepUntil(u64),
    Wait,
}

/// The thread pointer: distinct per thread, free to read, no ELF TLS relocation.
#[inline(always)]
fn stripe_index() -> usize {
    let pointer: usize;
    // SAFETY: on x86-64 Linux fs:0 holds the thread pointer itself.
    unsafe { core::arch::asm!("mov {}, fs:0", out(reg) pointer, options(nostack, preserves_flags, readonly, pure)) };
    // Threads' control blocks lie at the ends of stacks mapped one after the other, so many pages apart: modulo a prime,
    // as many neighbours as there are stripes differ, whatever the distance; a hash lets some of eight collide.
    (pointer >> 12) as u32 as usize % STRIPES
}

impl Process {
    /// Called before each launch on `stream`. Returns when the launch may go ahead.
    #[inline(always)]
    pub fn admit(&self, stream: CUstream) -> Admission {
        let stripe = &self.stripes[stripe_index()];
        if let Some(control) = self.control()
            && stripe.stream.load(Ordering::Relaxed) == stream as usize
            && stripe.word.load(Ordering::Relaxed) == control.gate.load(Ordering::Relaxed)
        {
            let credit = stripe.credit.load(Ordering::Relaxed);
            // Credit without a burst is credit that this thread wrote back after it had been revoked.
            if credit > 0 && stripe.burst.load(Ordering::Relaxed) != 0 {
                // Two threads on one line may both pass on one credit; credit is an estimate, never a charge.
                stripe.credit.store(credit - 1, Ordering::Relaxed);
                return Admission::Pass;
            }
        }
        self.admit_slowly(stripe, stream)
    }

    #[cold]
    #[inline(never)]
    fn admit_slowly(&self, stripe: &Stripe, stream: CUstream) -> Admission {
        // Without a place in a region nothing runs, so nothing runs uncounted.
        let Some(place) = self.place() else { return Admission::NotInitialized };
        // SAFETY: getpid cannot fail.
        if unsafe { libc::getpid() } != place.registration.process_id {
            return Admission::NotInitialized;
        }
        let driver = &place.driver;
        if driver.is_capturing(stream) {
            // A captured launch does no work yet; the graph's launch is gated instead.
            return Admission::Pass;
        }
        let _relaxed = driver.relaxed_capture();
        let (mut rung_word, mut rung_ns) = (None, 0);
        let mut waited_from_ns = None;
        loop {
            let mut bursts = self.bursts.lock();
            // Read under the lock, so that what is said of this process belongs to one word.
            let word = place.region.gate();
            if let Some((burst, unused)) = stripe.revoke() {
                bursts.close(driver, burst, unused);
            }
            bursts.settle(driver, place.slot());
            let now_ns = clock::now_ns();
            let estimated_end_ns = bursts.estimated_end_ns(now_ns);
            match verdict(place, word.is_open(), &bursts, now_ns) {
                Verdict::Issue(launches) => {
                    if let Some(from_ns) = waited_from_ns.take() {
                        self.stop_waiting(place, from_ns, now_ns);
                    }
                    // A burst of one launch ends with it: by the next launch, or a look, the program may have been
                    // silent for long. Of the per-thread stream only this thread can record the end.
                    let alone = launches == 1 || stream as usize == STREAM_PER_THREAD;
                    let launches = if alone { 1 } else { launches };
                    let burst = bursts.open(driver, driver.current_context(), stream, launches);
                    place.note_issue(word.0, now_ns, bursts.estimated_end_ns(now_ns));
                    self.wake_watcher();
                    return match burst {
                        Some(burst) if alone => Admission::PassAlone(burst),
                        Some(burst) => {
                            stripe.grant(word.0, stream as usize, burst, launches - 1);
                            Admission::Pass
                        }
                        None => {
                            bursts.charge_unmeasured(place.slot(), now_ns);
                            Admission::Pass
                        }
                    };
                }
                Verdict::SleepUntil(at_ns) => {
                    drop(bursts);
                    clock::sleep_until_ns(at_ns);
                }
                Verdict::Wait => {
                    if waited_from_ns.is_none() {
                        waited_from_ns = Some(now_ns);
                        place.slot().waiters.fetch_add(1, Ordering::AcqRel);
                    }
                    place.say(Demand::Waiting, word.0, estimated_end_ns);
                    drop(bursts);
                    // Once for each word, and again after a whole time-out: a bell may be lost with a supervisor.
                    if rung_word != Some(word) || now_ns >= rung_ns + GATE_TIMEOUT_NS {
                        (rung_word, rung_ns) = (Some(word), now_ns);
                        place.ring();
                    }
                    futex::wait(&place.region.control().gate, word.0, Some(patience_ns(place, now_ns)));
                }
            }
        }
    }

    fn stop_waiting(&self, place: &Place, from_ns: u64, now_ns: u64) {
        let slot = place.slot();
        slot.waiters.fetch_sub(1, Ordering::AcqRel);
        slot.gate_wait_ns.fetch_add(now_ns - from_ns, Ordering::Relaxed);
    }

    /// Ends the burst of a launch that was admitted alone; called by the launching thread after the launch.
    pub fn launched_alone(&self, burst: usize) {
        let Some(place) = self.place() else { return };
        let _relaxed = place.driver.relaxed_capture();
        self.bursts.lock().close(&place.driver, burst, 0);
    }

    /// Ends the open burst on `stream` before the program captures or destroys the stream.
    pub fn leave_stream(&self, stream: CUstream) {
        let Some(place) = self.place() else { return };
        self.end_bursts(place, |bursts| bursts.open_on(stream));
    }

    /// Ends the open bursts of the calling thread's context: the program is about to wait for its work, and the time
    /// in which it has none must not count as work.
    pub fn before_wait(&self) {
        let Some(place) = self.place() else { return };
        let context = place.driver.current_context();
        self.end_bursts(place, |bursts| bursts.open_in(context));
    }

    fn end_bursts(&self, place: &Place, next: impl Fn(&Bursts) -> Option<usize>) {
        let _relaxed = place.driver.relaxed_capture();
        let mut bursts = self.bursts.lock();
        while let Some(burst) = next(&bursts) {
            let unused = self.revoke_credit_of(burst);
            bursts.close(&place.driver, burst, unused);
        }
    }

    /// Takes the credit of an open burst away; how much was left.
    pub(crate) fn revoke_credit_of(&self, burst: usize) -> u32 {
        let holder = self.stripes.iter().find(|stripe| stripe.holds(burst));
        holder.and_then(Stripe::revoke).map_or(0, |(_, unused)| unused)
    }

    /// The credit of an open burst that is left.
    pub(crate) fn credit_of(&self, burst: usize) -> u32 {
        let holder = self.stripes.iter().find(|stripe| stripe.holds(burst));
        holder.map_or(0, |stripe| stripe.credit.load(Ordering::Relaxed))
    }
}

/// How long to stand at the gate before looking again: not past the moment at which a supervisor that has died now
/// counts as away.
fn patience_ns(place: &Place, now_ns: u64) -> u64 {
    let heartbeat_ns = place.region.control().heartbeat_ns.load(Ordering::Relaxed);
    let away_in_ns = (heartbeat_ns + HEARTBEAT_STALE_NS).saturating_sub(now_ns) + 1_000_000;
    away_in_ns.min(GATE_TIMEOUT_NS)
}

/// Whether work may be issued now, how much, or what to wait for.
fn verdict(place: &Place, open: bool, bursts: &Bursts, now_ns: u64) -> Verdict {
    let control = place.region.control();
    let end_ns = bursts.estimated_end_ns(now_ns);
    let burst_ns = control.burst_ns.load(Ordering::Relaxed).max(1);
    let unpaced = control.fail_open.load(Ordering::Relaxed) == 1 && place.region.supervisor_is_away(now_ns);
    let until_ns = if unpaced { u64::MAX } else { control.until_ns.load(Ordering::Relaxed) };
    if !unpaced && (!open || end_ns >= until_ns) {
        return Verdict::Wait;
    }
    let depth_ns = control.depth_ns.load(Ordering::Relaxed);
    if bursts.is_full() {
        return Verdict::SleepUntil(now_ns + FULL_SLEEP_NS);
    }
    if bursts.live() > 0 && end_ns > now_ns + depth_ns {
        return Verdict::SleepUntil((end_ns - depth_ns).min(now_ns + DEPTH_SLEEP_LIMIT_NS));
    }
    Verdict::Issue(bursts.launches_for(burst_ns.min(until_ns - end_ns)))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fake_driver::{DEVICE, process};
    use gpool_shared_region::{Control, GateWord};
    use std::sync::MutexGuard;
    use std::time::Duration;

    const STREAM: CUstream = 1 as CUstream;

    /// The fake device is one for all tests of this program.
    fn one_at_a_time() -> MutexGuard<'static, ()> {
        static ORDER: std::sync::Mutex<()> = std::sync::Mutex::new(());
        ORDER.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
    }

    fn open(control: &Control, until_ns: u64) {
        control.until_ns.store(until_ns, Ordering::Relaxed);
        control.opened_ns.store(clock::now_ns(), Ordering::Relaxed);
        let word = GateWord(control.gate.load(Ordering::Relaxed)).next(true);
        control.gate.store(word.0, Ordering::Release);
        futex::wake(&control.gate, i32::MAX);
    }

    /// Waits for `condition`; ends the whole test program when it never comes, because scoped threads would wait too.
    fn until(condition: impl Fn() -> bool) {
        let start = std::time::Instant::now();
        while !condition() {
            if start.elapsed() > Duration::from_secs(20) {
                eprintln!("the condition never came");
                std::process::abort();
            }
            std::thread::sleep(Duration::from_micros(200));
        }
    }

    fn launch(process: &Process, length_ns: u64) {
        let admission = process.admit(STREAM);
        assert_ne!(admission, Admission::NotInitialized);
        DEVICE.lock().unwrap().launch(length_ns);
        if let Admission::PassAlone(burst) = admission {
            process.launched_alone(burst);
        }
    }

    #[test]
    fn a_closed_gate_holds_a_launch_until_it_opens_and_counts_the_wait() {
        let _order = one_at_a_time();
        let process = process();
        let slot = process.place().unwrap().slot();
        let control = process.place().unwrap().region.control();
        std::thread::scope(|scope| {
            let launcher = scope.spawn(|| launch(process, 100_000));
            until(|| slot.waiters.load(Ordering::Relaxed) > 0);
            assert!(!launcher.is_finished());
            assert_eq!(slot.demand.load(Ordering::Relaxed), Demand::Waiting as u32);
            open(control, clock::now_ns() + 10_000_000_000);
        });
        assert_eq!(slot.waiters.load(Ordering::Relaxed), 0);
        assert!(slot.gate_wait_ns.load(Ordering::Relaxed) > 0);
        assert_eq!(slot.first_launch_word.load(Ordering::Relaxed), control.gate.load(Ordering::Relaxed));
    }

    #[test]
    fn bursts_are_measured_and_the_quiet_process_says_that_it_is_idle() {
        let _order = one_at_a_time();
        let process = process();
        let slot = process.place().unwrap().slot();
        open(process.place().unwrap().region.control(), clock::now_ns() + 10_000_000_000);
        for _ in 0..40 {
            launch(process, 300_000);
        }
        until(|| slot.demand.load(Ordering::Acquire) == Demand::Idle as u32);
        let measured_ns = slot.burst_total_ns.load(Ordering::Relaxed);
        assert!((12_000_000..14_000_000).contains(&measured_ns), "40 launches of 0.3 ms, measured {measured_ns} ns");
        assert_eq!(slot.launches.load(Ordering::Relaxed), 40);
        assert!(slot.burst_count.load(Ordering::Relaxed) < 25, "several launches share a burst");
    }

    #[test]
    fn work_stops_being_issued_when_it_would_end_after_the_grant() {
        let _order = one_at_a_time();
        let process = process();
        let place = process.place().unwrap();
        let (slot, control) = (place.slot(), place.region.control());
        let from_ns = clock::now_ns();
        open(control, from_ns + 30_000_000);
        let issued = std::sync::atomic::AtomicU32::new(0);
        std::thread::scope(|scope| {
            scope.spawn(|| {
                while issued.fetch_add(1, Ordering::Relaxed) < 200 {
                    launch(process, 1_000_000);
                }
            });
            until(|| slot.waiters.load(Ordering::Relaxed) > 0);
            let (count, end_ns) = (issued.load(Ordering::Relaxed), slot.estimated_end_ns.load(Ordering::Relaxed));
            assert!((25..=34).contains(&count), "about thirty launches of 1 ms fit in 30 ms, issued {count}");
            assert!(end_ns >= from_ns + 30_000_000, "the announced end is the end of the grant or a little later");
            issued.store(1000, Ordering::Relaxed);
            open(control, clock::now_ns() + 10_000_000_000);
        });
    }

    #[test]
    fn a_supervisor_that_is_away_opens_the_gate_of_a_class_that_fails_open() {
        let _order = one_at_a_time();
        let process = process();
        let control = process.place().unwrap().region.control();
        control.heartbeat_ns.store(1, Ordering::Relaxed);
        launch(process, 1000);
        assert!(!GateWord(control.gate.load(Ordering::Relaxed)).is_open());
    }
}
