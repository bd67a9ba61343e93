//! Room that is planned for those who have a deadline, and who is in the way of none of them.

use super::ahead::Ahead;
use super::book::Book;
use super::giving_way::CLEARANCE_PATIENCE;
use super::grant::Leases;
use super::quota::Tally;
use super::reserved::{Whom, moments_of};
use super::room::Scene;
use crate::clock::{self, ns};
use gpool_policy::deadline::{Frame, Job, Plan};
use gpool_policy::queue::Taken;
use gpool_protocol::{ContainerId, LeaseId};
use std::collections::{BTreeMap, BTreeSet};
use std::rc::Rc;
use std::sync::Arc;
use std::time::Instant;

/// What it takes at most until what somebody has is free when his time is over: each plan has so much at its end.
pub const SETTLE_NS: u64 = 10_000_000_000;
/// So much later than its moment one may begin, since it asks now and then: plans are so much longer than what they are for.
pub const START_NS: u64 = 5_000_000_000;
/// What is about to end any moment is free by then.
const SOON_NS: u64 = 2_000_000_000;
/// So many ends at most are counted on, those that come first, and so many begins and ends of reservations.
const MOST_MOMENTS: usize = 128;

/// One with a deadline, and where it begins.
#[derive(Debug, Clone)]
pub struct Admitted {
    pub container_id: ContainerId,
    pub uid: u32,
    pub whom: Whom,
    pub job: Job,
    pub plan: Plan,
    /// What that is of its quotas.
    pub tally: Tally,
    /// Whether others of a lower priority have to make room for it: they are gone in what is looked at for it.
    pub is_made: bool,
}

/// When what leases have is free at the latest, as far as that is known, CLOCK_MONOTONIC.
pub type Free = BTreeMap<LeaseId, u64>;

/// All of them, as whoever may begin has to leave them their room.
#[derive(Clone, Default)]
pub struct Plans<'a> {
    all: Arc<[Admitted]>,
    /// The host as it will be, and the same without those who have to make room.
    times: Option<(Rc<Times<'a>>, Rc<Times<'a>>)>,
    /// From when on it is looked at: now, or the moment that is thought of.
    from_ns: u64,
}

impl<'a> Plans<'a> {
    pub fn new(all: Vec<Admitted>, times: (Rc<Times<'a>>, Rc<Times<'a>>), from_ns: u64) -> Self {
        Self { all: all.into(), times: Some(times), from_ns }
    }

    /// The same as of a moment that is to come.
    pub fn as_of(&self, from_ns: u64) -> Self {
        Self { from_ns, ..self.clone() }
    }

    pub fn is_empty(&self) -> bool {
        self.all.is_empty()
    }

    /// Whether there is one of this container.
    pub fn has(&self, container_id: &ContainerId, uid: u32) -> bool {
        self.all.iter().any(|its| its.uid == uid && its.container_id == *container_id)
    }

