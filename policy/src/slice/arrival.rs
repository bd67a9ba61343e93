//! Bursts that have stood before the device, because others were on it.

use super::{SliceScheduler, TenantId};
use crate::timeline::Burst;

/// Less behind another burst of its own is the two events between them, 6 to 12 us on an H200. No device's time slice is as short.
pub const QUEUED_LEAST_NS: u64 = 20_000;
/// So long the way there takes at most, with an error of where in host time the events of a burst lie.
const ON_ITS_WAY_NS: u64 = 200_000;
/// On a device whose contexts take turns nobody stands longer; what is claimed beyond it counts for nothing.
const MOST_NS: u64 = 20_000_000;

impl SliceScheduler {
    /// From when on a burst stood before the device, as far as that is known: others have reported that they were on it for half of that time
    /// or more that its own processes did not have, or it was there at once. If it is not, it begins when it was issued: it may have taken turns with work that has not
    /// ended, or have stood there for something else, and then what it kept from others counts as its own.
    pub(super) fn queue_of(&self, burst: &mut Burst, queued_ns: u64, joined_ns: u64) -> Option<u64> {
        let issued_ns = queued_ns.max(joined_ns);
        let queued_ns = issued_ns.max(burst.start_ns.saturating_sub(MOST_NS));
        let waited_ns = burst.start_ns.saturating_sub(queued_ns);
        let is_known = || {
            let to_ns = burst.start_ns.min(self.now_ns);
            let from_ns = queued_ns.max(self.timeline.looked_back_to_ns(to_ns));
            // What its own processes had there alone they are charged for; of the rest others had half or more.
            let own_ns = self.timeline.own_ns(burst.tenant, (from_ns, to_ns));
            2 * self.timeline.others_ns(burst.tenant, (from_ns, to_ns)) >= to_ns.saturating_sub(from_ns) - own_ns
        };
        if waited_ns >= QUEUED_LEAST_NS && (waited_ns <= ON_ITS_WAY_NS || is_known()) {
            return Some(queued_ns);
        }
        burst.start_ns = burst.start_ns.min(issued_ns);
        None
    }

    /// A tenant stood before the device in this time. What others have reported of it, it did not keep from them. No time counts twice,
    /// whatever is said of it.
    pub(super) fn note_queue(&mut self, tenant: TenantId, (from_ns, to_ns): (u64, u64)) {
        let Some(place) = self.queue.get(tenant) else { return };
        let from_ns = from_ns.max(place.queued_to_ns);
        if from_ns >= to_ns {
            return;
        }
        let excused_ns = self.timeline.others_ns(tenant, place.excused.part_within((from_ns, to_ns)));
        let its_turn = self.turn.filter(|turn| turn.tenant == tenant);
        let parts = its_turn.iter().flat_map(|turn| turn.competition.parts_within((from_ns, to_ns)));
        let competed_ns = parts.map(|part| self.timeline.others_ns(tenant, part)).sum();
        self.queue.note(tenant, |place| {
            place.queued_to_ns = to_ns;
            place.excused.lessen(excused_ns);
        });
        if let Some(turn) = self.turn.as_mut().filter(|turn| turn.tenant == tenant) {
            turn.competition.excuse(competed_ns);
        }
    }
}
