//! Granting, binding, changing and ending leases.

use super::book::{Book, Held, Lease};
use super::capacity::capacities;
use super::edits::edits;
use super::record::{Record, region_dir_of};
use super::refusal::worded;
use crate::cgroup;
use crate::clock;
use crate::device::{DriverFiles, Gpu};
use crate::events::{About, Events};
use crate::gatekeeper::{Gatekeeper, Order};
use crate::procfs::WatchedProcess;
use crate::region::RegionHost;
use gpool_configuration::Configuration;
use gpool_policy::TenantId;
use gpool_policy::admission::{Demand, Held as HeldShare, MemoryDemand, check_update, place};
use gpool_protocol::{
    ContainerId, ErrorBody, ErrorCode, EventKind, HostPid, LeaseGranted, LeaseId, LeaseRequest, LeaseState,
    LeaseUpdate, LeaseView, MemoryCap, format_bytes, format_permille,
};
use std::collections::{BTreeMap, VecDeque};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

/// How long a lease waits for its container after the OCI runtime has ended.
pub const BIND_GRACE: Duration = Duration::from_secs(2);
/// How long a new container waits for the end of an old one with the same id.
const END_PATIENCE: Duration = Duration::from_secs(3);

/// All leases of this host and everything needed to change them.
pub struct Leases {
    pub configuration: Configuration,
    pub gpus: Vec<Gpu>,
    pub files: DriverFiles,
    pub gatekeeper: Gatekeeper,
    pub events: Arc<Events>,
    pub boot_id: String,
    /// Measured cost of a context by GPU, in bytes.
    pub context_bytes: Vec<AtomicU64>,
    /// Memory held outside leases by GPU, in bytes, as NVML last said.
    pub foreign_bytes: Vec<AtomicU64>,
    /// Memory held by anybody by GPU, in bytes, as NVML last said.
    pub used_bytes: Vec<AtomicU64>,
    pub next_tenant: AtomicU64,
    pub book: Mutex<Book>,
    /// Rung when a lease has ended.
    pub ended: Condvar,
    /// Rung when a process should be watched that was not before.
    pub watch_changed: Box<dyn Fn() + Send + Sync>,
}

fn failed(what: &str, cause: impl std::fmt::Display) -> ErrorBody {
    ErrorBody::new(ErrorCode::SupervisorFailed, format!("{what} ({cause})"), "look at the supervisor's log")
}

impl Leases {
    /// The book. A thread that panicked while holding it left it as it was between two changes.
    pub fn book(&self) -> MutexGuard<'_, Book> {
        self.book.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn loaded(values: &[AtomicU64]) -> Vec<u64> {
        values.iter().map(|value| value.load(Ordering::Relaxed)).collect()
    }

    /// What NVML last said of the memory in use, by GPU.
    pub fn used_bytes(&self) -> Vec<u64> {
        Self::loaded(&self.used_bytes)
    }

    /// Grants a lease, or refuses with the cause and the next step.
    ///
    /// # Errors
    /// A conflict with a running container of the same id, no room, or a file of the driver that is not there.
    pub fn grant(&self, asked: &LeaseRequest, requester: WatchedProcess, uid: u32) -> Result<LeaseGranted, ErrorBody> {
        let outcome = self.try_grant(asked, requester, uid);
        if let Err(error) = &outcome {
            let about = About { container_id: Some(asked.container_id.clone()), uid: Some(uid), lease_id: None };
            self.events.note(
                EventKind::LeaseRefused,
                about,
                format!("refused {}: {error}", asked.container_id.short()),
            );
        }
        outcome
    }

    fn try_grant(&self, asked: &LeaseRequest, requester: WatchedProcess, uid: u32) -> Result<LeaseGranted, ErrorBody> {
        let mut book = self.wait_for_the_old_one(&asked.container_id)?;
        let demand = Demand {
            fraction_permille: asked.request.fraction_permille,
            memory: match asked.request.memory {
                None => MemoryDemand::Absent,
                Some(MemoryCap::Bytes(bytes)) => MemoryDemand::Bytes(bytes),
                Some(MemoryCap::Permille(permille)) => MemoryDemand::Permille(permille),
            },
        };
        let foreign = Self::loaded(&self.foreign_bytes);
        let mut capacities = capacities(&self.gpus, &foreign, &book, Some(&asked.container_id));
        // A restarted container comes back to its own GPU if it still fits there.
        let kept = book.held.iter().position(|held| held.record.container_id == asked.container_id);
        let home = kept.map(|index| book.held[index].gpu);
        let at_home =
            home.and_then(|gpu| place(&capacities[gpu..=gpu], &demand).ok().map(|place| (gpu, place.memory_bytes)));
        let (gpu, memory_cap_bytes) = match at_home {
            Some(found) => found,
            None => {
                place(&capacities, &demand).map(|found| (found.index, found.memory_bytes)).map_err(|r| worded(&r))?
            }
        };
        capacities.clear();
        let debt_ns = kept.map_or(0, |index| book.held[index].debt_ns);
        let record = Record {
            boot_id: self.boot_id.clone(),
            lease_id: LeaseId(ulid::Ulid::generate().to_string()),
            container_id: asked.container_id.clone(),
            gpu_uuid: self.gpus[gpu].uuid.clone(),
            fraction_permille: asked.request.fraction_permille,
            memory_cap_bytes,
            owner_uid: uid,
            created_unix_ms: clock::unix_ms(),
            requester: Some(requester.name),
            init: None,
            cgroup: None,
            processes: Vec::new(),
        };
        let granted = self.make(&mut book, record, gpu, requester, debt_ns)?;
        if let Some(index) = kept {
            book.held.remove(index);
        }
        drop(book);
        (self.watch_changed)();
        Ok(granted)
    }

