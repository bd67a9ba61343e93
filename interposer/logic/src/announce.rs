//! What a process writes into its slot about its work, and in which order, so that a reader never sees half of it.
//! Whoever calls any of it is the only one: `Place` sees to that.

use gpool_shared_region::atomic::Ordering;
use gpool_shared_region::{BURST_RING, BurstTag, Demand, Slot};

/// States what the process wants of the gate word `word`, and when what it has issued is expected to end. What is
/// wanted comes last: whoever reads it finds the word and the end that belong to it.
pub fn say(slot: &Slot, demand: Demand, word: u32, estimated_end_ns: u64) {
    slot.leaving_word.store(0, Ordering::Relaxed);
    slot.estimated_end_ns.store(estimated_end_ns, Ordering::Relaxed);
    slot.demand_word.store(word, Ordering::Relaxed);
    slot.demand.store(demand as u32, Ordering::Release);
}

/// States that all has been issued behind the gate word `word` that will be for now, and when it is expected to end.
pub fn say_leaving(slot: &Slot, word: u32, estimated_end_ns: u64) {
    slot.estimated_end_ns.store(estimated_end_ns, Ordering::Relaxed);
    slot.demand_word.store(word, Ordering::Relaxed);
    slot.leaving_word.store(word, Ordering::Relaxed);
    slot.demand.store(Demand::Running as u32, Ordering::Release);
}

/// Work has been issued behind the gate word `word`, and all that was is expected to end at `estimated_end_ns`. A thread that
/// has said that it waits for another word still does: that stays said until it has been served, with an end that is not
/// before the one that was announced, which would not be believed.
pub fn say_issued(slot: &Slot, word: u32, estimated_end_ns: u64) {
    let has_waiters = slot.waiters.load(Ordering::Acquire) > 0;
    let is_said = slot.demand.load(Ordering::Relaxed) == Demand::Waiting as u32;
    // Who waits since an earlier word has been woken and will look again.
    if has_waiters && is_said && slot.demand_word.load(Ordering::Relaxed) == word {
        let said_ns = slot.estimated_end_ns.load(Ordering::Relaxed);
        return say(slot, Demand::Waiting, word, estimated_end_ns.max(said_ns));
    }
    say(slot, Demand::Running, word, estimated_end_ns);
}

/// The GPU of the lease on which the last burst ran that the process has told of.
pub fn last_gpu(slot: &Slot) -> Option<usize> {
    let last = slot.burst_count.load(Ordering::Acquire).checked_sub(1)?;
    Some(BurstTag(slot.burst_tags[(last % BURST_RING as u64) as usize].load(Ordering::Relaxed)).gpu())
}

/// The supervisor is to read the ring each time that so many bursts have been written: what the ring no longer shows then
/// has no GPU of its own.
const UNREAD_MOST: u64 = BURST_RING as u64 / 2;

/// Writes one burst into the ring; the count comes last, so a reader never sees a burst half written. Whether with it
/// another half of the ring is full.
pub fn publish(slot: &Slot, tag: BurstTag, start_ns: u64, end_ns: u64, launches: u32) -> bool {
    let count = slot.burst_count.load(Ordering::Relaxed);
    let place = (count % BURST_RING as u64) as usize;
    slot.burst_tags[place].store(tag.0, Ordering::Relaxed);
    slot.bursts[place].start_ns.store(start_ns, Ordering::Relaxed);
    slot.bursts[place].end_ns.store(end_ns, Ordering::Relaxed);
    slot.burst_total_ns.fetch_add(end_ns - start_ns, Ordering::Relaxed);
    slot.launches.fetch_add(u64::from(launches), Ordering::Relaxed);
    slot.burst_count.store(count + 1, Ordering::Release);
    (count + 1).is_multiple_of(UNREAD_MOST)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fake_driver::region;

    #[test]
    fn who_issues_more_leaves_no_more() {
        let region = region();
        let slot = region.slot(0);
        let said = || (slot.leaving_word.load(Ordering::Relaxed), slot.estimated_end_ns.load(Ordering::Relaxed));
        say_issued(slot, 5, 50);
        say_leaving(slot, 5, 60);
        assert_eq!(said(), (5, 60));
        assert_eq!(Demand::from_word(slot.demand.load(Ordering::Relaxed)), Demand::Running, "its work is not done");
        say_issued(slot, 5, 70);
        assert_eq!(said(), (0, 70));
        say_leaving(slot, 5, 80);
        say(slot, Demand::Idle, 5, 80);
        assert_eq!(said(), (0, 80));
    }

    #[test]
    fn what_is_issued_hides_only_who_waits_no_more() {
        let region = region();
        let slot = region.slot(0);
        let issued = |word, end_ns| {
            say_issued(slot, word, end_ns);
            let said = slot.demand.load(Ordering::Relaxed);
            (
                Demand::from_word(said),
                slot.demand_word.load(Ordering::Relaxed),
                slot.estimated_end_ns.load(Ordering::Relaxed),
            )
        };
        assert_eq!(issued(5, 50), (Demand::Running, 5, 50));
        slot.waiters.store(1, Ordering::Relaxed);
        say(slot, Demand::Waiting, 5, 100);
        assert_eq!(issued(5, 60), (Demand::Waiting, 5, 100), "an earlier end than the announced one");
        assert_eq!(issued(5, 160), (Demand::Waiting, 5, 160));
        assert_eq!(issued(7, 170), (Demand::Running, 7, 170), "it has been woken");
        say(slot, Demand::Waiting, 7, 200);
        slot.waiters.store(0, Ordering::Relaxed);
        assert_eq!(issued(7, 210), (Demand::Running, 7, 210), "it has been served");
    }
}
