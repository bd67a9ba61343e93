//! The place that is kept of a lease that is over, for a restart of its container.

use super::book::{Book, Held, Lease};
use super::grant::Leases;
use super::record::Record;
use crate::device::{Gpu, Kind};
use crate::preemptions::MakesRoom;
use crate::{cgroup, clock};
use gpool_policy::run_time::Notice;
use gpool_protocol::{CountedResource, ErrorBody, GpuUuid, LeaseId, LeaseRequest};
use std::io;
use std::path::Path;
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
        if lease.end_notice.until_ns(lease.record.ends_ns).is_some() {
            return;
        }
        let hold = Duration::from_millis(self.configuration().lease.hold_ms);
        if let Some(until) = place_until(&lease.record, lease.back_until, hold, &self.gpus()) {
            let gpus = lease.gpus().collect();
            book.held.push(Held { record: lease.record, gpus, until });
            self.write_places(book);
        }
    }

    /// Keeps the place of a lease whose container has ended while no supervisor was there, as if it had ended now. Whoever calls sees
    /// that it is written down.
    pub fn keep_place_of_lost(&self, book: &mut Book, record: &Record) {
        let hold = Duration::from_millis(self.configuration().lease.hold_ms);
        book.held.extend(place_of_lost(record, hold, &self.gpus()));
    }

    /// Gives up the places of containers that have been removed since; whether there was one. Their folders are looked at beside the book:
    /// they may be on a file server.
    pub fn give_up_places_of_removed(&self) -> bool {
        let kept: Vec<(LeaseId, String)> = self.book().held.iter().filter_map(Held::in_dir).collect();
        let mut removed = kept.into_iter().filter(|(_, dir)| is_gone(Path::new(dir))).map(|(id, _)| id).peekable();
        if removed.peek().is_none() {
            return false;
        }
        let removed: Vec<LeaseId> = removed.collect();
        let mut book = self.book();
        book.held.retain(|held| !removed.contains(&held.record.lease_id));
        self.write_places(&mut book);
        // One of them may have been the last that an older build was kept for.
        self.files.remove_unused_shims(book.builds());
        true
    }

    fn note_made_room(&self, lease: &Lease) {
        if lease.record.revocation.is_none() {
            self.counters.note_preemption("left");
        }
    }
}

/// Leaves out of a request the folder of which its engine may not be believed. What root is to look at no other user says; and one that
/// is not there now, as in a mount namespace of the engine's own, says nothing by not being there later.
pub fn without_doubtful_dir(asked: &mut LeaseRequest, uid: u32) {
    let id = &asked.container_id.0;
    let is_believed = |dir: &Path| uid == 0 && dir.is_absolute() && dir.ends_with(id) && dir.is_dir();
    asked.container_dir = asked.container_dir.take().filter(|dir| is_believed(Path::new(dir)));
}

/// Whether there is no such folder any more. What cannot be looked at may be there.
fn is_gone(dir: &Path) -> bool {
    dir.symlink_metadata().is_err_and(|cause| cause.kind() == io::ErrorKind::NotFound)
}

/// The place of a lease that nobody has seen end, if it ran and one is kept of it. Of what a newer supervisor has written, and this one
/// cannot read, nobody knows what it was.
fn place_of_lost(record: &Record, hold: Duration, gpus: &[Gpu]) -> Option<Held> {
    let makes_room = MakesRoom::of(record).notice.until_ns().is_some();
    let ends = Notice::told_of(record.told_of_end_ns).until_ns(record.ends_ns).is_some();
    if makes_room || ends || record.unread.is_some() {
        return None;
    }
    let until = place_until(record, None, hold, gpus)?;
    let place = |uuid: &GpuUuid| gpus.iter().position(|gpu| gpu.uuid == *uuid);
    let gpus = record.gpus().iter().map(place).collect::<Option<Vec<usize>>>()?;
    Some(Held { record: record.clone(), gpus, until })
}

