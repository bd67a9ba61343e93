//! The queue for room, in virtual time: containers come, wait, run as long as they like and end.

use gpool_policy::admission::{Demand, GpuCapacity, MemoryDemand, Placement, Site, Use, Users, WHOLE_PERMILLE, place};
use gpool_policy::backfill::{first_begin, leaves_in_time};
use gpool_policy::queue::{Claim, Prospect, Rounds, Taken, kept_for, look_in_order, order};
use gpool_policy::slice::Priority;
use proptest::prelude::*;
use std::cell::{Cell, RefCell};

const GIB: u64 = 1 << 30;
const MEMORY_GIB: u64 = 24;
/// Longer than any job runs.
const KEEP: u64 = 1000;

/// A container that is to come.
#[derive(Clone, Debug)]
struct Job {
    comes_at: u64,
    runs_for: u64,
    /// Whether it says so, and what is kept for others may be lent to it until they want it.
    says_so: bool,
    owner: u8,
    demand: Demand,
}

/// One that runs.
#[derive(Clone, Debug)]
struct Running {
    ends_at: u64,
    says_so: bool,
    placed: Taken,
}

/// One that waits.
#[derive(Debug)]
struct Waiting {
    job: usize,
    claim: Claim,
    /// Where it goes, once there was room: the choice would change with what those behind it are given meanwhile.
    planned: RefCell<Option<Vec<usize>>>,
    /// What is kept for it, once something was.
    kept: RefCell<Option<Vec<usize>>>,
    /// When it can begin there at the latest.
    begins: Cell<Option<u64>>,
}

/// The course of one job.
#[derive(Clone, Debug, Default, PartialEq)]
struct Course {
    began_at: Option<u64>,
    /// When the GPUs that were kept for it first are free enough, by the leases that were on them.
    bound: Option<u64>,
    /// When it can begin at the latest by the ends that are known: what was said last, and whether that ever moved back.
    promised: Option<u64>,
    was_put_off: bool,
    /// Whether it began in room that was kept for another one.
    is_lent: bool,
}

/// What those who stand before somebody leave to nobody behind them.
#[derive(Default)]
struct Ahead {
    taken: Vec<Taken>,
    ends: Vec<Option<u64>>,
    /// Which of it is kept for one that does not fit, and when that one begins at the latest.
    kept: Option<(usize, Option<u64>)>,
}

impl Ahead {
    fn push(&mut self, taken: Taken, ends: Option<u64>) {
        self.taken.push(taken);
        self.ends.push(ends);
    }

    /// Those whose end is not known to be over by then.
    fn left_at(&self, at: u64) -> Vec<Taken> {
        let all = self.taken.iter().zip(&self.ends);
        all.filter(|(_, ends)| ends.is_none_or(|ends| ends > at)).map(|(taken, _)| taken.clone()).collect()
    }
}

struct World<'a> {
    gpus: usize,
    jobs: &'a [Job],
    now: u64,
    running: Vec<Running>,
    waiting: Vec<Waiting>,
    rounds: Rounds,
    courses: Vec<Course>,
    /// How far ahead a begin is told at most.
    keep: u64,
}

fn capacities(gpus: usize, running: &[Running]) -> Vec<GpuCapacity> {
    let empty = |index: usize| GpuCapacity {
        key: format!("GPU-{index}"),
        memory_total_bytes: MEMORY_GIB * GIB,
        memory_foreign_bytes: 0,
        fraction_leased_permille: 0,
        memory_leased_bytes: 0,
        users: Users::default(),
        site: Site::default(),
    };
    let mut all: Vec<GpuCapacity> = (0..gpus).map(empty).collect();
    running.iter().for_each(|lease| lease.placed.enter(&mut all));
    all
}

