//! All leases of this host, in memory.

use super::account::{Charges, GpuAccount};
use super::debts::Debts;
use super::entitlement::share_of;
use super::figures::{Counted, Figures, Holding};
use super::giving_way::CLEARANCE_PATIENCE;
use super::kernels::KernelNotes;
use super::lost_contexts::LostContexts;
use super::meter::Meter;
use super::promised::PromiseNotes;
use super::record::{ProcessRecord, Record, StandingRecord};
use super::statement::Statement;
use super::tellings::Tellings;
use crate::context_cost::ContextCost;
use crate::hang::Excuse;
use crate::idle_leases::Signs;
use crate::preemptions::MakesRoom;
use crate::procfs::{ProcessName, ProgramMark, WatchedProcess};
use crate::queue::Queue;
use crate::region::{RegionHost, Report};
use crate::revocation::Clearance;
use crate::shortages::Shortages;
use crate::suspension::SuspensionNotes;
use crate::uncounted::Uncounted;
use gpool_configuration::Configuration;
use gpool_policy::TenantId;
use gpool_policy::idleness::Idleness;
use gpool_policy::repetition::Repetition;
use gpool_policy::run_time::Notice;
use gpool_policy::slice::Share;
use gpool_protocol::{BuildId, ContainerId, ErrorBody, ErrorCode, GpuCharge, GpuUuid, LeaseId, LeaseState, Mechanism};
use gpool_shared_region::SLOTS;
use std::cell::RefCell;
use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Instant;

/// That a lease is in use and nothing is charged for it is written down so often.
const USE_STEP_NS: u64 = 60_000_000_000;

/// A registered process.
#[derive(Debug)]
pub struct Process {
    /// The number that it made up when it took the slot.
    pub registration: u64,
    /// The process, held by pidfd.
    pub watched: WatchedProcess,
    /// The program that it ran when it took the slot, if that could be told.
    pub program: Option<ProgramMark>,
    /// Its refusals that an event has told.
    pub refusals_told: u64,
    /// Its refusals at the last look; none of one taken over, before the first.
    pub refusals_seen: Option<u64>,
}

/// A process that has ended, or the program that one has run; its slot keeps what it held until the device has it back.
#[derive(Debug, Clone, Copy)]
pub struct Dead {
    /// Who it was; none of one that has ended before that could be found out.
    pub name: Option<ProcessName>,
    /// The number that it made up when it took the slot: behind another one that is another's.
    pub registration: u64,
    /// When it was seen to have ended.
    pub died: Instant,
    /// The process goes on with another program, which it has executed: nobody but its children may hold what it held.
    pub has_executed: bool,
}

/// One lease.
pub struct Lease {
    /// What is written down of it.
    pub record: Record,
    /// Where it stands.
    pub state: LeaseState,
    /// Its tenant in the scheduler.
    pub tenant: TenantId,
    /// Its GPUs, in the order in which the container sees them, with what it has had of each.
    pub accounts: Vec<GpuAccount>,
    /// What it was promised so far.
    pub meter: Meter,
    /// Its region.
    pub region: Arc<RegionHost>,
    /// The OCI runtime that asked for it, until the container is bound.
    pub requester: Option<WatchedProcess>,
    /// What a context of this lease was seen to cost.
    pub context_cost: Option<ContextCost>,
    /// When it entered the book of this supervisor.
    pub since: Instant,
    /// When the requester was seen to have ended without binding.
    pub abandoned: Option<Instant>,
    /// The container's init.
    pub init: Option<WatchedProcess>,
    /// Registered processes by slot.
    pub processes: BTreeMap<usize, Process>,
    /// What the device shows of its processes beyond their accounts, by GPU of the lease.
    pub uncounted: Vec<Uncounted>,
    /// Processes and programs that have ended and of which the device may still hold something, by slot.
    pub dead: BTreeMap<usize, Dead>,
    /// What ended processes leave in the sums.
    pub retired: Figures,
    /// Refusals that an event has told.
    pub refusals_told: u64,
    /// How often that is told.
    pub refusal_repetition: Repetition,
    /// Of the refusals, those of what had room within its cap.
    pub shortages: Shortages,
    /// Refused look-ups that an event has told.
    pub unknown_versions_told: u64,
    /// How often that is told.
    pub unknown_version_repetition: Repetition,
    /// Who was there when a GPU of it failed: by slot, and the number that each had made up.
    pub failed: Vec<(usize, u64)>,
    /// What is told of its allocations in the host's memory.
    pub spills: Tellings,
    /// What its processes say of contexts that they have lost.
    pub lost_contexts: LostContexts,
    /// Whether an event has told that all its places are taken.
    pub is_full_told: bool,
    /// Why its processes were killed, if they were, as a sentence about its container.
    pub stopped: Option<&'static str>,
    /// Processes of it that use a GPU past the shims.
    pub bypassing: u32,
    /// Until when the time slices of all its processes count as set; none while they are not, or of others.
    pub kept_until: Option<Instant>,
    /// Until when the place was kept that it has come back to, if it has.
    pub back_until: Option<Instant>,
    /// Since when it is silent only because it is frozen or stopped, if it is.
    pub excuse: Option<Excuse>,
    /// Who of it was found on the GPUs that were taken from it.
    pub clearance: Clearance,
    /// How long it has made no use of its GPUs.
    pub idleness: Idleness,
    /// What that was seen by last; none before the first look, and where nobody can tell.
    pub signs: Option<Signs>,
    /// Whether the device saw it at work since that look.
    pub was_seen: bool,
    /// For whom it has to make room, and what it was told.
    pub makes_room: MakesRoom,
    /// What it was told of the end of its run time.
    pub end_notice: Notice,
    /// Since when it ends, if it does.
    pub ending_since: Option<Instant>,
    /// When its GPUs were taken from it, if this supervisor has done that.
    pub revoked_at: Option<Instant>,
    /// What is known of it while it is suspended.
    pub suspension: SuspensionNotes,
    /// What is known of how long its requests take.
    pub promise: PromiseNotes,
    /// What is known of how long the pieces of its work are.
    pub kernels: KernelNotes,
}

