//! The queue as it is written down, so that a supervisor that is started anew keeps everybody's place.

use super::departed::DepartedRecord;
use super::{Appointment, Queue, Waiter};
use crate::clock;
use crate::lease::{Book, Leases, slice_priority, write_whole};
use crate::procfs::{ProcessName, WatchedProcess};
use gpool_policy::queue::Claim;
use gpool_protocol::{GpuUuid, LeaseRequest};
use serde::{Deserialize, Serialize};
use serde_json::Value;
use std::path::Path;

const QUEUE_FILE: &str = "queue.json";

/// One that waits.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
struct WaiterRecord {
    asked: LeaseRequest,
    uid: u32,
    requester: ProcessName,
    round: u64,
    /// CLOCK_MONOTONIC.
    since_ns: u64,
    since_unix_ms: u64,
    /// CLOCK_MONOTONIC; when the place was taken, where an older supervisor has written.
    #[serde(default)]
    attempt_ns: Option<u64>,
    cause: String,
    /// For how long room was kept for it, and where.
    #[serde(default)]
    kept_ns: u64,
    #[serde(default)]
    kept_on: Vec<GpuUuid>,
    #[serde(default)]
    appointment: Option<Appointment>,
    /// What it lacked when it asked last, other than room on GPUs.
    #[serde(default)]
    is_over_quota: bool,
    #[serde(default)]
    lacks_host_memory: bool,
    /// CLOCK_MONOTONIC; none where an older supervisor has written, until it asks again.
    #[serde(default)]
    lacks_room_since_ns: Option<u64>,
    /// The user who took it out, until it has been told so.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    cancelled_by: Option<u32>,
    /// The user who holds it back, and whether it was put first.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    held_by: Option<u32>,
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    is_first: bool,
}

/// All of them, of one boot.
#[derive(Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
struct Written {
    boot_id: String,
    /// Each a [`WaiterRecord`]; one that cannot be read takes nobody else's place.
    waiters: Vec<Value>,
    /// Those of pods that have left lately, each a [`DepartedRecord`].
    #[serde(default)]
    departed: Vec<Value>,
}

impl Leases {
    /// Writes down who waits. Where that fails they wait all the same, and the next life of the supervisor has them queue anew.
    pub(super) fn write_queue(&self, book: &mut Book) {
        book.queue.written_ns = clock::now_ns();
        let written = book.queue.written(&self.boot_id);
        if let Err(error) = write_whole(&self.configuration().paths.run_dir.join(QUEUE_FILE), &written) {
            log!("{error}");
        }
    }

    /// Takes over who waited under an earlier supervisor and has not ended.
    pub fn take_queue_over(&self) {
        let queue = read(&self.configuration().paths.run_dir, &self.boot_id);
        self.book().queue = queue;
    }
}

impl Queue {
    fn written(&self, boot_id: &str) -> Written {
        let waiters = self.records().iter().filter_map(|record| serde_json::to_value(record).ok()).collect();
        let departed = self.departed.records().filter_map(|record| serde_json::to_value(record).ok()).collect();
        Written { boot_id: boot_id.to_owned(), waiters, departed }
    }

    fn records(&self) -> Vec<WaiterRecord> {
        let record = |waiter: &Waiter| WaiterRecord {
            asked: waiter.asked.clone(),
            uid: waiter.uid,
            requester: waiter.requester.name,
            round: waiter.claim.round,
            since_ns: waiter.claim.since_ns,
            since_unix_ms: waiter.since_unix_ms,
            attempt_ns: Some(waiter.attempt_ns),
            cause: waiter.cause.clone(),
            kept_ns: waiter.kept_ns.get(),
            kept_on: waiter.kept_on.borrow().clone(),
            appointment: waiter.appointment.borrow().clone(),
            is_over_quota: waiter.is_over_quota,
            lacks_host_memory: waiter.lacks_host_memory,
            lacks_room_since_ns: waiter.lacks_room_since_ns,
            cancelled_by: waiter.cancelled_by,
            held_by: waiter.held_by,
            is_first: waiter.is_first,
        };
        self.waiters.iter().map(record).collect()
    }
}

