//! What those who wait for room leave to those behind them.

use super::book::Book;
use super::capacity::records_on;
use super::ends::Begin;
use super::grant::Leases;
use super::quota::Tally;
use super::record::Record;
use super::reserved::Whom;
use super::room::{Choice, Room, Scene, emptied, tally_of};
use crate::clock::{self, ns};
use crate::queue::Waiter;
use gpool_policy::admission::Use;
use gpool_policy::backfill::leaves_in_time;
use gpool_policy::queue::{Prospect, Taken, kept_for, look_in_order};
use gpool_protocol::{ErrorBody, LeaseRequest, Mechanism};
use std::collections::BTreeSet;
use std::time::Duration;

/// So many of those that do not fit are looked at for when they can begin, each time that somebody asks.
const LOOKED_AT: usize = 4;

/// What those who stand before somebody leave to nobody behind them. Of the lists each has an entry for each of them.
#[derive(Clone, Default)]
pub struct Ahead {
    /// On the GPUs.
    pub taken: Vec<Taken>,
    /// Who is about to have that; none of room that is not there yet.
    pub whose: Vec<Option<Whom>>,
    /// What it is of their quotas.
    pub reserved: Vec<Tally>,
    /// When they will end, CLOCK_MONOTONIC, as far as they say so.
    pub ends_ns: Vec<Option<u64>>,
    /// Which of it is kept for one that does not fit yet, and until when that is lent to others, if it is.
    kept: Option<(usize, Option<u64>)>,
    /// When who has what is kept will have ended, if anybody knows.
    kept_ends_ns: Option<u64>,
    /// Those who have a plan, by their places: what they are about to have is in that.
    planned: BTreeSet<usize>,
    /// How many were looked at for when they can begin.
    looks: usize,
}

impl Ahead {
    /// What is entered next is in somebody's plan, if he has one.
    fn note_planned(&mut self, waiter: &Waiter, scene: &Scene<'_>) {
        if scene.plans.has(&waiter.asked.container_id, waiter.uid) {
            self.planned.insert(self.taken.len());
        }
    }

    fn push(&mut self, taken: Taken, whose: Option<Whom>, reserved: Tally, ends_ns: Option<u64>) {
        self.taken.push(taken);
        self.whose.push(whose);
        self.reserved.push(reserved);
        self.ends_ns.push(ends_ns);
    }

    /// From when on that is nobody else's, CLOCK_MONOTONIC: of what is lent, when that one begins for whom it is kept.
    pub fn taken_from_ns(&self, place: usize) -> u64 {
        self.kept.filter(|(kept, _)| *kept == place).and_then(|(_, lent_until_ns)| lent_until_ns).unwrap_or(0)
    }

    /// When it is left again, CLOCK_MONOTONIC, as far as that is known.
    pub fn left_ns(&self, place: usize) -> Option<u64> {
        match self.kept {
            Some((kept, _)) if kept == place => self.kept_ends_ns,
            _ => self.ends_ns[place],
        }
    }

    /// The same of all of it.
    pub fn all_left_ns(&self) -> impl Iterator<Item = u64> {
        (0..self.taken.len()).filter_map(|place| self.left_ns(place))
    }

    /// Whether that is what somebody is about to have who has a plan.
    pub fn is_planned(&self, place: usize) -> bool {
        self.planned.contains(&place)
    }

    /// Until when something is lent, CLOCK_MONOTONIC.
    pub fn lent_until_ns(&self) -> Option<u64> {
        self.kept?.1
    }

    /// Without those for whom `is_left` is not so, by their places.
    pub fn only(&self, is_left: impl Fn(usize) -> bool) -> Self {
        let mut left = Self::default();
        for place in (0..self.taken.len()).filter(|place| is_left(*place)) {
            let (taken, whose) = (self.taken[place].clone(), self.whose[place].clone());
            if self.is_planned(place) {
                left.planned.insert(left.taken.len());
            }
            left.push(taken, whose, self.reserved[place].clone(), self.ends_ns[place]);
        }
        left
    }

    /// Without what is kept or made for somebody who could not begin yet.
    pub fn of_room_that_is_there(&self) -> Self {
        self.only(|place| self.whose[place].is_some())
    }