impl Lease {
    /// Whether it ends any moment: not of one that has been about to for long, because others live on in its cgroup.
    pub fn is_about_to_end(&self) -> bool {
        let is_short = || self.ending_since.is_some_and(|since| since.elapsed() < CLEARANCE_PATIENCE);
        self.state == LeaseState::Ending && is_short()
    }

    /// Whether something of it may be on its GPUs. Who has no shims registers no processes.
    pub fn uses_gpus(&self) -> bool {
        !self.processes.is_empty() || !self.record.mechanism.has_shims()
    }

    /// Whether something of it is on any of its GPUs that is one of these: as its processes say, or where they have no shims as NVML
    /// has said last.
    pub fn uses_any(&self, report: &mut Report, is_one: impl Fn(usize) -> bool) -> bool {
        if !self.gpus().any(&is_one) {
            return false;
        }
        let held = self.record.mechanism.has_shims().then(|| self.figures(report).held);
        let uses = |(place, account): (usize, &GpuAccount)| match &held {
            Some(held) => held[place] != Holding::default(),
            None => account.seen_bytes() > 0,
        };
        self.accounts.iter().enumerate().filter(|(_, account)| is_one(account.gpu)).any(uses)
    }

    /// Writes the processes into the record, which the caller writes to disk.
    pub fn note_processes(&mut self) {
        self.record.processes = (self.processes.iter())
            .map(|(slot, process)| ProcessRecord {
                slot: *slot,
                registration: process.registration,
                process: process.watched.name,
                program: process.program,
            })
            .collect();
    }

    /// Sums over the report as it is now and the processes that have ended.
    pub fn figures(&self, report: &mut Report) -> Figures {
        report.read(&self.region, SLOTS);
        self.retired.and(report, self.accounts.len())
    }

    /// The most memory that it has held on one GPU, contexts included, where `figures` are its own and it holds `used_bytes`
    /// where it holds most now.
    pub fn peak_bytes(&self, figures: &Figures, used_bytes: u64) -> u64 {
        self.record.believed_peak(figures.peak_bytes.max(used_bytes))
    }

    /// Notes what is held beyond a cap that has just been lowered, until the device says so itself. By GPU, how much more that is
    /// than was known: it is within no promise any more, and still held.
    pub fn note_lowered_cap(&mut self) -> Vec<(usize, u64)> {
        let highest = self.record.highest_cap_bytes.unwrap_or(0).max(self.record.memory_cap_bytes);
        let held: Vec<u64> = self.view().gpus.iter().map(|gpu| gpu.memory_used_bytes.min(highest)).collect();
        let cap_bytes = self.record.memory_cap_bytes;
        let beyond = self.accounts.iter_mut().zip(held);
        beyond.map(|(its, held)| (its.gpu, its.raise_excess(held.saturating_sub(cap_bytes)))).collect()
    }

