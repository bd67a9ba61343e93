//! By when somebody has to be through, and the moment that he is given for it.

mod told;

pub use told::{check_in_time, without_hours};

use super::ahead::Ahead;
use super::book::Book;
use super::grant::Leases;
use super::plans::{Admitted, Free, Plans, SETTLE_NS, START_NS, Times};
use super::quota::Tally;
use super::reserved::Whom;
use super::room::Scene;
use crate::clock::{self, ns};
use crate::preemptions::{candidates, rule};
use crate::queue::{Appointment, Waiter, is_for_want_of_room};
use gpool_policy::admission::Use;
use gpool_policy::deadline::{Job, Plan, admit, earliest};
use gpool_policy::preemption::Wait;
use gpool_policy::queue::Taken;
use gpool_policy::slice::Priority;
use gpool_protocol::{ContainerId, Deadline, ErrorBody, LeaseId, LeaseRequest, Mechanism};
use std::rc::Rc;
use std::sync::Arc;
use told::{cannot, not_in_time};

/// So many of those at most are planned for at once.
const MOST: usize = 32;

/// When a deadline is, CLOCK_MONOTONIC, of one that came first at `since_ns`.
pub fn deadline_ns(deadline: Deadline, since_ns: u64, now_ns: u64) -> u64 {
    match deadline {
        Deadline::Within(seconds) => since_ns.saturating_add(ns(seconds)),
        Deadline::At(unix_s) => match unix_s.saturating_mul(1000).checked_sub(clock::unix_ms()) {
            Some(left_ms) => now_ns.saturating_add(left_ms.saturating_mul(1_000_000)),
            None => now_ns
                .saturating_sub(clock::unix_ms().saturating_sub(unix_s.saturating_mul(1000)).saturating_mul(1_000_000)),
        },
    }
}

/// Since when somebody waits, CLOCK_MONOTONIC: altogether, and in this attempt.
#[derive(Debug, Clone, Copy)]
pub struct Since {
    pub first_ns: u64,
    pub attempt_ns: u64,
}

/// One that is to begin at another moment than it was told.
type Moved = (ContainerId, u32, Appointment);

/// A request, those who have plans beside it, and the host as it will be for both.
struct Outlook<'a> {
    job: Job,
    tally: Tally,
    planned: Vec<(Job, Plan)>,
    times: Rc<Times<'a>>,
    ahead: Ahead,
}

/// What all those who have a plan are counted with.
struct Line<'a> {
    plans: &'a [Plan],
    tallies: &'a [&'a Tally],
}

impl Line<'_> {
    /// What those count of quotas that are there when this one begins.
    fn beside(&self, place: usize) -> Vec<Tally> {
        let at_ns = self.plans[place].begins_ns;
        let is_there = |other: &usize| {
            *other != place && (self.plans[*other].begins_ns..self.plans[*other].ends_ns).contains(&at_ns)
        };
        (0..self.plans.len()).filter(is_there).map(|other| self.tallies[other].clone()).collect()
    }
}

