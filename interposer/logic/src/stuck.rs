//! What goes on while a call of the driver does not return to whoever measures.
//!
//! No event can be recorded while the driver's queue is full, and what fills it may wait for work that another thread of this
//! process has yet to launch: a collective between two GPUs. So nobody who launches or waits stands behind such a call for
//! longer than for a place in the table of bursts. What goes by then is charged at its estimate.
//!
//! The same holds for a profiler's callback within such a call, which may launch and wait: its thread has the bursts already.

use crate::bursts::{Bursts, Spot};
use crate::clock;
use crate::estimates::Work;
use crate::futex::Taken;
use crate::gate::{FULL_PATIENCE_NS, is_unpaced};
use crate::place::Place;
use crate::process::Process;
use crate::standing::Standing;
use core::sync::atomic::Ordering;
use gpool_shared_region::Demand;

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

    /// Whether a launch may go by without being measured; if not, it has stood at the closed gate for a while.
    #[cold]
    #[inline(never)]
    pub(crate) fn goes_by(&self, place: &Place, (spot, work): (Spot, Work), standing: &mut Standing) -> bool {
        let (word, now_ns) = (place.region.gate(), clock::now_ns());
        let until_ns = place.region.control().until_ns.load(Ordering::Relaxed);
        if word.is_open() && now_ns < until_ns || is_unpaced(place, now_ns) {
            standing.end(place, now_ns);
            let cost_ns = self.estimates.get(work).map_or(0, |known| u64::from(known.cost_ns));
            place.publish(spot.tag, now_ns.saturating_sub(cost_ns), now_ns, 1);
            let is_news = place.note_issue(word.0, now_ns, now_ns + cost_ns);
            // It says when nothing is left, once it can.
            self.wake_watcher();
            if is_news {
                place.ring();
            }
            return true;
        }
        standing.begin(place, now_ns);
        // How much is outstanding only whoever measures knows; something is.
        place.say(Demand::Waiting, word.0, now_ns + FULL_PATIENCE_NS);
        standing.wait(place, word, now_ns);
        false
    }
}
