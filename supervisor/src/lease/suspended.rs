//! A lease whose processes are in the host's memory: what is written down of that, and what it asks for to come back.

use super::ahead::Ahead;
use super::book::Lease;
use super::capacity::missing_for_headroom;
use super::grant::Leases;
use super::record::Record;
use super::refusal::failed;
use super::room::{Room, Scene, tally_of};
use crate::clock;
use crate::drains;
use crate::gatekeeper::Order;
use crate::procfs::ProcessName;
use crate::queue::Left;
use crate::region::Report;
use crate::suspension;
use gpool_protocol::{
    ErrorBody, GpuUuid, LeaseId, LeaseRequest, MemoryCap, Mode, Priority, Request, SuspensionStage, SuspensionView,
};
use gpool_shared_region::{Demand, SUSPENDABLE_VERSION, SlotSnapshot};
use serde::{Deserialize, Serialize};

/// A lease's way to the host's memory and back, as written down. One that a supervisor finds half-way is brought back.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct SuspensionRecord {
    /// How far it has come.
    pub stage: SuspensionStage,
    /// Since when it is suspended, or about to be, Unix milliseconds.
    pub since_unix_ms: u64,
    /// What it held of each of its GPUs when it went, contexts included, in bytes.
    pub bytes: Vec<u64>,
    /// Somebody has asked for it to be resumed.
    #[serde(default)]
    pub is_asked: bool,
    /// Somebody has taken it out of the queue for room: it asks for none before it is resumed.
    #[serde(default)]
    pub is_cancelled: bool,
}

impl SuspensionRecord {
    /// As the socket shows it.
    pub fn view(&self, is_wanted: bool) -> SuspensionView {
        let host_bytes = match self.stage {
            SuspensionStage::Suspending => 0,
            SuspensionStage::Suspended | SuspensionStage::Resuming => self.bytes.iter().sum(),
        };
        SuspensionView { stage: self.stage, since_unix_ms: self.since_unix_ms, host_bytes, is_wanted }
    }
}

impl Record {
    /// Whether it is in the host's memory, and others may have its room.
    pub fn is_out(&self) -> bool {
        self.suspension.as_ref().is_some_and(|its| its.stage == SuspensionStage::Suspended)
    }

    /// Whether its room is about to be free.
    pub fn is_going_out(&self) -> bool {
        self.suspension.as_ref().is_some_and(|its| its.stage == SuspensionStage::Suspending)
    }
}

/// Whether the processes behind these slots notice when they want their GPUs back.
pub fn notices(slot: &SlotSnapshot<'_>) -> bool {
    slot.shim_version() >= SUSPENDABLE_VERSION
}

/// Whether a process says that it wants to go on.
pub fn wants(slot: &SlotSnapshot<'_>) -> bool {
    slot.demand() == Demand::Waiting || slot.waiters() > 0
}

impl Lease {
    /// As the socket shows it.
    pub fn suspension_view(&self) -> Option<SuspensionView> {
        let its = self.record.suspension.as_ref()?;
        Some(its.view(suspension::is_wanted(self, &mut Report::new())))
    }

    /// Its processes that have a place in the region.
    pub fn process_names(&self) -> Vec<ProcessName> {
        self.processes.values().map(|process| process.watched.name).collect()
    }