impl World<'_> {
    fn claims(&self) -> Vec<Claim> {
        self.waiting.iter().map(|waiting| waiting.claim).collect()
    }

    /// When it would end if it began now, as far as anybody is told.
    fn end_of(&self, job: usize) -> Option<u64> {
        self.jobs[job].says_so.then(|| self.now + self.jobs[job].runs_for)
    }

    fn try_place(&self, waiting: &Waiting, before: &[Taken]) -> Option<Taken> {
        let mut gpus = capacities(self.gpus, &self.running);
        before.iter().for_each(|taken| taken.enter(&mut gpus));
        let demand = self.jobs[waiting.job].demand;
        let is_free = |planned: &Vec<usize>| {
            place(&planned.iter().map(|index| gpus[*index].clone()).collect::<Vec<_>>(), &demand).is_ok()
        };
        let mut planned = waiting.planned.borrow_mut();
        if !planned.as_ref().is_some_and(is_free) {
            *planned = place(&gpus, &demand).ok().map(|Placement { indices, .. }| indices);
        }
        planned.clone().map(|indices| Taken { indices, demand })
    }

    /// The same behind those, also in what is kept for one of them who begins no earlier than this one ends; whether it is that.
    fn try_behind(&self, waiting: &Waiting, ahead: &Ahead) -> Option<(Taken, bool)> {
        let plain = self.try_place(waiting, &ahead.taken).map(|taken| (taken, false));
        let lent = || {
            let (kept, begins) = ahead.kept?;
            let mut others = ahead.taken.clone();
            others.remove(kept);
            let may = leaves_in_time(self.end_of(waiting.job), begins);
            Some((may.then(|| self.try_place(waiting, &others)).flatten()?, true))
        };
        plain.or_else(lent)
    }

    /// When it can begin at the latest by the ends that are known, and where.
    fn begins(&self, waiting: &Waiting, ahead: &Ahead) -> Option<(u64, Vec<usize>)> {
        let known = self.running.iter().filter(|lease| lease.says_so).map(|lease| lease.ends_at);
        let mut ends: Vec<u64> = known.chain(ahead.ends.iter().copied().flatten()).collect();
        ends.sort_unstable();
        let demand = self.jobs[waiting.job].demand;
        first_begin(&ends, |at| {
            let left = self.running.iter().filter(|lease| !lease.says_so || lease.ends_at > at);
            let mut gpus = capacities(self.gpus, &left.cloned().collect::<Vec<_>>());
            ahead.left_at(at).iter().for_each(|taken| taken.enter(&mut gpus));
            place(&gpus, &demand).ok().map(|placed| placed.indices)
        })
        .filter(|(at, _)| *at - self.now <= self.keep)
    }

    /// What these, the first of the queue first, leave to nobody behind them.
    fn taken_by(&self, before: &[usize]) -> Ahead {
        let mut ahead = Ahead::default();
        look_in_order(before.iter().map(|index| &self.waiting[*index]), |waiting, may_keep| {
            if let Some((fits, _)) = self.try_behind(waiting, &ahead) {
                ahead.push(fits, self.end_of(waiting.job));
                return Prospect::Fits;
            }
            if !may_keep {
                return Prospect::Waits;
            }
            let mut gpus = capacities(self.gpus, &self.running);
            ahead.taken.iter().for_each(|taken| taken.enter(&mut gpus));
            let (all, demand) = ((0..self.gpus).collect::<Vec<_>>(), self.jobs[waiting.job].demand);
            let begins = self.begins(waiting, &ahead);
            let mut kept = waiting.kept.borrow_mut();
            match &begins {
                Some((_, places)) => *kept = Some(places.clone()),
                None => drop(kept.get_or_insert_with(|| kept_for(&gpus, &all, &demand).unwrap())),
            }
            waiting.begins.set(begins.map(|(at, _)| at));
            ahead.kept = Some((ahead.taken.len(), waiting.begins.get()));
            ahead.push(Taken { indices: kept.clone().unwrap(), demand }, None);
            Prospect::Keeps
        });
        ahead
    }

    /// Everybody asks until nobody gets anything any more, in an order that `turns` gives.
    fn settle(&mut self, turns: &mut impl Iterator<Item = usize>) {
        loop {
            let queue = order(&self.claims());
            let first = turns.next().unwrap_or(0);
            let asking = (0..queue.len()).map(|turn| (turn + first) % queue.len());
            let go = |at: usize| self.try_behind(&self.waiting[queue[at]], &self.taken_by(&queue[..at]));
            let got = asking.into_iter().find_map(|at| Some((at, go(at)?)));
            let Some((at, (placed, is_lent))) = got else { break };
            let job = self.waiting.remove(queue[at]).job;
            (self.courses[job].began_at, self.courses[job].is_lent) = (Some(self.now), is_lent);
            let Job { runs_for, says_so, .. } = self.jobs[job];
            self.running.push(Running { ends_at: self.now + runs_for, says_so, placed });
            self.nothing_is_sold_twice();
        }
        // What is kept for the first one is known also when nobody stands behind it.
        let _ = self.taken_by(&order(&self.claims()));
        for index in 0..self.waiting.len() {
            let waiting = &self.waiting[index];
            if let (Some(kept), None) = (waiting.kept.borrow().as_ref(), self.courses[waiting.job].bound) {
                let bound = self.free_at(kept, &self.jobs[waiting.job].demand);
                self.courses[waiting.job].bound = Some(bound);
            }
            let course = &mut self.courses[waiting.job];
            if let Some(begins) = waiting.begins.get() {
                course.was_put_off |= course.promised.is_some_and(|promised| promised < begins);
                course.promised = Some(begins);
            }
        }
    }

    /// When these GPUs have room for it if nobody else comes to them.
    fn free_at(&self, kept: &[usize], demand: &Demand) -> u64 {
        let mut ends: Vec<u64> = self.running.iter().map(|lease| lease.ends_at).collect();
        ends.sort_unstable();
        let has_room = |at: &u64| {
            let left: Vec<Running> = self.running.iter().filter(|lease| lease.ends_at > *at).cloned().collect();
            let all = capacities(self.gpus, &left);
            place(&kept.iter().map(|index| all[*index].clone()).collect::<Vec<_>>(), demand).is_ok()
        };
        ends.into_iter().find(has_room).expect("an empty GPU has room")
    }

    fn nothing_is_sold_twice(&self) {
        for gpu in capacities(self.gpus, &self.running) {
            assert!(gpu.fraction_leased_permille <= WHOLE_PERMILLE && gpu.memory_leased_bytes <= MEMORY_GIB * GIB);
            assert!(gpu.users.whole == 0 || gpu.users.whole + gpu.users.sliced == 1, "{gpu:?}");
        }
    }
}

