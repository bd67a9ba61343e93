//! Programs that wait for their work: the time in which the device has none of it must not count as work.

use crate::bursts::Bursts;
use crate::bursts::resting::Kind;
use crate::clock;
use crate::contexts::gpus;
use crate::credit::stripe_index;
use crate::driver::CUDA_SUCCESS;
use crate::process::{Place, Process};
use core::sync::atomic::Ordering;
use gpool_driver_abi::cuda::{CUcontext, CUresult, CUstream};

/// What a program waits for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum WaitFor {
    /// All that has been launched in a context; null is the calling thread's.
    Context(CUcontext),
    /// All that has been launched into a stream of the calling thread's context.
    Stream(CUstream),
    /// What was launched before an event. What was launched after it goes on: nothing is put between the launches of a
    /// program that works ahead.
    Event,
}

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

impl WaitFor {
    fn kind(self) -> Kind {
        match self {
            Self::Context(_) => Kind::Context,
            Self::Stream(_) => Kind::Stream,
            Self::Event => Kind::Event,
        }
    }
}

impl Process {
    /// Waits by `wait`, the driver's function; what that answers.
    #[inline(always)]
    pub fn wait(&self, what: WaitFor, wait: impl FnOnce() -> CUresult) -> CUresult {
        let begun = self.before_wait(what);
        let result = wait();
        self.after_wait(what, begun, result == CUDA_SUCCESS);
        result
    }

    /// Ends the open bursts of the context that is waited for, but for the calling thread's if the wait is for that and it may
    /// rest.
    #[inline(never)]
    fn before_wait(&self, what: WaitFor) -> Begun {
        let Some(place) = self.place() else { return NOTHING };
        let stripe = &self.stripes[stripe_index()];
        if stripe.burst().is_none() && what == WaitFor::Event {
            return NOTHING;
        }
        let driver = &place.driver;
        let mut bursts = self.bursts.lock();
        let now_ns = clock::now_ns();
        let context = match what {
            WaitFor::Context(context) if !context.is_null() => context,
            _ => driver.current_context(),
        };
        let context = self.measured_in(context);
        let stream = match what {
            WaitFor::Stream(stream) => Some(stream),
            WaitFor::Context(_) | WaitFor::Event => None,
        };
        // Read with the lock held: the watcher may have ended it.
        let own = stripe.burst().filter(|burst| bursts.is_open_in(*burst, context, stream));
        let kept = own.filter(|burst| bursts.may_rest(*burst, what.kind(), now_ns));
        // What else a wait may be for says nothing of this burst.
        let is_for_it = stream.is_some() || bursts.live() == 1;
        let is_sampled = kept.is_none() && is_for_it && (what != WaitFor::Event || bursts.take_sample_asked());
        let sampled = own.filter(|_| is_sampled).map_or(0, |burst| bursts.begin_sample(burst));
        let is_in_the_way = |bursts: &Bursts| match what {
            WaitFor::Event => own.filter(|burst| sampled != 0 && bursts.is_open_in(*burst, context, None)),
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
        let unspent_ns = bursts.unspent_ns(0, |burst| self.credit_of(burst));
        let end_ns = bursts.estimated_end_on(0, now_ns).saturating_sub(unspent_ns);
        let is_worth_it = bursts.live() > 0 && end_ns >= now_ns + LEAVING_LEAST_NS;
        if is_worth_it {
            place.say_leaving(word.0, end_ns);
        }
        is_worth_it
    }

    /// The program has waited. Its burst rests if its work has ended; after an event, others end whose work has.
    #[inline(never)]
    fn after_wait(&self, what: WaitFor, begun: Begun, is_success: bool) {
        let Some(place) = self.place() else { return };
        let is_event = what == WaitFor::Event;
        if begun.kept.is_none() && begun.sampled == 0 && !is_event {
            return;
        }
        let (driver, stripe) = (&place.driver, &self.stripes[stripe_index()]);
        let mut bursts = self.bursts.lock();
        if is_event && begun.sampled == 0 && bursts.live() == 0 {
            return;
        }
        let now_ns = clock::now_ns();
        // Another thread of this line may have launched meanwhile, into the same burst or another.
        let is_same = |bursts: &Bursts, (index, number, account): (usize, u64, u64)| {
            stripe.holds(index) && stripe.account() == account && bursts.number(index) == number
        };
        let kept = begun.kept.filter(|kept| is_same(&bursts, *kept)).map(|(index, ..)| index);
        if let Some(index) = kept.filter(|_| is_success && !is_event) {
            let spent = self.revoke_credit_of(index);
            return bursts.rest(place, index, what.kind(), spent, now_ns);
        }
        let _relaxed = driver.relaxed_capture();
        if begun.sampled != 0 {
            bursts.settle(place, &self.estimates);
            bursts.end_sample(begun.sampled, what.kind(), now_ns);
        }
        if !is_event && kept.is_none() {
            return;
        }
        // A default stream's handle means the current context's.
        let context = self.measured_in(driver.current_context());
        while let Some(burst) = bursts.drained_in(driver, context) {
            if stripe.holds(burst) && kept.is_none() {
                bursts.ask_for_sample();
            }
            let spent = self.revoke_credit_of(burst);
            if kept == Some(burst) {
                bursts.rest(place, burst, what.kind(), spent, now_ns);
            } else {
                bursts.close_drained(driver, burst, spent);
            }
        }
    }
}
