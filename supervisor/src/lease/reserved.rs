//! What `[reservation]` keeps of the GPUs now, for whom, and who has it.

mod calendar;

pub use calendar::{left_ns, moments_of, opens_ns};

use super::ahead::Ahead;
use super::book::Book;
use super::capacity::records_on;
use super::entitlement::held_demand;
use super::grant::Leases;
use super::plans::{Admitted, Plans};
use super::record::Record;
use super::refusal::{planned_for_others, reserved_for_others};
use super::room::{Room, Scene};
use crate::clock;
use crate::device::{Gpu, Kind};
use crate::queue::Waiter;
use calendar::{NOTICE_S, is_kept, is_kept_at, notice_s, opens_within, over_in_ns};
use gpool_configuration::{Configuration, LeastPriority, Preemption, Reservation};
use gpool_policy::admission::{Demand, MemoryDemand, Part, Use};
use gpool_policy::mechanism::Suitable;
use gpool_policy::queue::Taken;
use gpool_policy::reservation::{self as policy, Ask, Seat};
use gpool_policy::slice::Priority as SlicePriority;
use gpool_protocol::{ErrorBody, GpuUuid, LeaseId, LeaseRequest, Mechanism, Priority};
use std::borrow::Cow;
use std::collections::{BTreeMap, BTreeSet};

/// Who asks for a lease or has one, as far as reservations go by it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Whom {
    team: Option<String>,
    uid: u32,
    priority: Priority,
}

impl Whom {
    /// Who has this lease. One whose share a budget has taken has not given its place up.
    pub fn of(record: &Record) -> Self {
        let priority = record.with_its_promise().priority;
        Self { team: record.team.clone(), uid: record.owner_uid, priority }
    }

    /// Who asks.
    pub fn asking(asked: &LeaseRequest, uid: u32) -> Self {
        Self { team: asked.request.team.clone(), uid, priority: asked.request.priority }
    }

    /// Whether that one may have what is reserved there.
    pub fn may_have(&self, reservation: &Reservation) -> bool {
        let is_named = |team: &String| self.team.as_ref() == Some(team);
        let is_anybodys = reservation.teams.is_empty() && reservation.users.is_empty();
        let is_one = reservation.teams.iter().any(is_named) || reservation.users.contains(&self.uid);
        let is_high = match reservation.priority {
            None => true,
            Some(LeastPriority::Guaranteed) => self.priority == Priority::Guaranteed,
            Some(LeastPriority::Burst) => self.priority != Priority::Scavenger,
        };
        (is_anybodys || is_one) && is_high
    }
}

/// What a lease, or one that is about to be made, has of one GPU.
#[derive(Debug, Clone)]
struct Having {
    /// None of one that is not made yet.
    lease: Option<LeaseId>,
    whom: Whom,
    gpu: usize,
    part: Part,
}

/// The reservations whose time it is, and what leases have.
#[derive(Debug, Clone, Default)]
pub struct Reserved {
    tables: Vec<(String, Reservation)>,
    having: Vec<Having>,
}

/// One of them, and where it is.
#[derive(Debug, Clone)]
pub struct Kept<'a> {
    /// Its name.
    pub name: &'a str,
    /// Its GPUs; fewer than it names where there are no more that would do.
    pub seats: Vec<Seat>,
}

impl Reserved {
    fn of(configuration: &Configuration, (book, gpus): (&Book, &[Gpu]), own: Option<&LeaseId>) -> Self {
        if configuration.reservation.is_empty() {
            return Self::default();
        }
        let is_now = |(_, its): &(&String, &Reservation)| is_kept(its, configuration);
        let tables = configuration.reservation.iter().filter(is_now).map(|(name, its)| (name.clone(), its.clone()));
        let on = |gpu: usize| records_on(gpus, book, gpu, own).filter_map(move |record| having(record, gpu));
        Self { tables: tables.collect(), having: (0..gpus.len()).flat_map(on).collect() }
    }

