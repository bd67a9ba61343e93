//! The gate before all work: a hot path of a few loads, and the slow path behind it.
//!
//! A launch passes on the hot path while four things hold: the lease's gate word is the one under which this thread's
//! credit was given, the launch goes to the same stream, its cost is known, and that much credit is left. Credit is
//! given on the slow path, one burst at a time.

use crate::bursts::{Bursts, Grant, Spent, Spot};
use crate::clock;
use crate::copies::Moved;
use crate::credit::{Credit, Stripe, is_default, is_per_thread, stripe_index};
use crate::driver::CUDA_SUCCESS;
use crate::estimates::{Bytes, Work};
use crate::learning::Expectation;
use crate::process::{Place, Process};
use crate::standing::Standing;
use core::sync::atomic::Ordering;
use gpool_driver_abi::cuda::{CUresult, CUstream};
use gpool_shared_region::{Control, Demand};

/// The longest sleep for depth, so that a wrong estimate cannot stall a tenant.
pub(crate) const DEPTH_SLEEP_LIMIT_NS: u64 = 10_000_000;
/// The same where bursts are long: it is looked whether one has ended.
const LONG_LOOK_NS: u64 = 1_000_000;
/// How long to wait for a place in a full table of bursts before looking again ...
const FULL_SLEEP_NS: u64 = 200_000;
/// Work beside a kernel that ends after the slice ends before that one by this at least: longer than most hand-offs take.
const BESIDE_LEAST_NS: u64 = 500_000;
/// ... and in all: what fills it may itself wait for this launch, as a collective on another GPU does. Then it goes
/// unmeasured, at its estimate.
pub(crate) const FULL_PATIENCE_NS: u64 = 100_000_000;
/// Streams that work at the same time have no shorter bursts than this, if bursts may be so long.
const PARTED_BURST_NS: u64 = 1_000_000;
/// What a launch may do.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Admission {
    /// Launch.
    Pass,
    /// Launch, then call [`Process::launched_alone`]: the burst with this number ends with this launch.
    PassAlone(u64),
    /// Do not launch: the process has not registered, or is a forked child, which has no driver.
    NotInitialized,
}

enum Verdict {
    /// Issue work for so long.
    Issue(u64),
    SleepUntil(u64),
    Wait,
}

impl Process {
    /// Called before each launch of `work` on `stream`. Returns when the launch may go ahead.
    #[inline(always)]
    pub fn admit(&self, stream: CUstream, work: Work) -> Admission {
        let stripe = &self.stripes[stripe_index()];
        if let Some(control) = self.control()
            && stripe.admits(&control.gate, stream, work, || self.estimates.cost_ns(work))
        {
            return Admission::Pass;
        }
        self.admit_slowly(stripe, stream, work)
    }

    /// Called before each copy or memset of `bytes` on `stream`.
    #[inline(always)]
    pub fn admit_bytes(&self, stream: CUstream, kind: Bytes, bytes: u64) -> Admission {
        if bytes < kind.least_bytes() {
            let is_there = self.control().is_some_and(|control| !control.is_suspended());
            return if is_there || self.comes_there() { Admission::Pass } else { Admission::NotInitialized };
        }
        self.admit_long(stream, kind, bytes)
    }

    /// Takes a place, or waits until the lease is back: without a place in a region nothing runs, as no launch does.
    #[cold]
    #[inline(never)]
    fn comes_there(&self) -> bool {
        self.touch();
        self.control().is_some() || self.register()
    }

    /// Called before each copy whose kind and size stand in what the program gives the driver.
    #[inline(never)]
    pub fn admit_moved(&self, stream: CUstream, moved: Moved) -> Admission {
        self.admit_bytes(stream, moved.kind, moved.bytes)
    }

    /// Apart, so that the entry points of copies and memsets stay small.
    #[inline(never)]
    fn admit_long(&self, stream: CUstream, kind: Bytes, bytes: u64) -> Admission {
        self.admit(stream, Work::bytes(kind, bytes))
    }

