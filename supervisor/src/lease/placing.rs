//! Where a lease finds room, and what it waits for before it is refused: the end of a container of the same name, that of a
//! daemon which nobody uses any more, and another look at the memory that others hold.

use super::book::{Book, Held, Lease};
use super::capacity::mps_groups_used;
use super::changes::Asked;
use super::deadline::{check_in_time, without_hours};
use super::ends::Run;
use super::grant::Leases;
use super::keeping::find_in_pod;
use super::mechanism::Served;
use super::quota::Tally;
use super::room::{Room, tally_of};
use crate::clock;
use crate::device::{Gpu, Kind};
use crate::drains;
use crate::mps::{Domain, GroupRecord};
use crate::procfs::{ProcessName, WatchedProcess};
use crate::queue::is_for_want_of_room;
use crate::silence;
use gpool_policy::admission::{Demand, GpuCapacity, Placement, Refusal, place};
use gpool_policy::mechanism::Mechanism as Chosen;
use gpool_protocol::{ErrorBody, ErrorCode, LeaseRequest, LeaseState, Mechanism, Mode};
use std::sync::atomic::Ordering;
use std::sync::{MutexGuard, PoisonError};
use std::time::{Duration, Instant};

/// How long a new container waits for the end of what is in its way and ends anyway.
pub const END_PATIENCE: Duration = Duration::from_secs(3);
/// For how long after the end of its first process a lease is waited for by others that want its room: longer, and something of it
/// lives on.
const OTHERS_END_PATIENCE: Duration = Duration::from_secs(1);
/// How long a refusal waits for another look at who holds what: NVML may hang.
pub const LOOK_PATIENCE: Duration = Duration::from_secs(1);
/// How long all of a grant may take: who asks gives up after 4 s or more (`[runtime] supervisor_patience_seconds`), and would
/// not hear why.
pub const GRANT_PATIENCE: Duration = Duration::from_millis(3500);

/// How long the place of a lease is kept whose grant was not heard: who asks again is there already, and is looked after at once.
const UNHEARD: Duration = Duration::from_secs(1);

/// What a lease will have.
pub struct Place {
    /// By which mechanism, and what of the request that leaves.
    pub served: Served,
    /// Whose MPS server it is under.
    pub domain: Option<Domain>,
    /// On which GPUs, with how much memory.
    pub placed: Placement,
    /// The place among those that are kept for who comes back, if one is kept for it.
    pub kept: Option<usize>,
    /// Whether it has what is idle in place of a share, because a budget is spent.
    pub has_no_hours: bool,
    /// Whether that is kept for another one that cannot begin before this one has ended.
    pub is_lent: bool,
    /// For how long.
    pub run: Run,
    /// What its container asks for by itself, if it has been changed since.
    pub before: Option<Asked>,
}