    /// Those whose time it is, or is when others have had to go for them.
    pub fn near(&self, preemption: &Preemption) -> Vec<(String, Reservation)> {
        self.tables.iter().filter(|(_, its)| opens_within(its, notice_s(preemption))).cloned().collect()
    }

    /// When those end whose time it is, CLOCK_MONOTONIC.
    pub fn ends_ns(&self, now_ns: u64) -> impl Iterator<Item = u64> {
        let left_ns = self.tables.iter().map(|(_, its)| left_ns(its)).filter(|left_ns| *left_ns < u64::MAX);
        left_ns.map(move |left_ns| now_ns.saturating_add(left_ns))
    }

    /// Takes out those whose time is over by `at_ns`.
    pub fn end_until(&mut self, at_ns: u64, now_ns: u64) {
        self.tables.retain(|(_, its)| now_ns.saturating_add(left_ns(its)) > at_ns);
    }

    /// Takes out those that begin when one has ended that ends then. Those whose time it is stay.
    fn begin_after(&mut self, ends_ns: u64, now_ns: u64) {
        // With what it takes until what that one had is free.
        let seconds = ends_ns.saturating_sub(now_ns).div_ceil(1_000_000_000).saturating_add(NOTICE_S);
        self.tables.retain(|(_, its)| opens_within(its, seconds));
    }

    /// Takes out those whose time has not come yet.
    pub fn keep_open(&mut self) {
        self.tables.retain(|(_, its)| opens_within(its, 0));
    }

    /// Whether something is kept for one whose time has not come yet.
    pub fn begins_soon(&self) -> bool {
        self.tables.iter().any(|(_, its)| !opens_within(its, 0))
    }

    /// The same leases, with those reservations of which something is kept at a moment, Unix seconds.
    pub fn as_at(&self, configuration: &Configuration, unix_s: u64) -> Self {
        let is_then = |(_, its): &(&String, &Reservation)| is_kept_at(its, configuration, unix_s);
        let tables = configuration.reservation.iter().filter(is_then).map(|(name, its)| (name.clone(), its.clone()));
        Self { tables: tables.collect(), having: self.having.clone() }
    }

    /// Whether it is the time of none.
    pub fn is_empty(&self) -> bool {
        self.tables.is_empty()
    }

    /// The same without those leases.
    pub fn forget(&mut self, is_gone: impl Fn(&LeaseId) -> bool) {
        self.having.retain(|its| !its.lease.as_ref().is_some_and(&is_gone));
    }

    /// Those that never end, with nobody on the GPUs.
    pub fn for_good(&self) -> Self {
        let tables = self.tables.iter().filter(|(_, its)| its.is_for_good()).cloned().collect();
        Self { tables, having: Vec::new() }
    }

    /// All of them, with nobody on the GPUs.
    pub fn with_nobody(&self) -> Self {
        Self { tables: self.tables.clone(), having: Vec::new() }
    }
}

/// What a lease has that counts towards a reservation. Reservations are of whole GPUs' shares, so nothing of a MIG instance does.
fn having(record: &Record, gpu: usize) -> Option<Having> {
    let part = Part { permille: held_demand(record).guaranteed_permille(), bytes: record.promised_bytes() };
    let is_one = record.mig_profile.is_none() && !part.is_none();
    is_one.then(|| Having { lease: Some(record.lease_id.clone()), whom: Whom::of(record), gpu, part })
}

/// What is reserved of each of its GPUs.
fn demand_of(reservation: &Reservation) -> Demand {
    Demand {
        fraction_permille: reservation.fraction.permille,
        memory: reservation.memory.map_or(MemoryDemand::Absent, |memory| MemoryDemand::Bytes(memory.bytes)),
        priority: SlicePriority::Guaranteed,
        gpus: usize::from(reservation.gpus),
        usage: Use::Sliced,
    }
}