/// What is written down; nothing if that cannot be read or is of another boot.
fn read(run_dir: &Path, boot_id: &str) -> Queue {
    let text = std::fs::read(run_dir.join(QUEUE_FILE)).unwrap_or_default();
    let written: Written = serde_json::from_slice(&text).unwrap_or_default();
    let (mut queue, now_ns) = (Queue::default(), clock::now_ns());
    if written.boot_id != boot_id {
        return queue;
    }
    for value in written.waiters {
        let record = match serde_json::from_value::<WaiterRecord>(value) {
            Ok(record) => record,
            Err(error) => {
                log!("passed over one that waits for room and cannot be read: {error}");
                continue;
            }
        };
        let Ok(requester) = WatchedProcess::reopen(record.requester) else { continue };
        let priority = slice_priority(record.asked.request.priority);
        let claim = Claim { priority, is_ordinary: true, round: record.round, since_ns: record.since_ns };
        queue.rounds.note(priority, &super::waiter::owner_of(&record.asked, record.uid), record.round);
        let mut waiter = Waiter::new(&record.asked, record.uid, requester, claim);
        // It could not ask while nobody was there.
        (waiter.since_unix_ms, waiter.cause, waiter.asked_ns) = (record.since_unix_ms, record.cause, now_ns);
        waiter.attempt_ns = record.attempt_ns.unwrap_or(record.since_ns);
        (waiter.kept_ns, waiter.kept_on) = (record.kept_ns.into(), record.kept_on.into());
        waiter.appointment = record.appointment.into();
        (waiter.is_over_quota, waiter.lacks_host_memory) = (record.is_over_quota, record.lacks_host_memory);
        (waiter.lacks_room_since_ns, waiter.cancelled_by) = (record.lacks_room_since_ns, record.cancelled_by);
        (waiter.held_by, waiter.is_first) = (record.held_by, record.is_first);
        waiter.has_lost.set(waiter.asked.request.deadline.is_some() && waiter.appointment.borrow().is_none());
        queue.waiters.push(waiter);
    }
    for value in written.departed {
        // Who is away and cannot be read comes back as one that has not waited.
        let Ok(record) = serde_json::from_value::<DepartedRecord>(value) else { continue };
        let priority = slice_priority(record.asked.request.priority);
        queue.rounds.note(priority, &super::waiter::owner_of(&record.asked, record.uid), record.round);
        queue.departed.take_over(record);
    }
    queue
}

#[cfg(test)]
mod tests {
    use super::super::Left;
    use super::*;
    use gpool_protocol::HostPid;