    /// What is not for one that ends then: all but what is kept for another one that begins no earlier. None if that is all.
    fn without_lent(&self, ends_ns: Option<u64>) -> Option<Self> {
        let (kept, lent_until_ns) = self.kept?;
        leaves_in_time(ends_ns, lent_until_ns).then(|| self.only(|place| place != kept))
    }
}

impl Leases {
    /// What those in the queue leave to nobody behind them. Who waits for the end of others of its own team, because of their
    /// quota, is in nobody's way.
    pub fn taken_by(&self, waiting: &[&Waiter], scene: &Scene<'_>) -> Ahead {
        let mut ahead = Ahead::default();
        let scene = &Scene { is_unheard: true, ..scene.clone() };
        look_in_order(waiting.iter().copied(), |waiter, may_keep| self.look_at(waiter, scene, &mut ahead, may_keep));
        ahead
    }

    /// How one that waits stands beside those before it, among whom it is counted then.
    fn look_at(&self, waiter: &Waiter, scene: &Scene<'_>, ahead: &mut Ahead, may_keep: bool) -> Prospect {
        let note = |what: &dyn Fn()| {
            if !scene.is_imagined {
                what();
            }
        };
        let (asks, whom) = ((&waiter.asked, waiter.uid), Whom::asking(&waiter.asked, waiter.uid));
        let goes = |wanted: &Tally, ahead: &Ahead| self.check_quota(scene, None, wanted, &ahead.reserved).is_ok();
        // What is planned for it nobody takes who would not be through by then, whatever stands here.
        if let Some(appointment) = waiter.appointment.borrow().as_ref().filter(|its| !its.is_made) {
            note(&|| waiter.note_kept(appointment));
            return Prospect::Waits;
        }
        // Whose lease cannot be made has no use for room, for as long as that lasts; it tries again in its turn.
        // Who waits for the host's memory is in nobody's way on a GPU, and nobody has to go for it.
        if waiter.has_failed || self.check_spill(&waiter.asked, waiter.uid, scene.book).is_err() {
            note(&|| waiter.keep_nothing());
            return Prospect::Waits;
        }
        let ends_ns = self.run_of(&waiter.asked, None).ends_ns;
        if let Ok(room) = self.room_behind(asks, scene, (ahead, ends_ns), &scene.places_of(&waiter.preferred())) {
            let wanted = tally_of(asks, room.counts(), (scene.gpus, scene.book));
            let of = (&waiter.asked.container_id, waiter.uid);
            let leaves_plans = || self.leaves_plans_their_quota(of, scene, (None, &wanted), ends_ns);
            if !goes(&wanted, ahead) || !leaves_plans() {
                note(&|| waiter.keep_nothing());
                return Prospect::Waits;
            }
            note(&|| *waiter.planned.borrow_mut() = scene.uuids_of(&room.placed.indices));
            ahead.note_planned(waiter, scene);
            ahead.push(room.taken(), Some(whom), wanted, ends_ns);
            return Prospect::Fits;
        }
        if let Some((made, wanted)) = self.room_made_for(waiter, scene).filter(|(_, its)| goes(its, ahead)) {
            note(&|| waiter.keep_nothing());
            ahead.note_planned(waiter, scene);
            ahead.push(made, None, wanted, None);
            return Prospect::Fits;
        }
        let kept = may_keep.then(|| self.kept(waiter, scene, ahead)).flatten();
        let Some((kept, wanted, begin)) = kept else {
            note(&|| waiter.keep_nothing());
            return Prospect::Waits;
        };
        let at_ns = begin.as_ref().map(|begin| begin.at_ns);
        note(&|| waiter.keep_on(scene.uuids_of(&kept.indices), at_ns, clock::now_ns()));
        let run_ns = self.run_seconds(&waiter.asked.request).map(ns);
        ahead.kept_ends_ns = at_ns.zip(run_ns).map(|(at_ns, run_ns)| at_ns.saturating_add(run_ns));
        ahead.note_planned(waiter, scene);
        ahead.kept = Some((ahead.taken.len(), begin.map(|begin| begin.lent_until_ns)));
        ahead.push(kept, None, wanted, None);
        Prospect::Keeps
    }