    /// The host when one of them begins, as it is looked at for it.
    pub fn host_at(&self, its: &Admitted, at_ns: u64) -> Option<&Scene<'a>> {
        let (times, made) = self.times.as_ref()?;
        if its.is_made { made } else { times }.at(at_ns)
    }

    /// When they are over.
    pub fn ends_ns(&self) -> impl Iterator<Item = u64> {
        self.all.iter().map(|its| its.plan.ends_ns)
    }

    /// Those of others than this container.
    pub fn of_others(&self, container_id: &ContainerId, uid: u32) -> impl Iterator<Item = &Admitted> {
        let is_own = move |its: &&Admitted| its.uid == uid && its.container_id == *container_id;
        self.all.iter().filter(move |its| !is_own(its))
    }

    /// What they take of the GPUs, whenever that is.
    pub fn taken(&self, container_id: &ContainerId, uid: u32) -> Vec<Taken> {
        self.of_others(container_id, uid).map(|its| its.plan.taken.clone()).collect()
    }

    /// Those that would lose their room if this container had `more` beside what others `ahead` are about to have, until `ends_ns` or for
    /// good; of all those that `concern` it.
    pub fn broken_by(
        &self,
        (container_id, uid): (&ContainerId, u32),
        (more, whom): (&Taken, &Whom),
        (ahead, ends_ns): (&Ahead, Option<u64>),
        concern: impl Fn(&Admitted) -> bool,
    ) -> Vec<&Admitted> {
        let plans: Vec<&Admitted> = self.of_others(container_id, uid).collect();
        if plans.is_empty() {
            return Vec::new();
        }
        let until_ns = ends_ns.map(|ends_ns| ends_ns.saturating_add(SETTLE_NS));
        let to_come = ahead.as_plans(self.from_ns);
        let is_broken = |its: &Admitted| {
            let others = plans.iter().filter(|other| !std::ptr::eq(**other, its));
            let others = others.map(|other| (&other.plan, Some(&other.whom)));
            let whose = (0..ahead.taken.len())
                .filter(|place| !ahead.is_planned(*place))
                .map(|place| ahead.whose[place].as_ref());
            let others: Vec<(&Plan, Option<&Whom>)> = others.chain(to_come.iter().zip(whose)).collect();
            let times = self.times.as_ref().map(|(times, made)| if its.is_made { made } else { times });
            match times.filter(|times| times.has_reservations()) {
                Some(times) => times.is_broken(its, &others, (more, whom), (self.from_ns, until_ns)),
                None => {
                    let plans: Vec<&Plan> = others.iter().map(|(plan, _)| *plan).collect();
                    !its.plan.is_left_by(&its.job, &plans, more, (self.from_ns, until_ns))
                }
            }
        };
        plans.iter().copied().filter(|its| concern(its) && is_broken(its)).collect()
    }
}

/// The host at the moments at which something changes, as far as that is known.
pub struct Times<'a> {
    all: Vec<(u64, Scene<'a>)>,
    /// The GPUs at those moments where nothing is reserved at any of them, so that they are the same for all.
    same: Option<Arc<[Frame]>>,
}