/// Room that is taken beside the leases, and who is about to have it, in the same order; none of room that is not there yet.
type Those<'a> = (&'a [Taken], &'a [Option<Whom>]);

impl<'a> Scene<'a> {
    /// The same without reservations that begin when one has ended that ends then: it is in the way of none of them.
    pub fn without_later_reservations(&self, ends_ns: Option<u64>) -> Cow<'_, Scene<'a>> {
        let Some(ends_ns) = ends_ns.filter(|_| self.reserved.begins_soon()) else { return Cow::Borrowed(self) };
        let mut scene = self.clone();
        scene.reserved.begin_after(ends_ns, clock::now_ns());
        Cow::Owned(scene)
    }

    /// Where each reservation is whose time it is.
    pub fn kept(&self) -> Vec<Kept<'_>> {
        let seats = self.seats_beside((&[], &[]));
        let tables = self.reserved.tables.iter().zip(seats);
        tables.map(|((name, _), seats)| Kept { name, seats }).collect()
    }

    /// The same beside those who are about to have something: what they may have of a reservation counts towards it.
    fn seats_beside(&self, (taken, whose): Those<'_>) -> Vec<Vec<Seat>> {
        let asks: Vec<Ask> = self.reserved.tables.iter().map(|table| self.ask(table)).collect();
        let about_to_have = taken.iter().zip(whose).filter_map(|(taken, whom)| Some((taken, whom.as_ref()?)));
        let to_come = about_to_have.flat_map(|(taken, whom)| {
            let is_whole = |gpu: &&usize| self.gpus.get(**gpu).is_some_and(|gpu| gpu.kind == Kind::Whole);
            let of = |gpu: &usize| Some((*gpu, taken.part_of(self.capacities.get(*gpu)?)));
            let having = move |(gpu, part)| Having { lease: None, whom: whom.clone(), gpu, part };
            taken.indices.iter().filter(is_whole).filter_map(of).map(having).collect::<Vec<_>>()
        });
        let counted = |its: Having| policy::Having {
            gpu: its.gpu,
            part: its.part,
            may: (0..asks.len()).filter(|ask| self.counts_for(&its, &self.reserved.tables[*ask].1)).collect(),
        };
        let having: Vec<policy::Having> = self.reserved.having.iter().cloned().chain(to_come).map(counted).collect();
        policy::keep(&self.capacities_beside(taken), &asks, &having)
    }

    /// What is reserved, and where it may be. While room is made for it that is where it will have that.
    fn ask(&self, (name, reservation): &(String, Reservation)) -> Ask {
        let is_open = |gpu: &Gpu| gpu.kind == Kind::Whole && !self.book.is_closed(&gpu.uuid);
        let will_do = |gpu: &Gpu| is_open(gpu) && is_suitable(reservation, gpu);
        let all: Vec<usize> = (0..self.gpus.len()).filter(|gpu| will_do(&self.gpus[*gpu])).collect();
        let making_on = self.book.making_on.borrow();
        let is_made = |gpu: &usize| making_on.get(name).is_some_and(|on| on.contains(&self.gpus[*gpu].uuid));
        let made: Vec<usize> = all.iter().copied().filter(is_made).collect();
        let among = if made.len() >= usize::from(reservation.gpus) { made } else { all };
        Ask { demand: demand_of(reservation), among }
    }

    /// What is on other models than it is for counts for nothing.
    fn counts_for(&self, its: &Having, reservation: &Reservation) -> bool {
        its.whom.may_have(reservation) && is_suitable(reservation, &self.gpus[its.gpu])
    }

    /// What is taken, and what reservations keep from this one beside that.
    pub fn beside(&self, whom: &Whom, those: Those<'_>) -> Vec<Taken> {
        let mut all = those.0.to_vec();
        if !self.reserved.is_empty() {
            let seats = self.reserved.tables.iter().zip(self.seats_beside(those));
            let others = seats.filter(|((_, reservation), _)| !whom.may_have(reservation));
            all.extend(others.flat_map(|(_, seats)| seats).filter_map(|seat| seat.taken()));
        }
        all
    }

    /// What reservations keep of each GPU that this one may have, beside those.
    fn kept_for(&self, whom: &Whom, those: Those<'_>) -> BTreeMap<usize, Part> {
        let mut kept: BTreeMap<usize, Part> = BTreeMap::new();
        let seats = self.reserved.tables.iter().zip(self.seats_beside(those));
        let own = seats.filter(|((_, reservation), _)| whom.may_have(reservation)).flat_map(|(_, seats)| seats);
        for seat in own.filter(|seat| !seat.kept.is_none()) {
            let part = kept.entry(seat.gpu).or_default();
            *part = part.plus(seat.kept);
        }
        kept
    }

    /// The reservations that would lack more if this one had that too, and that it may not have, by their places; and the GPUs where
    /// they would.
    fn broken_by(&self, whom: &Whom, more: &Taken, (taken, whose): Those<'_>) -> (Vec<usize>, Vec<usize>) {
        if self.reserved.is_empty() {
            return Default::default();
        }
        let (mut with_it, mut with_whom) = (taken.to_vec(), whose.to_vec());
        with_it.push(more.clone());
        with_whom.push(Some(whom.clone()));
        let (before, after) = (self.seats_beside((taken, whose)), self.seats_beside((&with_it, &with_whom)));
        let mut broken = policy::lacking_more(&before, &after);
        broken.retain(|place| !whom.may_have(&self.reserved.tables[*place].1));
        let lacks_more = |place: usize, seat: &&Seat| {
            let was =
                before[place].iter().find(|was| was.gpu == seat.gpu).map_or_else(Part::default, |was| was.missing);
            !was.holds(seat.missing)
        };
        let on = |place: &usize| {
            let place = *place;
            after[place].iter().filter(move |seat| lacks_more(place, seat)).map(|seat| seat.gpu)
        };
        let gpus = broken.iter().flat_map(on).collect();
        (broken, gpus)
    }

    /// The same, by the tables of the configuration.
    pub fn tables_broken_by(&self, whom: &Whom, more: &Taken, those: Those<'_>) -> Vec<String> {
        self.broken_by(whom, more, those).0.into_iter().map(|place| self.table(place)).collect()
    }

    fn table(&self, place: usize) -> String {
        format!("[reservation.{}]", self.reserved.tables[place].0)
    }

    /// What others have still of the reservation of that name.
    pub fn missing_of(&self, name: &str) -> Part {
        self.kept()
            .iter()
            .find(|kept| kept.name == name)
            .map_or_else(Part::default, |kept| policy::missing_of(&kept.seats))
    }

    /// Whether any other reservation than that lacks more in the scene `without` some leases, which have a part of it.
    pub fn others_lack_more(&self, name: &str, without: &Scene<'_>) -> bool {
        let (before, after) = (self.seats_beside((&[], &[])), without.seats_beside((&[], &[])));
        policy::lacking_more(&before, &after).into_iter().any(|place| self.reserved.tables[place].0 != name)
    }

    /// The GPUs that the reservation of that name is on.
    pub fn seats_of(&self, name: &str) -> Vec<GpuUuid> {
        let kept = self.kept();
        let seats = kept.iter().filter(|kept| kept.name == name).flat_map(|kept| &kept.seats);
        seats.map(|seat| self.gpus[seat.gpu].uuid.clone()).collect()
    }
}

