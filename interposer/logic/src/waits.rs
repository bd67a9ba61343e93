//! Programs that wait for their work: the time in which the device has none of it must not count as work.

use crate::bursts::Bursts;
use crate::bursts::resting::Kind;
use crate::clock;
use crate::contexts::gpus;
use crate::credit::{Look, stripe_index};
use crate::driver::CUDA_SUCCESS;
use crate::faults::Fault;
use crate::gate;
use crate::process::{Place, Process};
use core::sync::atomic::Ordering;
use gpool_driver_abi::cuda::{CUcontext, CUevent, CUresult, CUstream};

/// What a program waits for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum WaitFor {
    /// All that has been launched in a context; null is the calling thread's.
    Context(CUcontext),
    /// All that has been launched into a stream of the calling thread's context.
    Stream(CUstream),
    /// What was launched before an event. What was launched after it goes on: nothing is put between the launches of a
    /// program that works ahead.
    Event(CUevent),
}

/// After waits for events of a program that works ahead, and has its GPU to itself, it is asked so often whether the device still has
/// something of it: the driver's answer takes as long as a launch. What it pauses meanwhile counts as work, as that of a program
/// that waits for nothing; from 0.1 ms on the watcher notices it.
const AHEAD_LOOK_NS: u64 = 250_000;
/// The same of one that has launched [`AHEAD_LAUNCHES`]. It counts as at work between looks anyway; and one that finds nothing left
/// costs more than the answer, because the next launch begins a burst.
const FAR_AHEAD_LOOK_NS: u64 = 2_000_000;
/// After a wait of this length it is asked each time: the program has the time for it ...
const BLOCKED_NS: u64 = 20_000;
/// ... unless it shows by itself that the device has had work since the last look: for so long, because not all that a wait may be for
/// is counted, and whether there was more behind it the wait does not show.
const SHOWN_LOOK_NS: u64 = 50_000_000;
/// A program that has launched so often since it recorded the event for which it waits is taken to go on, whether the device keeps up
/// with it or waits for it. Of one that has launched less, the last look decides.
const AHEAD_LAUNCHES: u32 = 2;
/// Of work that ends sooner it is not said that its program leaves: that would be heard when the end is.
const LEAVING_LEAST_NS: u64 = 100_000;

/// What was done before a wait.
#[derive(Clone, Copy)]
struct Begun {
    /// The calling thread's burst that was left open, and may rest: where it is, its number, and the account of its credit.
    kept: Option<(usize, u64, u64)>,
    /// The number of the burst that was ended to show how late the wait returns, 0 for none.
    sampled: u64,
}

const NOTHING: Begun = Begun { kept: None, sampled: 0 };

impl Process {
    /// Waits by `wait`, the driver's function; what that answers.
    #[inline(always)]
    pub fn wait(&self, what: WaitFor, wait: impl FnOnce() -> CUresult) -> CUresult {
        let kind = match what {
            WaitFor::Context(_) => Kind::Context,
            WaitFor::Stream(_) => Kind::Stream,
            WaitFor::Event(event) => match self.launched_since(event) {
                (_, 0) => Kind::Event,
                (line, launches) => return self.wait_ahead(event, (line, launches), wait),
            },
        };
        let begun = self.before_wait(what, kind);
        let result = wait();
        if result != CUDA_SUCCESS {
            self.note_failure(result);
        }
        self.after_wait(kind, begun, result == CUDA_SUCCESS);
        result
    }

    /// Copies to the host by `copy`, the driver's function, which returns when all on its stream has ended, and the copy. What was
    /// launched ends before, by events: the copy is no work of the device's, however long it takes. Touches.
    #[inline(never)] // several entry points call it
    pub fn copy_to_host(&self, copy: &mut dyn FnMut() -> CUresult) -> CUresult {
        self.end_before_copy();
        copy()
    }