impl<'a> Times<'a> {
    pub fn of(all: Vec<(u64, Scene<'a>)>) -> Self {
        let is_free = all.iter().all(|(_, then)| then.reserved.is_empty());
        let frame = |(from_ns, then): &(u64, Scene<'_>)| Frame { from_ns: *from_ns, gpus: then.capacities.clone() };
        let same = is_free.then(|| all.iter().map(frame).collect());
        Self { all, same }
    }

    fn has_reservations(&self) -> bool {
        self.same.is_none()
    }

    /// The GPUs at those moments, as this one may have them: what is reserved for others is taken, but for what of that those `planned` are
    /// to have.
    pub fn frames(&self, whom: &Whom, planned: &[(&Plan, &Whom)]) -> Arc<[Frame]> {
        if let Some(same) = &self.same {
            return Arc::clone(same);
        }
        let frame = |(from_ns, then): &(u64, Scene<'_>)| {
            let there = planned.iter().filter(|(plan, _)| (plan.begins_ns..plan.ends_ns).contains(from_ns));
            let (taken, whose): (Vec<Taken>, Vec<Option<Whom>>) =
                there.map(|(plan, whom)| (plan.taken.clone(), Some((*whom).clone()))).unzip();
            let mut seats = then.beside(whom, (&taken, &whose));
            Frame { from_ns: *from_ns, gpus: then.capacities_beside(&seats.split_off(taken.len())) }
        };
        self.all.iter().map(frame).collect()
    }

    /// The host as it is at a moment.
    pub fn at(&self, at_ns: u64) -> Option<&Scene<'a>> {
        self.all.iter().rev().find(|(from_ns, _)| *from_ns <= at_ns).or(self.all.first()).map(|(_, scene)| scene)
    }

    /// Whether a plan has no room any more because of `more`, which may be on other GPUs: a reservation that was there has to be elsewhere
    /// then.
    fn is_broken(
        &self,
        its: &Admitted,
        others: &[(&Plan, Option<&Whom>)],
        (more, whose_more): (&Taken, &Whom),
        (from_ns, until_ns): (u64, Option<u64>),
    ) -> bool {
        let plan = &its.plan;
        let span = plan.begins_ns.max(from_ns)..until_ns.map_or(plan.ends_ns, |until_ns| until_ns.min(plan.ends_ns));
        let changes = self.all.iter().map(|(at_ns, _)| *at_ns).chain(others.iter().map(|(plan, _)| plan.begins_ns));
        let moments: BTreeSet<u64> = changes.chain([span.start]).filter(|at_ns| span.contains(at_ns)).collect();
        moments.into_iter().any(|at_ns| {
            let Some(then) = self.at(at_ns) else { return false };
            // Nothing is elsewhere because of it where nothing is reserved.
            if then.reserved.is_empty() && !plan.taken.indices.iter().any(|gpu| more.indices.contains(gpu)) {
                return false;
            }
            let there = others.iter().filter(|(plan, _)| (plan.begins_ns..plan.ends_ns).contains(&at_ns));
            let (mut taken, mut whose): (Vec<Taken>, Vec<Option<Whom>>) =
                there.map(|(plan, whom)| (plan.taken.clone(), whom.cloned())).unzip();
            let fits = |taken: &[Taken], whose: &[Option<Whom>]| {
                let gpus = then.capacities_beside(&then.beside(&its.whom, (taken, whose)));
                plan.fits_in(&gpus, &its.job)
            };
            if !fits(&taken, &whose) {
                return false;
            }
            taken.push(more.clone());
            whose.push(Some(whose_more.clone()));
            !fits(&taken, &whose)
        })
    }
}

/// When what leases and kept places have is free, of those whose end is known or comes any moment. A place that is kept is free when
/// nobody has come back to it.
fn frees(book: &Book, now_ns: u64) -> Free {
    let soon_ns = now_ns.saturating_add(SOON_NS);
    let settled_ns = |at_ns: u64| at_ns.saturating_add(SETTLE_NS).max(soon_ns);
    let since_ns =
        |since: Instant| now_ns.saturating_sub(u64::try_from(since.elapsed().as_nanos()).unwrap_or(u64::MAX));
    let leases = book.leases.values().filter_map(|lease| {
        let taken = lease.revoked_at.filter(|since| since.elapsed() < CLEARANCE_PATIENCE);
        let at_ns = match taken {
            Some(since) => Some(settled_ns(since_ns(since))),
            None if lease.is_about_to_end() => Some(soon_ns),
            None => lease.record.planned_end_ns(now_ns).map(settled_ns),
        };
        Some((lease.record.lease_id.clone(), at_ns?))
    });
    let held = book.held.iter().map(|held| {
        let left = held.until.saturating_duration_since(Instant::now());
        let given_up_ns = soon_ns.saturating_add(u64::try_from(left.as_nanos()).unwrap_or(u64::MAX));
        let ends_ns = held.record.planned_end_ns(now_ns).map_or(u64::MAX, settled_ns);
        (held.record.lease_id.clone(), given_up_ns.min(ends_ns))
    });
    leases.chain(held).collect()
}

impl Leases {
    /// The host from now on: with those who have their GPUs as long as they are to, those `ahead` who are about to have them, and the
    /// reservations of each moment until `until_ns`, and without those who are `going`. Who wants all of a GPU, as `is_whole` says, has
    /// processes without a lease in its way.
    pub fn times<'a>(
        &self,
        scene: &Scene<'a>,
        (ahead, going): (&Ahead, &Free),
        (now_ns, until_ns): (u64, u64),
        is_whole: bool,
    ) -> Times<'a> {
        let configuration = self.configuration();
        let outside = if is_whole { self.left_without_leases(scene.gpus, scene.book) } else { Vec::new() };
        let unix_s = clock::unix_ms() / 1000;
        let unix_s_at = |at_ns: u64| unix_s.saturating_add(at_ns.saturating_sub(now_ns) / 1_000_000_000);
        let mut free = frees(scene.book, now_ns);
        for (id, gone_ns) in going {
            let at_ns = free.entry(id.clone()).or_insert(*gone_ns);
            *at_ns = (*at_ns).min(*gone_ns);
        }
        let of_ahead = ahead.all_left_ns().map(|ends_ns| ends_ns.saturating_add(SETTLE_NS));
        let ends: BTreeSet<u64> = free.values().copied().chain(of_ahead).collect();
        let reserved = moments_of(&configuration, (unix_s, unix_s_at(until_ns))).into_iter().take(MOST_MOMENTS);
        let reserved = reserved.map(|at_s| now_ns.saturating_add(ns(at_s.saturating_sub(unix_s))));
        let all = ends.into_iter().take(MOST_MOMENTS).chain(reserved).chain(ahead.lent_until_ns());
        let later: BTreeSet<u64> = all.filter(|at_ns| *at_ns > now_ns).collect();
        let at = |at_ns: u64| {
            let mut then = Scene { is_imagined: true, plans: Plans::default(), ..scene.clone() };
            then.free(&outside, |record, _| free.get(&record.lease_id).is_some_and(|free_ns| *free_ns <= at_ns));
            then.reserved = then.reserved.as_at(&configuration, unix_s_at(at_ns));
            ahead.taken_at(at_ns).for_each(|taken| taken.enter(&mut then.capacities));
            (at_ns, then)
        };
        Times::of([now_ns].into_iter().chain(later).map(at).collect())
    }
}