    /// Remembers that it held so much at some moment.
    pub fn note_peak(&mut self, used_bytes: u64) {
        self.retired.peak_bytes = self.retired.peak_bytes.max(used_bytes);
    }

    /// Until when it has its GPUs, if it was told to make room; CLOCK_MONOTONIC. Not of one that has lost them or has ended.
    pub fn leaves_ns(&self) -> Option<u64> {
        let runs = self.state == LeaseState::Active && self.record.revocation.is_none();
        self.makes_room.notice.until_ns().filter(|_| runs)
    }

    /// What the scheduler is told now: in the grace it is served in the place of who waits.
    pub fn share(&self, configuration: &Configuration) -> Share {
        let own = share_of(configuration, &self.record);
        let turn = self.makes_room.turn.filter(|_| self.leaves_ns().is_some());
        turn.map_or(own, |turn| turn.instead_of(own))
    }

    /// Whether its container runs, or is still being made.
    pub fn is_alive(&self) -> bool {
        self.init.as_ref().or(self.requester.as_ref()).is_some_and(|process| !process.has_ended())
    }

    /// Indices of its GPUs on this host.
    pub fn gpus(&self) -> impl Iterator<Item = usize> {
        self.accounts.iter().map(|account| account.gpu)
    }

    /// The place of a GPU of this host among those of the lease.
    pub fn place_of(&self, gpu: usize) -> Option<usize> {
        self.gpus().position(|its| its == gpu)
    }

    /// Its account on a GPU of this host.
    pub fn account_on(&mut self, gpu: usize) -> Option<&mut GpuAccount> {
        self.accounts.iter_mut().find(|account| account.gpu == gpu)
    }

    /// Takes what the scheduler has charged until `at_ns` on a GPU, and what it owes the lease there. How much more that is than
    /// before.
    pub fn note_charges(&mut self, gpu: usize, at_ns: u64, charged_ns: u64, lag_ns: i64) -> i64 {
        let has_shims = self.record.mechanism.has_shims();
        let Some(account) = self.account_on(gpu) else { return 0 };
        // Without shims nothing is reported: what the device saw is all there is.
        let charged_ns = if has_shims { charged_ns } else { account.seen_ns() };
        account.note(at_ns, charged_ns, lag_ns)
    }

    /// All GPU time that it was charged, by GPU; none with an instance, of which NVML has no figures.
    pub fn charges(&self) -> Vec<GpuCharge> {
        if self.record.mechanism == Mechanism::Mig {
            return Vec::new();
        }
        let charge =
            |(gpu_uuid, account): (GpuUuid, &GpuAccount)| GpuCharge { gpu_uuid, charged_gpu_ns: account.charged_ns() };
        self.record.gpus().iter().cloned().zip(&self.accounts).map(charge).collect()
    }

    /// Writes what it has had and owes into the record, which `write` writes to disk. None if there is nothing new in it; what
    /// could not be written is new again the next time.
    pub fn note_standing<E>(
        &mut self,
        at_ns: u64,
        write: impl FnOnce(&Record) -> Result<(), E>,
    ) -> Option<Result<(), E>> {
        let gpus: Vec<_> = self.accounts.iter().map(GpuAccount::standing).collect();
        let told =
            [self.refusals_told, self.unknown_versions_told, self.spills.told(), self.lost_contexts.tellings.told()];
        let counted = Some(self.retired.written(told));
        let used_ns = self.idleness.used_ns();
        let is_known = |known: &StandingRecord| {
            let is_used_since = used_ns.saturating_sub(known.used_ns.unwrap_or(0)) >= USE_STEP_NS;
            known.gpus == gpus && known.counted == counted && !is_used_since
        };
        if self.record.standing.as_ref().is_some_and(is_known) {
            return None;
        }
        let old = self.record.standing.replace(StandingRecord { at_ns, gpus, counted, used_ns: Some(used_ns) });
        let written = write(&self.record);
        if written.is_err() {
            self.record.standing = old;
        }
        Some(written)
    }

    /// Goes on from what an earlier life of the supervisor has written down. What it did not write has been told.
    pub fn count_on(&mut self, counted: Option<Counted>) {
        let Some(counted) = counted else {
            let all = self.figures(&mut Report::new());
            self.spills.note_told(all.spills);
            self.lost_contexts.tellings.note_told(all.faults);
            (self.refusals_told, self.unknown_versions_told) = (all.refused, all.unknown_versions);
            return;
        };
        self.retired = Figures::read(&counted);
        self.spills.note_told(counted.spills_told);
        self.lost_contexts.tellings.note_told(counted.faults_told);
        (self.refusals_told, self.unknown_versions_told) = (counted.refusals_told, counted.unknown_versions_told);
    }
}