    /// What it asks for to come back: its own share, on its own GPUs, of which so much is sold. Before more was kept from being sold it may
    /// have had more, and has it again.
    pub fn request_to_wake(&self, longest_wait_seconds: u64, sold_bytes: u64) -> LeaseRequest {
        let record = self.record.with_its_promise();
        LeaseRequest {
            container_id: record.container_id.clone(),
            request: Request {
                fraction_permille: record.fraction_permille,
                mode: Mode::Slice,
                mig_profile: None,
                isolation: None,
                limit_permille: record.limit_permille,
                memory: Some(MemoryCap::Bytes(record.memory_cap_bytes.min(sold_bytes))),
                // It has stayed there, and what it may have is its own still.
                spill_bytes: None,
                gpus: record.gpus().len() as u16,
                devices: record.gpus().iter().map(|uuid| uuid.0.clone()).collect(),
                models: Vec::new(),
                min_memory_bytes: None,
                class: record.class,
                p99_ns: record.p99_ns,
                priority: record.priority,
                team: record.team.clone(),
                project: record.project.clone(),
                cost_center: record.cost_center.clone(),
                wait_seconds: Some(longest_wait_seconds),
                // What is left of its run time is another one at each look, so that it would be another request.
                run_seconds: None,
                deadline: None,
                resource: None,
                seal: None,
            },
            asked_for_parent: false,
            starts_once: record.starts_once,
            memory_of_all: false,
            unenforced: record.unenforced,
            container_uid: None,
            in_pod: record.in_pod.clone(),
            pod: record.pod.clone(),
            container_dir: record.container_dir.clone(),
        }
    }
}

impl Leases {
    /// Gives a suspended lease its room back, if there is room beside all that stand before it: from then on it is its own, and what it
    /// held can be brought back.
    ///
    /// # Errors
    /// As of a container that starts, or one of its GPUs has a fault of its own; or it is suspended no more.
    pub fn wake(&self, id: &LeaseId, asked: &LeaseRequest, uid: u32) -> Result<(), ErrorBody> {
        // Nothing could be brought back by a driver that was replaced, and its room would be held all the same.
        self.check_driver()?;
        let mut book = self.book();
        let own = book.leases.get(id).map(|lease| lease.record.gpus().to_vec()).unwrap_or_default();
        // What it has in the host's memory is whole, and would be lost there.
        let faulty = self.drains.with_fault(&own);
        if !faulty.is_empty() {
            return Err(drains::is_drained(&faulty));
        }
        let gpus = self.drains.without_drained_but(self.silence.without_silent(&self.gpus()), &own);
        let scene = self.scene(&book, None, &gpus);
        let is_drained = scene.places_of(&own).into_iter().any(|gpu| self.drains.of(&gpus[gpu]).is_some());
        let eased = beside_headroom(asked, &scene, &own);
        let room = match is_drained {
            true => self.room_on_drained((&eased, uid), &scene, &own),
            false => self.room_for(&eased, uid, &scene, None),
        };
        let room = room.map_err(|refusal| self.with_out_of_use(refusal, (asked, uid), &book))?;
        self.check_hours_are_read(None, &tally_of((asked, uid), room.counts(), (&gpus, &book)))?;
        let has_no_hours = room.has_no_hours;
        let Some(lease) = book.leases.get_mut(id).filter(|lease| lease.record.is_out()) else { return Ok(()) };
        let mut record = Record { has_no_hours, ..lease.record.with_its_promise() };
        if has_no_hours {
            record.priority = Priority::Burst;
        }
        record.suspension.iter_mut().for_each(|its| its.stage = SuspensionStage::Resuming);
        record
            .write(&self.configuration().paths.run_dir)
            .map_err(|cause| failed("the lease cannot be written down", cause))?;
        lease.meter.run(clock::now_ns(), &lease.record);
        lease.record = record;
        let share = lease.share(&self.configuration());
        self.gatekeeper.order(Order::Change { tenant: lease.tenant, share });
        self.leave_queue_of(&mut book, asked, uid, Left::Granted);
        Ok(())
    }
}

impl Leases {
    /// Its room on GPUs of which some are drained: it stands behind nobody, since nobody else is let in there.
    fn room_on_drained(
        &self,
        (asked, uid): (&LeaseRequest, u32),
        scene: &Scene<'_>,
        own: &[GpuUuid],
    ) -> Result<Room, ErrorBody> {
        let ends_ns = self.run_of(asked, None).ends_ns;
        let beside = || self.room_behind((asked, uid), scene, (&Ahead::default(), ends_ns), &scene.places_of(own));
        let room = self.room_reserved(asked, uid, scene).map_or_else(beside, |(room, _)| Ok(room))?;
        self.check_quota(scene, None, &tally_of((asked, uid), room.counts(), (scene.gpus, scene.book)), &[])?;
        Ok(room)
    }
}