impl Ahead {
    /// What those are about to have, each from when it is not lent on until its end.
    pub fn as_plans(&self, now_ns: u64) -> Vec<Plan> {
        let plan = |place: usize| Plan {
            begins_ns: self.taken_from_ns(place).max(now_ns),
            ends_ns: self.left_ns(place).map_or(u64::MAX, |ends_ns| ends_ns.saturating_add(SETTLE_NS)),
            taken: self.taken[place].clone(),
        };
        (0..self.taken.len()).filter(|place| !self.is_planned(*place)).map(plan).collect()
    }

    /// What of it is taken at a moment.
    fn taken_at(&self, at_ns: u64) -> impl Iterator<Item = &Taken> {
        let is_there = move |place: &usize| {
            let ends_ns = self.left_ns(*place).map(|ends_ns| ends_ns.saturating_add(SETTLE_NS));
            !self.is_planned(*place)
                && self.taken_from_ns(*place) <= at_ns
                && ends_ns.is_none_or(|ends_ns| ends_ns > at_ns)
        };
        (0..self.taken.len()).filter(is_there).map(|place| &self.taken[place])
    }
}

#[cfg(test)]
mod tests {
    use super::super::book::Held;
    use super::super::record::{Record, sample};
    use super::*;
    use gpool_policy::admission::{Demand, Part};

    fn taken(permille: u16) -> Taken {
        Taken { indices: vec![0], demand: Demand::exactly(Part { permille, bytes: 0 }) }
    }

    /// Those about to have these shares until then.
    fn ahead(all: &[(u16, Option<u64>)]) -> Ahead {
        let (taken, ends_ns) = all.iter().map(|(permille, ends_ns)| (taken(*permille), *ends_ns)).unzip();
        let whose = vec![None; all.len()];
        let mut ahead = Ahead::default();
        (ahead.taken, ahead.whose, ahead.ends_ns) = (taken, whose, ends_ns);
        ahead
    }

    #[test]
    fn who_is_about_to_begin_has_it_until_its_end_and_until_that_is_settled() {
        let ahead = ahead(&[(300, Some(50)), (200, None)]);
        let plans = ahead.as_plans(7);
        let spans: Vec<(u64, u64)> = plans.iter().map(|plan| (plan.begins_ns, plan.ends_ns)).collect();
        assert_eq!(spans, [(7, 50 + SETTLE_NS), (7, u64::MAX)]);
        let at = |at_ns| ahead.taken_at(at_ns).map(|its| its.demand.fraction_permille).collect::<Vec<u16>>();
        assert_eq!((at(50 + SETTLE_NS - 1), at(50 + SETTLE_NS)), (vec![300, 200], vec![200]));
    }

