//! What goes on while a call of the driver does not return to whoever measures.
//!
//! No event can be recorded while the driver's queue is full, and what fills it may wait for work that another thread of this
//! process has yet to launch: a collective between two GPUs. So nobody who launches or waits stands behind such a call for
//! longer than for a place in the table of bursts. What goes by then counts and is charged at its estimate: behind the gate, one
//! after the other on its GPU, and no further ahead than ever. Nor does who captures a stream, lets it join a capture or destroys
//! it, which is then done later. The end of a context is not put off: its events go with it.
//!
//! The same holds for a profiler's callback within such a call, which may launch and wait: its thread has the bursts already.

use crate::bursts::{Bursts, Spot};
use crate::clock;
use crate::estimates::Work;
use crate::futex::{Mutex, Taken};
use crate::gate::{DEPTH_SLEEP_LIMIT_NS, FULL_PATIENCE_NS, is_unpaced};
use crate::learning::UNKNOWN_NS;
use crate::place::Place;
use crate::process::Process;
use crate::standing::Standing;
use core::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use gpool_driver_abi::cuda::CUstream;
use gpool_shared_region::{BurstTag, Demand, GPUS};

/// Launches that may return while nobody can end their bursts, one for each of so many threads; and streams that may be destroyed.
const RETURNED: usize = 16;

/// What has gone by on one GPU and has not been told: one launch after the other, as long as each is expected to take.
#[derive(Clone, Copy)]
struct GoneBy {
    tag: BurstTag,
    begin_ns: u64,
    /// 0: there is nothing.
    end_ns: u64,
    launches: u32,
}

const NOTHING: GoneBy = GoneBy { tag: BurstTag(0), begin_ns: 0, end_ns: 0, launches: 0 };
/// So much that has passed is told while there is more.
const PART_NS: u64 = 10_000_000;

impl GoneBy {
    fn is_some(&self) -> bool {
        self.end_ns != 0
    }

    /// One launch more, which begins at `start_ns` or when the others have ended.
    fn add(&mut self, tag: BurstTag, start_ns: u64, cost_ns: u64) {
        let start_ns = self.end_ns.max(start_ns);
        if !self.is_some() {
            self.begin_ns = start_ns;
        }
        (self.tag, self.end_ns, self.launches) = (tag, start_ns + cost_ns, self.launches.saturating_add(1));
    }

    /// Tells of what has passed: of all of it, or of a part that is long.
    fn settle(&mut self, place: &Place, now_ns: u64) {
        if self.is_some() && self.end_ns <= now_ns {
            place.publish(self.tag, self.begin_ns, self.end_ns, self.launches);
            *self = NOTHING;
        } else if self.is_some() && self.begin_ns + PART_NS <= now_ns {
            place.publish(self.tag, self.begin_ns, now_ns, self.launches);
            (self.begin_ns, self.launches) = (now_ns, 0);
        }
    }
}

/// What has been left to whoever has the bursts next.
pub struct Left {
    /// 1 if there may be something.
    is_some: AtomicU32,
    /// Numbers of bursts whose one launch has returned; 0 for none.
    returned: [AtomicU64; RETURNED],
    /// Streams that the program has destroyed; 0 for none.
    destroyed: [AtomicU64; RETURNED],
    gone_by: Mutex<[GoneBy; GPUS]>,
}

impl Left {
    /// Nothing. All zero.
    pub const fn new() -> Self {
        Self {
            is_some: AtomicU32::new(0),
            returned: [const { AtomicU64::new(0) }; RETURNED],
            destroyed: [const { AtomicU64::new(0) }; RETURNED],
            gone_by: Mutex::new([NOTHING; GPUS]),
        }
    }
}

