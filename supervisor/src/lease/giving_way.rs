//! Which leases would make room for somebody who waits: idle ones, and those of a lower priority.

use super::ahead::Ahead;
use super::book::{Book, Lease};
use super::entitlement::{held_demand, share_of, shown_priority, slice_priority};
use super::grant::Leases;
use super::plans::{Plans, SETTLE_NS};
use super::quota::Tally;
use super::record::Record;
use super::reserved::{self, Whom};
use super::room::Scene;
use crate::clock;
use crate::device::Gpu;
use crate::queue::Waiter;
use gpool_configuration::{Configuration, Reservation};
use gpool_policy::giving_way::needed;
use gpool_policy::preemption::{Candidate, Leaving, Need, Rule, Turn, Wait};
use gpool_policy::slice::Priority as SlicePriority;
use gpool_protocol::{ContainerId, LeaseId, LeaseState, Mechanism, Priority, format_seconds};
use serde::{Deserialize, Serialize};
use std::borrow::Cow;
use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

/// For so long what was taken counts as about to be free. A device that does not give it back keeps nobody from being helped
/// otherwise.
pub const CLEARANCE_PATIENCE: Duration = Duration::from_secs(30);

/// Leases that have to go so that somebody who waits has room.
#[derive(Debug, PartialEq, Eq)]
pub struct GivingWay {
    /// Those leases.
    pub leases: Vec<LeaseId>,
    /// For whom.
    pub waits: ContainerId,
}

/// For whom others make room.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum ForWhom {
    /// A container that waits.
    Waits(ContainerId),
    /// A reservation, by its name.
    Reservation(String),
}

/// Leases of a lower priority that go for somebody who waits, or for a reservation.
#[derive(Debug, PartialEq, Eq)]
pub struct MakingRoom {
    /// Those leases.
    pub leases: Vec<LeaseId>,
    /// For whom.
    pub for_whom: ForWhom,
    /// Whether they have to.
    pub need: Need,
    /// Before whom that one is served.
    priority: SlicePriority,
    /// Which share of each of its GPUs it asks for, permille.
    wanted_permille: u16,
}

impl MakingRoom {
    fn of(waiter: &Waiter, priority: SlicePriority, leases: Vec<LeaseId>, need: Need) -> Self {
        // Who asks for no share wants all of a GPU.
        let wanted_permille = Some(waiter.asked.request.fraction_permille).filter(|permille| *permille > 0);
        Self {
            leases,
            for_whom: ForWhom::Waits(waiter.asked.container_id.clone()),
            need,
            priority,
            wanted_permille: wanted_permille.unwrap_or(1000),
        }
    }

    /// Nobody who may have a reservation is there yet, so that it is as if one waited who is promised all of it.
    fn of_reservation(name: &str, reservation: &Reservation, leases: Vec<LeaseId>, need: Need) -> Self {
        let permille = Some(reservation.fraction.permille).filter(|permille| *permille > 0);
        Self {
            leases,
            for_whom: ForWhom::Reservation(name.to_owned()),
            need,
            priority: SlicePriority::Guaranteed,
            wanted_permille: permille.unwrap_or(1000),
        }
    }
}

impl Leases {
    /// Which of the `idle` leases, those first that have been idle for longest, have to go so that the first in the queue
    /// fits who does not now and would then. A lease gives way to no lower priority than its own. None if there is nobody.
    pub fn giving_way(&self, idle: &[LeaseId]) -> Option<GivingWay> {
        let book = self.book();
        let (gpus, in_order) = (self.gpus_for_new(), book.queue.in_order());
        // With a driver that was replaced nobody can be started.
        if in_order.is_empty() || self.replaced_driver().is_some() {
            return None;
        }
        let outside = self.left_without_leases(&gpus, &book);
        let scene = self.scene_to_come(&book, &gpus, &outside);
        self.needy(&in_order, &scene).into_iter().find_map(|(place, waiter)| {
            let ahead = self.taken_by(&in_order[..place], &scene);
            // Nobody goes for room that is lent: it would be over before that is free.
            let fits = |scene: &Scene<'_>| self.place_replanned(waiter, scene, &ahead, None).is_some();
            if fits(&scene) || self.fits_beside(waiter, &self.replanned(&scene, None), &ahead) {
                return None;
            }
            let rank = self.rank_of(waiter, &scene);
            let may_go = |id: &&LeaseId| priority_of(&book, id).is_some_and(|its| rank <= its);
            let candidates: Vec<LeaseId> = idle.iter().filter(may_go).cloned().collect();
            let leases = needed(&candidates, |gone: &[LeaseId]| fits(&scene.without(gone, &outside)))?;
            Some(GivingWay { leases, waits: waiter.asked.container_id.clone() })
        })
    }

