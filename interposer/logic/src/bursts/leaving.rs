//! Bursts in contexts that go.

use super::{Bursts, FREE_BURST, State, TABLE};
use crate::announce::publish;
use crate::clock;
use gpool_driver_abi::cuda::CUcontext;
use gpool_shared_region::{GPUS, Slot};

impl Bursts {
    /// Nothing is asked about bursts of `context`, which is about to be destroyed, until it has [gone](Self::context_gone) or
    /// [stays](Self::context_stays).
    pub fn leave_context(&mut self, context: CUcontext) {
        self.forget_resting();
        for burst in self.table.iter_mut().filter(|burst| burst.context == context) {
            burst.state = match burst.state {
                State::Free => State::LeavingFree,
                State::Closed => State::Leaving,
                other => other,
            };
        }
    }

    /// `context` was not destroyed: it has other uses, or the driver has refused.
    pub fn context_stays(&mut self, context: CUcontext) {
        for burst in self.table.iter_mut().filter(|burst| burst.context == context) {
            burst.state = match burst.state {
                State::LeavingFree => State::Free,
                State::Leaving => State::Closed,
                other => other,
            };
        }
    }

    /// `context` has been destroyed, and its events with it. What had not ended has now: it is charged until now, as nobody
    /// can say any more when it did.
    pub fn context_gone(&mut self, slot: &Slot, context: CUcontext) {
        let now_ns = clock::now_ns();
        self.forget_resting();
        for index in 0..TABLE {
            let burst = self.table[index];
            if burst.context != context {
                continue;
            }
            if burst.state.is_live() {
                let last_end_ns = &mut self.last_ends_ns[burst.tag.gpu() % GPUS];
                let start_ns = burst.resumed_ns.max(*last_end_ns).min(now_ns);
                publish(slot, burst.tag, start_ns, now_ns, burst.launches.max(1));
                *last_end_ns = now_ns;
                self.live -= 1;
            }
            self.table[index] = FREE_BURST;
        }
        self.anchors.leave_context(context);
        self.estimate_end(now_ns);
    }
}