    fn end_before_copy(&self) {
        let Some(place) = self.touched_place() else { return };
        let Some(mut bursts) = self.bursts_in_time() else { return };
        let driver = &place.driver;
        let _relaxed = driver.relaxed_capture();
        let context = self.measured_in(driver.current_context());
        self.end_locked(place, &mut bursts, |bursts| bursts.open_in(context, None));
        bursts.note_wait();
        let is_news = self.say_leaving(place, &bursts, clock::now_ns());
        drop(bursts);
        if is_news {
            place.ring();
        }
    }

    /// The driver has answered a call that waits for work so. Of several GPUs nobody knows of which that is: what has been launched is
    /// asked about, as ever.
    #[cold]
    #[inline(never)]
    pub(crate) fn note_failure(&self, result: CUresult) {
        let mut fault = Fault::NONE;
        fault.note(0, result);
        if let Some(place) = self.place()
            && gpus(place.region.control()) == 1
        {
            fault.tell(place);
        }
    }

    /// Waits for an event since whose record so much has been launched.
    fn wait_ahead(&self, event: CUevent, (line, launches): (usize, u32), wait: impl FnOnce() -> CUresult) -> CUresult {
        let index = stripe_index();
        let stripe = &self.stripes[index];
        let (last, begun_ns) = (stripe.last_look(), clock::now_ns());
        // Nobody gets less for what it is charged too much, or wants to hear that it leaves.
        let is_sole = || self.control().is_some_and(gate::is_sole);
        let is_far = launches >= AHEAD_LAUNCHES;
        let goes_on = (is_far && !last.has_blocked || last.has_found_more) && is_sole();
        // All that was launched before the event had been by that look; and something has been since: who launches nothing more may
        // be about to pause.
        let since = stripe.launches().wrapping_sub(last.launches);
        let may_show = is_far && line == index && since.wrapping_sub(1) < launches;
        let age_ns = begun_ns.wrapping_sub(last.at_ns);
        let is_due = age_ns >= if is_far { FAR_AHEAD_LOOK_NS } else { AHEAD_LOOK_NS };
        let is_skipped = goes_on && (!is_due || may_show && age_ns < SHOWN_LOOK_NS);
        let begun = if is_skipped { NOTHING } else { self.before_wait(WaitFor::Event(event), Kind::EventAhead) };
        let result = wait();
        if result != CUDA_SUCCESS {
            self.note_failure(result);
        }
        let now_ns = clock::now_ns();
        let has_blocked = now_ns >= begun_ns + BLOCKED_NS;
        let launches = stripe.launches();
        if is_skipped && has_blocked && may_show && result == CUDA_SUCCESS && is_sole() {
            // What had not ended when the wait began, and was there at the last look, the device has had ever since.
            stripe.note_look(Look { launches, ..last });
        } else if !is_skipped || is_due || has_blocked {
            let has_found_more = self.after_wait(Kind::EventAhead, begun, result == CUDA_SUCCESS);
            stripe.note_look(Look { at_ns: now_ns, launches, has_found_more, has_blocked });
        }
        result
    }

    /// An event is about to be recorded by the calling thread. Of one that is recorded into a capture it is not known when that
    /// happens.
    #[inline(always)]
    pub fn note_record(&self, event: CUevent) {
        let index = stripe_index();
        match self.captures.load(Ordering::Acquire) {
            0 => self.records.note(event, index, self.stripes[index].launches()),
            _ => self.records.forget(event),
        }
    }

    /// How much has been launched on credit since `event` was recorded, by the thread that did it or one of its line, if that has
    /// an open burst; 0 also where that is not known. And which line that is.
    #[inline(always)]
    fn launched_since(&self, event: CUevent) -> (usize, u32) {
        let Some((line, before)) = self.records.find(event) else { return (0, 0) };
        let stripe = self.stripes.get(line).filter(|stripe| stripe.burst().is_some());
        // Less, or more, while another thread takes the credit away.
        (line, stripe.map_or(0, |stripe| stripe.launches().wrapping_sub(before).cast_signed().max(0).cast_unsigned()))
    }

