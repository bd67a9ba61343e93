//! Granting, binding and ending leases.

use super::account::GpuAccount;
use super::book::{Book, Lease};
use super::cgroups::KnownCgroups;
use super::changes::{Asked, Changes};
use super::described::{about, ended};
use super::edits::{edits, edits_without_shims};
use super::ends::check_end_can_come;
use super::entitlement::{fails_open, share_of};
use super::entry::Entry;
use super::keeping::has_its_pod;
use super::leftovers::Leftovers;
use super::outside::Outsiders;
use super::ownership;
use super::placing::Place;
use super::promised::measure;
use super::record::{Record, dir_of, region_dir_of};
use super::refusal::failed;
use super::statement::Statement;
use crate::audit;
use crate::bell::Bell;
use crate::cgroup::{self, run_groups::of as run_groups};
use crate::clock;
use crate::compute_modes::ComputeModes;
use crate::counted::HostSeal;
use crate::device::{DriverFiles, Gpu, NvmlInventory, Roster};
use crate::drains::Drains;
use crate::energy;
use crate::events::{About, Events};
use crate::gatekeeper::{Gatekeeper, Order};
use crate::gpu_tests::GpuTests;
use crate::health::Healths;
use crate::ledger::Ledger;
use crate::memory_limits::MemoryLimits;
use crate::metrics::Counters;
use crate::mps::{self, Groups};
use crate::occupants::Occupants;
use crate::overflow::Short;
use crate::overrides::Overrides;
use crate::procfs::WatchedProcess;
use crate::queue::Left;
use crate::refusals;
use crate::region::{ControlPage, Mounts, RegionHost};
use crate::service_manager;
use crate::settings::Settings;
use crate::silence::Silence;
use crate::sites::Sites;
use crate::time_slices::Verdicts;
use crate::watchdog::Progress;
use crate::watchers::Watchers;
use crate::xids::Xids;
use gpool_configuration::Configuration;
use gpool_policy::TenantId;
use gpool_protocol::{
    ErrorBody, ErrorCode, EventKind, GpuUuid, GuardedProcess, HostPid, LeaseGranted, LeaseId, LeaseRequest, LeaseState,
    LeaseView, Mechanism, OutsideProcess, Priority,
};
use std::os::fd::AsFd;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

/// How long a lease waits for its container after the OCI runtime has ended.
pub const BIND_GRACE: Duration = Duration::from_secs(2);
/// How long a lease waits for its container while the OCI runtime, or the engine that asked in its place, lives.
/// Longer than engines wait for a runtime: podman, the most patient, for 4 minutes.
const BIND_PATIENCE: Duration = Duration::from_secs(300);
/// The same where a process has asked for its parent, as podman's hook does: the container is made right behind its hooks, and a podman
/// that serves an API lives on when that has failed.
const BIND_PATIENCE_OF_PARENT: Duration = Duration::from_secs(30);

/// How long such a lease waits, by what is written of it.
pub fn bind_patience(record: &Record) -> Duration {
    if record.asked_for_parent { BIND_PATIENCE_OF_PARENT } else { BIND_PATIENCE }
}

/// Of one GPU's memory, in bytes, as NVML last said.
#[derive(Debug, Clone, Copy, Default)]
pub struct InUse {
    /// Held by anybody.
    pub used_bytes: u64,
    /// Of that, what is within no promise, beyond what is sold to nobody.
    pub outside_bytes: u64,
}