/// A GPU on which nobody else goes.
pub fn all_of(gpu: usize) -> Taken {
    Taken { indices: vec![gpu], demand: Demand { usage: Use::Whole, ..Demand::exactly(Part::default()) } }
}

fn is_suitable(reservation: &Reservation, gpu: &Gpu) -> bool {
    let suitable = Suitable { models: reservation.model.iter().cloned().collect(), ..Suitable::default() };
    suitable.has_what_it_is(&gpu.name, gpu.memory_total_bytes)
}

impl Leases {
    /// What reservations keep now, beside the leases in the book; the kept place `own` counts as free.
    pub fn reserved(&self, scene: (&Book, &[Gpu]), own: Option<&LeaseId>) -> Reserved {
        Reserved::of(&self.configuration(), scene, own)
    }

    /// Whether it is the time of any reservation.
    pub fn reserves(&self, book: &Book) -> bool {
        !self.reserved((book, &[]), None).is_empty()
    }

    /// Whether others have something still of the reservation of that name.
    pub fn is_short(&self, book: &Book, name: &str) -> bool {
        let gpus = self.gpus_for_new();
        !self.scene(book, None, &gpus).missing_of(name).is_none()
    }

    /// Room for a request until it ends beside those, on some of the `preferred` GPUs if it fits there, where no reservation that it may not have
    /// lacks more afterwards, and nobody who has a deadline loses what is planned for him.
    ///
    /// # Errors
    /// There is none, or it is kept for those.
    pub fn room_leaving(
        &self,
        (asked, uid): (&LeaseRequest, u32),
        scene: &Scene<'_>,
        (ahead, leaves_ns): (&Ahead, Option<u64>),
        preferred: &[usize],
    ) -> Result<Room, ErrorBody> {
        let (whom, those) = (Whom::asking(asked, uid), (&ahead.taken[..], &ahead.whose[..]));
        let (mut beside, mut broken, mut planned) = (those.0.to_vec(), BTreeSet::new(), BTreeMap::new());
        loop {
            let room = match self.room_beside(asked, uid, scene, &beside, preferred) {
                Err(_) if !broken.is_empty() => {
                    return Err(reserved_for_others(&broken.into_iter().collect::<Vec<_>>()));
                }
                Err(_) if !planned.is_empty() => return Err(planned_for_others(&planned)),
                outcome => outcome?,
            };
            let taken = room.taken();
            let (now, on) = scene.broken_by(&whom, &taken, those);
            if now.is_empty() {
                // Who would be made to go for one is in its way as little as those who are.
                let concern = |its: &Admitted| !its.is_made || asked.request.priority == Priority::Guaranteed;
                let of = (scene.own_id(asked, uid), uid);
                let broken = scene.plans.broken_by(of, (&taken, &whom), (ahead, leaves_ns), concern);
                let is_theirs = |gpu: &&usize| broken.iter().any(|its| its.plan.taken.indices.contains(gpu));
                let gpu = taken.indices.iter().find(is_theirs).or(taken.indices.first());
                let Some(gpu) = gpu.filter(|_| !broken.is_empty()) else { return Ok(room) };
                beside.push(all_of(*gpu));
                planned.extend(broken.into_iter().map(|its| (its.container_id.clone(), its.plan.begins_ns)));
                continue;
            }
            // It may go elsewhere: beside the GPU where something would be missing then.
            let indices = &room.placed.indices;
            let gpu = indices.iter().find(|gpu| on.contains(gpu)).or(indices.first()).copied();
            let Some(gpu) = gpu else { return Ok(room) };
            beside.push(all_of(gpu));
            broken.extend(now.into_iter().map(|place| scene.table(place)));
        }
    }