    /// Which of the `candidates`, those first that stand first, have to go for whom of the queue: each that does not fit has as
    /// many of a lower priority go as it needs, beside all that go for those before it. What they make room on is kept for it
    /// from now on, until nobody makes room for it any more.
    pub fn making_room(
        &self,
        book: &Book,
        candidates: &[(LeaseId, Candidate)],
        (rule, now_ns): (Rule, u64),
    ) -> Vec<MakingRoom> {
        let (gpus, in_order) = (self.gpus_for_new(), book.queue.in_order());
        let outside = self.left_without_leases(&gpus, book);
        let mut coming = self.scene_to_come(book, &gpus, &outside);
        // As it is if whoever has a place that is kept comes back to it.
        let mut full = self.scene_beside_kept(book, &gpus, &outside);
        let mut found: Vec<MakingRoom> = Vec::new();
        let now = Scene { is_imagined: true, ..self.scene(book, None, &gpus) };
        self.for_reservations(candidates, (rule, &outside), &now, (&mut coming, &mut full), &mut found);
        let needy = self.needy(&in_order, &coming);
        let looked_at: BTreeSet<usize> = needy.iter().map(|(place, _)| *place).collect();
        let others = in_order.iter().enumerate().filter(|(place, _)| !looked_at.contains(place));
        others.for_each(|(_, waiter)| waiter.making_on.borrow_mut().clear());
        for (place, waiter) in needy {
            let for_whom = &ForWhom::Waits(waiter.asked.container_id.clone());
            let ahead = self.taken_by(&in_order[..place], &coming);
            // Nobody goes for room that is lent: it would be over before that is free.
            // Who waits for the end of others as well begins when that has come.
            let made_ns = waiter.made_within(rule.lead_ns(), now_ns);
            let fits = |scene: &Scene<'_>| {
                let then = match made_ns {
                    Some(at_ns) => Cow::Owned(scene.without_ended(at_ns.saturating_sub(SETTLE_NS), now_ns, &outside)),
                    None => Cow::Borrowed(scene),
                };
                self.place_replanned(waiter, &then, &ahead, made_ns)
            };
            let is_told_for_it = book.leases.keys().any(|id| book.makes_room_for(id, for_whom));
            let begins_first =
                waiter.begins_ns.get().is_some_and(|at_ns| at_ns <= now_ns.saturating_add(rule.grace_ns));
            let needs_nobody = self.fits_beside(waiter, &now, &ahead) || begins_first && !is_told_for_it;
            if fits(&coming).is_none() && needs_nobody {
                waiter.making_on.borrow_mut().clear();
                continue;
            }
            let is_taken = |id: &LeaseId| found.iter().any(|its| its.leases.contains(id));
            let rank = self.rank_of(waiter, &coming);
            let is_lower = |its: &Candidate| rank < its.priority;
            let is_told =
                |(id, its): &&(LeaseId, Candidate)| is_lower(its) && book.makes_room_for(id, for_whom) && !is_taken(id);
            let told = || candidates.iter().filter(is_told).map(|(id, _)| id.clone()).collect();
            let unsure = || MakingRoom::of(waiter, rank, told(), Need::Unsure);
            if let Some(place) = fits(&coming) {
                // Also while the device has to give back what was taken, but nowhere else than where it will go.
                if !waiter.making_on.borrow().is_empty() {
                    *waiter.making_on.borrow_mut() = coming.uuids_of(&place);
                }
                if fits(&full).is_none() {
                    found.push(unsure());
                }
                continue;
            }
            let wait = Wait { priority: rank, ..waiter.wait_for_room(now_ns) };
            // In an emergency it has waited for long enough.
            let wait = match book.queue.is_urgent(&waiter.asked, waiter.uid) {
                true => Wait { waited_ns: u64::MAX, ..wait },
                false => wait,
            };
            let gives_way =
                |id: &LeaseId, its: &Candidate| its.gives_way_to(wait, book.makes_room_for(id, for_whom), rule);
            let may_go = candidates.iter().filter(|(id, its)| gives_way(id, its) && !is_taken(id));
            let may_go: Vec<LeaseId> = may_go.map(|(id, _)| id.clone()).collect();
            let without = |gone: &[LeaseId]| fits(&coming.without(gone, &outside));
            let Some(leases) = needed(&may_go, |gone| without(gone).is_some()) else {
                waiter.making_on.borrow_mut().clear();
                continue;
            };
            if fits(&full.without(&leases, &outside)).is_none() {
                found.push(unsure());
                continue;
            }
            *waiter.making_on.borrow_mut() = coming.uuids_of(&without(&leases).unwrap_or_default());
            (coming, full) = (coming.without(&leases, &outside), full.without(&leases, &outside));
            found.push(MakingRoom::of(waiter, rank, leases, Need::Yes));
        }
        found
    }

    /// The scene with what is planned beside who is there in it: those who are gone are in nobody's way. From a moment on, if that is what
    /// it is of.
    fn replanned<'a, 'b>(&self, scene: &'b Scene<'a>, at_ns: Option<u64>) -> Cow<'b, Scene<'a>> {
        if scene.plans.is_empty() {
            return Cow::Borrowed(scene);
        }
        let plans = self.plans(scene);
        let plans = at_ns.map_or_else(|| plans.clone(), |at_ns| plans.as_of(at_ns));
        Cow::Owned(Scene { plans, ..scene.clone() })
    }

    /// Where one that waits has room beside all that is kept, and beside what is planned for others.
    fn place_replanned(
        &self,
        waiter: &Waiter,
        scene: &Scene<'_>,
        ahead: &Ahead,
        at_ns: Option<u64>,
    ) -> Option<Vec<usize>> {
        let place = |scene: &Scene<'_>| self.place_beside(waiter, scene, (ahead, None));
        if scene.plans.is_empty() {
            return place(scene);
        }
        // To plan anew takes its time, and is of no use where there is no room in any case.
        place(&Scene { plans: Plans::default(), ..scene.clone() })?;
        place(&self.replanned(scene, at_ns))
    }

    /// Who has to go for reservations, before all that wait: as few as make as much of each free as the going of all of a lower
    /// priority would. The scenes are without them then.
    fn for_reservations(
        &self,
        candidates: &[(LeaseId, Candidate)],
        (rule, outside): (Rule, &[u32]),
        now: &Scene<'_>,
        (coming, full): (&mut Scene<'_>, &mut Scene<'_>),
        found: &mut Vec<MakingRoom>,
    ) {
        let book = coming.book;
        let tables = coming.reserved.near(&self.configuration().preemption);
        book.making_on.borrow_mut().retain(|name, _| tables.iter().any(|(its, _)| its == name));
        for (name, reservation) in tables {
            // It is known for long that it comes, and when.
            let left_ns = reserved::left_ns(&reservation);
            let wait = Wait { priority: SlicePriority::Guaranteed, waited_ns: u64::MAX, left_ns };
            let for_whom = ForWhom::Reservation(name.clone());
            // Where it is whole by now, wherever that is, nobody need go.
            let made_on = book.making_on.borrow_mut().remove(&name);
            // Who ends by himself before it begins is not in its way.
            let now_ns = clock::now_ns();
            let opens_ns = reserved::opens_ns(&reservation, now_ns);
            let missing = |scene: &Scene<'_>| scene.without_ended(opens_ns, now_ns, outside).missing_of(&name);
            if missing(now).is_none() {
                // There it stays, or others would have what is whole by their ends alone.
                if !now.missing_of(&name).is_none() {
                    let on = now.without_ended(opens_ns, now_ns, outside).seats_of(&name);
                    book.making_on.borrow_mut().insert(name.clone(), on);
                }
                continue;
            }
            if let Some(on) = made_on {
                book.making_on.borrow_mut().insert(name.clone(), on);
            }
            let is_taken = |id: &LeaseId| found.iter().any(|its: &MakingRoom| its.leases.contains(id));
            let is_others =
                |id: &LeaseId| book.leases.get(id).is_some_and(|lease| !Whom::of(&lease.record).may_have(&reservation));
            let gives_way = |(id, its): &&(LeaseId, Candidate)| {
                let is_told = book.makes_room_for(id, &for_whom);
                its.gives_way_to(wait, is_told, rule) && !is_taken(id) && is_others(id)
            };
            let mut may_go: Vec<LeaseId> = candidates.iter().filter(gives_way).map(|(id, _)| id.clone()).collect();
            // Nobody has to leave what is reserved for it by another one.
            may_go.retain(|id| !coming.others_lack_more(&name, &coming.without(std::slice::from_ref(id), outside)));
            let least = missing(&coming.without(&may_go, outside));
            let is_as_good = |scene: &Scene<'_>, gone: &[LeaseId]| least.holds(missing(&scene.without(gone, outside)));
            let leases = match is_as_good(coming, &[]) {
                true => Vec::new(),
                false => needed(&may_go, |gone| is_as_good(coming, gone)).unwrap_or_default(),
            };
            // If whoever has a place that is kept comes back to it.
            if !is_as_good(full, &leases) {
                let told = may_go.iter().filter(|id| book.makes_room_for(id, &for_whom)).cloned().collect();
                found.push(MakingRoom::of_reservation(&name, &reservation, told, Need::Unsure));
                continue;
            }
            if leases.is_empty() {
                // It stays where others had to go until the device has that back.
                if least.holds(missing(now)) {
                    book.making_on.borrow_mut().remove(&name);
                }
            } else {
                (*coming, *full) = (coming.without(&leases, outside), full.without(&leases, outside));
                // There it stays meanwhile, or nobody would be kept from what the first have left.
                let on = coming.without_ended(opens_ns, now_ns, outside).seats_of(&name);
                book.making_on.borrow_mut().insert(name.clone(), on);
                found.push(MakingRoom::of_reservation(&name, &reservation, leases, Need::Yes));
            }
        }
    }

    /// Before whom one that waits will be served. Who will have what is idle because a budget is spent is before nobody that is promised
    /// anything, nor before its like.
    fn rank_of(&self, waiter: &Waiter, scene: &Scene<'_>) -> SlicePriority {
        match self.has_no_hours(&waiter.asked, waiter.uid, scene) {
            true => slice_priority(Priority::Burst),
            false => waiter.claim.priority,
        }
    }

    /// How those that make room are served meanwhile; of none that has no slices.
    pub fn turns(&self, book: &Book, making: &[MakingRoom]) -> BTreeMap<LeaseId, Turn> {
        if making.is_empty() {
            return BTreeMap::new();
        }
        let gpus = self.gpus_for_new();
        let capacities = self.capacities(&gpus, book, None);
        let sliced = |id: &LeaseId| book.leases.get(id).filter(|lease| lease.record.mechanism == Mechanism::Slice);
        let all: Vec<&Lease> = making.iter().flat_map(|its| &its.leases).filter_map(sliced).collect();
        let leaving_on = |gpu: usize| Leaving {
            free_permille: capacities.get(gpu).map_or(0, |its| 1000u16.saturating_sub(its.fraction_leased_permille)),
            leases: all.iter().filter(|lease| lease.place_of(gpu).is_some()).count().try_into().unwrap_or(u16::MAX),
        };
        let of = |its: &MakingRoom, lease: &Lease| {
            Turn::in_place_of(its.priority, its.wanted_permille, lease.gpus().map(leaving_on))
        };
        let both = making.iter().flat_map(|its| its.leases.iter().map(move |id| (its, id)));
        both.filter_map(|(its, id)| Some((id.clone(), of(its, sliced(id)?)?))).collect()
    }

    /// These GPUs with what is about to be free, kept places included.
    fn scene_to_come<'a>(&self, book: &'a Book, gpus: &'a [Gpu], outside: &[u32]) -> Scene<'a> {
        let mut scene = self.scene_beside_kept(book, gpus, outside);
        scene.free(outside, |_, state| state == LeaseState::Held);
        scene
    }

    /// The same without those: what the device has just to give back, and what those have who were told to make room and have
    /// ended.
    fn scene_beside_kept<'a>(&self, book: &'a Book, gpus: &'a [Gpu], outside: &[u32]) -> Scene<'a> {
        let mut scene = Scene { is_imagined: true, ..self.scene(book, None, gpus) };
        scene.free_what_comes(outside);
        scene
    }
}