/// All leases of this host and everything needed to change them.
pub struct Leases {
    pub settings: Settings,
    /// What can be leased; see [`Leases::gpus`].
    pub roster: Roster,
    /// NVML, for who divides GPUs; the sampler asks everything else.
    pub inventory: Arc<NvmlInventory>,
    /// Held by who divides GPUs, so that it is one at a time.
    pub dividing: Mutex<()>,
    pub files: DriverFiles,
    pub gatekeeper: Gatekeeper,
    pub events: Arc<Events>,
    /// How much of that is written down for good.
    pub audit: audit::Figures,
    pub boot_id: String,
    /// Measured cost of a context by GPU, in bytes.
    pub context_bytes: Vec<AtomicU64>,
    /// Memory held outside leases by GPU, in bytes, as NVML last said.
    pub foreign_bytes: Vec<AtomicU64>,
    /// Memory held by anybody by GPU, in bytes, as NVML last said.
    pub used_bytes: Vec<AtomicU64>,
    /// What the guard saw last of processes that use GPUs.
    pub guarded: Mutex<Arc<Vec<GuardedProcess>>>,
    /// And of those that belong to no lease.
    pub unleased: Mutex<Arc<Vec<OutsideProcess>>>,
    /// Whom NVML last listed on each GPU.
    pub occupants: Occupants,
    /// How many of those would be there without leases.
    pub outsiders: Outsiders,
    /// The cgroups of all leases, beside the book.
    pub known_cgroups: KnownCgroups,
    /// How many processes each GPU lets have contexts.
    pub compute_modes: ComputeModes,
    /// How GPUs are linked with each other.
    pub sites: Sites,
    /// GPUs for which NVML does not answer.
    pub silence: Silence,
    /// By which what a cluster has counted is known.
    pub seal: HostSeal,
    /// GPUs that take no new leases because somebody said so.
    pub drains: Drains,
    /// What containers were changed to that may be started anew.
    pub changes: Changes,
    /// For whom there is an emergency.
    pub overrides: Overrides,
    /// Whether the host is short of room.
    pub short: Short,
    /// What the driver has told of their faults.
    pub xids: Xids,
    /// What their own figures show of their health.
    pub healths: Healths,
    /// What tests of them have found.
    pub gpu_tests: GpuTests,
    /// Those who ask boards beside the sampler.
    pub watchers: Watchers,
    /// What stays on the disk of leases that have ended.
    pub leftovers: Leftovers,
    pub next_tenant: AtomicU64,
    pub book: Mutex<Book>,
    /// MPS daemons and who is under them.
    pub groups: Groups,
    /// Which GPUs keep shares by time slices.
    pub time_slices: Verdicts,
    /// Which GPUs' driver keeps memory caps.
    pub memory_limits: MemoryLimits,
    /// The bell of who moves leases to the host's memory and back.
    pub suspensions: Bell,
    /// What is counted for the metrics.
    pub counters: Counters,
    /// Who mounts regions.
    pub mounts: Mounts,
    /// How far the threads have come that nobody waits for.
    pub progress: Progress,
    /// Who had what, for months.
    pub ledger: Ledger,
    /// Whether this supervisor was found to be allowed to take GPUs from nobody.
    pub may_not_take: AtomicBool,
    /// Rung when a lease has ended.
    pub ended: Condvar,
    /// Rung when a process should be watched that was not before.
    pub watch_changed: Box<dyn Fn() + Send + Sync>,
}

impl Leases {
    /// The book. A thread that panicked while holding it left it as it was between two changes.
    pub fn book(&self) -> MutexGuard<'_, Book> {
        self.book.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The configuration that is in force now.
    pub fn configuration(&self) -> Arc<Configuration> {
        self.settings.current()
    }

    /// What can be leased: boards and MIG instances. An index means the same thing as long as a lease has it.
    pub fn gpus(&self) -> Arc<Vec<Gpu>> {
        self.roster.now()
    }

    /// What NVML last said of the memory in use, by GPU.
    pub fn memory_in_use(&self) -> Vec<InUse> {
        let in_use = |(used, outside): (&AtomicU64, &AtomicU64)| InUse {
            used_bytes: used.load(Ordering::Relaxed),
            outside_bytes: outside.load(Ordering::Relaxed),
        };
        self.used_bytes.iter().zip(&self.foreign_bytes).map(in_use).collect()
    }