    /// Room for a request in what is reserved for it, whoever else waits: none of those has it. Those wait before it who may have it
    /// too. With what they are about to have of their quotas; none if it is too large for what is kept, or nothing is.
    pub fn room_reserved(&self, asked: &LeaseRequest, uid: u32, scene: &Scene<'_>) -> Option<(Room, Ahead)> {
        if scene.reserved.is_empty() {
            return None;
        }
        let whom = Whom::asking(asked, uid);
        let ahead = self.ahead_of_members(&whom, &scene.book.queue.ahead_of(asked, uid), scene);
        let those = (&ahead.taken[..], &ahead.whose[..]);
        let kept = scene.kept_for(&whom, those);
        if kept.is_empty() {
            return None;
        }
        // All but that is as taken; of what others have reserved, what is there.
        let mut beside = ahead.taken.clone();
        let others = scene.reserved.tables.iter().zip(scene.seats_beside(those));
        let others = others.filter(|((_, reservation), _)| !whom.may_have(reservation)).flat_map(|(_, seats)| seats);
        let there = others.map(|seat| Seat { kept: seat.kept.minus(seat.missing), ..seat });
        beside.extend(there.filter_map(|seat| seat.taken()));
        let capacities = scene.capacities_beside(&beside);
        for (gpu, capacity) in capacities.iter().enumerate() {
            let more = kept.get(&gpu).map(|kept| capacity.part_free().minus(*kept));
            match more {
                None => beside.push(all_of(gpu)),
                Some(more) if !more.is_none() => {
                    beside.push(Taken { indices: vec![gpu], demand: Demand::exactly(more) })
                }
                Some(_) => {}
            }
        }
        let open = Scene { may_enter_closed: true, ..scene.clone() };
        let room = self.room_beside(asked, uid, &open, &beside, &[]).ok()?;
        let is_of_it = matches!(room.served.mechanism, Mechanism::Slice | Mechanism::Exclusive);
        // What is kept for both may have been planned for another one of them.
        let may_too = |its: &Admitted| {
            let tables = scene.reserved.tables.iter().map(|(_, reservation)| reservation);
            tables.filter(|its| whom.may_have(its)).any(|reservation| its.whom.may_have(reservation))
        };
        let ends_ns = self.run_of(asked, None).ends_ns.filter(|_| self.lends());
        let (of, taken) = ((scene.own_id(asked, uid), uid), room.taken());
        let leaves_all = |plans: &Plans<'_>, concern: &dyn Fn(&Admitted) -> bool| {
            plans.broken_by(of, (&taken, &whom), (&ahead, ends_ns), concern).is_empty()
        };
        // Of the others' those that begin when it is reserved no more.
        let own = scene.reserved.tables.iter().filter(|(_, its)| whom.may_have(its));
        let now_ns = clock::now_ns();
        let over_ns = own.map(|(_, its)| now_ns.saturating_add(over_in_ns(its))).min().unwrap_or(now_ns);
        let leaves =
            leaves_all(&scene.plans, &may_too) && leaves_all(&scene.plans.as_of(over_ns), &|its| !may_too(its));
        (is_of_it && leaves).then_some((room, ahead))
    }

    /// What those of `waiting` are about to have who may have something of what is reserved for this one.
    pub fn ahead_of_members(&self, whom: &Whom, waiting: &[&Waiter], scene: &Scene<'_>) -> Ahead {
        let own = scene.reserved.tables.iter().map(|(_, reservation)| reservation).filter(|its| whom.may_have(its));
        let own: Vec<&Reservation> = own.collect();
        let may_too = |waiter: &&&Waiter| {
            let its = Whom::asking(&waiter.asked, waiter.uid);
            own.iter().any(|reservation| its.may_have(reservation))
        };
        let members: Vec<&Waiter> = waiting.iter().filter(may_too).copied().collect();
        self.taken_by(&members, &Scene { is_imagined: true, ..scene.clone() })
    }

    /// Whether a lease that grows by `more` of each of these GPUs stays within what is kept for it there.
    pub fn grows_in_what_is_kept(&self, whom: &Whom, gpus: &[usize], more: Part, scene: &Scene<'_>) -> bool {
        let kept = scene.kept_for(whom, (&[], &[]));
        !gpus.is_empty() && gpus.iter().all(|gpu| kept.get(gpu).is_some_and(|part| part.holds(more)))
    }
}

#[cfg(test)]
mod tests;