    /// Room for a request beside those ahead of it, on some of the `preferred` GPUs if it fits there; also in what is kept for one of
    /// those, if its time is over before that one can begin.
    ///
    /// # Errors
    /// There is none, or reservations keep it.
    pub fn room_behind(
        &self,
        asks: (&LeaseRequest, u32),
        scene: &Scene<'_>,
        (ahead, ends_ns): (&Ahead, Option<u64>),
        preferred: &[usize],
    ) -> Result<Room, ErrorBody> {
        let ends_ns = ends_ns.filter(|_| self.lends());
        // Of whom nothing is to be lent is known all the same when it ends.
        let own_ends_ns = || self.run_of(asks.0, None).ends_ns.or_else(|| scene.end_of_suspended(asks));
        let leaves_ns = ends_ns.or_else(|| own_ends_ns().filter(|_| self.lends()));
        let scene = &scene.without_later_reservations(ends_ns);
        let beside = |ahead: &Ahead| self.room_leaving(asks, scene, (ahead, leaves_ns), preferred);
        let refusal = match beside(ahead) {
            Err(refusal) => refusal,
            room => return room,
        };
        let lent = ahead.without_lent(ends_ns).and_then(|ahead| beside(&ahead).ok());
        lent.map(|room| Room { is_lent: true, ..room }).ok_or(refusal)
    }

    /// For how many seconds a request for which there is none could have some of what is kept for one of those ahead of it, if it says so
    /// soon.
    pub fn lent_seconds(&self, asks: (&LeaseRequest, u32), scene: &Scene<'_>, ahead: &Ahead) -> Option<u64> {
        let lent_until_ns = ahead.kept?.1?;
        let room = self.room_behind(asks, scene, (ahead, Some(lent_until_ns)), &[]).ok()?;
        self.check_quota(scene, None, &tally_of(asks, room.counts(), (scene.gpus, scene.book)), &ahead.reserved)
            .ok()?;
        let left_seconds = lent_until_ns.saturating_sub(clock::now_ns()) / 1_000_000_000;
        Some(left_seconds - left_seconds.div_ceil(10))
    }

    /// Whether one that waits has room beside what those before it take, also what is lent, and its quotas let it in. Of whom nobody
    /// could tell whether the end of others helps it, it is no: under MPS servers and in MIG instances, who may join goes by the others.
    pub fn fits_beside(&self, waiter: &Waiter, scene: &Scene<'_>, ahead: &Ahead) -> bool {
        self.place_beside(waiter, scene, (ahead, self.run_of(&waiter.asked, None).ends_ns)).is_some()
    }

    /// On which GPUs it has, if it ends then; without an end beside all that is kept.
    pub fn place_beside(
        &self,
        waiter: &Waiter,
        scene: &Scene<'_>,
        (ahead, ends_ns): (&Ahead, Option<u64>),
    ) -> Option<Vec<usize>> {
        let making_on = waiter.making_on.borrow();
        let preferred = if making_on.is_empty() { waiter.kept_on.borrow() } else { making_on };
        let asks = (&waiter.asked, waiter.uid);
        let room = self.room_behind(asks, scene, (ahead, ends_ns), &scene.places_of(&preferred)).ok()?;
        if room.served.mechanism == Mechanism::Mps || room.served.instance.is_some() {
            return None;
        }
        let wanted = tally_of(asks, room.counts(), (scene.gpus, scene.book));
        let of = (&waiter.asked.container_id, waiter.uid);
        let goes = self.check_quota(scene, None, &wanted, &ahead.reserved).is_ok()
            && self.leaves_plans_their_quota(of, scene, (None, &wanted), ends_ns);
        goes.then_some(room.placed.indices)
    }

    /// What others make room for by going: nobody behind it has that, however many stand before it and for however long.
    fn room_made_for(&self, waiter: &Waiter, scene: &Scene<'_>) -> Option<(Taken, Tally)> {
        let indices = scene.places_of(&waiter.making_on.borrow());
        if indices.is_empty() {
            return None;
        }
        let (choice, wanted) = self.alone(&waiter.asked, waiter.uid, scene)?;
        let is_whole =
            indices.len() == choice.demand.gpus.max(1) && indices.iter().all(|place| choice.open.contains(place));
        is_whole.then_some((Taken { indices, demand: choice.demand }, wanted))
    }

