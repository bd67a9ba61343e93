//! What a process writes into its slot about its work, and in which order, so that a reader never sees half of it.
//! All of it is called with the process's bursts locked.

use gpool_shared_region::atomic::Ordering;
use gpool_shared_region::{BURST_RING, BurstTag, Demand, Slot};

/// States what the process wants of the gate word `word`, and when what it has issued is expected to end. What is
/// wanted comes last: whoever reads it finds the word and the end that belong to it.
pub fn say(slot: &Slot, demand: Demand, word: u32, estimated_end_ns: u64) {
    slot.estimated_end_ns.store(estimated_end_ns, Ordering::Relaxed);
    slot.demand_word.store(word, Ordering::Relaxed);
    slot.demand.store(demand as u32, Ordering::Release);
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