impl Leases {
    /// What is planned for those in the queue who have a deadline. Who could have nothing even of the empty host has no plan.
    pub fn plans<'a>(&self, scene: &Scene<'a>) -> Plans<'a> {
        let now_ns = clock::now_ns();
        let in_order = scene.book.queue.in_order();
        let with_one: Vec<(&Waiter, Appointment)> =
            in_order.into_iter().filter_map(|waiter| Some((waiter, waiter.appointment.borrow().clone()?))).collect();
        let Some(until_ns) = with_one.iter().map(|(_, its)| its.ends_ns).max() else { return Plans::default() };
        let made = with_one.iter().filter(|(_, its)| its.is_made).map(|(waiter, _)| waiter.claim.since_ns);
        let since_ns = made.min().unwrap_or(now_ns);
        let mut all: Vec<Admitted> = Vec::new();
        for (waiter, its) in with_one {
            let (since, uid) = (waiter.since(), waiter.uid);
            let Some((job, tally)) = self.job_of((&waiter.asked, uid), since, scene) else { continue };
            let indices = scene.places_of(&its.gpus);
            if indices.len() != its.gpus.len() {
                continue;
            }
            let taken = Taken { indices, demand: job.demand };
            all.push(Admitted {
                container_id: waiter.asked.container_id.clone(),
                uid,
                whom: Whom::asking(&waiter.asked, uid),
                job,
                plan: Plan { begins_ns: its.begins_ns, ends_ns: its.ends_ns, taken },
                tally,
                is_made: its.is_made,
            });
        }
        let is_whole = all.iter().any(|its| its.job.demand.usage == Use::Whole);
        let times = |going: &Free| {
            Rc::new(self.times(scene, (&Ahead::default(), going), (now_ns, until_ns.max(now_ns)), is_whole))
        };
        let alone = times(&Free::new());
        let made = match all.iter().any(|its| its.is_made) {
            true => times(&self.going(scene, since_ns, now_ns)),
            false => Rc::clone(&alone),
        };
        let frames: Vec<_> = (0..all.len())
            .map(|place| if all[place].is_made { &made } else { &alone }.frames(&all[place].whom, &but(&all, place)))
            .collect();
        all.iter_mut().zip(frames).for_each(|(its, frames)| its.job.frames = frames);
        Plans::new(all, (alone, made), now_ns)
    }

    /// A request as it is planned for, but for the GPUs as they will be, and what it counts of quotas; none where it is served otherwise
    /// than by slices or as all of GPUs.
    fn job_of(&self, (asked, uid): (&LeaseRequest, u32), since: Since, scene: &Scene<'_>) -> Option<(Job, Tally)> {
        let (choice, tally) = self.alone(asked, uid, scene)?;
        let can_be = matches!(choice.served.mechanism, Mechanism::Slice | Mechanism::Exclusive);
        let deadline_ns = deadline_ns(asked.request.deadline?, since.first_ns, clock::now_ns());
        let run_ns = ns(self.run_seconds(&asked.request)?);
        // It will not be there any more when it has waited for as long as it wants to.
        let gone_ns = asked.request.wait_seconds.map_or(u64::MAX, |wait| since.attempt_ns.saturating_add(ns(wait)));
        let job = Job {
            demand: choice.demand,
            among: choice.open,
            frames: Arc::default(),
            length_ns: run_ns.saturating_add(SETTLE_NS).saturating_add(START_NS),
            begins_by_ns: deadline_ns.saturating_sub(run_ns).min(gone_ns).saturating_sub(START_NS),
        };
        (can_be && choice.served.instance.is_none()).then_some((job, tally))
    }

    /// Whether those who have a plan still go with their quotas when they begin, if a request has what it wants until then; `own` is what it
    /// has already, and of which lease. Who would not in any case is not hindered by it.
    pub fn leaves_plans_their_quota(
        &self,
        (container_id, uid): (&ContainerId, u32),
        scene: &Scene<'_>,
        (own, wanted): (Option<(&Tally, &LeaseId)>, &Tally),
        ends_ns: Option<u64>,
    ) -> bool {
        if scene.standing.is_none() || scene.plans.is_empty() {
            return true;
        }
        let others: Vec<&Admitted> = scene.plans.of_others(container_id, uid).collect();
        let plans: Vec<Plan> = others.iter().map(|its| its.plan.clone()).collect();
        let tallies: Vec<&Tally> = others.iter().map(|its| &its.tally).collect();
        let line = Line { plans: &plans, tallies: &tallies };
        let until_ns = ends_ns.map(|ends_ns| ends_ns.saturating_add(SETTLE_NS));
        let leaves = |(place, its): (usize, &&Admitted)| {
            let at_ns = its.plan.begins_ns;
            let Some(then) = scene.plans.host_at(its, at_ns) else { return true };
            if until_ns.is_some_and(|until_ns| until_ns <= at_ns) {
                return true;
            }
            let mut beside = line.beside(place);
            let at_ms = clock::unix_ms_at(at_ns);
            if self.check_quota_at(then, (None, &its.tally), &beside, at_ms).is_err() {
                return true;
            }
            beside.push(wanted.clone());
            // The place that is kept for it counts as free on the GPUs, and for quotas as its own until then.
            let is_there = |id: &LeaseId| scene.own == Some(id) || !then.gone.contains(id);
            let mut standing = then.standing.clone();
            if let Some((own, _)) = own.filter(|(_, id)| is_there(id)) {
                standing.iter_mut().for_each(|standing| standing.take_out(own));
            }
            self.check_quota_at(&Scene { standing, ..then.clone() }, (None, &its.tally), &beside, at_ms).is_ok()
        };
        others.iter().enumerate().all(leaves)
    }

    /// Gives one that asks and has a deadline the moment at which it begins, or a better one, or looks whether it can still be kept to. Who
    /// has none yet may have others' moved, all of which stay in time. None of one without a deadline. With it comes whether anything of
    /// that is other than before.
    ///
    /// # Errors
    /// There is no such moment for one that comes anew.
    pub fn appoint(
        &self,
        book: &Book,
        asked: &LeaseRequest,
        uid: u32,
    ) -> Result<(Option<Appointment>, bool), ErrorBody> {
        let Some(deadline) = asked.request.deadline else { return Ok((None, false)) };
        let now_ns = clock::now_ns();
        let waiter = book.queue.waiter_of(asked, uid);
        if waiter.is_some_and(|waiter| !waiter.is_to_be_planned(now_ns)) {
            return Ok((waiter.and_then(|waiter| waiter.appointment.borrow().clone()), false));
        }
        let with_deadline = book.queue.in_order().into_iter().filter(|its| its.asked.request.deadline.is_some());
        if waiter.is_none() && with_deadline.count() >= MOST {
            return Err(cannot(
                format!("{MOST} that have a deadline wait already, and no more are planned for"),
                "try again later, or leave the deadline out and add wait",
            ));
        }
        let gpus = self.gpus_for_new();
        let scene = Scene { is_imagined: true, ..self.scene(book, None, &gpus) };
        let found = self.moment_for((asked, uid), &scene, true);
        let Some(waiter) = waiter else {
            let (others, its) = found?;
            move_all(book, others);
            return Ok((Some(its), true));
        };
        let (before, mut has_moved) = (waiter.appointment.borrow().clone(), false);
        match found {
            Ok((others, its)) => {
                has_moved |= !others.is_empty();
                move_all(book, others);
                waiter.has_lost.set(false);
                if before.as_ref() != Some(&its) {
                    waiter.keeps_its_moment(true, now_ns);
                }
                if before.is_none() {
                    self.tell_planned(asked, uid, &its);
                }
                waiter.appointment.replace(Some(its));
            }
            // What comes to nothing now may pass in some seconds.
            Err(_) if before.is_some() && waiter.keeps_its_moment(false, now_ns) => {}
            Err(refusal) => {
                waiter.appointment.replace(None);
                if !waiter.has_lost.replace(true) {
                    self.tell_at_risk(asked, uid, deadline, &refusal);
                }
            }
        }
        has_moved |= waiter.has_moved(before.as_ref());
        let its = waiter.appointment.borrow().clone();
        Ok((its, has_moved))
    }

    /// A refusal for want of room with when it would begin that has a deadline, if it waited; or that it would not in time.
    pub fn with_moment(&self, refusal: ErrorBody, (asked, uid): (&LeaseRequest, u32), scene: &Scene<'_>) -> ErrorBody {
        if asked.request.deadline.is_none()
            || !is_for_want_of_room(&refusal, false)
            || self.could_fit(asked, uid, scene.book).is_err()
        {
            return refusal;
        }
        match self.moment_for((asked, uid), scene, false) {
            Ok((_, its)) => {
                let message = format!("{}; with wait it {}", refusal.message, its.told(clock::now_ns()));
                ErrorBody { message, ..refusal }
            }
            Err(not_in_time) => not_in_time,
        }
    }

    /// Moments for others, who are to be moved if they may be, and for this one. Nobody goes for one that can begin in time without that.
    fn moment_for(
        &self,
        (asked, uid): (&LeaseRequest, u32),
        scene: &Scene<'_>,
        may_move: bool,
    ) -> Result<(Vec<Moved>, Appointment), ErrorBody> {
        let alone = self.appointments((asked, uid), scene, may_move, false);
        match alone {
            // Who stands far behind has nobody go for it.
            Err(refusal) if self.preempts() && self.is_near((asked, uid), scene) => {
                self.appointments((asked, uid), scene, may_move, true).map_err(|_| refusal)
            }
            found => found,
        }
    }

    /// The same; others have to make room for it if `is_made`.
    fn appointments(
        &self,
        (asked, uid): (&LeaseRequest, u32),
        scene: &Scene<'_>,
        may_move: bool,
        is_made: bool,
    ) -> Result<(Vec<Moved>, Appointment), ErrorBody> {
        if !self.lends() {
            return Err(cannot(
                "there is no room now, and this host counts on nobody's end, so that no deadline can be kept to"
                    .to_owned(),
                "leave the deadline out and add wait; [queue] backfill says whether ends are counted on",
            ));
        }
        let now_ns = clock::now_ns();
        let waiter = scene.book.queue.waiter_of(asked, uid);
        // By its deadline an emergency of now may be over.
        let since_ns = scene.book.queue.since(asked, uid, now_ns).first_ns;
        let latest_ns = asked.request.deadline.map_or(now_ns, |deadline| deadline_ns(deadline, since_ns, now_ns));
        if self.has_no_hours_at(asked, uid, scene, clock::unix_ms_at(latest_ns)) {
            return Err(without_hours());
        }
        let before = waiter.and_then(|waiter| waiter.appointment.borrow().clone());
        let others: Vec<&Admitted> = scene.plans.of_others(scene.own_id(asked, uid), uid).collect();
        let ahead = self.taken_by(&scene.book.queue.ahead_of(asked, uid), scene);
        let outlook = |ahead: Ahead| {
            let outlook = self.outlook((asked, uid), scene, (&others, ahead), is_made);
            outlook.ok_or_else(|| {
                cannot(
                    "it would be served neither by slices nor as whole GPUs, for which alone room can be planned"
                        .to_owned(),
                    "leave the deadline out, or ask for mode=slice or mode=exclusive",
                )
            })
        };
        let theirs: Vec<&Plan> = others.iter().map(|its| &its.plan).collect();
        let with = |plan: &Plan| -> Vec<Plan> { theirs.iter().copied().chain([plan]).cloned().collect() };
        // What it was promised before nobody is before it in for whom there is no room yet; for all else it is one of them.
        let old = before.filter(|its| its.is_made == is_made);
        let promised = old.as_ref().map(|_| outlook(ahead.of_room_that_is_there())).transpose()?;
        let old = old.zip(promised).map(|(its, promised)| {
            let taken = Taken { indices: scene.places_of(&its.gpus), demand: promised.job.demand };
            (Plan { begins_ns: its.begins_ns, ends_ns: its.ends_ns, taken }, promised)
        });
        let is_good = |plan: &Plan, its: &Outlook<'_>| {
            let latest_ns = its.job.begins_by_ns.saturating_add(START_NS);
            let is_in_time = plan.begins_ns <= latest_ns && plan.begins_ns.saturating_add(START_NS) >= now_ns;
            is_in_time && plan.holds(&its.job, &theirs, now_ns) && self.all_go_with_quotas(&with(plan), &others, its)
        };
        let is_kept = |plan: &Plan, its: &Outlook<'_>| {
            let is_good = is_good(plan, its);
            waiter.is_some_and(|waiter| waiter.keeps_its_moment(is_good, now_ns))
        };
        let kept = old.as_ref().filter(|(plan, promised)| is_kept(plan, promised)).map(|(plan, _)| plan.clone());
        let first = outlook(ahead)?;
        let may = |plans: &[Plan]| self.all_go_with_quotas(plans, &others, &first);
        let anew = |its: &Outlook<'_>| match may_move {
            true => admit(&its.planned, &its.job, now_ns, |plans| self.all_go_with_quotas(plans, &others, its)),
            false => earliest(&its.job, &theirs, now_ns, |plan| may(&with(plan))).map(|plan| with(&plan)),
        };
        let plans = match kept {
            // It stays there unless it can begin earlier.
            Some(old) => {
                let until = Job { begins_by_ns: old.begins_ns.saturating_sub(1), ..first.job.clone() };
                let sooner = earliest(&until, &theirs, now_ns, |plan| may(&with(plan)));
                // By so little nobody is told another moment.
                let sooner = sooner.filter(|plan| plan.begins_ns.saturating_add(START_NS) < old.begins_ns);
                with(&sooner.unwrap_or(old))
            }
            // Where it was to be it is before those for whom there is no room yet.
            None => {
                let there = || {
                    let (plan, promised) = old.as_ref()?;
                    let job = Job { among: plan.taken.indices.clone(), ..promised.job.clone() };
                    anew(&Outlook {
                        job,
                        planned: promised.planned.clone(),
                        tally: promised.tally.clone(),
                        times: Rc::clone(&promised.times),
                        ahead: promised.ahead.clone(),
                    })
                };
                anew(&first).or_else(there).ok_or_else(|| not_in_time(asked, &first.job, &theirs, now_ns))?
            }
        };
        let of = |plan: &Plan, is_made: bool| Appointment {
            begins_ns: plan.begins_ns,
            ends_ns: plan.ends_ns,
            gpus: scene.uuids_of(&plan.taken.indices),
            is_made,
        };
        let moved = others.iter().zip(&plans).filter(|(its, plan)| its.plan != **plan);
        let moved = moved.map(|(its, plan)| (its.container_id.clone(), its.uid, of(plan, its.is_made))).collect();
        Ok((moved, of(&plans[plans.len() - 1], is_made)))
    }

    /// The host as it will be beside those `ahead`, for a request and for those who have plans.
    fn outlook<'a>(
        &self,
        (asked, uid): (&LeaseRequest, u32),
        scene: &Scene<'a>,
        (others, ahead): (&[&Admitted], Ahead),
        is_made: bool,
    ) -> Option<Outlook<'a>> {
        let now_ns = clock::now_ns();
        let since = scene.book.queue.since(asked, uid, now_ns);
        let waiter = scene.book.queue.waiter_of(asked, uid);
        let (mut job, tally) = self.job_of((waiter.map_or(asked, |waiter| &waiter.asked), uid), since, scene)?;
        let is_whole = others.iter().map(|its| &its.job).chain([&job]).any(|its| its.demand.usage == Use::Whole);
        let last_ns = |job: &Job| job.begins_by_ns.saturating_add(job.length_ns);
        let until_ns = others.iter().map(|its| last_ns(&its.job)).chain([last_ns(&job)]).max().unwrap_or(now_ns);
        let times = |going: &Free| Rc::new(self.times(scene, (&ahead, going), (now_ns, until_ns), is_whole));
        let alone = times(&Free::new());
        let made = match is_made || others.iter().any(|its| its.is_made) {
            true => {
                // In an emergency it has waited for long enough.
                let is_urgent = scene.book.queue.is_urgent(asked, uid);
                times(&self.going(scene, if is_urgent { 0 } else { since.first_ns }, now_ns))
            }
            false => Rc::clone(&alone),
        };
        let of = |is_made: bool| if is_made { &made } else { &alone };
        let all: Vec<(&Plan, &Whom)> = others.iter().map(|its| (&its.plan, &its.whom)).collect();
        job.frames = of(is_made).frames(&Whom::asking(asked, uid), &all);
        let planned = |(place, its): (usize, &&Admitted)| {
            let beside: Vec<(&Plan, &Whom)> =
                all.iter().enumerate().filter(|(other, _)| *other != place).map(|(_, its)| *its).collect();
            (Job { frames: of(its.is_made).frames(&its.whom, &beside), ..its.job.clone() }, its.plan.clone())
        };
        let planned = others.iter().enumerate().map(planned).collect();
        let times = Rc::clone(of(is_made));
        Some(Outlook { job, tally, planned, times, ahead })
    }

    /// When those are gone at the latest who would have to make room for one that has waited since then: nobody where none can be made to.
    fn going(&self, scene: &Scene<'_>, since_ns: u64, now_ns: u64) -> Free {
        if !self.preempts() {
            return Free::new();
        }
        let rule = rule(&self.configuration().preemption);
        let waited_ns = now_ns.saturating_sub(since_ns);
        let wait = Wait { priority: Priority::Guaranteed, waited_ns, left_ns: u64::MAX };
        let all = candidates(scene.book.leases.values()).into_iter();
        all.filter_map(|(id, its)| Some((id, its.gone_by_ns(wait, rule, now_ns)?))).collect()
    }

    /// Whether each goes with its quotas when it begins, beside those that are there then. One that would not go in any case is no reason
    /// against the last.
    fn all_go_with_quotas(&self, plans: &[Plan], others: &[&Admitted], outlook: &Outlook<'_>) -> bool {
        if outlook.times.at(0).is_none_or(|then| then.standing.is_none()) {
            return true;
        }
        let tallies: Vec<&Tally> = others.iter().map(|its| &its.tally).chain([&outlook.tally]).collect();
        let last = plans.len().saturating_sub(1);
        let (line, before) =
            (Line { plans, tallies: &tallies }, Line { plans: &plans[..last], tallies: &tallies[..last] });
        (0..plans.len()).all(|place| {
            let Some(then) = outlook.times.at(plans[place].begins_ns) else { return false };
            let goes = |line: &Line<'_>| {
                let beside: Vec<Tally> =
                    line.beside(place).into_iter().chain(outlook.ahead.reserved.iter().cloned()).collect();
                let at_ms = clock::unix_ms_at(plans[place].begins_ns);
                self.check_quota_at(then, (None, tallies[place]), &beside, at_ms).is_ok()
            };
            goes(&line) || place < last && !goes(&before)
        })
    }
}

/// All but one of them, as they are planned.
fn but(all: &[Admitted], place: usize) -> Vec<(&Plan, &Whom)> {
    let others = all.iter().enumerate().filter(|(other, _)| *other != place);
    others.map(|(_, its)| (&its.plan, &its.whom)).collect()
}

/// Others begin at other moments than they were told, in time all the same.
fn move_all(book: &Book, moved: Vec<Moved>) {
    let waiting = book.queue.in_order();
    for (container_id, uid, appointment) in moved {
        let its = waiting.iter().find(|waiter| waiter.uid == uid && waiter.asked.container_id == container_id);
        its.into_iter().for_each(|waiter| drop(waiter.appointment.replace(Some(appointment.clone()))));
    }
}