fn run((gpus, keep): (usize, u64), jobs: &[Job], mut turns: impl Iterator<Item = usize>) -> Vec<Course> {
    let courses = vec![Course::default(); jobs.len()];
    let mut world = World {
        gpus,
        jobs,
        now: 0,
        running: Vec::new(),
        waiting: Vec::new(),
        rounds: Rounds::default(),
        courses,
        keep,
    };
    let mut to_come: Vec<usize> = (0..jobs.len()).collect();
    to_come.sort_by_key(|job| std::cmp::Reverse((jobs[*job].comes_at, *job)));
    loop {
        let next_end = world.running.iter().map(|lease| lease.ends_at).min();
        let next_job = to_come.last().map(|job| jobs[*job].comes_at);
        let Some(now) = next_end.into_iter().chain(next_job).min() else { break };
        world.now = now;
        world.running.retain(|lease| lease.ends_at > now);
        while to_come.last().is_some_and(|job| jobs[*job].comes_at <= now) {
            let job = to_come.pop().unwrap();
            let (priority, owner) = (jobs[job].demand.priority, jobs[job].owner.to_string());
            let round = world.rounds.join(&world.claims(), priority, &owner);
            let claim = Claim { priority, is_ordinary: true, round, since_ns: now };
            world.waiting.push(Waiting {
                job,
                claim,
                planned: RefCell::default(),
                kept: RefCell::default(),
                begins: Cell::default(),
            });
        }
        world.settle(&mut turns);
    }
    assert!(world.waiting.is_empty(), "nobody waits at an empty host");
    world.courses
}

prop_compose! {
    fn job(gpus: usize)(
        comes_at in 0..400u64,
        runs_for in 1..100u64,
        owner in 0..3u8,
        kind in 0..10u8,
        fraction_permille in 10..=1000u16,
        memory in 1..=MEMORY_GIB,
        wanted in 1..=gpus,
        best_effort in prop::bool::weighted(0.1),
        says_so: bool,
    ) -> Job {
        let usage = if kind == 0 { Use::Whole } else { Use::Sliced };
        let priority = if best_effort && usage == Use::Sliced { Priority::Burst } else { Priority::Guaranteed };
        let wanted = if kind < 8 { 1 } else { wanted };
        let memory = MemoryDemand::Bytes(memory * GIB);
        Job { comes_at, runs_for, says_so, owner, demand: Demand { fraction_permille, memory, priority, gpus: wanted, usage } }
    }
}