impl Leases {
    /// Finds room for what is asked for, waiting for nothing beyond `deadline`. The book is held from then on, so that nobody else has it.
    ///
    /// # Errors
    /// A container of this id that runs, no room, or a mechanism that this host does not have.
    pub fn find_place(
        &self,
        asked: &LeaseRequest,
        requester: ProcessName,
        uid: u32,
        deadline: Instant,
    ) -> Result<(MutexGuard<'_, Book>, Place), ErrorBody> {
        // Who waits for room asks again soon, and holds nobody up.
        // Who has a deadline and comes first is refused for good if there is none.
        let comes_first = || asked.request.deadline.is_some() && self.book().queue.waiter_of(asked, uid).is_none();
        let has_time = asked.request.wait_seconds.is_none() || comes_first();
        let mut has_looked = !has_time;
        let others_end = deadline.min(Instant::now() + OTHERS_END_PATIENCE);
        loop {
            let mut book = self.wait_for_the_old_one(asked, requester, uid, deadline)?;
            let left = deadline.saturating_duration_since(Instant::now());
            let left_for_others = others_end.saturating_duration_since(Instant::now());
            book.give_up_places(Instant::now());
            let mut place = find_in_pod(&mut book, (asked, uid), |book| self.place_now(asked, uid, book));
            // Whoever replaces a container by a new one has removed it a moment ago.
            let may_be_anew = |refusal: &ErrorBody| is_for_want_of_room(refusal, false) && book.keeps_for_removable();
            if place.as_ref().is_err_and(may_be_anew) {
                drop(book);
                // Also if it was none: meanwhile one may have ended of which what was found knows nothing.
                self.give_up_places_of_removed();
                book = self.book();
                place = find_in_pod(&mut book, (asked, uid), |book| self.place_now(asked, uid, book));
            }
            match place {
                Err(refusal)
                    if refusal.code == ErrorCode::ShareNotFree
                        && has_time
                        && !left.is_zero()
                        && self.may_servers_give_way(asked, &book) =>
                {
                    drop(self.ended.wait_timeout(book, left).unwrap_or_else(PoisonError::into_inner));
                }
                Err(refusal)
                    if refusal.code == ErrorCode::SupervisorAbsent
                        && has_time
                        && !left.is_zero()
                        && self.reads_hours() =>
                {
                    drop(book);
                    self.await_hours(deadline);
                }
                // A script that starts one container behind another's end counts on what that one had.
                Err(refusal)
                    if has_time
                        && !left_for_others.is_zero()
                        && is_for_want_of_room(&refusal, false)
                        && book.leases.values().any(is_about_to_end) =>
                {
                    drop(self.ended.wait_timeout(book, left_for_others).unwrap_or_else(PoisonError::into_inner));
                }
                Err(refusal) if !has_looked && self.may_be_free_by_now(&refusal) => {
                    drop(book);
                    has_looked = true;
                    self.occupants.look_again(deadline.min(Instant::now() + LOOK_PATIENCE));
                }
                place => return place.map(|place| (book, place)),
            }
        }
    }

    /// What can be leased as who looks for room may have it: a GPU that does not answer or is drained is as gone.
    pub fn gpus_for_new(&self) -> Vec<Gpu> {
        self.drains.without_drained(self.silence.without_silent(&self.gpus()))
    }

    /// A refusal with the GPUs that are drained or do not answer. Who would have room on one of them may wait for that, as for the end of
    /// a lease; who does not wait is refused for a GPU that does not answer as for one that is not there.
    pub fn with_out_of_use(&self, refusal: ErrorBody, (asked, uid): (&LeaseRequest, u32), book: &Book) -> ErrorBody {
        let gpus = self.gpus();
        let (drained, silent) = (self.drains.sentences(&gpus), self.silence.sentences(&gpus));
        let would_do =
            |gpus: &[Gpu]| refusal.code == ErrorCode::NoGpu && self.could_fit_on(gpus, (asked, uid), book).is_ok();
        if !drained.is_empty() && would_do(&self.silence.without_silent(&gpus)) {
            return drains::is_drained(&drained);
        }
        let all = [silent, drained].concat();
        if asked.request.wait_seconds.is_some() && !all.is_empty() && would_do(&gpus) {
            return silence::is_silent(&all);
        }
        drains::with_drained(refusal, &all)
    }

    /// A daemon that nobody uses any more is in the way only until it has ended, and a server of the driver's in a fault until
    /// the programs that it has reached have.
    fn may_servers_give_way(&self, asked: &LeaseRequest, book: &Book) -> bool {
        let is_faulted = || asked.request.mode == Mode::Mps && !self.groups.faulted().is_empty();
        !self.groups.being_stopped(&mps_groups_used(book), |_| false).is_empty() || is_faulted()
    }

    /// Whether this is refused for memory some of which others held when NVML was asked last, up to a second ago.
    pub fn may_be_free_by_now(&self, refusal: &ErrorBody) -> bool {
        let is_held = || self.foreign_bytes.iter().any(|bytes| bytes.load(Ordering::Relaxed) > 0);
        refusal.code == ErrorCode::MemoryNotFree && is_held()
    }