impl Book {
    /// Whether this lease was told to make room for that one.
    fn makes_room_for(&self, id: &LeaseId, for_whom: &ForWhom) -> bool {
        self.leases
            .get(id)
            .is_some_and(|lease| lease.leaves_ns().is_some() && lease.makes_room.for_whom.as_ref() == Some(for_whom))
    }

    /// What is said to who waits if others make room for it.
    pub fn room_in_the_making(&self, waits: &ContainerId) -> Option<String> {
        let for_whom = ForWhom::Waits(waits.clone());
        let all = self.leases.values().filter(|lease| lease.makes_room.for_whom.as_ref() == Some(&for_whom));
        let until: Vec<u64> = all.filter_map(Lease::leaves_ns).collect();
        let left_ns = until.iter().max()?.saturating_sub(clock::now_ns());
        let who = match until.len() {
            1 => "a container of a lower priority makes".to_owned(),
            several => format!("{several} containers of a lower priority make"),
        };
        // Of whom all are needed nobody goes before the last.
        Some(format!("{who} room for it, in {} at the latest", format_seconds(left_ns.div_ceil(1_000_000_000))))
    }
}

fn priority_of(book: &Book, id: &LeaseId) -> Option<SlicePriority> {
    book.leases.get(id).map(|lease| slice_priority(lease.record.priority))
}