    /// The program has asked whether what it waits for has ended, and it has: so has the burst on that stream, or that of the calling
    /// thread if nothing of it is left. Not where it has launched more behind an event, and goes on; where that is not known the
    /// driver is asked now and then, since its answer takes as long as a launch.
    #[inline(never)]
    pub fn found_ended(&self, what: WaitFor) {
        let stripe = &self.stripes[stripe_index()];
        let now_ns = clock::now_ns();
        match what {
            _ if stripe.burst().is_none() => {}
            WaitFor::Event(event) if self.records.find(event).is_none() => {
                let last = stripe.last_look();
                if now_ns >= last.at_ns + AHEAD_LOOK_NS {
                    stripe.note_look(Look { at_ns: now_ns, ..last });
                    self.end_drained(None);
                }
            }
            WaitFor::Event(event) if self.launched_since(event).1 > 0 => {}
            WaitFor::Event(_) | WaitFor::Context(_) => self.end_drained(None),
            WaitFor::Stream(stream) => self.end_drained(Some(stream)),
        }
    }

    /// Ends the open burst on `stream`, which has drained; without one that of the calling thread, if the driver says so.
    fn end_drained(&self, stream: Option<CUstream>) {
        let Some(place) = self.place() else { return };
        let (driver, stripe) = (&place.driver, &self.stripes[stripe_index()]);
        let Some(mut bursts) = self.bursts_in_time() else { return };
        let context = self.measured_in(driver.current_context());
        let ended = match stream {
            Some(stream) => bursts.open_on_in(context, stream),
            None => stripe.burst().filter(|burst| bursts.has_drained(driver, context, *burst)),
        };
        if let Some(burst) = ended {
            let _relaxed = driver.relaxed_capture();
            let spent = self.revoke_credit_of(burst);
            bursts.close_drained(driver, burst, spent);
        }
    }

    /// Ends the open bursts of the context that is waited for, but for the calling thread's if the wait is for that and it may
    /// rest.
    #[inline(never)]
    fn before_wait(&self, what: WaitFor, kind: Kind) -> Begun {
        let Some(place) = self.place() else { return NOTHING };
        let stripe = &self.stripes[stripe_index()];
        if stripe.burst().is_none() && kind.is_event() {
            return NOTHING;
        }
        let driver = &place.driver;
        let Some(mut bursts) = self.bursts_in_time() else { return NOTHING };
        let now_ns = clock::now_ns();
        let context = match what {
            WaitFor::Context(context) if !context.is_null() => context,
            _ => driver.current_context(),
        };
        let context = self.measured_in(context);
        let stream = match what {
            WaitFor::Stream(stream) => Some(stream),
            WaitFor::Context(_) | WaitFor::Event(_) => None,
        };
        // Read with the lock held: the watcher may have ended it.
        let own = stripe.burst().filter(|burst| bursts.is_open_in(*burst, context, stream));
        let kept = own.filter(|burst| bursts.may_rest(*burst, kind, now_ns));
        // What else a wait may be for says nothing of this burst.
        let is_for_it = stream.is_some() || bursts.live() == 1;
        let is_sampled = kept.is_none() && is_for_it && (!kind.is_event() || bursts.take_sample_asked(kind));
        let sampled = own.filter(|_| is_sampled).map_or(0, |burst| bursts.begin_sample(burst));
        let is_in_the_way = |bursts: &Bursts| match what {
            WaitFor::Event(_) => own.filter(|burst| sampled != 0 && bursts.is_open_in(*burst, context, None)),
            _ => bursts.open_in(context, kept),
        };
        // Mostly there is no other.
        if bursts.live() > usize::from(kept.is_some()) && is_in_the_way(&bursts).is_some() {
            let _relaxed = driver.relaxed_capture();
            self.end_locked(place, &mut bursts, is_in_the_way);
        }
        let kept = kept.map(|burst| (burst, bursts.number(burst), stripe.account()));
        bursts.note_wait();
        let is_news = self.say_leaving(place, &bursts, now_ns);
        drop(bursts);
        if is_news {
            place.ring();
        }
        Begun { kept, sampled }
    }

