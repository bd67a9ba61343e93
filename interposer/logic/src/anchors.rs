//! Where device time lies in host time: an event on a stream of our own in each context, bracketed by
//! CLOCK_MONOTONIC.

use crate::clock;
use crate::driver::{CUDA_SUCCESS, Driver};
use core::ptr::null_mut;
use gpool_driver_abi::cuda::{CUcontext, CUevent, CUstream};

/// Contexts whose anchors are remembered.
const ANCHORS: usize = 32;
/// An idle device is a chance to renew an anchor older than this.
const RENEW_NS: u64 = 500_000_000;
/// An anchor older than this is renewed even behind queued work: float milliseconds lose resolution.
const LIMIT_NS: u64 = 5_000_000_000;
/// A wider bracket does not replace a usable anchor.
const BRACKET_NS: u64 = 200_000;

/// A context's relation between device time and host time.
#[derive(Clone, Copy)]
struct Anchor {
    context: CUcontext,
    stream: CUstream,
    event: CUevent,
    spare: CUevent,
    host_ns: u64,
    taken_ns: u64,
    /// When it was last tried to take a new one.
    tried_ns: u64,
}

const FREE: Anchor = Anchor {
    context: null_mut(),
    stream: null_mut(),
    event: null_mut(),
    spare: null_mut(),
    host_ns: 0,
    taken_ns: 0,
    tried_ns: 0,
};

/// The anchors of one process.
pub struct Anchors([Anchor; ANCHORS]);

impl Anchors {
    /// None yet.
    pub const fn new() -> Self {
        Self([FREE; ANCHORS])
    }

    /// Host time at which `event` of `context` happened.
    pub fn place_ns(&self, driver: &Driver, context: CUcontext, event: CUevent) -> Option<u64> {
        let anchor = self.0.iter().find(|anchor| anchor.context == context)?;
        let at_ns = driver.elapsed_ns(anchor.event, event)?.checked_add(anchor.host_ns as i64)?;
        Some(at_ns.max(0) as u64)
    }

    /// Forgets the anchor of a context that is about to be destroyed; its handles go with it.
    pub fn leave_context(&mut self, context: CUcontext) {
        for anchor in self.0.iter_mut().filter(|anchor| anchor.context == context) {
            *anchor = FREE;
        }
    }

    /// Makes sure that the current context, `context`, has an anchor that is young enough. None if none can be had.
    /// `is_idle` says that no work of ours is outstanding, `is_in_use` which contexts' anchors must stay.
    pub fn renew(
        &mut self,
        driver: &Driver,
        context: CUcontext,
        is_idle: bool,
        is_in_use: impl Fn(CUcontext) -> bool,
    ) -> Option<()> {
        let now_ns = clock::now_ns();
        let known = self.0.iter().position(|anchor| anchor.context == context);
        let index = match known {
            Some(index) => index,
            None => {
                let index = self.0.iter().position(|anchor| anchor.context.is_null());
                let index = index.or_else(|| self.0.iter().position(|anchor| !is_in_use(anchor.context)))?;
                let (stream, event, spare) = (driver.new_stream(), driver.new_event(), driver.new_event());
                if stream.is_null() || event.is_null() || spare.is_null() {
                    return None;
                }
                self.0[index] = Anchor { context, stream, event, spare, ..FREE };
                index
            }
        };
        let anchor = &mut self.0[index];
        let age_ns = now_ns - anchor.taken_ns;
        // Beside a busy neighbour a try waits for its work, before the first launch of a slice, and is in vain: the next
        // one is no better.
        let was_in_vain = now_ns - anchor.tried_ns < RENEW_NS;
        if age_ns < RENEW_NS || ((!is_idle || was_in_vain) && age_ns < LIMIT_NS) {
            return Some(());
        }
        anchor.tried_ns = now_ns;
        let before_ns = clock::now_ns();
        if driver.record(anchor.spare, anchor.stream) != CUDA_SUCCESS
            || driver.synchronize(anchor.spare) != CUDA_SUCCESS
        {
            return known.map(|_| ());
        }
        let after_ns = clock::now_ns();
        if after_ns - before_ns <= BRACKET_NS || age_ns >= LIMIT_NS {
            core::mem::swap(&mut anchor.event, &mut anchor.spare);
            anchor.taken_ns = after_ns;
            // Behind queued work the event happens late in the bracket; alone it happens at once. Where the
            // bracket is narrow the middle is within 100 us, where it is wide the end is the better guess.
            anchor.host_ns =
                if after_ns - before_ns <= BRACKET_NS { before_ns.midpoint(after_ns) } else { after_ns - 50_000 };
        }
        Some(())
    }
}

impl Default for Anchors {
    fn default() -> Self {
        Self::new()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fake_driver::{self, CONTEXTS, DEVICE, one_at_a_time};

    const MS: u64 = 1_000_000;

    #[test]
    fn beside_a_busy_neighbour_a_new_anchor_is_tried_twice_a_second() {
        let _order = one_at_a_time();
        let (driver, mut anchors) = (fake_driver::driver(), Anchors::new());
        let mut renew = |is_idle| {
            let before_ns = clock::now_ns();
            let known = anchors.renew(&driver, CONTEXTS[0], is_idle, |_| true);
            assert_eq!(known, Some(()));
            clock::now_ns() - before_ns
        };
        clock::turn_ns(0);
        assert_eq!(renew(true), 0, "the device is free");
        // A slice each 10 ms, whose gate opens 0.5 ms before the neighbour's work ends.
        let waits = |renew: &mut dyn FnMut(bool) -> u64| {
            let slices = (0..100).filter(|_| {
                clock::turn_ns(10 * MS);
                DEVICE.lock().neighbour_until_ns = clock::now_ns() + MS / 2;
                renew(true) > 0
            });
            slices.count()
        };
        assert_eq!((0..4).map(|_| waits(&mut renew)).collect::<Vec<_>>(), [2, 2, 2, 2]);
        clock::turn_ns(500 * MS);
        assert_eq!(renew(false), 0, "nor behind work of its own");
        clock::turn_ns(MS);
        assert_eq!(renew(true), 0, "alone it is taken at once");
    }
}