    #[cold]
    #[inline(never)]
    fn admit_slowly(&self, stripe: &Stripe, stream: CUstream, work: Work) -> Admission {
        // Without a place in a region nothing runs, so nothing runs uncounted.
        let Some(place) = self.place() else { return Admission::NotInitialized };
        if !place.registration.is_own() {
            return Admission::NotInitialized;
        }
        // The gate is closed then, but the driver is asked before it, and what is captured passes it.
        self.touch();
        let driver = &place.driver;
        let mut context = driver.current_context();
        if is_default(stream)
            && stripe.is_for_context(stream, context, place.region.gate().0)
            && stripe.spend(work, self.estimates.cost_ns(work))
        {
            return Admission::Pass;
        }
        if driver.is_capturing(stream) {
            // What is captured does no work yet; the graph's launch is gated instead.
            return Admission::Pass;
        }
        let _relaxed = driver.relaxed_capture();
        // A kernel of a library runs in the context of its stream, whichever is current (cuLaunchKernel).
        let is_named = !is_default(stream) && !is_per_thread(stream);
        let mut of = context;
        // A green context is measured in the primary one that it is a part of: it can be current to one thread only, which is the
        // program's (cuGreenCtxCreate).
        if !is_named {
            context = self.measured_in(context);
        } else if context.is_null() || self.has_several_contexts() {
            // Of one whose beginning was not seen the end will not be either.
            let stream_context = driver.context_of(stream).and_then(|context| self.whole_of(context));
            context = stream_context.unwrap_or(context);
            of = context;
        }
        let spot = Spot { context, of, tag: self.tag_of(place, context), stream };
        let mut full_from_ns = None;
        let mut standing = Standing::default();
        let mut has_arrived = false;
        loop {
            let Some(mut bursts) = self.bursts_in_time() else {
                if self.goes_by(place, (spot, work), &mut standing) {
                    return Admission::Pass;
                }
                continue;
            };
            self.catch_up(place, &mut bursts);
            // Read under the lock, so that what is said of this process belongs to one word.
            let word = place.region.gate();
            if let Some((burst, spent)) = stripe.revoke() {
                bursts.close(driver, burst, spent);
            }
            bursts.settle(place, &self.estimates);
            let now_ns = clock::now_ns();
            if !has_arrived {
                has_arrived = true;
                bursts.note_arrival(now_ns);
            }
            let estimated_end_ns = bursts.estimated_end_ns(now_ns);
            let expectation = bursts.learning().expect(&self.estimates, work);
            full_from_ns = bursts.is_full().then(|| full_from_ns.unwrap_or(now_ns));
            let full_ns = full_from_ns.map(|from_ns: u64| now_ns - from_ns);
            let credit_of = |burst| self.credit_of(burst);
            match verdict(place, word.is_open(), (&bursts, &credit_of), (spot, work, expectation), full_ns, now_ns) {
                Verdict::Issue(room_ns) => {
                    standing.end(place, now_ns);
                    // Before the driver is asked anything: the lease's other processes are woken with this one, and count it.
                    let claimed_ns = estimated_end_ns.saturating_add(expectation.cost_ns.into());
                    let is_news = place.note_issue(word.0, now_ns, claimed_ns);
                    let credit_ns = bursts.learning().credit_ns(room_ns);
                    // What is not known is measured alone, and a burst that holds no second launch ends with its
                    // first: by the next launch, or a look, the program may have been silent for long. Of the
                    // per-thread stream, and the default ones of a part of a context, only this thread can record the end.
                    let is_its_own = is_per_thread(stream) || of != context;
                    let is_lone = !expectation.is_measured || expectation.cost_ns >= credit_ns || is_its_own;
                    // Where nobody else is at work nothing stands before it there, however often its gate is opened or renewed.
                    let stands_alone = place.region.control().stands_alone.load(Ordering::Relaxed) == 1;
                    let behind = if stands_alone { 0 } else { word.0 };
                    let grant = Grant { work, expectation, credit_ns: (!is_lone).then_some(credit_ns), word: behind };
                    let resumed = bursts.resume(spot, grant, now_ns);
                    let burst = resumed.or_else(|| bursts.open(driver, spot, grant));
                    let is_news = place.note_issue(word.0, now_ns, bursts.estimated_end_ns(now_ns)) || is_news;
                    self.wake_watcher();
                    let admission = match burst {
                        Some(burst) if is_lone => Admission::PassAlone(bursts.number(burst)),
                        Some(burst) => {
                            let context = (is_default(stream) && self.has_several_contexts()).then_some(context);
                            let left_ns = credit_ns - expectation.cost_ns;
                            stripe.grant(word.0, stream, context, Credit { burst, work, left_ns });
                            Admission::Pass
                        }
                        None => {
                            bursts.charge_unmeasured(place, spot.tag, expectation, now_ns);
                            Admission::Pass
                        }
                    };
                    drop(bursts);
                    if is_news {
                        place.ring();
                    }
                    return admission;
                }
                Verdict::SleepUntil(at_ns) => {
                    self.sleepers.fetch_add(1, Ordering::Relaxed);
                    drop(bursts);
                    clock::sleep_until_ns(at_ns);
                    self.sleepers.fetch_sub(1, Ordering::Relaxed);
                }
                Verdict::Wait => {
                    standing.begin(place, now_ns);
                    let outstanding_ns = if bursts.live() > 0 { estimated_end_ns } else { 0 };
                    place.say(Demand::Waiting, word.0, outstanding_ns);
                    drop(bursts);
                    standing.wait(place, word, now_ns);
                }
            }
        }
    }

