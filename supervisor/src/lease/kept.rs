//! Places that are kept for a restart, as they are written down: a supervisor that is started anew keeps them on, for as long as the one
//! before would have.

use super::book::{Book, Held};
use super::grant::Leases;
use super::record::{Record, RecordError, write_whole};
use crate::clock;
use crate::device::Gpu;
use gpool_protocol::{GpuUuid, LeaseId};
use serde::{Deserialize, Serialize};
use serde_json::Value;
use std::path::Path;
use std::time::{Duration, Instant};

const KEPT_FILE: &str = "kept.json";

/// A place.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
struct PlaceRecord {
    /// What the lease was.
    record: Record,
    /// Until when it is kept, CLOCK_MONOTONIC.
    until_ns: u64,
}

/// All of them, of one boot.
#[derive(Debug, Default, Serialize, Deserialize)]
struct Written {
    boot_id: String,
    /// Each a [`PlaceRecord`]; one that cannot be read takes nobody else's place.
    places: Vec<Value>,
}

impl Leases {
    /// Writes down which places are kept, if they are not those that were written last. Where that fails it is tried again at each look, and
    /// told once.
    pub fn write_places(&self, book: &mut Book) {
        let kept: Vec<LeaseId> = book.held.iter().map(|held| held.record.lease_id.clone()).collect();
        if kept == book.places_written {
            return;
        }
        let written = written(&book.held, &self.boot_id, (Instant::now(), clock::now_ns()));
        book.note_places_written(kept, write_whole(&self.configuration().paths.run_dir.join(KEPT_FILE), &written));
    }

    /// Keeps on what an earlier supervisor has kept, beside the places of those that have ended since. To be called once the leases that
    /// were are in the book.
    pub fn take_places_over(&self) {
        let now = (Instant::now(), clock::now_ns());
        let kept = read(&self.configuration().paths.run_dir, &self.boot_id, (&self.gpus(), now));
        let mut book = self.book();
        book.places_written = kept.iter().map(|held| held.record.lease_id.clone()).collect();
        book.take_places_over(kept);
        self.write_places(&mut book);
    }
}

impl Book {
    /// These places were to be written down.
    fn note_places_written(&mut self, kept: Vec<LeaseId>, written: Result<(), RecordError>) {
        let was_told = std::mem::replace(&mut self.are_places_unwritten, written.is_err());
        match written {
            Ok(()) => self.places_written = kept,
            Err(error) if !was_told => {
                log!("{error}; until that can be written, places that are kept are lost if the supervisor ends")
            }
            Err(_) => {}
        }
    }

    fn take_places_over(&mut self, kept: Vec<Held>) {
        for held in kept {
            let is_its = |other: &Record| {
                other.owner_uid == held.record.owner_uid && other.container_id == held.record.container_id
            };
            let ended = self.held.iter().map(|held| &held.record);
            let all = self.leases.values().map(|lease| &lease.record).chain(&self.stranded).chain(ended);
            // It has come back, and that was not written down any more.
            let is_back = all.into_iter().any(is_its);
            self.held.extend((!is_back).then_some(held));
        }
    }
}

fn written(held: &[Held], boot_id: &str, (now, now_ns): (Instant, u64)) -> Written {
    let until_ns = |until: Instant| {
        let left_ns = until.saturating_duration_since(now).as_nanos();
        now_ns.saturating_add(u64::try_from(left_ns).unwrap_or(u64::MAX))
    };
    let place = |held: &Held| PlaceRecord { record: held.record.clone(), until_ns: until_ns(held.until) };
    let places = held.iter().filter_map(|held| serde_json::to_value(place(held)).ok()).collect();
    Written { boot_id: boot_id.to_owned(), places }
}

