//! Where device time lies in host time: an event on a stream of our own in each context, bracketed by
//! CLOCK_MONOTONIC.

use crate::clock;
use crate::driver::{CUDA_ERROR_NOT_READY, CUDA_SUCCESS, Driver};
use core::ptr::null_mut;
use gpool_driver_abi::cuda::{CUcontext, CUevent, CUresult, CUstream};

/// Contexts whose anchors are remembered.
const ANCHORS: usize = 32;
/// An idle device is a chance to renew an anchor older than this.
const RENEW_NS: u64 = 500_000_000;
/// An anchor older than this is renewed even behind queued work: float milliseconds lose resolution.
const LIMIT_NS: u64 = 5_000_000_000;
/// A wider bracket does not replace a usable anchor, and is not waited for.
const BRACKET_NS: u64 = 200_000;
/// Nothing else is waited for longer than this, a little more than the work that a process may have outstanding. No other
/// thread can launch meanwhile, and with one connection to the device (CUDA_DEVICE_MAX_CONNECTIONS) the event may stand
/// behind a collective that waits for what another thread is about to launch on another GPU.
const PATIENCE_NS: u64 = 10_000_000;
/// By an anchor older than this nothing is placed: the clocks may have drifted by a millisecond.
const USABLE_NS: u64 = 30_000_000_000;
/// Whether an event has happened is asked so often while its bracket is narrow ...
const NARROW_LOOK_NS: u64 = 5_000;
/// ... and so often when it is wide.
const WIDE_LOOK_NS: u64 = 100_000;

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

impl Anchor {
    /// Gives its handles back, those that it has, in the context in which they were made. If that has gone they went with it.
    fn destroy(&self, driver: &Driver) {
        let destroy = || {
            driver.destroy_stream(self.stream);
            [self.event, self.spare].into_iter().for_each(|event| driver.destroy_event(event));
        };
        if !self.context.is_null() {
            driver.in_context(self.context, destroy);
        }
    }
}

/// The anchors of one process.
pub struct Anchors([Anchor; ANCHORS]);

impl Anchors {
    /// None yet.
    pub const fn new() -> Self {
        Self([FREE; ANCHORS])
    }

    /// Host time at which `event` of `context` happened; none without an anchor that is still good for that.
    pub fn place_ns(&self, driver: &Driver, context: CUcontext, event: CUevent) -> Option<u64> {
        let anchor = self.0.iter().find(|anchor| anchor.context == context)?;
        if clock::now_ns() - anchor.taken_ns > USABLE_NS {
            return None;
        }
        let at_ns = driver.elapsed_ns(anchor.event, event)?.checked_add(anchor.host_ns as i64)?;
        Some(at_ns.max(0) as u64)
    }

    /// Forgets the anchor of a context that is about to be destroyed; its handles go with it.
    pub fn leave_context(&mut self, context: CUcontext) {
        for anchor in self.0.iter_mut().filter(|anchor| anchor.context == context) {
            *anchor = FREE;
        }
    }

