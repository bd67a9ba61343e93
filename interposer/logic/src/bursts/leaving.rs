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

    /// `context` was not destroyed: it has other uses, or the driver has refused. Whether it has work.
    pub fn context_stays(&mut self, context: CUcontext) -> bool {
        let mut has_work = false;
        for burst in self.table.iter_mut().filter(|burst| burst.context == context) {
            has_work |= burst.state == State::Leaving;
            burst.state = match burst.state {
                State::LeavingFree => State::Free,
                State::Leaving => State::Closed,
                other => other,
            };
        }
        has_work
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
                self.end_unknown(slot, index, now_ns);
            }
            self.table[index] = FREE_BURST;
        }
        self.anchors.leave_context(context);
        self.estimate_end(now_ns);
    }

    /// Ends a burst of which nobody can say any more when its work began and ended: from its issue until now, of which a
    /// stretch that another one of the same context has told of costs nothing again.
    pub(super) fn end_unknown(&mut self, slot: &Slot, index: usize, now_ns: u64) {
        let burst = core::mem::replace(&mut self.table[index], FREE_BURST);
        publish(slot, burst.tag, burst.resumed_ns.min(now_ns), now_ns, burst.launches.max(1));
        self.last_ends_ns[burst.tag.gpu() % GPUS] = now_ns;
        self.live -= 1;
    }
}