/// Until when the place of an ended lease is kept that was told of no end, if anybody may come back to it.
fn place_until(record: &Record, back_until: Option<Instant>, hold: Duration, gpus: &[Gpu]) -> Option<Instant> {
    // Whose run time is about to be over begins a new one, when there is room for that: what is left would not last for a start.
    let kept_ns = (hold + LEFT_AT_LEAST).as_nanos() as u64;
    if record.ends_ns.is_some_and(|ends_ns| ends_ns <= clock::now_ns().saturating_add(kept_ns)) {
        return None;
    }
    let whole_gpus = gpus.iter().filter(|gpu| gpu.kind == Kind::Whole).count();
    let may_be_kept = || may_lose_its_room(record, whole_gpus) && has_its_pod(record, cgroup::is_populated);
    if record.resource.is_some() && !may_be_kept() {
        return None;
    }
    kept_until(record, back_until, hold, Instant::now())
}

/// Until when the place of an ended lease is kept: for `hold` if its container has run. A start that has failed gets nobody a
/// place that was not kept before, and takes none from who starts the container again: what the lease had come back to is
/// kept until `back_until`, as if nobody had come. It is kept as the lease had it, because of what the lease did not want others may
/// have had some since.
fn kept_until(record: &Record, back_until: Option<Instant>, hold: Duration, now: Instant) -> Option<Instant> {
    let has_its_room = record.revocation.is_none() && record.suspension.is_none();
    if record.starts_once || !has_its_room {
        return None;
    }
    let until = if record.init.is_some() { Some(now + hold) } else { back_until };
    until.filter(|until| *until > now)
}

/// Whether who comes back in a cluster that has counted him may find his room taken by one of its own. On one GPU there is room for him
/// anyway, and an instance is not cut. On several the cluster adds up what is free on each: one whose share fits on none of them would
/// have the place of who is restarted.
fn may_lose_its_room(record: &Record, whole_gpus: usize) -> bool {
    whole_gpus > 1 && matches!(record.resource, Some(CountedResource::Percent(_)))
}

/// The cgroup of the sandbox of its pod: engines name it as they name that of a container, by the id. None of one in no pod.
fn sandbox_cgroup(record: &Record) -> Option<String> {
    let (before, after) = record.cgroup.as_deref()?.rsplit_once(&record.container_id.0)?;
    Some(format!("{before}{}{after}", record.in_pod.as_ref()?.sandbox_id))
}

/// Whether the sandbox of its pod is there, without which nobody comes back: the cluster gives the room to the next one at once. Of an
/// engine that has no process in it, as CRI-O may be told to, it never is.
pub fn has_its_pod(record: &Record, is_populated: impl Fn(&str) -> bool) -> bool {
    sandbox_cgroup(record).is_some_and(|path| is_populated(&path))
}

impl Held {
    /// Which place it is, and the folder of the container that may come back to it.
    fn in_dir(&self) -> Option<(LeaseId, String)> {
        Some((self.record.lease_id.clone(), self.record.container_dir.clone()?))
    }
}

impl Book {
    /// Whether somebody may have been removed for whom a place is kept.
    pub fn keeps_for_removable(&self) -> bool {
        self.held.iter().any(|held| held.record.container_dir.is_some())
    }

    /// Gives up the places that are not kept any more: of a pod whose sandbox was there they are kept no longer than it is.
    pub fn give_up_places(&mut self, now: Instant) {
        self.give_up_places_by(now, cgroup::is_populated);
    }

    fn give_up_places_by(&mut self, now: Instant, is_populated: impl Fn(&str) -> bool) {
        let has_pod = |record: &Record| {
            let may_be_seen = record.resource.is_some() || record.has_sandbox_process;
            !may_be_seen || has_its_pod(record, &is_populated)
        };
        self.held.retain(|held| held.until > now && has_pod(&held.record));
    }
}