    /// Waits, bounded, until no lease of `container` is ending; a container that runs is a conflict.
    fn wait_for_the_old_one(&self, container: &ContainerId) -> Result<MutexGuard<'_, Book>, ErrorBody> {
        let deadline = Instant::now() + END_PATIENCE;
        let mut book = self.book();
        while let Some(old) = book.of_container(container) {
            let alive = old.init.as_ref().or(old.requester.as_ref()).is_some_and(|process| !process.has_ended());
            let left = deadline.saturating_duration_since(Instant::now());
            if alive || left.is_zero() {
                return Err(ErrorBody::new(
                    ErrorCode::LeaseConflict,
                    format!("container {} already has the lease {}", container.short(), old.record.lease_id),
                    "stop that container first (gpool ps shows it)",
                ));
            }
            book = self.ended.wait_timeout(book, left).unwrap_or_else(PoisonError::into_inner).0;
        }
        Ok(book)
    }

    /// Makes the region and the record, and enters the lease; nothing is left behind on failure.
    fn make(
        &self,
        book: &mut Book,
        record: Record,
        gpu: usize,
        requester: WatchedProcess,
        debt_ns: u64,
    ) -> Result<LeaseGranted, ErrorBody> {
        let run_dir = &self.configuration.paths.run_dir;
        let region_dir = region_dir_of(run_dir, &record.lease_id);
        let lease_id = record.lease_id.clone();
        let undo = |error: ErrorBody| {
            RegionHost::remove(&region_dir);
            Record::remove(run_dir, &lease_id);
            error
        };
        let edits = edits(&self.configuration, &self.files, &self.gpus[gpu], &lease_id, &region_dir)
            .map_err(|cause| failed("the driver cannot be brought into the container", cause))?;
        record.write(run_dir).map_err(|cause| undo(failed("the lease cannot be written down", cause)))?;
        let context_bytes = self.context_bytes[gpu].load(Ordering::Relaxed);
        let region = RegionHost::create(&region_dir, record.memory_cap_bytes, context_bytes)
            .map_err(|cause| undo(failed("the lease's region cannot be made", cause)))?;
        let gpu_uuid = record.gpu_uuid.clone();
        self.enter(book, record, gpu, Arc::new(region), Some(requester), debt_ns, LeaseState::Pending);
        let lease = &book.leases[&lease_id].record;
        let message = format!(
            "granted {} of {} and {} to {}",
            format_permille(lease.fraction_permille.into()),
            lease.gpu_uuid,
            format_bytes(lease.memory_cap_bytes),
            lease.container_id.short()
        );
        self.events.note(EventKind::LeaseGranted, about(lease, Some(lease.owner_uid)), message);
        Ok(LeaseGranted { lease_id, gpu_uuid, edits })
    }

    /// Puts a lease into the book and hands its gate to the gatekeeper.
    #[allow(clippy::too_many_arguments)] // the parts of a lease, named where it is made
    pub fn enter(
        &self,
        book: &mut Book,
        record: Record,
        gpu: usize,
        region: Arc<RegionHost>,
        requester: Option<WatchedProcess>,
        debt_ns: u64,
        state: LeaseState,
    ) -> TenantId {
        let tenant = TenantId(self.next_tenant.fetch_add(1, Ordering::Relaxed));
        let weight_permille = record.fraction_permille;
        self.gatekeeper.order(Order::Join { tenant, gpu, region: region.clone(), weight_permille, debt_ns });
        let lease = Lease {
            state,
            tenant,
            gpu,
            region,
            requester,
            context_bytes: None,
            abandoned: None,
            init: None,
            processes: BTreeMap::new(),
            retired: Default::default(),
            refusals_told: 0,
            charges: VecDeque::new(),
            record,
        };
        book.leases.insert(lease.record.lease_id.clone(), lease);
        tenant
    }

    /// Binds a lease to its container's init. Said again by the same init, it changes nothing.
    ///
    /// # Errors
    /// An unknown lease, an init that is no process on this host, or another container's.
    pub fn bind(&self, lease: &str, init_pid: HostPid) -> Result<LeaseView, ErrorBody> {
        let gone = |cause| failed("the container's init is no process of this host", cause);
        let init = WatchedProcess::open(init_pid).map_err(gone)?;
        let mut book = self.book();
        let lease = book.find(lease)?;
        // A container without a cgroup of its own shares its starter's, which says nothing about the container.
        let starter = lease.requester.as_ref().and_then(|requester| cgroup::path_of(requester.name.pid));
        let cgroup = cgroup::path_of(init_pid).filter(|path| Some(path) != starter.as_ref());
        if lease.record.init.is_some_and(|bound| bound != init.name) {
            return Err(ErrorBody::new(
                ErrorCode::LeaseConflict,
                format!("lease {} is bound to another container", lease.record.lease_id),
                "create the container anew; a bundle that was used before keeps the mark of its old lease",
            ));
        }
        lease.record.init = Some(init.name);
        lease.record.cgroup = cgroup;
        lease.init = Some(init);
        lease.state = LeaseState::Active;
        lease.requester = None;
        lease.abandoned = None;
        let written = lease.record.write(&self.configuration.paths.run_dir);
        written.map_err(|cause| failed("the lease cannot be written down", cause))?;
        let message = format!("bound {} to process {init_pid}", lease.record.container_id.short());
        self.events.note(EventKind::LeaseBound, about(&lease.record, None), message);
        let view = lease.view();
        drop(book);
        (self.watch_changed)();
        Ok(view)
    }

    /// Changes a running lease: both values or none.
    ///
    /// # Errors
    /// An unknown lease, or no room on its GPU.
    pub fn update(&self, lease: &str, change: &LeaseUpdate, uid: u32) -> Result<LeaseView, ErrorBody> {
        let mut book = self.book();
        let (id, gpu, old) = {
            let lease = book.find(lease)?;
            (lease.record.lease_id.clone(), lease.gpu, lease.record.clone())
        };
        let foreign = Self::loaded(&self.foreign_bytes);
        let capacity = &capacities(&self.gpus, &foreign, &book, None)[gpu];
        let held = HeldShare { fraction_permille: old.fraction_permille, memory_bytes: old.memory_cap_bytes };
        let demand = Demand {
            fraction_permille: change.fraction_permille.unwrap_or(old.fraction_permille),
            memory: MemoryDemand::Bytes(change.memory_bytes.unwrap_or(old.memory_cap_bytes)),
        };
        let memory_cap_bytes = check_update(capacity, held, &demand).map_err(|refusal| worded(&refusal))?;
        let lease = book.leases.get_mut(&id).expect("found above");
        lease.record.fraction_permille = demand.fraction_permille;
        lease.record.memory_cap_bytes = memory_cap_bytes;
        if let Err(cause) = lease.record.write(&self.configuration.paths.run_dir) {
            lease.record = old;
            return Err(failed("the lease cannot be written down, and is as it was", cause));
        }
        lease.region.control().memory_cap_bytes.store(memory_cap_bytes, Ordering::Relaxed);
        self.gatekeeper.order(Order::Weight { tenant: lease.tenant, weight_permille: demand.fraction_permille });
        let message = format!(
            "changed {} from {} and {} to {} and {}",
            old.container_id.short(),
            format_permille(old.fraction_permille.into()),
            format_bytes(old.memory_cap_bytes),
            format_permille(demand.fraction_permille.into()),
            format_bytes(memory_cap_bytes)
        );
        self.events.note(EventKind::LeaseUpdated, about(&lease.record, Some(uid)), message);
        Ok(lease.view())
    }

    /// Ends a lease: its gate, its region, its directory. Its place is kept for a while if it ever ran.
    pub fn end(&self, book: &mut Book, id: &LeaseId, cause: &str) {
        let Some(lease) = book.leases.remove(id) else { return };
        let debt_ns = self.gatekeeper.leave(lease.tenant);
        RegionHost::remove(lease.region.dir());
        Record::remove(&self.configuration.paths.run_dir, id);
        let message = format!("ended {}: {cause}", lease.record.container_id.short());
        self.events.note(EventKind::LeaseEnded, about(&lease.record, None), message);
        let hold = Duration::from_millis(self.configuration.lease.hold_ms);
        if lease.record.init.is_some() && !hold.is_zero() {
            book.held.push(Held { record: lease.record, gpu: lease.gpu, until: Instant::now() + hold, debt_ns });
        }
        self.ended.notify_all();
    }
}

/// What an event about `record` is about.
pub fn about(record: &Record, uid: Option<u32>) -> About {
    About { lease_id: Some(record.lease_id.clone()), container_id: Some(record.container_id.clone()), uid }
}