    /// Grants a lease where room was found, until `deadline` at the latest.
    ///
    /// # Errors
    /// A file of the driver that is not there, or an MPS server that takes it not in.
    pub fn grant_at(
        &self,
        mut book: MutexGuard<'_, Book>,
        place: Place,
        (asked, uid): (&LeaseRequest, u32),
        requester: &WatchedProcess,
        deadline: Instant,
    ) -> Result<LeaseGranted, ErrorBody> {
        let Place { served, domain, placed, kept, has_no_hours, is_lent, run, before } = place;
        let (mechanism, gpus) = (served.mechanism, self.gpus());
        let uuids: Vec<GpuUuid> = placed.indices.iter().map(|gpu| gpus[*gpu].uuid.clone()).collect();
        let mps_group = domain.as_ref().map(|domain| self.join_group(domain, &uuids)).transpose()?;
        let instance = placed.indices.first().and_then(|gpu| gpus[*gpu].instance());
        let record = Record {
            boot_id: self.boot_id.clone(),
            lease_id: LeaseId(ulid::Ulid::generate().to_string()),
            container_id: asked.container_id.clone(),
            asked: Some(before.unwrap_or_else(|| Asked::of(&asked.request, placed.memory_bytes))),
            gpu_uuid: uuids[0].clone(),
            gpu_uuids: if uuids.len() > 1 { uuids } else { Vec::new() },
            fraction_permille: match mechanism {
                Mechanism::Slice | Mechanism::Mps | Mechanism::TimeSlice => served.request.fraction_permille,
                Mechanism::Exclusive | Mechanism::Mig => 1000,
            },
            mechanism,
            mps_group: mps_group.clone(),
            mps_domain: domain,
            fault: None,
            mig_profile: instance.map(|instance| instance.profile.clone()),
            limit_permille: served.request.limit_permille.filter(|_| mechanism.has_shims()),
            class: asked.request.class,
            p99_ns: asked.request.p99_ns,
            priority: if has_no_hours { Priority::Burst } else { asked.request.priority },
            has_no_hours,
            team: asked.request.team.clone(),
            project: asked.request.project.clone(),
            cost_center: self.configuration().bill_of(&asked.request.cost_center, &asked.request.team),
            resource: asked.request.resource.clone(),
            unenforced: asked.unenforced,
            starts_once: asked.starts_once,
            in_pod: asked.in_pod.clone(),
            pod: asked.pod.clone(),
            has_sandbox_process: false,
            container_dir: asked.container_dir.clone(),
            asked_for_parent: asked.asked_for_parent,
            paused: false,
            paused_by: None,
            revocation: None,
            suspension: None,
            caps_time_slices: mechanism == Mechanism::TimeSlice && served.request.memory.is_some(),
            has_driver_limit: false,
            memory_cap_bytes: placed.memory_bytes,
            spill_bytes: served.request.spill_bytes.unwrap_or(0),
            highest_spill_bytes: Some(served.request.spill_bytes.unwrap_or(0)),
            highest_cap_bytes: Some(placed.memory_bytes),
            run_seconds: run.seconds,
            ends_ns: run.ends_ns,
            told_of_end_ns: None,
            told_to_go: None,
            owner_uid: uid,
            created_unix_ms: clock::unix_ms(),
            created_ns: Some(clock::now_ns()),
            waited_ms: Some(book.queue.waited_ms(asked, uid)),
            requester: Some(requester.name),
            init: None,
            cgroup: None,
            run_groups: Vec::new(),
            processes: Vec::new(),
            standing: None,
            shims: Vec::new(),
            uncounted_calls: 0,
            others: Default::default(),
            unread: None,
        };
        let granted = self.make(&mut book, record, placed.indices, requester)?;
        match &mps_group {
            Some(_) => book.queue.set_seated(asked, uid, true),
            None => self.leave_queue_of(&mut book, asked, uid, Left::Granted),
        }
        self.counters.note_lent(is_lent);
        if let Some(kept) = kept.map(|index| book.held.remove(index)) {
            book.leases.entry(granted.lease_id.clone()).and_modify(|lease| lease.back_until = Some(kept.until));
            self.write_places(&mut book);
            // It may have been the last that an older build was kept for.
            self.files.remove_unused_shims(book.builds());
        }
        if let Some(group) = mps_group {
            drop(book);
            (self.watch_changed)();
            self.seat(&group, &granted.lease_id, (asked, uid), deadline)?;
            return Ok(granted);
        }
        self.note_granted(&book, &granted.lease_id);
        drop(book);
        (self.watch_changed)();
        Ok(granted)
    }