    /// Ends the burst of a launch that was admitted alone; called by the launching thread after the launch. Out of line,
    /// as it is called by a hundred entry points.
    #[inline(never)]
    pub fn launched_alone(&self, number: u64) {
        let Some(place) = self.place() else { return };
        let _relaxed = place.driver.relaxed_capture();
        let in_time = self.bursts_in_time();
        if in_time.is_none() && self.leave_returned(number) {
            return;
        }
        let taken = in_time.or_else(|| self.bursts.take());
        let was_away = taken.is_some_and(|mut bursts| bursts.close_lone(&place.driver, number));
        if was_away {
            self.wake_watcher();
        }
    }

    /// Ends the open burst on `stream` before the program destroys the stream. Touches, as all that is called before a stream changes.
    /// False if that burst cannot be ended now: then the stream is destroyed for the program when it can.
    pub fn leave_stream(&self, stream: CUstream) -> bool {
        let Some(place) = self.touched_place() else { return true };
        while !self.end_bursts(place, |bursts| bursts.open_on(stream)) {
            if self.leave_destroyed(stream) {
                return false;
            }
            clock::sleep_until_ns(clock::now_ns() + FULL_SLEEP_NS);
        }
        true
    }

    /// Ends the open burst on `stream` before the program captures it, and those on the default streams: while a blocking
    /// stream is captured, no event can be recorded on them.
    pub fn leave_for_capture(&self, stream: CUstream) {
        let Some(place) = self.touched_place() else { return };
        self.end_bursts(place, |bursts| bursts.open_on(stream).or_else(|| bursts.open_on_default()));
    }

    /// A capture has begun.
    pub fn capture_begun(&self) {
        self.captures.fetch_add(1, Ordering::AcqRel);
    }

    /// Ends the capture of `stream` by `end`, the driver's function for that, which may fail and end it all the same.
    pub fn end_capture(&self, stream: CUstream, end: impl FnOnce() -> CUresult) -> CUresult {
        let place = self.touched_place();
        let is_capturing = || place.is_some_and(|place| place.driver.is_capturing(stream));
        let was_capturing = is_capturing();
        let result = end();
        if was_capturing && (result == CUDA_SUCCESS || !is_capturing()) {
            let _ = self.captures.fetch_update(Ordering::AcqRel, Ordering::Acquire, |count| count.checked_sub(1));
        }
        result
    }