/// What it asks for, but for the part of its memory that is there and kept from being sold: before that was kept it was sold, and who comes
/// back has all of it again.
fn beside_headroom(asked: &LeaseRequest, scene: &Scene<'_>, own: &[GpuUuid]) -> LeaseRequest {
    let mut eased = asked.clone();
    if let Some(MemoryCap::Bytes(bytes)) = &mut eased.request.memory {
        let missing = |gpu: usize| missing_for_headroom(&scene.gpus[gpu], &scene.capacities[gpu], *bytes);
        let missing_bytes = scene.places_of(own).into_iter().map(missing).max().unwrap_or(0);
        *bytes = bytes.saturating_sub(missing_bytes);
    }
    eased
}

#[cfg(test)]
mod tests {
    use super::super::capacity::capacities;
    use super::super::record::sample;
    use super::*;
    use crate::device::Gpu;
    use crate::lease::Book;

    fn at(stage: SuspensionStage) -> Record {
        let suspension =
            SuspensionRecord { stage, since_unix_ms: 7, bytes: vec![5 << 30], is_asked: false, is_cancelled: false };
        Record { suspension: Some(suspension), gpu_uuid: Gpu::sample(0).uuid, ..sample() }
    }

    #[test]
    fn its_room_is_free_for_others_only_while_it_is_out() {
        let taken = |record: Record| {
            let book = Book { stranded: vec![record], ..Book::default() };
            let seen = capacities(&[Gpu::sample(0)], &[], &[], &book, None).remove(0);
            (seen.fraction_leased_permille, seen.memory_leased_bytes >> 30, seen.users.sliced)
        };
        assert_eq!(taken(at(SuspensionStage::Suspending)), (300, 4, 1));
        assert_eq!(taken(at(SuspensionStage::Suspended)), (0, 0, 0));
        assert_eq!(taken(at(SuspensionStage::Resuming)), (300, 4, 1));
        assert_eq!(at(SuspensionStage::Suspended).promised_bytes(), 0, "what its processes hold there then is foreign");
        let lost = at(SuspensionStage::Suspended);
        assert!(lost.has_no_share() && !lost.has_lost_share(), "its GPU must not be divided meanwhile");
    }

    #[test]
    fn a_record_of_it_is_read_again() {
        let record = at(SuspensionStage::Resuming);
        let text = serde_json::to_string(&record).unwrap();
        assert!(text.contains(r#""suspension":{"stage":"resuming","since_unix_ms":7,"bytes":[5368709120],"#), "{text}");
        assert_eq!(serde_json::from_str::<Record>(&text).unwrap(), record);
    }

    /// Where no supervisor can let them go on, the scripts of the packages name them.
    #[test]
    fn packages_read_in_a_record_that_its_container_stands() {
        let run_dir = tempfile::tempdir().unwrap();
        let of = |id: &str, record: Record| Record {
            lease_id: LeaseId(id.to_uppercase()),
            container_id: gpool_protocol::ContainerId(id.into()),
            ..record
        };
        let records = [
            of("aa", Record { paused: true, ..sample() }),
            of("bb", sample()),
            of("cc", at(SuspensionStage::Suspended)),
        ];
        records.iter().for_each(|record| record.write(run_dir.path()).unwrap());
        for script in ["debian/prerm", "rpm/preun"] {
            let script = format!("{}/../packaging/{script}", env!("CARGO_MANIFEST_DIR"));
            let text = std::fs::read_to_string(&script).unwrap();
            let function = &text[text.find("standing() {").unwrap()..];
            let function = &function[..function.find("\n}\n").unwrap() + 3];
            let function = function.replace("/run/gpool", run_dir.path().to_str().unwrap());
            let said =
                std::process::Command::new("sh").args(["-euc", &format!("{function}standing")]).output().unwrap();
            assert_eq!(String::from_utf8_lossy(&said.stdout), "aa\ncc\n", "{script}: {said:?}");
        }
    }
}
