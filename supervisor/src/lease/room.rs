//! Where a request fits, beside those who wait for room before it.

use super::ahead::Ahead;
use super::book::{Book, Held};
use super::capacity::note_mps_servers;
use super::counted_memory::only_within_count;
use super::entitlement::{demand_of, held_demand, slice_priority};
use super::grant::Leases;
use super::mechanism::Served;
use super::placing::{open_for, place_among};
use super::plans::Plans;
use super::prospect::Prospect;
use super::quota::{Counted, Holder, Standing, Tally};
use super::record::Record;
use super::refusal::{kept_for_others, quota_kept_for_others, unheard, worded};
use super::reserved::{Reserved, all_of};
use super::spill::check_can_spill;
use super::suitable::{check_suitable, only_kept, only_suitable};
use crate::clock;
use crate::device::Gpu;
use crate::drains::with_drained;
use crate::mps::Domain;
use gpool_policy::admission::{Demand, GpuCapacity, Placement, Users};
use gpool_policy::queue::Taken;
use gpool_protocol::{ContainerId, ErrorBody, GpuUuid, LeaseId, LeaseRequest, Mechanism, Priority, Request};
use std::collections::BTreeSet;
use std::time::Instant;

/// What requests are placed in.
#[derive(Clone)]
pub struct Scene<'a> {
    pub book: &'a Book,
    /// The kept place that counts as free: its container is the one that asks.
    pub own: Option<&'a LeaseId>,
    pub gpus: &'a [Gpu],
    pub capacities: Vec<GpuCapacity>,
    /// What has been reserved by whom; none on a host without quotas.
    pub standing: Option<Standing>,
    /// What reservations keep.
    pub reserved: Reserved,
    /// Leases that count as gone.
    pub gone: BTreeSet<LeaseId>,
    /// Whether some of it is only thought of, so that nothing of it is noted with those who wait.
    pub is_imagined: bool,
    /// Whether nobody hears why there is no room in it, so that it need not be put into words.
    pub is_unheard: bool,
    /// Whether it is this host as it would be with nobody on the GPUs.
    pub is_emptied: bool,
    /// What is planned for those who have a deadline.
    pub plans: Plans<'a>,
    /// Whether GPUs that take nobody in are open: for who comes back to where it was, or has what is reserved there.
    pub may_enter_closed: bool,
}

impl Scene<'_> {
    /// The GPUs with what is taken counted as leased.
    pub fn capacities_beside(&self, taken: &[Taken]) -> Vec<GpuCapacity> {
        let mut capacities = self.capacities.clone();
        taken.iter().for_each(|its| its.enter(&mut capacities));
        capacities
    }

    /// When one ends that is suspended and asks for its room again, CLOCK_MONOTONIC: its request does not say that.
    pub fn end_of_suspended(&self, (asked, uid): (&LeaseRequest, u32)) -> Option<u64> {
        let is_its = |record: &&Record| record.container_id == asked.container_id && record.owner_uid == uid;
        let mut records = self.book.leases.values().map(|lease| &lease.record);
        records.find(is_its).filter(|record| record.is_out()).and_then(|record| record.ends_ns)
    }

    /// By which id the plan of a request is known: in a pod it may be that of the attempt before.
    pub fn own_id<'b>(&'b self, asked: &'b LeaseRequest, uid: u32) -> &'b ContainerId {
        self.book.queue.waiter_of(asked, uid).map_or(&asked.container_id, |waiter| &waiter.asked.container_id)
    }

    /// Places of GPUs that are there.
    pub fn places_of(&self, uuids: &[GpuUuid]) -> Vec<usize> {
        uuids.iter().filter_map(|uuid| self.gpus.iter().position(|gpu| gpu.uuid == *uuid)).collect()
    }

    pub fn uuids_of(&self, places: &[usize]) -> Vec<GpuUuid> {
        places.iter().map(|place| self.gpus[*place].uuid.clone()).collect()
    }
}

/// How a request would be served, and what it may be placed on.
pub struct Choice {
    pub served: Served,
    pub domain: Option<Domain>,
    /// Whether it has what is idle in place of a share, because a budget is spent.
    has_no_hours: bool,
    /// What has to be free for it.
    pub demand: Demand,
    /// What counts of quotas: the same, or the share that it has not.
    counted: Demand,
    capacities: Vec<GpuCapacity>,
    pub open: Vec<usize>,
    /// Why others that would do take nobody in, as ends of a sentence.
    closed: Vec<String>,
}