    /// Whether one that waits could begin while the reservations are as they are now, if nobody were there. Where it could not, nothing
    /// is kept for it: its time for that would be over when theirs is.
    fn could_begin(&self, waiter: &Waiter, scene: &Scene<'_>) -> bool {
        if scene.reserved.is_empty() {
            return true;
        }
        let book = Book::default();
        let ends_ns = self.run_of(&waiter.asked, None).ends_ns.filter(|_| self.lends());
        let scene = &scene.without_later_reservations(ends_ns);
        let empty = Scene { reserved: scene.reserved.with_nobody(), ..emptied(scene, &book) };
        self.room_leaving((&waiter.asked, waiter.uid), &empty, (&Ahead::default(), None), &[]).is_ok()
    }

    /// Sees that room is kept for the first in the queue if it does not fit.
    pub fn keep_for_first(&self, book: &Book) {
        let gpus = self.gpus_for_new();
        let scene = self.scene(book, None, &gpus);
        let mut ahead = book.queue.in_order();
        ahead.retain(|waiter| !waiter.is_in_nobodys_way());
        ahead.truncate(1);
        self.taken_by(&ahead, &scene);
    }

    /// What is kept for one that does not fit, what that counts of quotas, and when it can begin there, if anybody knows. Room is kept
    /// for so long in all, and also when it is about to come.
    fn kept(&self, waiter: &Waiter, scene: &Scene<'_>, ahead: &mut Ahead) -> Option<(Taken, Tally, Option<Begin>)> {
        let keep = Duration::from_secs(self.configuration().queue.keep_seconds);
        if keep.is_zero() || !self.could_begin(waiter, scene) {
            return None;
        }
        let (alone, wanted) = self.alone(&waiter.asked, waiter.uid, scene)?;
        self.check_quota(scene, None, &wanted, &ahead.reserved).ok()?;
        ahead.looks += 1;
        let is_whole = alone.demand.usage != Use::Sliced;
        let begin = (ahead.looks <= LOOKED_AT).then(|| self.begins(waiter, scene, ahead, is_whole)).flatten();
        // For longer nothing is kept, so nothing is told of what comes later: it would not be kept to.
        let comes_in = |begin: &Begin| Duration::from_nanos(begin.at_ns.saturating_sub(clock::now_ns()));
        let begin = begin.filter(|begin| comes_in(begin) <= keep);
        if begin.is_none() && !waiter.may_keep(keep) {
            return None;
        }
        let (kept, begin) = self.kept_of(waiter, scene, (ahead, begin), alone)?;
        Some((kept, wanted, begin))
    }

    /// The same: what it would have of this host if nobody were there, on the GPUs on which it can begin first; where nobody knows
    /// that, on GPUs that stay the same. Of a whole instance nothing.
    fn kept_of(
        &self,
        waiter: &Waiter,
        scene: &Scene<'_>,
        (ahead, begin): (&Ahead, Option<Begin>),
        alone: Choice,
    ) -> Option<(Taken, Option<Begin>)> {
        let Choice { served, domain, mut demand, open, .. } = alone;
        if served.mechanism == Mechanism::Mig {
            return None;
        }
        let is_one =
            |places: &[usize]| places.len() == demand.gpus.max(1) && places.iter().all(|place| open.contains(place));
        let begin = begin.filter(|begin| is_one(&begin.places));
        let same = || Some(scene.places_of(&waiter.kept_on.borrow())).filter(|places| is_one(places));
        let indices = match begin.as_ref().map(|begin| begin.places.clone()).or_else(same) {
            Some(places) => places,
            None => {
                let whom = Whom::asking(&waiter.asked, waiter.uid);
                let mut before = scene.beside(&whom, (&ahead.taken, &ahead.whose));
                before.extend(scene.plans.taken(&waiter.asked.container_id, waiter.uid));
                // On one that takes nobody in it could not begin, but where there are no others.
                let asks = (&waiter.asked, waiter.uid);
                let left = self.without_closed(open.clone(), scene, asks, demand.gpus.max(1));
                let open = left.map_or(open, |(left, _)| left);
                kept_for(&self.capacities_for(scene, domain.as_ref(), &demand, &before), &open, &demand)?
            }
        };
        // An instance is one team's until the last of its leases has ended: nobody else's begins there meanwhile.
        let is_others = |record: &Record| record.team != waiter.asked.request.team;
        if let Some(instance) = served.instance
            && records_on(scene.gpus, scene.book, instance, scene.own).any(is_others)
        {
            demand.usage = Use::Whole;
        }
        Some((Taken { indices, demand }, begin))
    }
}