    /// Ends the open burst on `stream` before that waits for an event: of a stream in capture, it would be in capture itself
    /// from then on, and nothing could be recorded on it or asked about it.
    #[inline(never)] // two entry points call it
    pub fn leave_for_join(&self, stream: CUstream) {
        self.touch();
        if self.captures.load(Ordering::Acquire) != 0 {
            self.leave_before_join(stream);
        }
    }

    #[cold]
    #[inline(never)]
    fn leave_before_join(&self, stream: CUstream) {
        let Some(place) = self.place() else { return };
        if !place.driver.is_capturing(stream) {
            self.end_bursts(place, |bursts| bursts.open_on(stream));
        }
    }

    /// The handle of `work` is about to be destroyed.
    pub fn forget(&self, work: Work) {
        self.estimates.forget(work);
    }

    /// Ends the bursts that `next` names, and forgets those that rest; false if that cannot be done now.
    pub(crate) fn end_bursts(&self, place: &Place, next: impl Fn(&Bursts) -> Option<usize>) -> bool {
        let _relaxed = place.driver.relaxed_capture();
        let Some(mut bursts) = self.bursts_in_time() else {
            self.leave_open();
            return false;
        };
        self.end_locked(place, &mut bursts, next);
        bursts.forget_resting();
        true
    }

    pub(crate) fn end_locked(&self, place: &Place, bursts: &mut Bursts, next: impl Fn(&Bursts) -> Option<usize>) {
        while let Some(burst) = next(bursts) {
            let spent = self.revoke_credit_of(burst);
            bursts.close(&place.driver, burst, spent);
        }
    }

    /// Takes the credit of an open burst away; what became of it.
    pub(crate) fn revoke_credit_of(&self, burst: usize) -> Spent {
        let holder = self.stripes.iter().find(|stripe| stripe.holds(burst));
        holder.and_then(Stripe::revoke).map_or(Spent::LONE, |(_, spent)| spent)
    }

    /// The credit of an open burst that is left.
    pub(crate) fn credit_of(&self, burst: usize) -> u32 {
        let holder = self.stripes.iter().find(|stripe| stripe.holds(burst));
        holder.map_or(0, Stripe::left_ns)
    }
}

/// Whether the tenant has its GPU to itself, or others have been idle for long, and nothing bounds what it may have: only then bursts
/// are longer than those of others.
pub(crate) fn is_sole(control: &Control) -> bool {
    control.burst_ns.load(Ordering::Relaxed) > PARTED_BURST_NS
}

/// Whether nobody paces the tenant: no supervisor is there, and its class lets it go on.
pub(crate) fn is_unpaced(place: &Place, now_ns: u64) -> bool {
    place.region.control().fail_open.load(Ordering::Relaxed) == 1 && place.region.supervisor_is_away(now_ns)
}

