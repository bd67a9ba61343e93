//! Whether anything was launched after an event was recorded: when a wait for that event returns, it may not have ended.

use core::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use gpool_driver_abi::cuda::CUevent;

/// Events whose records are remembered: each has one place, which it shares with others. Of one that is forgotten nothing is
/// known, as of one that was never recorded.
const PLACES: usize = 128;

/// The last record of an event.
struct Record {
    event: AtomicUsize,
    /// The line of credit of the thread that recorded it, and below that what had been launched on that line.
    at: AtomicU64,
}

/// The events that a process has recorded last, by the functions that the shim hooks; what graphs, green contexts and other
/// processes record is not seen. An event that is taken for one behind which there is more, and is not, or the other way round,
/// as where two threads record events of one place at the same time: the driver is asked once too often, or some time too late.
pub struct Records([Record; PLACES]);

impl Records {
    /// No event was recorded.
    pub const fn new() -> Self {
        Self([const { Record { event: AtomicUsize::new(0), at: AtomicU64::new(0) } }; PLACES])
    }

    #[inline(always)]
    fn place(&self, event: CUevent) -> &Record {
        // Events are objects of the driver's heap, many of one size beside each other: the upper bits of a product tell them
        // apart (Knuth, The Art of Computer Programming 6.4, multiplicative hashing by the golden ratio).
        let product = (event as usize as u64).wrapping_mul(0x9e37_79b9_7f4a_7c15);
        &self.0[(product >> (u64::BITS - PLACES.ilog2())) as usize]
    }

    /// `event` is recorded by a thread of the line `stripe`, on which so much has been launched.
    #[inline(always)]
    pub(crate) fn note(&self, event: CUevent, stripe: usize, launches: u32) {
        let record = self.place(event);
        record.event.store(event as usize, Ordering::Relaxed);
        record.at.store((stripe as u64) << u32::BITS | u64::from(launches), Ordering::Relaxed);
    }

    /// Nothing is known of `event` any more.
    pub(crate) fn forget(&self, event: CUevent) {
        let record = self.place(event);
        if record.event.load(Ordering::Relaxed) == event as usize {
            record.event.store(0, Ordering::Relaxed);
        }
    }

    /// The line whose thread has recorded `event` last, and what had been launched on it; none if that is not known.
    #[inline(always)]
    pub(crate) fn find(&self, event: CUevent) -> Option<(usize, u32)> {
        let record = self.place(event);
        if record.event.load(Ordering::Relaxed) != event as usize || event.is_null() {
            return None;
        }
        let at = record.at.load(Ordering::Relaxed);
        Some(((at >> u32::BITS) as usize, at as u32))
    }
}

impl Default for Records {
    fn default() -> Self {
        Self::new()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_last_record_of_an_event_counts_until_another_one_takes_its_place() {
        let records = Records::new();
        let event = |number: usize| (0x7f00_1000 + number * 64) as CUevent;
        assert_eq!(records.find(event(1)), None);
        assert_eq!(records.find(0 as CUevent), None);
        records.note(event(1), 60, 7);
        records.note(event(1), 59, 8);
        assert_eq!(records.find(event(1)), Some((59, 8)));
        records.note(event(2), 60, u32::MAX);
        assert_eq!(records.find(event(2)), Some((60, u32::MAX)));
        records.forget(event(2));
        assert_eq!(records.find(event(2)), None);
        let others = (3..1000).map(event);
        others.clone().for_each(|event| records.note(event, 1, 1));
        records.forget(event(1));
        assert_eq!(records.find(event(1)), None);
        let known = others.filter(|event| records.find(*event).is_some()).count();
        assert!(known > PLACES / 2 && known <= PLACES, "{known} of {PLACES} places are used");
    }
}