    /// Makes the region and the record, and enters the lease; nothing is left behind on failure.
    fn make(
        &self,
        book: &mut Book,
        record: Record,
        gpus: Vec<usize>,
        requester: &WatchedProcess,
    ) -> Result<LeaseGranted, ErrorBody> {
        let requester = requester.try_clone();
        let requester = requester.map_err(|cause| failed("who asks for the lease cannot be watched", cause))?;
        let configuration = self.configuration();
        let run_dir = &configuration.paths.run_dir;
        let region_dir = region_dir_of(run_dir, &record.lease_id);
        let lease_id = record.lease_id.clone();
        let undo = |error: ErrorBody| {
            self.clear_away(&lease_id);
            error
        };
        let all = self.gpus();
        let its: Vec<&Gpu> = gpus.iter().map(|gpu| &all[*gpu]).collect();
        let no_driver = |cause| failed("the driver cannot be brought into the container", cause);
        let (edits, record) = if record.mechanism.has_shims() {
            let made = edits(&configuration, &self.files, &its, &lease_id, &region_dir);
            let (edits, chosen) = made.map_err(no_driver)?;
            let uncounted_calls = chosen.coverage.uncounted.len() as u32;
            (edits, Record { shims: chosen.views(), uncounted_calls, ..record })
        } else {
            let made = edits_without_shims(&configuration, &self.files, &its, &lease_id);
            let mut made = made.map_err(no_driver)?;
            if let Some(group) = &record.mps_group {
                made.extend(mps::edits(run_dir, group, &record));
            }
            (made, record)
        };
        record.write(run_dir).map_err(|cause| undo(failed("the lease cannot be written down", cause)))?;
        if record.owner_uid != 0 {
            ownership::let_search(&dir_of(run_dir, &lease_id), record.owner_uid)
                .map_err(|cause| undo(failed("the lease's files cannot be shown to its user", cause)))?;
        }
        let page = ControlPage {
            memory_cap_bytes: record.memory_cap_bytes,
            spill_bytes: record.spill_bytes,
            context_bytes: self.context_bytes_of(&gpus),
            fraction_permille: record.fraction_permille,
            fail_open: fails_open(&configuration, &record),
            gpu_uuids: record.gpus(),
        };
        let region = RegionHost::create(&self.mounts, &region_dir, &page, record.owner_uid)
            .map_err(|cause| undo(failed("the lease's region cannot be made", cause)))?;
        let debt_ns = book.debts.owed_ns(&record, clock::now_ns());
        if book.debts.hand_over(&record) {
            self.write_debts(book);
        }
        let granted = LeaseGranted {
            lease_id: lease_id.clone(),
            gpu_uuid: record.gpu_uuid.clone(),
            gpu_uuids: record.gpu_uuids.clone(),
            mechanism: record.mechanism,
            edits,
        };
        let state = LeaseState::Pending;
        let accounts = gpus.into_iter().map(|gpu| GpuAccount::new(gpu, 0)).collect();
        let requester = Some(requester);
        let (region, is_taken_over) = (Arc::new(region), false);
        self.enter(book, Entry { record, accounts, region, requester, debt_ns, state, is_taken_over });
        Ok(granted)
    }

    /// Puts a lease into the book and hands its gate to the gatekeeper.
    pub fn enter(&self, book: &mut Book, entry: Entry) -> TenantId {
        let tenant = TenantId(self.next_tenant.fetch_add(1, Ordering::Relaxed));
        let Entry { record, accounts, region, debt_ns, .. } = &entry;
        let gpus = accounts.iter().map(|account| account.gpu).collect();
        let share = share_of(&self.configuration(), record);
        self.gatekeeper.order(Order::Join { tenant, gpus, region: region.clone(), share, debt_ns: *debt_ns });
        if record.paused || record.revocation.is_some() || record.suspension.is_some() {
            self.gatekeeper.order(Order::Pause { tenant });
        }
        self.gatekeeper.order(measure(record, tenant));
        let lease = entry.into_lease(tenant, clock::now_ns());
        book.leases.insert(lease.record.lease_id.clone(), lease);
        tenant
    }