    fn place_now(&self, asked: &LeaseRequest, uid: u32, book: &Book) -> Result<Place, ErrorBody> {
        let is_kept = |held: &Held| held.record.is_started_anew_by(asked, uid);
        let kept = book.held.iter().position(is_kept);
        // A restarted container comes back to its own GPUs if it still fits there.
        let home = kept.map(|index| book.held[index].gpus.clone());
        let gpus = self.gpus_for_new();
        let own = kept.map(|index| &book.held[index].record.lease_id);
        let scene = self.scene(book, own, &gpus);
        let record = kept.map(|index| &book.held[index].record);
        let run = self.run_of(asked, record);
        // Who comes back to a place has what was left, whatever it said once.
        if record.is_none() {
            check_in_time(asked, run, book.queue.since(asked, uid, clock::now_ns()).first_ns)?;
        }
        let room = self.room_for(asked, uid, &scene, record.zip(home));
        let room = room.map_err(|refusal| self.with_out_of_use(refusal, (asked, uid), book))?;
        let own = record.map(|record| Tally::of(record, &gpus));
        self.check_hours_are_read(own.as_ref(), &tally_of((asked, uid), room.counts(), (&gpus, book)))?;
        let Room { served, domain, placed, has_no_hours, is_lent, .. } = room;
        if has_no_hours && asked.request.deadline.is_some() && record.is_none() {
            let refusal = without_hours();
            // Of who waits the next period may come in time.
            let waits = book.queue.waiter_of(asked, uid).is_some();
            return Err(if waits { ErrorBody { code: ErrorCode::QuotaReached, ..refusal } } else { refusal });
        }
        Ok(Place { served, domain, placed, kept, has_no_hours, is_lent, run, before: None })
    }

    /// Those of `open` whose compute mode serves by what was chosen. Instances have none.
    pub fn without_other_modes(
        &self,
        open: Vec<usize>,
        served: &Served,
        gpus: &[Gpu],
    ) -> Result<Vec<usize>, ErrorBody> {
        let is_let_in = |gpu: usize| self.compute_modes.of(gpu).serves(chosen(served.mechanism));
        let (left, others): (Vec<usize>, Vec<usize>) = open.into_iter().partition(|gpu| is_let_in(*gpu));
        let wanted = usize::from(served.request.gpus.max(1));
        // Where all together are too few, that is what is told.
        if others.is_empty() || left.len() >= wanted || left.len() + others.len() < wanted {
            return Ok(left);
        }
        let told = |gpu: &usize| format!("{} is in the compute mode {}", gpus[*gpu].uuid, self.compute_modes.of(*gpu));
        Err(ErrorBody::new(
            ErrorCode::NoMechanism,
            others.iter().map(told).collect::<Vec<_>>().join(", "),
            "set it back with nvidia-smi -c DEFAULT, also where the host sets it at boot; EXCLUSIVE_PROCESS serves \
             mode=exclusive and mode=mps alone, PROHIBITED nothing",
        ))
    }

    /// A GPU belongs to one daemon, also while that one ends or takes nobody in.
    pub fn note_servers_closed(
        &self,
        capacities: &mut [GpuCapacity],
        (gpus, book): (&[Gpu], &Book),
        (domain, count): (&Domain, usize),
    ) {
        let joins = |group: &GroupRecord| group.domain == *domain && group.gpus.len() == count;
        let (ending, faulted) = (self.groups.being_stopped(&mps_groups_used(book), joins), self.groups.faulted());
        for (gpu, capacity) in gpus.iter().zip(capacities) {
            let servers = ending.iter().filter(|uuid| **uuid == gpu.uuid).count();
            capacity.users.mps_of_others += servers as u32;
            capacity.users.mps_faulted = faulted.iter().filter(|uuid| **uuid == gpu.uuid).count() as u32;
        }
    }