/// The place of an ended container, kept for a restart of the same one.
#[derive(Debug, Clone)]
pub struct Held {
    /// What the lease was.
    pub record: Record,
    /// Indices of its GPUs.
    pub gpus: Vec<usize>,
    /// Kept until.
    pub until: Instant,
}

/// The leases and the kept places.
#[derive(Default)]
pub struct Book {
    /// By id, which sorts by time.
    pub leases: BTreeMap<LeaseId, Lease>,
    /// Kept places.
    pub held: Vec<Held>,
    /// Of which leases those were that were written down last.
    pub places_written: Vec<LeaseId>,
    /// That those that are kept now could not be written was told.
    pub are_places_unwritten: bool,
    /// What ended leases owed.
    pub debts: Debts,
    /// Leases that have ended and that the ledger has not asked for yet.
    pub ended: Vec<Statement>,
    /// What all leases together were charged of each GPU, by its index; of those that have ended, too.
    pub charges: BTreeMap<usize, Charges>,
    /// Up to when leases' charges are in the book, CLOCK_MONOTONIC; 0 before the first look at them.
    pub charged_until_ns: u64,
    /// What each GPU has drawn since this supervisor began to look, by its index.
    pub energy_millijoules: BTreeMap<usize, u64>,
    /// GPU time of those that have ended since that was divided, by its index.
    pub departed_ns: BTreeMap<usize, u64>,
    /// Leases of running containers that could not be taken over yet.
    pub stranded: Vec<Record>,
    /// Why each of them could not be, as was told last; those that were not looked at yet are not in it.
    pub stranded_for: BTreeMap<LeaseId, String>,
    /// Boards that take nobody in until then, because they are to be divided.
    pub closed: BTreeMap<GpuUuid, Instant>,
    /// Who waits for room.
    pub queue: Queue,
    /// On which GPUs lower priorities make room for a reservation, by its name, as long as they do.
    pub making_on: RefCell<BTreeMap<String, Vec<GpuUuid>>>,
    /// The inits that systemd kept across a restart, of leases that are not taken over yet.
    pub kept_inits: BTreeMap<LeaseId, WatchedProcess>,
}

impl Book {
    /// The lease of this id and no other, for programs: they know it.
    ///
    /// # Errors
    /// It is over. A config.json that gpool has edited keeps its mark, and a start with it would be one past the supervisor.
    pub fn exactly(&mut self, id: &str) -> Result<&mut Lease, ErrorBody> {
        self.leases.get_mut(&LeaseId(id.to_owned())).ok_or_else(|| {
            ErrorBody::new(
                ErrorCode::LeaseUnknown,
                format!("there is no lease {id:?} any more"),
                "create the container anew; a bundle that was used before keeps the mark of its old lease",
            )
        })
    }

    /// The lease of a user's container that is not over. Ids are known to everybody, and nobody's may stand in the way of
    /// another's container.
    pub fn of_container(&self, container: &ContainerId, uid: u32) -> Option<&Lease> {
        let is_its = |lease: &&Lease| lease.record.container_id == *container && lease.record.owner_uid == uid;
        self.leases.values().find(is_its)
    }

    /// Whether a user's container is in the host's memory, from where it may come back.
    pub fn is_suspended(&self, container: &ContainerId, uid: u32) -> bool {
        let lease = self.of_container(container, uid);
        lease.is_some_and(|lease| lease.record.is_out() && lease.record.revocation.is_none())
    }

    /// The builds of shims that a lease names, kept places and stranded ones included.
    pub fn builds(&self) -> impl Iterator<Item = BuildId> {
        let leases = self.leases.values().map(|lease| &lease.record);
        let records = leases.chain(self.held.iter().map(|held| &held.record)).chain(&self.stranded);
        records.flat_map(|record| &record.shims).filter_map(|shim| shim.build_id.clone())
    }

    /// Whether a board takes nobody in now.
    pub fn is_closed(&self, board: &GpuUuid) -> bool {
        self.closed.get(board).is_some_and(|until| Instant::now() < *until)
    }

    /// The lease of a tenant.
    pub fn of_tenant(&mut self, tenant: TenantId) -> Option<&mut Lease> {
        self.leases.values_mut().find(|lease| lease.tenant == tenant)
    }
}