impl Process {
    /// The bursts; none if whoever has them does not get on, or is this thread. Once somebody has waited for that in vain nobody
    /// does until they can be had again.
    #[inline(never)]
    pub(crate) fn bursts_in_time(&self) -> Option<Taken<'_, Bursts>> {
        if self.bursts.is_ours() {
            return None;
        }
        let was_stuck = self.is_stuck.load(Ordering::Relaxed) != 0;
        let taken = self.bursts.take_within(if was_stuck { 0 } else { FULL_PATIENCE_NS });
        if taken.is_some() == was_stuck {
            self.is_stuck.store(u32::from(taken.is_none()), Ordering::Relaxed);
        }
        taken
    }

    /// Whether a launch may go by without being measured; if not, it has waited for a while.
    #[cold]
    #[inline(never)]
    pub(crate) fn goes_by(&self, place: &Place, (spot, work): (Spot, Work), standing: &mut Standing) -> bool {
        let (control, word, now_ns) = (place.region.control(), place.region.gate(), clock::now_ns());
        let until_ns = match word.is_open() {
            _ if is_unpaced(place, now_ns) => u64::MAX,
            true => control.until_ns.load(Ordering::Relaxed),
            false => 0,
        };
        let mut all = self.left.gone_by.lock();
        let its = &mut all[spot.tag.gpu() % GPUS];
        its.settle(place, now_ns);
        let start_ns = its.end_ns.max(now_ns);
        if start_ns >= until_ns {
            drop(all);
            standing.begin(place, now_ns);
            // How much is outstanding only whoever measures knows; something is.
            place.say(Demand::Waiting, word.0, start_ns.max(now_ns + FULL_PATIENCE_NS));
            standing.wait(place, word, now_ns);
            return false;
        }
        let depth_ns = control.depth_ns.load(Ordering::Relaxed);
        if start_ns > now_ns + depth_ns {
            drop(all);
            clock::sleep_until_ns((start_ns - depth_ns).min(now_ns + DEPTH_SLEEP_LIMIT_NS));
            return false;
        }
        let cost_ns: u64 = self.estimates.get(work).map_or(UNKNOWN_NS, |known| known.cost_ns).into();
        its.add(spot.tag, start_ns, cost_ns);
        self.left.is_some.store(1, Ordering::Release);
        drop(all);
        standing.end(place, now_ns);
        let is_news = place.note_issue(word.0, now_ns, start_ns + cost_ns);
        // It says when nothing is left, once it can.
        self.wake_watcher();
        if is_news {
            place.ring();
        }
        true
    }

    /// The launch of the lone burst with this number has returned, and nobody could end it; false if there is no room to note that.
    pub(crate) fn leave_returned(&self, number: u64) -> bool {
        self.note_left(&self.left.returned, number)
    }

    /// The program has destroyed `stream`, on which the end of a burst is still to be recorded; false if there is no room to note that.
    pub(crate) fn leave_destroyed(&self, stream: CUstream) -> bool {
        self.note_left(&self.left.destroyed, stream as u64)
    }

    #[cold]
    #[inline(never)]
    fn note_left(&self, notes: &[AtomicU64; RETURNED], number: u64) -> bool {
        let note = |place: &AtomicU64| place.compare_exchange(0, number, Ordering::AcqRel, Ordering::Relaxed).is_ok();
        let is_noted = notes.iter().any(note);
        self.left.is_some.store(1, Ordering::Release);
        self.wake_watcher();
        is_noted
    }

    /// Bursts that should end now cannot: nothing more is added to any, and what they hold says nothing of what it costs. On a stream
    /// in capture nothing is recorded later.
    #[cold]
    #[inline(never)]
    pub(crate) fn leave_open(&self) {
        for stripe in &self.stripes {
            stripe.revoke();
        }
        self.left.is_some.store(1, Ordering::Release);
        self.wake_watcher();
    }

    /// Does what was left to whoever has the bursts next. When the last of what has gone by is expected to end, if it has not.
    #[inline(always)]
    pub(crate) fn catch_up(&self, place: &Place, bursts: &mut Bursts) -> Option<u64> {
        if self.left.is_some.load(Ordering::Acquire) == 0 { None } else { self.catch_up_with(place, bursts) }
    }

    #[cold]
    #[inline(never)]
    fn catch_up_with(&self, place: &Place, bursts: &mut Bursts) -> Option<u64> {
        // First: what is left from now on is said again.
        self.left.is_some.store(0, Ordering::SeqCst);
        bursts.doubt_open();
        for destroyed in &self.left.destroyed {
            let stream = destroyed.swap(0, Ordering::AcqRel) as CUstream;
            if !stream.is_null() {
                self.end_locked(place, bursts, |bursts| bursts.open_on(stream));
                // Its handle may come back as another's.
                bursts.forget_resting();
                let driver = &place.driver;
                let context = driver.context_of(stream);
                context.and_then(|context| driver.in_context(context, || driver.destroy_stream(stream)));
            }
        }
        let (mut all, now_ns) = (self.left.gone_by.lock(), clock::now_ns());
        for returned in &self.left.returned {
            // It may still run.
            if let Some((tag, from_ns, estimate_ns)) = bursts.give_up(returned.swap(0, Ordering::AcqRel)) {
                all[tag.gpu() % GPUS].add(tag, from_ns, estimate_ns);
            }
        }
        let mut last_ns = None;
        for (gpu, its) in all.iter_mut().enumerate() {
            its.settle(place, now_ns);
            bursts.note_gone_by(gpu, its.end_ns);
            last_ns = last_ns.max(its.is_some().then_some(its.end_ns));
        }
        if last_ns.is_some() {
            self.left.is_some.store(1, Ordering::Release);
        }
        last_ns
    }
}