/// Where a request goes.
pub struct Room {
    pub served: Served,
    pub domain: Option<Domain>,
    pub placed: Placement,
    /// Whether it has what is idle in place of a share, because a budget is spent.
    pub has_no_hours: bool,
    /// Whether it is kept for another one that cannot begin before this one has ended.
    pub is_lent: bool,
    pub demand: Demand,
    /// What counts of quotas.
    pub counted: Demand,
}

impl Room {
    /// What of it counts of quotas.
    pub fn counts(&self) -> (&Served, &Demand, bool, &Placement) {
        (&self.served, &self.counted, self.has_no_hours, &self.placed)
    }

    /// What it takes.
    pub fn taken(&self) -> Taken {
        Taken { indices: self.placed.indices.clone(), demand: self.demand }
    }

    /// Whether it is no more than what this record had, in the same place.
    fn is_within(&self, record: &Record, places: &[usize]) -> bool {
        let held = held_demand(record).guaranteed_permille();
        self.placed.indices == places
            && self.served.mechanism == record.mechanism
            && self.demand.guaranteed_permille() <= held
            && self.placed.memory_bytes <= record.memory_cap_bytes
    }
}

/// What a request would count of the quotas of who makes it, served and placed so.
pub fn tally_of(
    (asked, uid): (&LeaseRequest, u32),
    (served, counted, has_no_hours, placed): (&Served, &Demand, bool, &Placement),
    (gpus, book): (&[Gpu], &Book),
) -> Tally {
    let first = placed.indices.first().map(|place| &gpus[*place]);
    let counted = Counted {
        team: asked.request.team.as_deref(),
        uid,
        mechanism: served.mechanism,
        guaranteed_permille: counted.guaranteed_permille(),
        has_no_hours,
        cap_bytes: match (served.mechanism, asked.request.memory) {
            (Mechanism::TimeSlice, None) => 0,
            _ => placed.memory_bytes,
        },
        gpus: placed.indices.len(),
        product: first.map_or("", |gpu| gpu.name.as_str()),
        profile: first.and_then(|gpu| Some(gpu.instance()?.profile.as_str())),
    };
    counted.tally().coming_back((asked, uid), (gpus, book))
}