prop_compose! {
    fn host(alike: bool)(gpus in 1..=4usize)(
        jobs in prop::collection::vec(job(gpus), 1..40),
        turns in prop::collection::vec(0..8usize, 200),
        gpus in Just(gpus),
    ) -> (usize, Vec<Job>, Vec<usize>) {
        let mut jobs: Vec<Job> = jobs;
        if alike {
            jobs.iter_mut().for_each(|job| (job.owner, job.demand.priority) = (0, Priority::Guaranteed));
        }
        (gpus, jobs, turns)
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 400, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn everybody_has_his_turn_and_nothing_is_sold_twice((gpus, jobs, turns) in host(false)) {
        let courses = run((gpus, KEEP), &jobs, turns.into_iter());
        prop_assert!(courses.iter().all(|course| course.began_at.is_some()));
    }

    /// Among equals who come one after the other: whoever stands first begins when the leases that were on the GPUs that are
    /// kept for it have ended, whatever comes behind it.
    #[test]
    fn who_is_first_waits_for_the_ends_of_those_before_it_alone((gpus, jobs, turns) in host(true)) {
        let jobs: Vec<Job> = jobs.into_iter().map(|job| Job { says_so: false, ..job }).collect();
        for (job, course) in run((gpus, KEEP), &jobs, turns.into_iter()).iter().enumerate() {
            let began_at = course.began_at.unwrap();
            if let Some(bound) = course.bound {
                prop_assert!(began_at <= bound, "job {} began at {} and not by {}", job, began_at, bound);
            }
        }
    }

    /// The same where some say when they end, and keep to that: what is kept for the first one is lent to those who do, and when it can
    /// begin at the latest is never put off.
    #[test]
    fn what_is_kept_and_lent_is_there_when_it_was_promised((gpus, jobs, turns) in host(true), keep in 1..120u64) {
        for (job, course) in run((gpus, keep), &jobs, turns.into_iter()).iter().enumerate() {
            prop_assert!(!course.was_put_off, "job {} was put off", job);
            if let Some(promised) = course.promised {
                let began_at = course.began_at.unwrap();
                prop_assert!(began_at <= promised, "job {} began at {} and not by {}", job, began_at, promised);
            }
        }
    }

    /// Who happens to ask first does not matter where nobody could choose and nothing is lent: on one GPU, of those who do not say how
    /// long they run.
    #[test]
    fn on_one_gpu_it_does_not_matter_who_asks_first((_, jobs, turns) in host(false)) {
        let alone = |job: Job| Job { says_so: false, demand: Demand { gpus: 1, ..job.demand }, ..job };
        let jobs: Vec<Job> = jobs.into_iter().map(alone).collect();
        prop_assert_eq!(run((1, KEEP), &jobs, turns.into_iter()), run((1, KEEP), &jobs, std::iter::repeat(0)));
    }
}

/// A whole GPU is asked for where small ones come and go without end: without the queue it would never be free.
#[test]
fn small_ones_without_end_do_not_keep_a_large_one_waiting() {
    let sliced = Demand {
        fraction_permille: 300,
        memory: MemoryDemand::Bytes(GIB),
        priority: Priority::Guaranteed,
        gpus: 1,
        usage: Use::Sliced,
    };
    let small = (0..300).map(|n| Job { comes_at: n * 5, runs_for: 30, says_so: false, owner: 0, demand: sliced });
    let whole =
        Job { comes_at: 100, runs_for: 50, says_so: false, owner: 1, demand: Demand { usage: Use::Whole, ..sliced } };
    let jobs: Vec<Job> = small.chain([whole]).collect();
    let courses = run((1, KEEP), &jobs, std::iter::repeat(0));
    let began_at = courses.last().unwrap().began_at.unwrap();
    assert!((100..=160).contains(&began_at), "{began_at}");
}

/// One that needs all of a GPU waits for a long one, and short ones go on beside that as long as they end in time.
#[test]
fn what_is_kept_for_a_large_one_is_lent_to_short_ones() {
    let demand = |fraction_permille| Demand {
        fraction_permille,
        memory: MemoryDemand::Bytes(GIB),
        priority: Priority::Guaranteed,
        gpus: 1,
        usage: Use::Sliced,
    };
    let job =
        |comes_at, runs_for, permille| Job { comes_at, runs_for, says_so: true, owner: 0, demand: demand(permille) };
    let jobs =
        [job(0, 100, 500), job(1, 50, 1000), job(2, 98, 500), job(2, 40, 500), job(50, 60, 500), job(50, 50, 500)];
    let course = |says_so| {
        let jobs: Vec<Job> = jobs.iter().map(|job| Job { says_so, ..job.clone() }).collect();
        let courses = run((1, KEEP), &jobs, std::iter::repeat(0));
        courses.into_iter().map(|course| (course.began_at.unwrap(), course.is_lent)).collect::<Vec<_>>()
    };
    // The first short one ends when the large one can begin, and the others find no room beside it before.
    assert_eq!(course(true)[..3], [(0, false), (100, false), (2, true)]);
    assert_eq!(course(false)[..4], [(0, false), (100, false), (150, false), (150, false)]);
    // Of two that come at once one ends a moment too late for that.
    let too_late = [job(0, 100, 500), job(1, 50, 1000), job(2, 99, 500), job(2, 98, 500)];
    let began: Vec<u64> =
        run((1, KEEP), &too_late, std::iter::repeat(0)).iter().map(|its| its.began_at.unwrap()).collect();
    assert_eq!(began, [0, 100, 150, 2]);
}