    /// Waits until `deadline` at most until no lease of the container is ending; a container that runs is a conflict.
    fn wait_for_the_old_one(
        &self,
        asked: &LeaseRequest,
        requester: ProcessName,
        uid: u32,
        deadline: Instant,
    ) -> Result<MutexGuard<'_, Book>, ErrorBody> {
        let container = &asked.container_id;
        let mut book = self.book();
        loop {
            let left = deadline.saturating_duration_since(Instant::now());
            let Some(old) = book.of_container(container, uid) else {
                // The attempt before this one has another id, and is in the way only while it ends.
                let is_before = |lease: &Lease| lease.record.is_started_anew_by(asked, uid) && !lease.is_alive();
                if left.is_zero() || !book.leases.values().any(is_before) {
                    return Ok(book);
                }
                book = self.ended.wait_timeout(book, left).unwrap_or_else(PoisonError::into_inner).0;
                continue;
            };
            // An engine that asks itself, as podman's hook has it do, starts a container once at a time: that it asks anew
            // says that it gave the first start up. It may be a daemon that lives on.
            // So does one that asks again itself: it has not heard that it was granted, as when the supervisor ended meanwhile.
            let is_same = old.requester.as_ref().is_some_and(|process| process.name == requester);
            let is_given_up = old.state == LeaseState::Pending && (asked.asked_for_parent || is_same);
            if is_given_up {
                let id = old.record.lease_id.clone();
                let unheard = is_same.then(|| unheard_place(old, Instant::now()));
                self.end(&mut book, &id, "its container is started anew");
                book.held.extend(unheard);
                continue;
            }
            if old.is_alive() || left.is_zero() {
                return Err(ErrorBody::new(
                    ErrorCode::LeaseConflict,
                    format!("container {} already has the lease {}", container.short(), old.record.lease_id),
                    "stop that container first (gpool ps shows it)",
                ));
            }
            book = self.ended.wait_timeout(book, left).unwrap_or_else(PoisonError::into_inner).0;
        }
    }
}

/// Whether its first process has ended, which the attendant has yet to see, or has seen a moment ago: for longer others of its cgroup
/// live on, perhaps for hours.
fn is_about_to_end(lease: &Lease) -> bool {
    let is_new = lease.ending_since.is_none_or(|since| since.elapsed() < OTHERS_END_PATIENCE);
    is_new && lease.init.as_ref().is_some_and(WatchedProcess::has_ended)
}

/// The place of a lease whose grant was not heard: who asks once more has waited for it, and is not behind those who wait now.
fn unheard_place(old: &Lease, now: Instant) -> Held {
    Held { record: old.record.clone(), gpus: old.gpus().collect(), until: now + UNHEARD }
}

/// A mechanism as `policy` calls it.
fn chosen(mechanism: Mechanism) -> Chosen {
    match mechanism {
        Mechanism::Slice => Chosen::Slices,
        Mechanism::Exclusive => Chosen::Exclusive,
        Mechanism::TimeSlice => Chosen::TimeSlice,
        Mechanism::Mps => Chosen::Mps,
        Mechanism::Mig => Chosen::Mig,
    }
}

/// The GPUs that a lease may be on: an instance, or all that are whole and not about to be divided.
pub fn open_for(served: &Served, gpus: &[Gpu], book: &Book) -> Result<Vec<usize>, ErrorBody> {
    if let Some(instance) = served.instance {
        return Ok(vec![instance]);
    }
    let is_open = |gpu: &Gpu| gpu.kind == Kind::Whole && !book.is_closed(&gpu.uuid);
    let open: Vec<usize> = (0..gpus.len()).filter(|index| is_open(&gpus[*index])).collect();
    let is_there = |gpu: &Gpu| matches!(gpu.kind, Kind::Whole | Kind::Divided);
    if open.is_empty() && !gpus.is_empty() && !gpus.iter().any(is_there) {
        return Err(ErrorBody::new(
            ErrorCode::NoGpu,
            "NVML does not answer for any GPU of this host",
            "look at the driver with nvidia-smi",
        ));
    }
    if open.is_empty() && !gpus.is_empty() {
        return Err(ErrorBody::new(
            ErrorCode::NoMechanism,
            "every GPU of this host is divided with MIG, or about to be",
            "add mig-profile, alone for a whole instance, with mode=slice and a team for a share of one (gpool mig show \
             lists them); or turn MIG off on a GPU",
        ));
    }
    Ok(open)
}

/// Places a lease on some of these GPUs.
pub fn place_among(capacities: &[GpuCapacity], among: &[usize], demand: &Demand) -> Result<Placement, Refusal> {
    let there: Vec<GpuCapacity> = among.iter().map(|gpu| capacities[*gpu].clone()).collect();
    let placed = place(&there, demand)?;
    Ok(Placement { indices: placed.indices.iter().map(|index| among[*index]).collect(), ..placed })
}