impl Leases {
    /// These GPUs as they are now; the kept place `own` counts as free.
    pub fn scene<'a>(&self, book: &'a Book, own: Option<&'a LeaseId>, gpus: &'a [Gpu]) -> Scene<'a> {
        let with_spent = |standing: Standing| standing.with_spent(self.ledger.spent(), clock::unix_ms() / 1000);
        let standing = (!self.configuration().quota.is_empty()).then(|| with_spent(Standing::of(book, gpus)));
        let scene = Scene {
            book,
            own,
            gpus,
            capacities: self.capacities(gpus, book, own),
            standing,
            reserved: self.reserved((book, gpus), own),
            gone: own.cloned().into_iter().collect(),
            is_imagined: false,
            is_unheard: false,
            is_emptied: false,
            plans: Plans::default(),
            may_enter_closed: false,
        };
        Scene { plans: self.plans(&scene), ..scene }
    }

    /// Finds room for a request beside all that stand before it; `home` is what it had where, if it comes back.
    ///
    /// # Errors
    /// A quota that does not let it in, no room, or room that is kept for others.
    pub fn room_for(
        &self,
        asked: &LeaseRequest,
        uid: u32,
        scene: &Scene<'_>,
        home: Option<(&Record, Vec<usize>)>,
    ) -> Result<Room, ErrorBody> {
        let own = home.as_ref().map(|(record, _)| Tally::of(record, scene.gpus));
        let ends_ns = self.run_of(asked, home.as_ref().map(|(record, _)| *record)).ends_ns;
        let goes = |wanted: &Tally, ahead: &[Tally]| self.check_quota(scene, own.as_ref(), wanted, ahead);
        let leaves_plans = |wanted: &Tally| {
            let (of, own) = ((scene.own_id(asked, uid), uid), own.as_ref().zip(scene.own));
            let goes = self.leaves_plans_their_quota(of, scene, (own, wanted), ends_ns);
            goes.then_some(()).ok_or_else(|| quota_kept_for_others(1))
        };
        let counted = |room: &Room| tally_of((asked, uid), room.counts(), (scene.gpus, scene.book));
        // Who comes back to a place that is kept for it was there before those who wait. For more than that it is one of them.
        if let Some((record, places)) = &home
            && let Ok(room) =
                self.room_beside(asked, uid, &Scene { may_enter_closed: true, ..scene.clone() }, &[], places)
            && room.is_within(record, places)
            && goes(&counted(&room), &[]).is_ok()
        {
            return Ok(room);
        }
        if let Some((room, ahead)) = self.room_reserved(asked, uid, scene)
            && goes(&counted(&room), &ahead.reserved).is_ok()
            && leaves_plans(&counted(&room)).is_ok()
        {
            return Ok(room);
        }
        let home = home.map(|(_, places)| places);
        let waiting = scene.book.queue.ahead_of(asked, uid);
        let ahead = self.taken_by(&waiting, scene);
        let waiter = scene.book.queue.waiter_of(asked, uid);
        let planned = waiter.map(|waiter| scene.places_of(&waiter.preferred()));
        // Whose moment has come is, where it was to be, behind nobody for whom there is no room yet.
        let due = planned.as_ref().filter(|_| waiter.is_some_and(|waiter| waiter.is_due(clock::now_ns())));
        let of_due = due.and_then(|planned| {
            let there = ahead.of_room_that_is_there();
            let room = self.room_behind((asked, uid), scene, (&there, ends_ns), planned).ok()?;
            room.placed.indices.iter().all(|gpu| planned.contains(gpu)).then_some((room, there))
        });
        let preferred = home.or(planned).unwrap_or_default();
        let (room, ahead) = match of_due {
            Some((room, there)) => (Ok(room), there),
            None => (self.room_behind((asked, uid), scene, (&ahead, ends_ns), &preferred), ahead),
        };
        let (taken, reserved) = (&ahead.taken, &ahead.reserved);
        // Room is no help beyond a quota, so that is told first, also where there is none.
        let wanted = match &room {
            Ok(room) => Some(counted(room)),
            Err(_) if scene.standing.is_none() => None,
            Err(_) => self.alone(asked, uid, scene).map(|(_, wanted)| wanted),
        };
        wanted.as_ref().map_or(Ok(()), |wanted| goes(wanted, &[]))?;
        let is_kept = room.is_ok() && wanted.is_some_and(|wanted| goes(&wanted, reserved).is_err());
        if is_kept {
            return Err(quota_kept_for_others(reserved.len()));
        }
        if let Ok(room) = &room {
            leaves_plans(&counted(room))?;
        }
        if room.is_ok() || taken.is_empty() {
            return room;
        }
        // Where there is none without the others either, that is told: what is free, as anybody can see it.
        let nobody = Ahead::default();
        let without = self.room_behind((asked, uid), scene, (&nobody, ends_ns), &preferred);
        without.and_then(|_| Err(kept_for_others(taken.len(), self.lent_seconds((asked, uid), scene, &ahead))))
    }

    /// Whether quotas let a lease in, beside what those `ahead` are about to have; `own` is what it has itself.
    ///
    /// # Errors
    /// One does not.
    pub fn check_quota(
        &self,
        scene: &Scene<'_>,
        own: Option<&Tally>,
        wanted: &Tally,
        ahead: &[Tally],
    ) -> Result<(), ErrorBody> {
        self.check_quota_at(scene, (own, wanted), ahead, clock::unix_ms())
    }

    /// The same of a moment, Unix milliseconds, by which an emergency may be over.
    ///
    /// # Errors
    /// One does not.
    pub fn check_quota_at(
        &self,
        scene: &Scene<'_>,
        (own, wanted): (Option<&Tally>, &Tally),
        ahead: &[Tally],
        unix_ms: u64,
    ) -> Result<(), ErrorBody> {
        let Some(standing) = &scene.standing else { return Ok(()) };
        if self.overrides.of_at(wanted.holders(), unix_ms).is_some() {
            return Ok(());
        }
        let checked = standing.check(&self.configuration().quota, own, wanted, ahead);
        checked.map_err(|over| if scene.is_unheard { unheard() } else { over.worded() })
    }

    /// What is free of each GPU for such a lease, beside what is taken: of an MPS server, also by whom it could be joined.
    pub fn capacities_for(
        &self,
        scene: &Scene<'_>,
        domain: Option<&Domain>,
        demand: &Demand,
        taken: &[Taken],
    ) -> Vec<GpuCapacity> {
        let mut capacities = scene.capacities.clone();
        if let Some(domain) = domain {
            let (whose, count) = (domain, demand.gpus.max(1));
            note_mps_servers(&mut capacities, (scene.gpus, scene.book), (whose, count), scene.own);
            if !scene.is_emptied {
                self.note_servers_closed(&mut capacities, (scene.gpus, scene.book), (whose, count));
            }
        }
        taken.iter().for_each(|its| its.enter(&mut capacities));
        capacities
    }

    /// How a request would be served if nobody were on the GPUs, and what that would count of quotas; none if not even then.
    pub fn alone(&self, asked: &LeaseRequest, uid: u32, scene: &Scene<'_>) -> Option<(Choice, Tally)> {
        let book = Book::default();
        let emptied = emptied(scene, &book);
        let choice = self.choose(asked, uid, &emptied, &[]).ok()?;
        let placed = place_among(&choice.capacities, &choice.open, &choice.demand).ok()?;
        let counts = (&choice.served, &choice.counted, choice.has_no_hours, &placed);
        let wanted = tally_of((asked, uid), counts, (scene.gpus, scene.book));
        Some((choice, wanted))
    }

    /// Whether a request would have room if nobody were on the GPUs, and goes with the quotas of its team and its user if they have
    /// nothing else. By `real`, the book, it is known what it comes back to. Those that do not answer, or are drained, may again.
    ///
    /// # Errors
    /// Why not.
    pub fn could_fit(&self, asked: &LeaseRequest, uid: u32, real: &Book) -> Result<(), ErrorBody> {
        self.could_fit_on(&self.gpus(), (asked, uid), real)
    }

    /// The same on these GPUs.
    ///
    /// # Errors
    /// Why not.
    pub fn could_fit_on(&self, gpus: &[Gpu], (asked, uid): (&LeaseRequest, u32), real: &Book) -> Result<(), ErrorBody> {
        let book = Book::default();
        let scene = self.scene(&book, None, gpus);
        // Nor does it matter how far a budget is spent: the next one comes.
        let without_spent = |standing: Standing| standing.with_spent(None, clock::unix_ms() / 1000);
        let scene = Scene { standing: scene.standing.clone().map(without_spent), ..scene };
        let emptied = emptied(&scene, &book);
        let room = self.room_leaving((asked, uid), &emptied, (&Ahead::default(), None), &[])?;
        let wanted = tally_of((asked, uid), room.counts(), (gpus, real));
        self.check_quota(&emptied, None, &wanted, &[])?;
        if room.served.mechanism == Mechanism::Mps { self.check_serves_mps() } else { Ok(()) }
    }

    /// Finds room for a request beside what is `taken`, on some of the `preferred` GPUs if it fits there.
    pub fn room_beside(
        &self,
        asked: &LeaseRequest,
        uid: u32,
        scene: &Scene<'_>,
        taken: &[Taken],
        preferred: &[usize],
    ) -> Result<Room, ErrorBody> {
        let Choice { served, domain, has_no_hours, demand, counted, capacities, open, closed } =
            self.choose(asked, uid, scene, taken)?;
        let preferred: Vec<usize> = preferred.iter().copied().filter(|gpu| open.contains(gpu)).collect();
        let is_there = preferred.len() >= demand.gpus.max(1);
        let placed = is_there.then(|| place_among(&capacities, &preferred, &demand).ok()).flatten();
        // Where it would have its share it has that again, and most of what is idle until then.
        let with_share = || has_no_hours.then(|| place_among(&capacities, &open, &counted).ok()).flatten();
        let calm = self.calm_ones(&asked.request, served.mechanism, scene.book, &open);
        let on_calm = || place_among(&capacities, calm.as_deref()?, &demand).ok();
        let placed = placed.or_else(with_share).or_else(on_calm);
        let placed = placed.map_or_else(|| place_among(&capacities, &open, &demand), Ok);
        let placed = placed.map_err(|refusal| {
            if scene.is_unheard {
                return unheard();
            }
            let may_wait = asked.request.wait_seconds.is_none() && self.configuration().queue.places > 0;
            let prospect = Prospect::of(scene, (&capacities, &open, &demand), may_wait, Instant::now());
            match &domain {
                Some(domain) => self.with_faults(worded(&refusal, prospect), scene.book, domain),
                None => worded(&refusal, prospect),
            }
        });
        let placed = placed.map_err(|refusal| with_drained(refusal, &closed))?;
        check_can_spill(&asked.request, served.mechanism)?;
        self.check_spill(asked, uid, scene.book)?;
        Ok(Room { served, domain, placed, has_no_hours, is_lent: false, demand, counted })
    }

    /// By which mechanism, and on which GPUs at all.
    fn choose(&self, asked: &LeaseRequest, uid: u32, scene: &Scene<'_>, taken: &[Taken]) -> Result<Choice, ErrorBody> {
        let Scene { book, own, gpus, .. } = scene;
        check_suitable(&asked.request, gpus)?;
        let capacities = scene.capacities_beside(taken);
        let has_no_hours = self.has_no_hours(asked, uid, scene);
        // What serves is found on those that take it in, where there is such a thing.
        let closed = self.closing_to(scene, (asked, uid));
        let on_others = || {
            let mut elsewhere = capacities.clone();
            closed.keys().for_each(|gpu| all_of(*gpu).enter(&mut elsewhere));
            self.mechanism_for(asked, (book, *own), gpus, &elsewhere).ok()
        };
        let on_others = if closed.is_empty() { None } else { on_others() };
        let served = on_others.map_or_else(|| self.mechanism_for(asked, (book, *own), gpus, &capacities), Ok);
        let served = served.or_else(|refusal| {
            // Where its share is not free there may be slices without one.
            let mut idle = asked.clone();
            idle.request.priority = Priority::Burst;
            let on_slices = has_no_hours.then(|| self.mechanism_for(&idle, (book, *own), gpus, &capacities).ok());
            let on_slices = on_slices.flatten().filter(|served| served.mechanism == Mechanism::Slice);
            let as_asked = |served: Served| {
                let request = Request { priority: asked.request.priority, ..served.request };
                Served { request, ..served }
            };
            on_slices.map(as_asked).ok_or(refusal)
        })?;
        // Of whole GPUs, instances and what the hardware keeps nobody has what is idle.
        let has_no_hours = has_no_hours && served.mechanism == Mechanism::Slice;
        let counted = demand_of(&served.request, served.mechanism);
        let demand = match has_no_hours {
            true => Demand { priority: slice_priority(Priority::Burst), ..counted },
            false => counted,
        };
        let domain = (served.mechanism == Mechanism::Mps).then(|| self.mps_domain(asked, uid)).transpose()?;
        let capacities = self.capacities_for(scene, domain.as_ref(), &demand, taken);
        let mut open = open_for(&served, gpus, book)?;
        if served.instance.is_none() {
            open = only_suitable(&asked.request, open, gpus)?;
        }
        open = only_within_count(&self.configuration().policy, &asked.request, open, gpus)?;
        let mut open = self.without_other_modes(open, &served, gpus)?;
        if served.mechanism == Mechanism::TimeSlice && demand.fraction_permille > 0 {
            open = only_kept(open, |gpu| self.time_slices.keeps(&gpus[gpu].uuid))?;
        }
        let (open, closed) = self.without_closed(open, scene, (asked, uid), demand.gpus.max(1))?;
        Ok(Choice { served, domain, has_no_hours, demand, counted, capacities, open, closed })
    }

    /// Whether a request that asks for a share has none, and what is idle on slices: a budget is spent, or it comes back to a place in which
    /// it had that.
    pub fn has_no_hours(&self, asked: &LeaseRequest, uid: u32, scene: &Scene<'_>) -> bool {
        self.has_no_hours_at(asked, uid, scene, clock::unix_ms())
    }

    /// The same of a moment, Unix milliseconds, by which an emergency may be over.
    pub fn has_no_hours_at(&self, asked: &LeaseRequest, uid: u32, scene: &Scene<'_>, unix_ms: u64) -> bool {
        if asked.request.priority != Priority::Guaranteed {
            return false;
        }
        let is_home =
            |held: &&Held| Some(&held.record.lease_id) == scene.own && held.record.is_started_anew_by(asked, uid);
        let comes_back = scene.book.held.iter().find(is_home).is_some_and(|held| held.record.is_beyond_budget());
        let team = asked.request.team.as_deref();
        let is_lifted = || self.overrides.of_at(&Holder::both(team, uid), unix_ms).is_some();
        let is_spent =
            |standing: &Standing| standing.has_no_hours(team, uid, &self.configuration().quota) && !is_lifted();
        comes_back || scene.standing.as_ref().is_some_and(is_spent)
    }
}

/// The same GPUs with nobody on them.
pub fn emptied<'a>(scene: &'a Scene<'_>, book: &'a Book) -> Scene<'a> {
    let without = |gpu: &GpuCapacity| GpuCapacity {
        memory_foreign_bytes: 0,
        fraction_leased_permille: 0,
        memory_leased_bytes: 0,
        users: Users::default(),
        ..gpu.clone()
    };
    let capacities = scene.capacities.iter().map(without).collect();
    let standing = scene.standing.as_ref().map(Standing::emptied);
    let (reserved, gone) = (scene.reserved.for_good(), BTreeSet::new());
    Scene {
        book,
        own: None,
        gpus: scene.gpus,
        capacities,
        standing,
        reserved,
        gone,
        is_imagined: true,
        is_unheard: scene.is_unheard,
        is_emptied: true,
        plans: Plans::default(),
        may_enter_closed: false,
    }
}
