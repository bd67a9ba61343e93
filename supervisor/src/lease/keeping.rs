//! The place that is kept of a lease that is over, for a restart of its container.

use super::book::{Book, Held, Lease};
use super::grant::Leases;
use super::record::Record;
use crate::clock;
use gpool_protocol::{ErrorBody, LeaseRequest};
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

/// What `find` finds in the book. Where that is nothing for a container of a pod, places are given up that are kept for others of
/// the pod, the oldest first, until there is room; if there is none then either, all stay. An init container is over before those
/// after it start, and never comes back to the place that would keep them out. No engine says which one was that: another one that
/// is restarted may lose its place so, to its own pod alone.
pub fn find_in_pod<Found>(
    book: &mut Book,
    (asked, uid): (&LeaseRequest, u32),
    find: impl Fn(&Book) -> Result<Found, ErrorBody>,
) -> Result<Found, ErrorBody> {
    let refusal = match find(book) {
        Ok(found) => return Ok(found),
        Err(refusal) => refusal,
    };
    if book.held.iter().any(|held| held.record.is_started_anew_by(asked, uid)) {
        return Err(refusal);
    }
    let all = book.held.clone();
    let without = |gone: &[usize]| {
        let kept = all.iter().enumerate().filter(|(place, _)| !gone.contains(place));
        kept.map(|(_, held)| held.clone()).collect::<Vec<_>>()
    };
    let mut gone = Vec::new();
    for (place, _) in all.iter().enumerate().filter(|(_, held)| held.record.is_in_the_pod_of(asked, uid)) {
        gone.push(place);
        book.held = without(&gone);
        if find(book).is_err() {
            continue;
        }
        // Those that were in nobody's way are kept on.
        for place in gone.clone() {
            let fewer: Vec<usize> = gone.iter().copied().filter(|its| *its != place).collect();
            book.held = without(&fewer);
            if find(book).is_ok() {
                gone = fewer;
            }
        }
        book.held = without(&gone);
        return find(book);
    }
    book.held = all;
    Err(refusal)
}

#[cfg(test)]
mod tests {
    use super::super::capacity::capacities;
    use super::super::record::sample;
    use super::super::suspended::SuspensionRecord;
    use super::*;
    use crate::device::Gpu;
    use crate::procfs::ProcessName;
    use gpool_protocol::{CountedResource, ErrorCode, HostPid, LeaseId, PodPlace, SuspensionStage};
    use std::cell::RefCell;

    /// A place that is kept for a container of a pod.
    fn held(sandbox_id: &str, name: &str, fraction_permille: u16) -> Held {
        let in_pod = Some(PodPlace { sandbox_id: sandbox_id.into(), container_name: name.into() });
        let (lease_id, container_id) = (LeaseId(name.into()), gpool_protocol::ContainerId(format!("{name}-1")));
        let record = Record { lease_id, container_id, in_pod, fraction_permille, ..sample() };
        Held { record, gpus: vec![0], until: Instant::now() }
    }

    #[test]
    fn a_pod_gives_places_of_its_containers_up_for_one_that_has_none() {
        let there = RefCell::new([held("s", "init", 500), held("s", "log", 100), held("other", "init", 300)]);
        let left = |name: &str, uid: u32, in_pod: bool, permille: u16| {
            let mut book = Book { held: there.borrow().to_vec(), ..Book::default() };
            let text = format!(r#"{{"container_id":"next","request":{{"fraction_permille":{permille}}}}}"#);
            let in_pod = in_pod.then(|| PodPlace { sandbox_id: "s".into(), container_name: name.into() });
            let asked = LeaseRequest { in_pod, ..serde_json::from_str(&text).unwrap() };
            let found = find_in_pod(&mut book, (&asked, uid), |book: &Book| {
                let taken = capacities(&[Gpu::sample(0)], &[], &[], book, None)[0].fraction_leased_permille;
                let fits = taken + permille <= 1000;
                fits.then_some(()).ok_or_else(|| ErrorBody::new(ErrorCode::ShareNotFree, "no", "wait"))
            });
            let names = book.held.iter().map(|held| held.record.lease_id.0.as_str().to_owned()).collect::<Vec<_>>();
            (found.is_ok(), names.join(" "))
        };
        assert_eq!(left("web", 0, true, 100), (true, "init log init".into()), "there is room beside them");
        assert_eq!(left("web", 0, true, 600), (true, "log init".into()), "no more than are needed");
        assert_eq!(left("web", 0, true, 700), (true, "init".into()));
        assert_eq!(left("web", 0, true, 800), (false, "init log init".into()), "the other pod's stays, and so do all");
        there.borrow_mut().swap(0, 1);
        assert_eq!(left("web", 0, true, 600), (true, "log init".into()), "what was in nobody's way is kept");
        there.borrow_mut().swap(0, 1);
        assert_eq!(left("web", 1000, true, 600), (false, "init log init".into()), "of another user");
        assert_eq!(left("web", 0, false, 600), (false, "init log init".into()));
        assert_eq!(left("log", 0, true, 600), (false, "init log init".into()), "its own place is kept for it");
    }

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