/// What `find` finds in the book. Where that is nothing for a container of a pod, places are given up that are kept for others of
/// the pod, the oldest first, until there is room; if there is none then either, all stay. An init container is over before those
/// after it start, and never comes back to the place that would keep them out. No engine says which one was that: another one that
/// is restarted may lose its place so, to its own pod alone. Of pods that a cluster has counted these places are given up also where
/// there is room beside them: it has counted an init container or those after it, and not both.
pub fn find_in_pod<Found>(
    book: &mut Book,
    (asked, uid): (&LeaseRequest, u32),
    find: impl Fn(&Book) -> Result<Found, ErrorBody>,
) -> Result<Found, ErrorBody> {
    let has_its_own = book.held.iter().any(|held| held.record.is_started_anew_by(asked, uid));
    let is_counted_with = |held: &Held| held.record.resource.is_some() && held.record.is_in_the_pod_of(asked, uid);
    if asked.request.resource.is_some() && !has_its_own && book.held.iter().any(is_counted_with) {
        let all = book.held.clone();
        book.held.retain(|held| !is_counted_with(held));
        if let Ok(found) = find(book) {
            return Ok(found);
        }
        book.held = all;
    }
    let refusal = match find(book) {
        Ok(found) => return Ok(found),
        Err(refusal) => refusal,
    };
    if has_its_own {
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
    use crate::preemptions::ToldToGo;
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
    fn a_counted_container_has_its_place_kept_where_its_cluster_does_not_know_for_whom_it_is() {
        let counted = |text: &str| Record { resource: CountedResource::parse(text), ..sample() };
        let may_lose = |text, gpus| may_lose_its_room(&counted(text), gpus);
        assert!(may_lose("percent=60", 2) && may_lose("percent=200", 8));
        assert!(!may_lose("percent=60", 1), "its cluster knows for whom the room is");
        assert!(!may_lose("percent=60", 0) && !may_lose("mig=1g.10gb", 2));
    }

    #[test]
    fn a_place_is_kept_no_longer_than_its_pod() {
        let (now, later) = (Instant::now(), Instant::now() + Duration::from_secs(5));
        let of = |sandbox_id: &str, resource: &str, has_sandbox_process: bool| {
            let place = held(sandbox_id, "web", 300);
            let cgroup = Some("/kubepods.slice/kubepods-pod1.slice/cri-containerd-web-1.scope".into());
            let resource = CountedResource::parse(resource);
            Held { record: Record { cgroup, resource, has_sandbox_process, ..place.record }, until: later, ..place }
        };
        let counted = [of("there", "percent=60", false), of("gone", "percent=60", false)];
        let others = [of("there", "", true), of("gone", "", true), of("gone", "", false)];
        let mut book = Book { held: counted.into_iter().chain(others).collect(), ..Book::default() };
        let is_there = |path: &str| path == "/kubepods.slice/kubepods-pod1.slice/cri-containerd-there.scope";
        book.give_up_places_by(now, is_there);
        let left: Vec<_> = book.held.iter().map(|held| held.record.in_pod.clone().unwrap().sandbox_id).collect();
        assert_eq!(left, ["there", "there", "gone"], "of an engine without a process in the sandbox nobody can tell");
        book.give_up_places_by(later, is_there);
        assert!(book.held.is_empty());
    }

    #[test]
    fn a_container_that_was_removed_is_told_from_one_that_may_come_back() {
        let engine = tempfile::tempdir().unwrap();
        let dir = engine.path().join("c");
        std::fs::create_dir(&dir).unwrap();
        let named = |dir: &Path, uid: u32| {
            let text = r#"{"container_id":"c","request":{"fraction_permille":300}}"#;
            let container_dir = Some(dir.to_str().unwrap().to_owned());
            let mut asked = LeaseRequest { container_dir, ..serde_json::from_str(text).unwrap() };
            without_doubtful_dir(&mut asked, uid);
            asked.container_dir.is_some()
        };
        assert!(named(&dir, 0) && !is_gone(&dir));
        assert!(!named(&dir, 1000), "root looks at nothing for other users");
        assert!(!named(engine.path(), 0), "not the container's own");
        assert!(!named(&engine.path().join("elsewhere/c"), 0) && !named(Path::new("c"), 0));
        let record = Record { container_dir: Some(dir.to_str().unwrap().to_owned()), ..sample() };
        let read: Record = serde_json::from_str(&serde_json::to_string(&record).unwrap()).unwrap();
        assert_eq!(read.container_dir, record.container_dir, "the next supervisor knows it, too");
        let unknown = Held { record: sample(), ..held("s", "web", 300) };
        let kept = Held { record, ..unknown.clone() };
        assert_eq!((unknown.in_dir(), kept.in_dir().unwrap().0), (None, LeaseId("01".into())));
        assert!(Book { held: vec![unknown.clone(), kept], ..Book::default() }.keeps_for_removable());
        assert!(!Book { held: vec![unknown], ..Book::default() }.keeps_for_removable());
        std::fs::remove_dir(&dir).unwrap();
        assert!(is_gone(&dir) && !is_gone(Path::new("/proc/self/status/c")), "what cannot be looked at may be there");
    }

    #[test]
    fn an_init_container_that_was_counted_takes_no_room_beside_the_pod_s_others() {
        let counted = |place: Held| Held {
            record: Record { resource: CountedResource::parse("percent=50"), ..place.record },
            ..place
        };
        let left = |name: &str, resource: &str| {
            let there = [counted(held("s", "init", 500)), counted(held("other", "init", 200)), held("s", "log", 100)];
            let mut book = Book { held: there.to_vec(), ..Book::default() };
            let text = format!(r#"{{"container_id":"next","request":{{"fraction_permille":100{resource}}}}}"#);
            let in_pod = Some(PodPlace { sandbox_id: "s".into(), container_name: name.into() });
            let asked = LeaseRequest { in_pod, ..serde_json::from_str(&text).unwrap() };
            find_in_pod(&mut book, (&asked, 0), |_: &Book| Ok(())).unwrap();
            let names = book.held.iter().map(|held| held.record.lease_id.0.as_str().to_owned()).collect::<Vec<_>>();
            names.join(" ")
        };
        assert_eq!(
            left("web", r#","resource":"percent=10""#),
            "init log",
            "of another pod, and of one that was not counted"
        );
        assert_eq!(left("init", r#","resource":"percent=10""#), "init init log", "it has its own");
        assert_eq!(left("web", ""), "init init log", "there is room beside it");
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

    #[test]
    fn who_has_ended_without_a_supervisor_has_the_place_that_any_other_end_would_have_left() {
        let hold = Duration::from_secs(10);
        let init = Some(ProcessName { pid: HostPid(7), start_ticks: 1 });
        let record = Record { init, gpu_uuid: Gpu::sample(1).uuid, ..sample() };
        let place = |record: &Record| place_of_lost(record, hold, &[Gpu::sample(0), Gpu::sample(1)]);
        let held = place(&record).unwrap();
        let left = held.until.saturating_duration_since(Instant::now());
        assert_eq!((held.gpus, held.record.clone()), (vec![1], record.clone()));
        assert!(left <= hold && left > hold / 2, "{left:?}");
        let later_ns = clock::now_ns() + clock::ns(3600);
        let told_to_go = Some(ToldToGo { until_ns: later_ns, for_whom: None });
        let none = [
            Record { init: None, ..record.clone() },
            Record { starts_once: true, ..record.clone() },
            Record { gpu_uuid: Gpu::sample(2).uuid, ..record.clone() },
            Record { told_to_go, ..record.clone() },
            Record { unread: Some("its mechanism".into()), ..record.clone() },
            Record { ends_ns: Some(later_ns), told_of_end_ns: Some(later_ns), ..record.clone() },
            Record { ends_ns: Some(clock::now_ns() + clock::ns(15)), ..record.clone() },
            Record { resource: CountedResource::parse("percent=30"), ..record.clone() },
        ];
        assert!(none.iter().all(|record| place(record).is_none()));
        assert!(place(&Record { ends_ns: Some(later_ns), ..record }).is_some(), "it has an hour left");
    }
}