    #[test]
    fn who_waits_keeps_the_place_and_who_has_ended_or_is_of_another_boot_does_not() {
        let directory = tempfile::tempdir().unwrap();
        let text = |id: &str| {
            format!(r#"{{"container_id":"{id}","request":{{"fraction_permille":300,"wait_seconds":60,"team":"a"}}}}"#)
        };
        let mut queue = Queue::default();
        for (id, since_ns) in [("first", 7), ("second", 8)] {
            let this = WatchedProcess::open(HostPid(std::process::id())).unwrap();
            let waiter = queue.join(&serde_json::from_str(&text(id)).unwrap(), 1000, this, since_ns);
            waiter.cause = "no room".into();
            waiter.is_over_quota = id == "second";
            waiter.note_lack(false, 9);
            waiter.keep_on(vec![GpuUuid("GPU-1".into())], None, 0);
            waiter.keep_on(vec![GpuUuid("GPU-1".into())], None, 9);
            let gpus = vec![GpuUuid("GPU-1".into())];
            waiter.appointment.replace(Some(Appointment { begins_ns: 20, ends_ns: 90, gpus, is_made: false }));
        }
        let mut records = queue.records();
        let mut ended = records[0].clone();
        (ended.asked.container_id.0, ended.requester.start_ticks) = ("ended".into(), 1);
        records.push(ended);
        let mut waiters: Vec<Value> = records.iter().map(|record| serde_json::to_value(record).unwrap()).collect();
        waiters.insert(0, serde_json::json!({"asked": "of another version"}));
        let written = Written { boot_id: "boot".into(), waiters, departed: Vec::new() };
        write_whole(&directory.path().join(QUEUE_FILE), &written).unwrap();
        let mut again = read(directory.path(), "boot");
        let shown = |queue: &Queue| -> Vec<(String, u64, u64)> {
            let all = queue.in_order();
            all.iter().map(|it| (it.asked.container_id.0.clone(), it.claim.round, it.claim.since_ns)).collect()
        };
        assert_eq!(shown(&again), [("first".to_owned(), 0, 7), ("second".to_owned(), 1, 8)]);
        assert_eq!(again.records(), queue.records());
        let lacks: Vec<_> = again.in_order().iter().map(|waiter| waiter.lacks_room_since_ns).collect();
        assert_eq!(lacks, [Some(9), None], "the second one waits for a quota");
        // The team's next one comes behind both.
        let this = WatchedProcess::open(HostPid(std::process::id())).unwrap();
        again.join(&serde_json::from_str(&text("third")).unwrap(), 1000, this, 9);
        assert_eq!(shown(&again)[2], ("third".to_owned(), 2, 9));
        assert_eq!(read(directory.path(), "another boot").len(), 0);
        again.waiters[0].cancelled_by = Some(7);
        (again.waiters[1].held_by, again.waiters[2].is_first) = (Some(8), true);
        let waiters = again.records().iter().map(|record| serde_json::to_value(record).unwrap()).collect();
        let written = Written { boot_id: "boot".into(), waiters, departed: Vec::new() };
        write_whole(&directory.path().join(QUEUE_FILE), &written).unwrap();
        let once_more = read(directory.path(), "boot");
        let first = once_more.waiter_of(&serde_json::from_str(&text("first")).unwrap(), 1000).unwrap();
        assert_eq!(first.cancelled_by, Some(7), "who was taken out is still to be told, and waits no more");
        assert_eq!(shown(&once_more).len(), 1, "and who is held back is so still");
        let kept: Vec<_> = once_more.waiters.iter().map(|waiter| (waiter.held_by, waiter.is_first)).collect();
        assert_eq!(kept, [(None, false), (Some(8), false), (None, true)]);
        std::fs::write(directory.path().join(QUEUE_FILE), "{").unwrap();
        assert_eq!(read(directory.path(), "boot").len(), 0);
    }

    #[test]
    fn the_next_attempt_of_a_pod_has_its_place_back_under_the_next_supervisor_too() {
        let directory = tempfile::tempdir().unwrap();
        let asked = |id: &str, in_pod: &str| -> LeaseRequest {
            let text = format!(
                r#"{{"container_id":"{id}","request":{{"fraction_permille":300,"wait_seconds":60,"team":"a"}}{in_pod}}}"#
            );
            serde_json::from_str(&text).unwrap()
        };
        let pod = r#","in_pod":{"sandbox_id":"s","container_name":"large"}"#;
        let join = |queue: &mut Queue, asked: &LeaseRequest, now_ns: u64| {
            let this = WatchedProcess::open(HostPid(std::process::id())).unwrap();
            queue.join(asked, 0, this, now_ns);
        };
        let (mut queue, now_ns) = (Queue::default(), clock::now_ns());
        join(&mut queue, &asked("large-1", pod), now_ns);
        join(&mut queue, &asked("other", ""), now_ns + 1);
        queue.leave(&asked("large-1", pod), 0, Left::Refused).unwrap();
        let mut written = queue.written("boot");
        written.departed.insert(0, serde_json::json!({"asked": "of another version"}));
        write_whole(&directory.path().join(QUEUE_FILE), &written).unwrap();
        let mut again = read(directory.path(), "boot");
        assert_eq!(again.written("boot"), queue.written("boot"));
        join(&mut again, &asked("third", ""), now_ns + 2);
        join(&mut again, &asked("large-2", pod), now_ns + 3);
        let ids: Vec<&str> = again.in_order().iter().map(|waiter| waiter.asked.container_id.0.as_str()).collect();
        assert_eq!(ids, ["large-2", "other", "third"]);
    }
}
