//! The place that is kept of a lease that is over, for a restart of its container.

use super::book::{Book, Held, Lease};
use super::grant::Leases;
use super::record::Record;
use crate::clock;
use std::time::{Duration, Instant};

/// Who comes back to a place that is kept has so much of its run time left at least.
const LEFT_AT_LEAST: Duration = Duration::from_secs(10);

impl Leases {
    /// Keeps the place of a lease that was taken out of the book, if anybody may come back to it.
    pub fn keep_place(&self, book: &mut Book, lease: Lease) {
        // Who was told to make room would have it back before the one that it was made for.
        if lease.makes_room.notice.until_ns().is_some() {
            return self.note_made_room(&lease);
        }
        let hold = Duration::from_millis(self.configuration().lease.hold_ms);
        // Whose run time is about to be over begins a new one, when there is room for that: what is left would not last for a start.
        let kept_ns = (hold + LEFT_AT_LEAST).as_nanos() as u64;
        let is_over = |ends_ns: u64| ends_ns <= clock::now_ns().saturating_add(kept_ns);
        if lease.end_notice.until_ns(lease.record.ends_ns).is_some() || lease.record.ends_ns.is_some_and(is_over) {
            return;
        }
        if let Some(until) = kept_until(&lease.record, lease.back_until, hold, Instant::now()) {
            let gpus = lease.gpus().collect();
            book.held.push(Held { record: lease.record, gpus, until });
        }
    }

    fn note_made_room(&self, lease: &Lease) {
        if lease.record.revocation.is_none() {
            self.counters.note_preemption("left");
        }
    }
}

/// Until when the place of an ended lease is kept: for `hold` if its container has run. A start that has failed gets nobody a
/// place that was not kept before, and takes none from who starts the container again: what the lease had come back to is
/// kept until `back_until`, as if nobody had come. For who comes back in a cluster that has counted him there is room anyway, and
/// it gives that to the next one at once when he does not. It is kept as the lease had it, because of what the lease did not want
/// others may have had some since.
fn kept_until(record: &Record, back_until: Option<Instant>, hold: Duration, now: Instant) -> Option<Instant> {
    let has_its_room = record.revocation.is_none() && record.suspension.is_none();
    if record.starts_once || !has_its_room || record.resource.is_some() {
        return None;
    }
    let until = if record.init.is_some() { Some(now + hold) } else { back_until };
    until.filter(|until| *until > now)
}

#[cfg(test)]
mod tests {
    use super::super::record::sample;
    use super::super::suspended::SuspensionRecord;
    use super::*;
    use crate::procfs::ProcessName;
    use gpool_protocol::{CountedResource, HostPid, SuspensionStage};

    #[test]
    fn a_start_that_fails_uses_up_no_kept_place_and_makes_none() {
        let (now, hold) = (Instant::now(), Duration::from_secs(10));
        let (later, before) = (now + Duration::from_secs(3), now - Duration::from_secs(1));
        let ran = Record { init: Some(ProcessName { pid: HostPid(7), start_ticks: 1 }), ..sample() };
        let never_ran = sample();
        assert_eq!(kept_until(&ran, None, hold, now), Some(now + hold));
        assert_eq!(kept_until(&ran, Some(later), hold, now), Some(now + hold), "it has begun anew");
        assert_eq!(kept_until(&ran, None, Duration::ZERO, now), None);
        assert_eq!(kept_until(&never_ran, None, hold, now), None);
        assert_eq!(kept_until(&never_ran, Some(later), hold, now), Some(later));
        assert_eq!(kept_until(&never_ran, Some(before), hold, now), None);
        for record in [ran, never_ran] {
            let counted = Record { resource: Some(CountedResource::Percent(30)), ..record.clone() };
            assert_eq!(kept_until(&counted, Some(later), hold, now), None, "its cluster knows for whom the room is");
            let suspension = Some(SuspensionRecord {
                stage: SuspensionStage::Suspended,
                since_unix_ms: 0,
                bytes: Vec::new(),
                is_asked: false,
                is_cancelled: false,
            });
            let suspended = Record { suspension, ..record.clone() };
            assert_eq!(kept_until(&suspended, Some(later), hold, now), None, "others may have its room by now");
            let once = Record { starts_once: true, ..record };
            assert_eq!(kept_until(&once, Some(later), hold, now), None, "nobody comes back");
        }
    }
}