/// What is written down and is kept still, on GPUs that are there; nothing if that cannot be read or is of another boot.
fn read(run_dir: &Path, boot_id: &str, (gpus, (now, now_ns)): (&[Gpu], (Instant, u64))) -> Vec<Held> {
    let text = std::fs::read(run_dir.join(KEPT_FILE)).unwrap_or_default();
    let written: Written = serde_json::from_slice(&text).unwrap_or_default();
    if written.boot_id != boot_id {
        return Vec::new();
    }
    let held = |value: Value| {
        let PlaceRecord { record, until_ns } = serde_json::from_value(value).ok()?;
        let left_ns = until_ns.checked_sub(now_ns).filter(|left_ns| *left_ns > 0)?;
        let place = |uuid: &GpuUuid| gpus.iter().position(|gpu| gpu.uuid == *uuid);
        let gpus = record.gpus().iter().map(place).collect::<Option<Vec<usize>>>()?;
        Some(Held { record, gpus, until: now + Duration::from_nanos(left_ns) })
    };
    written.places.into_iter().filter_map(held).collect()
}

#[cfg(test)]
mod tests {
    use super::super::record::sample;
    use super::*;
    use gpool_protocol::ContainerId;

    #[test]
    fn places_are_kept_on_by_the_next_supervisor_for_as_long_as_they_were_to_be() {
        let dir = tempfile::tempdir().unwrap();
        let gpus = [Gpu::sample(0), Gpu::sample(1)];
        let (now, now_ns) = (Instant::now(), 1_000_000_000_000);
        let place = |id: &str, gpu_uuids: Vec<GpuUuid>, seconds| {
            let record = Record { lease_id: LeaseId(id.into()), gpu_uuid: gpu_uuids[0].clone(), gpu_uuids, ..sample() };
            Held { record, gpus: Vec::new(), until: now + Duration::from_secs(seconds) }
        };
        let both = || [1, 0].map(|gpu: usize| gpus[gpu].uuid.clone()).to_vec();
        let gone = vec![GpuUuid("GPU-gone".into())];
        let all = [place("long", both(), 10), place("short", both(), 3), place("gone", gone, 10)];
        let mut text = written(&all, "boot", (now, now_ns));
        text.places.insert(0, serde_json::json!({"record": "of another version"}));
        write_whole(&dir.path().join(KEPT_FILE), &text).unwrap();
        let found = |boot_id: &str, later_s: u64| -> Vec<(String, Vec<usize>, u64)> {
            let later = (now, now_ns + later_s * 1_000_000_000);
            let held = read(dir.path(), boot_id, (&gpus, later)).into_iter();
            held.map(|its| (its.record.lease_id.0, its.gpus, (its.until - now).as_secs())).collect()
        };
        let long = |left| ("long".to_owned(), vec![1, 0], left);
        assert_eq!(found("boot", 1), [long(9), ("short".to_owned(), vec![1, 0], 2)]);
        assert_eq!(found("boot", 3), [long(7)]);
        assert_eq!((found("boot", 10).len(), found("another boot", 1).len()), (0, 0));
    }

    #[test]
    fn what_could_not_be_written_is_written_at_the_next_look() {
        let (mut book, kept) = (Book::default(), vec![LeaseId("01".into())]);
        let full = || super::super::record::failed(Path::new("/run/gpool/kept.json"))("No space left on device");
        book.note_places_written(kept.clone(), Err(full()));
        assert!(book.places_written.is_empty() && book.are_places_unwritten);
        book.note_places_written(kept.clone(), Ok(()));
        assert!(book.places_written == kept && !book.are_places_unwritten);
    }

    #[test]
    fn a_container_that_has_ended_again_has_one_place_the_newest() {
        let place = |id: &str, container: &str| {
            let container_id = ContainerId(container.into());
            let record = Record { lease_id: LeaseId(id.into()), container_id, ..sample() };
            Held { record, gpus: vec![0], until: Instant::now() }
        };
        let mut book = Book { held: vec![place("new", "web")], ..Book::default() };
        book.take_places_over(vec![place("old", "web"), place("other", "log")]);
        let left: Vec<&str> = book.held.iter().map(|held| held.record.lease_id.0.as_str()).collect();
        assert_eq!(left, ["new", "other"]);
    }
}