    /// Binds a lease to its container's init. Said again by the same init, it changes nothing. `only_of` is the user whose
    /// process that has to be, if the user is not trusted with those of others.
    ///
    /// # Errors
    /// An unknown lease, an init that is no process on this host, or another container's.
    pub fn bind(&self, lease: &str, init_pid: HostPid, only_of: Option<u32>) -> Result<LeaseView, ErrorBody> {
        let gone = |cause| failed("the container's init is no process of this host", cause);
        let init = WatchedProcess::open(init_pid).map_err(gone)?;
        if let Some(uid) = only_of {
            ownership::must_be_of(&init, uid)?;
        }
        let mut book = self.book();
        let lease = book.exactly(lease)?;
        // One without a cgroup of its own shares its starter's. What is done to a lease's cgroup is done with root's rights.
        let starter = lease.requester.as_ref().and_then(|requester| cgroup::path_of(requester.name.pid));
        let may_be_its = |path: &String| only_of.is_none_or(|uid| cgroup::is_owned_by(path, uid));
        let cgroup = cgroup::path_of(init_pid).filter(|path| Some(path) != starter.as_ref() && may_be_its(path));
        if lease.record.init.is_some_and(|bound| bound != init.name) {
            return Err(ErrorBody::new(
                ErrorCode::LeaseConflict,
                format!("lease {} is bound to another container", lease.record.lease_id),
                "create the container anew; a bundle that was used before keeps the mark of its old lease",
            ));
        }
        if lease.record.init.is_some() {
            // By now its starter may be gone, and its state another one.
            return Ok(lease.view());
        }
        check_end_can_come(&lease.record, cgroup.as_deref())?;
        if let Some(group) = &lease.record.mps_group {
            // Without its server it would run beside the others, with no limit.
            self.is_served(group)?;
        }
        let run_groups = run_groups(init_pid);
        let mut bound = Record { init: Some(init.name), cgroup, run_groups, ..lease.record.clone() };
        bound.has_sandbox_process = has_its_pod(&bound, cgroup::is_populated);
        let written = bound.write(&self.configuration().paths.run_dir);
        written.map_err(|cause| failed("the lease cannot be written down", cause))?;
        // Behind the record, without which nobody would know what it is.
        service_manager::keep(&bound.lease_id, init.pidfd.as_fd());
        lease.record = bound;
        lease.init = Some(init);
        lease.state = LeaseState::Active;
        lease.requester = None;
        lease.abandoned = None;
        let message = format!("bound {} to process {init_pid}", lease.record.container_id.short());
        self.events.note(EventKind::LeaseBound, about(&lease.record, None), message);
        let view = lease.view();
        // Before its program begins, which may ask for something.
        self.known_cgroups.note(&book);
        drop(book);
        (self.watch_changed)();
        Ok(view)
    }

    /// Ends a lease: its gate, its region, its directory. Its place is kept for a while if it ever ran, or had
    /// come back to a place that was kept.
    pub fn end(&self, book: &mut Book, id: &LeaseId, cause: &str) {
        if let Some(lease) = book.leases.get_mut(id) {
            refusals::tell_rest(self, lease);
        }
        let Some(lease) = self.take_out(book, id) else { return };
        let charged = lease.charges();
        let message = ended(&lease.record, cause, &charged);
        self.events.note(EventKind::LeaseEnded, About { charged, ..about(&lease.record, None) }, message);
        self.keep_place(book, lease);
        self.ended.notify_all();
    }

    /// Takes a lease out of the book and away from the disk, and tells nobody.
    pub fn take_out(&self, book: &mut Book, id: &LeaseId) -> Option<Lease> {
        let mut lease = book.leases.remove(id)?;
        self.known_cgroups.note(book);
        let now_ns = clock::now_ns();
        let (left, gpus) = (self.gatekeeper.leave(lease.tenant), self.gpus());
        for its in &left {
            book.debts.keep(&lease.record, &gpus[its.gpu].uuid, its.debt_ns, now_ns);
            // What it had since the sampler's last look.
            let more_ns = lease.note_charges(its.gpu, now_ns, its.used_ns, -(its.debt_ns.min(i64::MAX as u64) as i64));
            book.charges.entry(its.gpu).or_default().add_late(now_ns, more_ns);
        }
        energy::note_departed(book, &mut lease);
        if left.iter().any(|its| its.debt_ns > 0) {
            self.write_debts(book);
        }
        if self.configuration().ledger.is_kept() {
            book.ended.push(Statement::of_ended(&mut lease, now_ns, clock::unix_ms()));
        }
        self.clear_away_of(&lease.record);
        if lease.record.init.is_some() {
            service_manager::forget(id);
        }
        Some(lease)
    }
}