/// Whether work may be issued now, how much, or what to wait for.
fn verdict(
    place: &Place,
    open: bool,
    (bursts, credit_of): (&Bursts, &dyn Fn(usize) -> u32),
    (spot, work, expectation): (Spot, Work, Expectation),
    full_ns: Option<u64>,
    now_ns: u64,
) -> Verdict {
    let control = place.region.control();
    // Each GPU works by itself: what another one has to do is no reason to wait.
    let end_ns = bursts.estimated_end_on(spot.tag.gpu(), now_ns);
    let burst_ns = control.burst_ns.load(Ordering::Relaxed).max(1);
    let unpaced = is_unpaced(place, now_ns);
    let until_ns = if unpaced { u64::MAX } else { control.until_ns.load(Ordering::Relaxed) };
    let unspent_ns = || bursts.unspent_ns(spot.tag.gpu(), credit_of);
    let is_overdue = || bursts.is_overdue(spot.tag.gpu(), now_ns);
    let depth_ns = control.depth_ns.load(Ordering::Relaxed);
    let is_long = is_sole(control);
    // Looked at only where work would wait for other work.
    let outlook = |left_ns: &dyn Fn(usize) -> u32| {
        let is_needed = end_ns >= until_ns || end_ns > now_ns + depth_ns;
        is_needed.then(|| bursts.outlook(spot.tag.gpu(), Some(spot.line()), left_ns, now_ns)).flatten()
    };
    let whole = outlook(&|_| 0);
    let end_ns = whole.map_or(end_ns, |outlook| outlook.end_ns.min(end_ns));
    // What other processes of the lease have there takes of its slice.
    let others_ns = if unpaced { 0 } else { place.others_left_ns(spot.tag.gpu(), now_ns) };
    let lease_end_ns = end_ns.saturating_add(others_ns);
    let is_late = || others_ns == 0 && is_overdue();
    let is_over = !unpaced && (now_ns >= until_ns || lease_end_ns >= until_ns && !is_late());
    // What ends before another stream's kernel does keeps nobody from the device, however far beyond the slice that is.
    let beside_ns = whole.map_or(0, |outlook| outlook.room_beside_ns());
    // That it stands at its gate has to be known before the device has nothing.
    if !unpaced && !open || is_over && u64::from(expectation.cost_ns) + BESIDE_LEAST_NS >= beside_ns {
        return Verdict::Wait;
    }
    if full_ns.is_some_and(|full_ns| full_ns < FULL_PATIENCE_NS) {
        return Verdict::SleepUntil(now_ns + FULL_SLEEP_NS);
    }
    // What a burst may hold counts as outstanding before it has been launched. Of long ones, which somebody has beside whom nobody
    // works, that would keep other streams waiting for nothing.
    let launched = if is_long && whole.is_some() { outlook(credit_of) } else { whole };
    let deep_ns = now_ns + depth_ns;
    let (launched_ns, room_ns) = match launched {
        // As long as the longest of the other streams runs, work beside it holds nothing up; a depth of it keeps its own stream busy.
        Some(outlook) if outlook.line_end_ns <= deep_ns => (outlook.own_end_ns, outlook.others_end_ns.max(deep_ns)),
        Some(outlook) => (outlook.own_end_ns, deep_ns),
        None if is_long && end_ns > deep_ns => (end_ns.saturating_sub(unspent_ns()), deep_ns),
        None => (end_ns, deep_ns),
    };
    let ahead_ns = launched_ns.saturating_add(others_ns);
    if ahead_ns > room_ns && (others_ns > 0 || bursts.live() > 0 && !is_overdue()) {
        // How far estimates are off shows when a burst ends. Of long ones a depth is off by as much, and by then the device may
        // have had nothing to do for long. The end of another process's shows to nobody here.
        let limit_ns = match others_ns {
            0 if is_long || launched.is_some() => LONG_LOOK_NS,
            0 => DEPTH_SLEEP_LIMIT_NS,
            _ => LONG_LOOK_NS.max(others_ns / 8),
        };
        return Verdict::SleepUntil((ahead_ns - depth_ns).min(now_ns + limit_ns));
    }
    if !expectation.is_measured
        && let Some(look_ns) = bursts.first_wait_ns(work, spot.tag.gpu(), depth_ns, now_ns)
    {
        return Verdict::SleepUntil(look_ns);
    }
    // Each further stream has half of what is left of two such bursts, or the least, so that hardly more is given out.
    let part_ns = if is_long { (burst_ns - (unspent_ns() / 2).min(burst_ns)).max(PARTED_BURST_NS) } else { burst_ns };
    Verdict::Issue(part_ns.min(if is_over { beside_ns } else { until_ns.saturating_sub(lease_end_ns) }))
}

#[cfg(test)]
mod tests;