    /// Of a program that is expected to pause for long when its work has ended, says when that will be: whoever else wants the
    /// device then need not wait until the end has been noticed. Whether that is news.
    fn say_leaving(&self, place: &Place, bursts: &Bursts, now_ns: u64) -> bool {
        let (control, slot, word) = (place.region.control(), place.slot(), place.region.gate());
        let is_heeded = word.is_open() && control.heeds_leaving.load(Ordering::Relaxed) != 0 && gpus(control) == 1;
        // Another thread wants on.
        let goes_on = slot.waiters.load(Ordering::Acquire) > 0 || self.sleepers.load(Ordering::Relaxed) > 0;
        let is_said = slot.leaving_word.load(Ordering::Relaxed) == word.0;
        if !is_heeded || goes_on || is_said || !bursts.pause().is_expected() {
            return false;
        }
        let end_ns = bursts.told_end_on(0, &|burst| self.credit_of(burst), now_ns);
        let is_worth_it = bursts.live() > 0 && end_ns >= now_ns + LEAVING_LEAST_NS;
        if is_worth_it {
            place.say_leaving(word.0, end_ns);
        }
        is_worth_it
    }

    /// The program has waited. Its burst rests if its work has ended; after an event, others end whose work has.
    /// Whether the burst of the calling thread's line was looked at and has more.
    #[inline(never)]
    fn after_wait(&self, kind: Kind, begun: Begun, is_success: bool) -> bool {
        let Some(place) = self.place() else { return false };
        let is_event = kind.is_event();
        if begun.kept.is_none() && begun.sampled == 0 && !is_event {
            return false;
        }
        let (driver, stripe) = (&place.driver, &self.stripes[stripe_index()]);
        let Some(mut bursts) = self.bursts_in_time() else { return false };
        if is_event && begun.sampled == 0 && bursts.live() == 0 {
            return false;
        }
        let now_ns = clock::now_ns();
        // Another thread of this line may have launched meanwhile, into the same burst or another.
        let is_same = |bursts: &Bursts, (index, number, account): (usize, u64, u64)| {
            stripe.holds(index) && stripe.account() == account && bursts.number(index) == number
        };
        let kept = begun.kept.filter(|kept| is_same(&bursts, *kept)).map(|(index, ..)| index);
        if let Some(index) = kept.filter(|_| is_success && !is_event) {
            let spent = self.revoke_credit_of(index);
            bursts.rest(place, index, kind, spent, now_ns);
            return false;
        }
        let _relaxed = driver.relaxed_capture();
        if begun.sampled != 0 {
            bursts.settle(place, &self.estimates);
            bursts.end_sample(begun.sampled, kind, now_ns);
        }
        if !is_event && kept.is_none() {
            return false;
        }
        // A default stream's handle means the current context's.
        let context = self.measured_in(driver.current_context());
        let is_asked_about = |burst| bursts.is_open_in(burst, context, None);
        let mut has_found_more = begun.sampled == 0 && stripe.burst().is_some_and(is_asked_about);
        while let Some(burst) = bursts.drained_in(driver, context) {
            has_found_more &= !stripe.holds(burst);
            if stripe.holds(burst) && (kept.is_none() || !bursts.knows(kind, now_ns)) {
                bursts.ask_for_sample(kind);
            }
            let spent = self.revoke_credit_of(burst);
            if kept == Some(burst) {
                bursts.rest(place, burst, kind, spent, now_ns);
            } else {
                bursts.close_drained(driver, burst, spent);
            }
        }
        has_found_more
    }
}
