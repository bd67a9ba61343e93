//! The queue for room, in virtual time: containers come, wait, run as long as they like and end.

use gpool_policy::admission::{Demand, GpuCapacity, MemoryDemand, Placement, Site, Use, Users, WHOLE_PERMILLE, place};
use gpool_policy::queue::{Claim, Prospect, Rounds, Taken, kept_for, order, taken_ahead};
use gpool_policy::slice::Priority;
use proptest::prelude::*;
use std::cell::RefCell;

const GIB: u64 = 1 << 30;
const MEMORY_GIB: u64 = 24;

/// A container that is to come.
#[derive(Clone, Debug)]
struct Job {
    comes_at: u64,
    runs_for: u64,
    owner: u8,
    demand: Demand,
}

/// One that runs.
#[derive(Clone, Debug)]
struct Running {
    ends_at: u64,
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
}

/// The course of one job.
#[derive(Clone, Debug, Default, PartialEq)]
struct Course {
    began_at: Option<u64>,
    /// When the GPUs that were kept for it first are free enough, by the leases that were on them.
    bound: Option<u64>,
}

struct World<'a> {
    gpus: usize,
    jobs: &'a [Job],
    now: u64,
    running: Vec<Running>,
    waiting: Vec<Waiting>,
    rounds: Rounds,
    courses: Vec<Course>,
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

    /// What these, the first of the queue first, leave to nobody behind them.
    fn taken_by(&self, ahead: &[usize]) -> Vec<Taken> {
        taken_ahead(ahead.iter().map(|index| &self.waiting[*index]), |waiting, before, may_keep| {
            if let Some(fits) = self.try_place(waiting, before) {
                return Prospect::Fits(fits);
            }
            if !may_keep {
                return Prospect::Waits;
            }
            let mut gpus = capacities(self.gpus, &self.running);
            before.iter().for_each(|taken| taken.enter(&mut gpus));
            let (all, demand) = ((0..self.gpus).collect::<Vec<_>>(), self.jobs[waiting.job].demand);
            let mut kept = waiting.kept.borrow_mut();
            let indices = kept.get_or_insert_with(|| kept_for(&gpus, &all, &demand).unwrap()).clone();
            Prospect::Keeps(Taken { indices, demand })
        })
    }

    /// Everybody asks until nobody gets anything any more, in an order that `turns` gives.
    fn settle(&mut self, turns: &mut impl Iterator<Item = usize>) {
        loop {
            let queue = order(&self.claims());
            let first = turns.next().unwrap_or(0);
            let asking = (0..queue.len()).map(|turn| (turn + first) % queue.len());
            let go = |at: usize| self.try_place(&self.waiting[queue[at]], &self.taken_by(&queue[..at]));
            let got = asking.into_iter().find_map(|at| Some((at, go(at)?)));
            let Some((at, placed)) = got else { break };
            let job = self.waiting.remove(queue[at]).job;
            self.courses[job].began_at = Some(self.now);
            self.running.push(Running { ends_at: self.now + self.jobs[job].runs_for, placed });
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

fn run(gpus: usize, jobs: &[Job], mut turns: impl Iterator<Item = usize>) -> Vec<Course> {
    let courses = vec![Course::default(); jobs.len()];
    let mut world =
        World { gpus, jobs, now: 0, running: Vec::new(), waiting: Vec::new(), rounds: Rounds::default(), courses };
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
            let claim = Claim { priority, round, since_ns: now };
            world.waiting.push(Waiting { job, claim, planned: RefCell::default(), kept: RefCell::default() });
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
    ) -> Job {
        let usage = if kind == 0 { Use::Whole } else { Use::Sliced };
        let priority = if best_effort && usage == Use::Sliced { Priority::Burst } else { Priority::Guaranteed };
        let wanted = if kind < 8 { 1 } else { wanted };
        let memory = MemoryDemand::Bytes(memory * GIB);
        Job { comes_at, runs_for, owner, demand: Demand { fraction_permille, memory, priority, gpus: wanted, usage } }
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
        let courses = run(gpus, &jobs, turns.into_iter());
        prop_assert!(courses.iter().all(|course| course.began_at.is_some()));
    }

    /// Among equals who come one after the other: whoever stands first begins when the leases that were on the GPUs that are
    /// kept for it have ended, whatever comes behind it.
    #[test]
    fn who_is_first_waits_for_the_ends_of_those_before_it_alone((gpus, jobs, turns) in host(true)) {
        for (job, course) in run(gpus, &jobs, turns.into_iter()).iter().enumerate() {
            let began_at = course.began_at.unwrap();
            if let Some(bound) = course.bound {
                prop_assert!(began_at <= bound, "job {} began at {} and not by {}", job, began_at, bound);
            }
        }
    }

    /// Who happens to ask first does not matter where nothing is kept and nobody could choose: on one GPU.
    #[test]
    fn on_one_gpu_it_does_not_matter_who_asks_first((_, jobs, turns) in host(false)) {
        let jobs: Vec<Job> = jobs.into_iter().map(|job| Job { demand: Demand { gpus: 1, ..job.demand }, ..job }).collect();
        prop_assert_eq!(run(1, &jobs, turns.into_iter()), run(1, &jobs, std::iter::repeat(0)));
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
    let small = (0..300).map(|n| Job { comes_at: n * 5, runs_for: 30, owner: 0, demand: sliced });
    let whole = Job { comes_at: 100, runs_for: 50, owner: 1, demand: Demand { usage: Use::Whole, ..sliced } };
    let jobs: Vec<Job> = small.chain([whole]).collect();
    let courses = run(1, &jobs, std::iter::repeat(0));
    let began_at = courses.last().unwrap().began_at.unwrap();
    assert!((100..=160).contains(&began_at), "{began_at}");
}