    #[test]
    fn a_newcomer_is_held_against_the_plans_of_others_together_with_those_before_it() {
        let id = |name: &str| ContainerId(name.into());
        let gpu = gpool_policy::admission::GpuCapacity {
            key: "GPU-0".into(),
            memory_total_bytes: 1 << 30,
            memory_foreign_bytes: 0,
            fraction_leased_permille: 0,
            memory_leased_bytes: 0,
            users: Default::default(),
            site: Default::default(),
        };
        let frames: Arc<[Frame]> = [Frame { from_ns: 0, gpus: vec![gpu] }].into();
        let (demand, whom) = (taken(400).demand, Whom::of(&sample()));
        let admitted = |name: &str, begins_ns, is_made| Admitted {
            container_id: id(name),
            uid: 0,
            whom: whom.clone(),
            job: Job { demand, among: vec![0], frames: Arc::clone(&frames), length_ns: 50, begins_by_ns: 100 },
            plan: Plan { begins_ns, ends_ns: begins_ns + 50, taken: taken(400) },
            tally: Tally::of(&sample(), &[]),
            is_made,
        };
        let nothing = || Rc::new(Times::of(Vec::new()));
        let plans = |all| Plans::new(all, (nothing(), nothing()), 0);
        let both = plans(vec![admitted("one", 100, false), admitted("made", 1000, true)]);
        let broken =
            |plans: &Plans<'_>, name: &str, permille, (before, ends_ns): (&Ahead, Option<u64>)| -> Vec<String> {
                let broken = plans.broken_by((&id(name), 0), (&taken(permille), &whom), (before, ends_ns), |_| true);
                broken.into_iter().map(|its| its.container_id.0.clone()).collect()
            };
        let nobody = Ahead::default();
        let before = ahead(&[(300, None)]);
        assert!(broken(&both, "new", 600, (&nobody, None)).is_empty());
        assert_eq!(broken(&both, "new", 601, (&nobody, None)), ["one", "made"]);
        assert_eq!(broken(&both, "one", 900, (&nobody, None)), ["made"], "its own room is its own");
        assert!(broken(&both, "new", 300, (&before, None)).is_empty());
        assert_eq!(broken(&both, "new", 301, (&before, None)), ["one", "made"]);
        assert_eq!(
            broken(&both, "new", 1000, (&nobody, Some(90))),
            ["one", "made"],
            "it takes some time until that is free"
        );
        let later = plans(vec![admitted("one", 90 + SETTLE_NS, false)]);
        assert!(broken(&later, "new", 1000, (&nobody, Some(90))).is_empty());
        assert_eq!(broken(&later, "new", 1000, (&nobody, Some(91))), ["one"]);
        assert_eq!(broken(&both.as_of(150), "new", 1000, (&nobody, None)), ["made"], "the other one is over then");
    }

    #[test]
    fn what_is_had_is_free_when_its_time_is_over_and_that_is_settled() {
        let now_ns = clock::now_ns();
        let held = |id: &str, ends_ns, hold_s| {
            let record = Record { lease_id: LeaseId(id.into()), ends_ns, run_seconds: ends_ns.map(|_| 60), ..sample() };
            Held { record, gpus: vec![0], until: Instant::now() + std::time::Duration::from_secs(hold_s) }
        };
        let book = Book {
            held: vec![
                held("kept", None, 60),
                held("ends", Some(now_ns + 5), 60),
                held("over", Some(now_ns - 2 * SETTLE_NS), 60),
            ],
            ..Book::default()
        };
        let free = frees(&book, now_ns);
        let at = |id: &str| free[&LeaseId(id.into())];
        let kept_for_ns = at("kept") - now_ns;
        assert!((ns(61)..=ns(63)).contains(&kept_for_ns), "{kept_for_ns}");
        assert_eq!((at("ends"), at("over")), (now_ns + 5 + SETTLE_NS, now_ns + SOON_NS));
    }
}
