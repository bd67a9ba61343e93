//! Bursts in contexts that go.

use super::{Burst, Bursts, FREE_BURST, State};
use crate::clock;
use crate::place::Place;
use gpool_driver_abi::cuda::CUcontext;
use gpool_shared_region::GPUS;

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

    /// `context` has been destroyed, and its events with it. What had not ended has now.
    pub fn context_gone(&mut self, place: &Place, context: CUcontext) {
        self.forget_resting();
        self.end_unknown(place, context, State::is_live);
        for burst in self.table.iter_mut().filter(|burst| burst.context == context) {
            *burst = FREE_BURST;
        }
        self.anchors.leave_context(context);
        self.estimate_end(clock::now_ns());
    }

    /// Ends those bursts of `context` of which nobody can say any more when their work began and ended. They are charged as one,
    /// from the first issue until now.
    pub(super) fn end_unknown(&mut self, place: &Place, context: CUcontext, is_it: impl Fn(State) -> bool) {
        let now_ns = clock::now_ns();
        let (mut first, mut launches) = (None::<Burst>, 0);
        for burst in self.table.iter_mut().filter(|burst| burst.context == context && is_it(burst.state)) {
            first = first.filter(|first| first.resumed_ns <= burst.resumed_ns).or(Some(*burst));
            launches += burst.launches.max(1);
            self.live -= 1;
            *burst = FREE_BURST;
        }
        if let Some(first) = first {
            place.publish(first.tag, first.resumed_ns.min(now_ns), now_ns, launches);
            self.last_ends_ns[first.tag.gpu() % GPUS] = now_ns;
        }
    }
}
