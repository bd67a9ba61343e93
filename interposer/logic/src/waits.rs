//! Programs that wait for their work: the time in which the device has none of it must not count as work.

use crate::bursts::Spent;
use crate::clock;
use crate::credit::stripe_index;
use crate::driver::CUDA_SUCCESS;
use crate::process::{Place, Process};
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

impl Process {
    /// Waits by `wait`, the driver's function; what that answers.
    #[inline(always)]
    pub fn wait(&self, what: WaitFor, wait: impl FnOnce() -> CUresult) -> CUresult {
        let number = self.before_wait(what);
        let result = wait();
        self.after_wait(what, number, result == CUDA_SUCCESS);
        result
    }

    /// Ends the open bursts of what is waited for, but for the calling thread's if that may rest. The number of the burst that
    /// shows how late the wait returns, 0 for none.
    #[inline(never)]
    fn before_wait(&self, what: WaitFor) -> u64 {
        let Some(place) = self.place() else { return 0 };
        let stripe = &self.stripes[stripe_index()];
        if stripe.burst().is_none() && what == WaitFor::Event {
            return 0;
        }
        let driver = &place.driver;
        let mut bursts = self.bursts.lock();
        // Read again with the lock held: the watcher may have ended it.
        let own = stripe.burst();
        let now_ns = clock::now_ns();
        let resting = own.filter(|burst| bursts.may_rest(*burst, now_ns));
        let is_sampled = resting.is_none() && (what != WaitFor::Event || bursts.take_sample_asked());
        let sampled = own.filter(|_| is_sampled);
        let number = sampled.map_or(0, |burst| bursts.begin_sample(burst));
        if what == WaitFor::Event {
            if let Some(burst) = sampled {
                let _relaxed = driver.relaxed_capture();
                let spent = self.revoke_credit_of(burst);
                bursts.close(driver, burst, spent);
            }
            return number;
        }
        // Mostly there is no other.
        if bursts.live() > usize::from(resting.is_some()) {
            let context = self.waited_context(place, what);
            let _relaxed = driver.relaxed_capture();
            self.end_locked(place, &mut bursts, |bursts| bursts.open_in(context, resting));
        }
        number
    }

    fn waited_context(&self, place: &Place, what: WaitFor) -> CUcontext {
        match what {
            WaitFor::Context(context) if !context.is_null() => context,
            _ => place.driver.current_context(),
        }
    }

    /// The program has waited. Its burst rests if its work has ended; after an event, others' bursts end whose work has.
    #[inline(never)]
    fn after_wait(&self, what: WaitFor, number: u64, is_success: bool) {
        let Some(place) = self.place() else { return };
        let stripe = &self.stripes[stripe_index()];
        if stripe.burst().is_none() && number == 0 && what != WaitFor::Event {
            return;
        }
        let driver = &place.driver;
        let context = self.waited_context(place, what);
        let mut bursts = self.bursts.lock();
        let own = stripe.burst();
        let now_ns = clock::now_ns();
        let is_over = |burst: usize| match what {
            WaitFor::Context(_) => bursts.is_open_in(burst, context, None),
            WaitFor::Stream(stream) => bursts.is_open_in(burst, context, Some(stream)),
            WaitFor::Event => false,
        };
        let over = own.filter(|burst| is_success && is_over(*burst));
        // Nothing but its own is outstanding, and that has ended: there is nothing to ask the driver.
        if let Some(burst) = over
            && bursts.live() == 1
            && bursts.may_rest(burst, now_ns)
        {
            let spent = stripe.revoke().map_or(Spent::LONE, |(_, spent)| spent);
            return bursts.rest(burst, spent, now_ns);
        }
        let _relaxed = driver.relaxed_capture();
        bursts.settle(driver, place.slot(), &self.estimates);
        bursts.end_sample(number, now_ns);
        if own.is_none() && what != WaitFor::Event {
            return;
        }
        // A default stream's handle means the current context's.
        let context = driver.current_context();
        while let Some(burst) = bursts.drained_in(driver, context) {
            let spent = self.revoke_credit_of(burst);
            if own != Some(burst) {
                bursts.close_drained(driver, burst, spent);
            } else if bursts.may_rest(burst, now_ns) {
                bursts.rest(burst, spent, now_ns);
            } else {
                bursts.ask_for_sample();
                bursts.close_drained(driver, burst, spent);
            }
        }
    }
}