impl Lease {
    /// With which share of each GPU and as which priority it is served while it leaves, if not as its own.
    pub fn served_meanwhile(&self, configuration: &Configuration) -> Option<(u16, Priority)> {
        let served = self.share(configuration);
        let is_own = served == share_of(configuration, &self.record);
        (!is_own).then(|| (served.weight_permille, shown_priority(served.priority)))
    }
}

impl<'a> Scene<'a> {
    /// The same without these leases.
    fn without(&self, gone: &[LeaseId], outside: &[u32]) -> Scene<'a> {
        let mut emptier = self.clone();
        emptier.free(outside, |record, _| record.revocation.is_none() && gone.contains(&record.lease_id));
        emptier
    }

    /// Counts as free what the device has just to give back, and what those have who were told to make room and have ended.
    pub fn free_what_comes(&mut self, outside: &[u32]) {
        let (book, now_ns) = (self.book, clock::now_ns());
        let patience_ns = CLEARANCE_PATIENCE.as_nanos() as u64;
        let is_about_to_end = |id: &LeaseId| {
            let lease = book.leases.get(id)?;
            let until_ns = lease.makes_room.notice.until_ns().map(|until_ns| until_ns.saturating_add(patience_ns));
            let is_leaving = until_ns.is_some_and(|until_ns| now_ns < until_ns);
            let is_cleared = lease.revoked_at.is_some_and(|since| since.elapsed() < CLEARANCE_PATIENCE);
            let goes_out = lease.record.is_going_out() && lease.record.revocation.is_none();
            Some(is_cleared || goes_out || is_leaving && lease.state == LeaseState::Ending)
        };
        self.free(outside, |record, _| is_about_to_end(&record.lease_id) == Some(true));
    }

    /// Counts what leases and kept places have as free where `is_gone` says so, of each once. On a GPU that nobody has then, as many
    /// processes as `outside` says are in the way of who wants all of it.
    pub fn free(&mut self, outside: &[u32], is_gone: impl Fn(&Record, LeaseState) -> bool) {
        let running = self.book.leases.values().map(|lease| (&lease.record, lease.state, lease.gpus().collect()));
        let kept = self.book.held.iter().map(|held| (&held.record, LeaseState::Held, held.gpus.clone()));
        let all: Vec<(&Record, LeaseState, Vec<usize>)> = running.chain(kept).collect();
        for (record, _, gpus) in all.into_iter().filter(|(record, state, _)| is_gone(record, *state)) {
            if record.has_no_share() || !self.gone.insert(record.lease_id.clone()) {
                continue;
            }
            self.reserved.forget(|id| *id == record.lease_id);
            let reserved = Tally::of(record, self.gpus);
            self.standing.iter_mut().for_each(|standing| standing.take_out(&reserved));
            for gpu in gpus {
                let Some(capacity) = self.capacities.get_mut(gpu) else { continue };
                let permille = held_demand(record).guaranteed_permille();
                capacity.fraction_leased_permille = capacity.fraction_leased_permille.saturating_sub(permille);
                capacity.memory_leased_bytes = capacity.memory_leased_bytes.saturating_sub(record.promised_bytes());
                let users = match record.mechanism {
                    Mechanism::Slice => &mut capacity.users.sliced,
                    Mechanism::Exclusive | Mechanism::Mig => &mut capacity.users.whole,
                    Mechanism::TimeSlice => &mut capacity.users.time_sliced,
                    Mechanism::Mps => &mut capacity.users.mps,
                };
                *users = users.saturating_sub(1);
                let users = &mut capacity.users;
                if users.sliced + users.whole + users.time_sliced + users.mps == 0 {
                    users.outside = outside.get(gpu).copied().unwrap_or(0);
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::book::Held;
    use super::super::capacity::capacities;
    use super::super::quota::{Holder, Standing};
    use super::super::record::sample;
    use super::*;
    use gpool_protocol::GpuUuid;
    use std::time::Instant;

    #[test]
    fn what_is_gone_is_free_on_each_of_its_gpus_and_the_rest_is_not() {
        let gpus = [Gpu::sample(0), Gpu::sample(1)];
        let place = |id: &str, on: &[usize], mechanism| {
            let mut record = sample();
            (record.lease_id, record.mechanism) = (LeaseId(id.into()), mechanism);
            record.gpu_uuids = on.iter().map(|gpu| GpuUuid(gpus[*gpu].uuid.0.clone())).collect();
            Held { record, gpus: on.to_vec(), until: Instant::now() }
        };
        let held = vec![place("01", &[0, 1], Mechanism::Slice), place("02", &[1], Mechanism::Slice)];
        let book = Book { held, ..Book::default() };
        let capacities = capacities(&gpus, &[], &[], &book, None);
        let standing = Some(Standing::of(&book, &gpus));
        let mut scene = Scene {
            book: &book,
            own: None,
            gpus: &gpus,
            capacities,
            standing,
            reserved: Default::default(),
            gone: Default::default(),
            is_imagined: true,
            is_unheard: false,
            is_emptied: false,
            may_enter_closed: false,
            plans: Default::default(),
        };
        let left = |scene: &Scene<'_>| -> Vec<(u16, u64, u32)> {
            let of = |its: &gpool_policy::admission::GpuCapacity| {
                (its.fraction_leased_permille, its.memory_leased_bytes >> 30, its.users.sliced)
            };
            scene.capacities.iter().map(of).collect()
        };
        assert_eq!(left(&scene), [(300, 4, 1), (600, 8, 2)]);
        scene.free(&[7, 9], |record, _| record.lease_id.0 == "01");
        scene.free(&[7, 9], |record, _| record.lease_id.0 == "01");
        assert_eq!(left(&scene), [(0, 0, 0), (300, 4, 1)]);
        let outside: Vec<u32> = scene.capacities.iter().map(|its| its.users.outside).collect();
        assert_eq!(outside, [7, 0], "who is on a GPU without a lease is in the way where nobody has one");
        let reserved = scene.standing.as_ref().unwrap().held(&Holder::NoTeam);
        assert_eq!((reserved.share_permille, reserved.leases), (300, 1), "nor counts it against a quota");
    }
}