    /// Renews the anchor of the current context, `context`, if it is not young enough. Where that takes too long the old one
    /// stays, or none, and it is tried again later. None if none can be had.
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
                let made = Anchor { context, stream, event, spare, ..FREE };
                if stream.is_null() || event.is_null() || spare.is_null() {
                    made.destroy(driver);
                    return None;
                }
                core::mem::replace(&mut self.0[index], made).destroy(driver);
                index
            }
        };
        let anchor = &mut self.0[index];
        let age_ns = now_ns - anchor.taken_ns;
        // Beside a busy neighbour a try waits for its work, before the first launch of a slice, and is in vain: the next
        // one is no better.
        let was_in_vain = now_ns - anchor.tried_ns < RENEW_NS;
        if age_ns < RENEW_NS || was_in_vain || (!is_idle && age_ns < LIMIT_NS) {
            return Some(());
        }
        anchor.tried_ns = now_ns;
        let before_ns = clock::now_ns();
        let patience_ns = if age_ns < LIMIT_NS { BRACKET_NS } else { PATIENCE_NS };
        let result = match driver.record(anchor.spare, anchor.stream) {
            CUDA_SUCCESS => wait_for(driver, anchor.spare, patience_ns),
            error => error,
        };
        match result {
            CUDA_SUCCESS => {}
            CUDA_ERROR_NOT_READY => return Some(()),
            _ => return known.map(|_| ()),
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

/// Waits for `event` for `patience_ns` at most: what the driver says of it then.
fn wait_for(driver: &Driver, event: CUevent, patience_ns: u64) -> CUresult {
    let from_ns = clock::now_ns();
    loop {
        let result = driver.query(event);
        let now_ns = clock::now_ns();
        if result != CUDA_ERROR_NOT_READY || now_ns >= from_ns + patience_ns {
            return result;
        }
        let look_ns = if now_ns < from_ns + BRACKET_NS { NARROW_LOOK_NS } else { WIDE_LOOK_NS };
        clock::sleep_until_ns((now_ns + look_ns).min(from_ns + patience_ns));
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
    /// A stream of the program's.
    const STREAM: CUstream = 0x100 as CUstream;

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

    #[test]
    fn whose_place_is_taken_and_what_is_not_whole_is_given_back() {
        let _order = one_at_a_time();
        let (driver, mut anchors) = (fake_driver::driver(), Anchors::new());
        let context = |number: usize| (0x1000 + number) as CUcontext;
        let handles = || DEVICE.lock().handles;
        let mut renew = |number, creations| {
            fake_driver::set_current(context(number));
            DEVICE.lock().creations_left = creations;
            anchors.renew(&driver, context(number), true, |_| false).is_some()
        };
        let before = handles();
        assert!((0..3).all(|creations| !renew(0, creations)), "an anchor is a stream and two events");
        assert_eq!(handles(), before);
        assert!((0..3 * ANCHORS).all(|number| renew(number, 3)));
        assert_eq!(handles(), before + 3 * ANCHORS);
    }

    /// As behind a collective that ends when another thread launches, which waits for the bursts.
    #[test]
    fn what_never_ends_is_not_waited_for_and_the_anchor_stays_until_it_is_too_old() {
        let _order = one_at_a_time();
        let (driver, mut anchors) = (fake_driver::driver(), Anchors::new());
        let busy = |until_ns| DEVICE.lock().neighbour_until_ns = until_ns;
        let mut waited = |is_idle| {
            let from_ns = clock::now_ns();
            let are_known = (0..100).all(|_| anchors.renew(&driver, CONTEXTS[0], is_idle, |_| true).is_some());
            assert!(are_known, "bursts can be measured");
            let waited_ns = clock::now_ns() - from_ns;
            // What is recorded on the program's stream has happened.
            let event = driver.new_event();
            driver.record(event, STREAM);
            let placed_ns = anchors.place_ns(&driver, CONTEXTS[0], event);
            // In floats of milliseconds.
            (waited_ns, placed_ns.map(|at_ns| at_ns.abs_diff(clock::now_ns()) < 1000))
        };
        clock::turn_ns(0);
        busy(u64::MAX);
        assert_eq!(waited(true), (PATIENCE_NS, None), "none yet");
        clock::turn_ns(RENEW_NS);
        assert_eq!(waited(false), (PATIENCE_NS, None));
        busy(0);
        clock::turn_ns(RENEW_NS);
        assert_eq!(waited(false), (0, Some(true)));
        busy(u64::MAX);
        clock::turn_ns(RENEW_NS);
        assert_eq!(waited(true), (BRACKET_NS, Some(true)), "it is young enough");
        clock::turn_ns(LIMIT_NS);
        assert_eq!(waited(false), (PATIENCE_NS, Some(true)), "it is not, and there is no better one");
        clock::turn_ns(USABLE_NS);
        assert_eq!(waited(false), (PATIENCE_NS, None), "too old");
    }
}
