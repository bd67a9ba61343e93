use super::*;
use crate::admission::{MemoryDemand, Site, Use};
use crate::slice::Priority;
use proptest::prelude::*;

const GIB: u64 = 1 << 30;

fn gpu(number: usize, share: u16) -> GpuCapacity {
    GpuCapacity {
        key: format!("GPU-{number}"),
        memory_total_bytes: 40 * GIB,
        memory_foreign_bytes: 0,
        fraction_leased_permille: share,
        memory_leased_bytes: u64::from(share) * GIB / 50,
        users: Users { sliced: u32::from(share > 0), ..Users::default() },
        site: Site::default(),
    }
}

/// GPUs with those shares leased from a moment on.
fn frames(all: &[(u64, &[u16])]) -> Arc<[Frame]> {
    let of = |shares: &[u16]| shares.iter().enumerate().map(|(number, share)| gpu(number, *share)).collect();
    all.iter().map(|(from_ns, shares)| Frame { from_ns: *from_ns, gpus: of(shares) }).collect()
}

fn share(permille: u16) -> Demand {
    Demand {
        fraction_permille: permille,
        memory: MemoryDemand::Absent,
        priority: Priority::Guaranteed,
        gpus: 1,
        usage: Use::Sliced,
    }
}

fn whole(gpus: usize) -> Demand {
    Demand { gpus, usage: Use::Whole, ..share(1000) }
}

fn job(frames: &Arc<[Frame]>, demand: Demand, length_ns: u64, begins_by_ns: u64) -> Job {
    let among = (0..frames[0].gpus.len()).collect();
    Job { demand, among, frames: Arc::clone(frames), length_ns, begins_by_ns }
}

fn begins(plans: &[Plan]) -> Vec<(u64, Vec<usize>)> {
    plans.iter().map(|plan| (plan.begins_ns, plan.taken.indices.clone())).collect()
}

#[test]
fn one_begins_when_those_have_ended_that_have_what_it_needs() {
    let frames = frames(&[(0, &[700, 900]), (50, &[700, 600]), (80, &[400, 600])]);
    let at = |permille, begins_by| earliest(&job(&frames, share(permille), 10, begins_by), &[], 0, |_| true);
    assert_eq!(begins(&[at(300, 100).unwrap()]), [(0, vec![0])]);
    assert_eq!(begins(&[at(400, 100).unwrap()]), [(50, vec![1])]);
    assert_eq!(begins(&[at(600, 100).unwrap()]), [(80, vec![0])]);
    assert_eq!((at(600, 80).is_some(), at(600, 79), at(700, 1000)), (true, None, None));
    assert_eq!(
        earliest(&job(&frames, share(400), 10, 100), &[], 60, |_| true).unwrap().begins_ns,
        60,
        "nothing is over yet"
    );
}

#[test]
fn what_begins_later_has_to_have_room_beside_it() {
    // Something is reserved from 40 on.
    let frames = frames(&[(0, &[0]), (40, &[800]), (90, &[0])]);
    let at = |length| earliest(&job(&frames, share(500), length, 500), &[], 0, |_| true).map(|plan| plan.begins_ns);
    assert_eq!((at(40), at(41)), (Some(0), Some(90)));
}

#[test]
fn two_halves_one_after_the_other_leave_the_other_half_all_the_time() {
    let frames = frames(&[(0, &[0])]);
    let mut planned = Vec::new();
    for begins_by in [0, 100] {
        let new = job(&frames, share(600), 100, begins_by);
        let plans = admit(&planned, &new, 0, |_| true).unwrap();
        planned.push((new, plans.last().unwrap().clone()));
    }
    assert_eq!(begins(&[planned[0].1.clone(), planned[1].1.clone()]), [(0, vec![0]), (100, vec![0])]);
    let all: Vec<&Plan> = planned.iter().map(|(_, plan)| plan).collect();
    let more = |permille| Taken { indices: vec![0], demand: share(permille) };
    let is_left = |permille, until_ns| {
        let of = |this: usize| {
            planned[this].1.is_left_by(&planned[this].0, &all[1 - this..2 - this], &more(permille), (0, until_ns))
        };
        (of(0), of(1))
    };
    assert_eq!((is_left(400, None), is_left(500, None)), ((true, true), (false, false)));
    let elsewhere = Taken { indices: vec![1], demand: whole(1) };
    assert!(planned[0].1.is_left_by(&planned[0].0, &[], &elsewhere, (0, None)));
    assert_eq!((is_left(500, Some(100)), is_left(500, Some(101))), ((false, true), (false, false)));
}

#[test]
fn who_would_not_be_in_time_beside_the_others_has_them_planned_anew() {
    let frames = frames(&[(0, &[0])]);
    // It could wait for long, and was planned for now.
    let patient = job(&frames, whole(1), 100, 500);
    let plan = earliest(&patient, &[], 0, |_| true).unwrap();
    assert_eq!(plan.begins_ns, 0);
    let planned = [(patient, plan)];
    let hurried = job(&frames, share(500), 50, 20);
    assert_eq!(begins(&admit(&planned, &hurried, 0, |_| true).unwrap()), [(50, vec![0]), (0, vec![0])]);
    assert_eq!(admit(&planned, &hurried, 0, |plans| plans[0].begins_ns == 0), None, "that may not be");
    let too_long = job(&frames, share(500), 501, 20);
    assert_eq!(admit(&planned, &too_long, 0, |_| true), None, "the other one would be late");
}

#[test]
fn what_takes_the_room_of_a_plan_by_itself_is_no_newcomers_doing() {
    let roomy = frames(&[(0, &[0])]);
    let plan = earliest(&job(&roomy, share(500), 100, 0), &[], 0, |_| true).unwrap();
    let now = job(&frames(&[(0, &[600])]), share(500), 100, 0);
    assert!(!plan.holds(&now, &[], 0));
    assert!(plan.is_left_by(&now, &[], &Taken { indices: vec![0], demand: share(400) }, (0, None)));
    let gone = Job { among: Vec::new(), ..job(&roomy, share(500), 100, 0) };
    assert!(!plan.holds(&gone, &[], 0) && plan.holds(&job(&roomy, share(500), 100, 0), &[], 0));
}

#[test]
fn several_gpus_are_had_at_once_or_not_at_all() {
    let frames = frames(&[(0, &[1000, 0, 0]), (60, &[0, 0, 0])]);
    let three = earliest(&job(&frames, whole(3), 10, 100), &[], 0, |_| true).unwrap();
    assert_eq!(begins(std::slice::from_ref(&three)), [(60, vec![0, 1, 2])]);
    let two = earliest(&job(&frames, whole(2), 60, 100), &[&three], 0, |_| true).unwrap();
    assert_eq!(begins(&[two]), [(0, vec![1, 2])]);
    let longer = earliest(&job(&frames, whole(2), 61, 100), &[&three], 0, |_| true).unwrap();
    assert_eq!(longer.begins_ns, 70);
}

/// What somebody asks for: a share in tenths, or all of a GPU, for how long, and when it has to begin, from its coming on.
type Asked = (u16, u64, u64);

proptest! {
    /// Of jobs that each need all of one GPU there is a schedule if and only if, for each deadline, what is due by then fits before it.
    #[test]
    fn on_one_gpu_those_are_admitted_that_can_be_in_time(asked in prop::collection::vec((1u64..30, 0u64..90), 1..8)) {
        let frames = frames(&[(0, &[0])]);
        let mut planned: Vec<(Job, Plan)> = Vec::new();
        for (length, slack) in asked {
            let new = job(&frames, whole(1), length, slack);
            let jobs: Vec<&Job> = planned.iter().map(|(job, _)| job).chain([&new]).collect();
            let due = |job: &Job| job.begins_by_ns + job.length_ns;
            let can_be = jobs.iter().all(|last| {
                let by_then = jobs.iter().filter(|job| due(job) <= due(last)).map(|job| job.length_ns).sum::<u64>();
                by_then <= due(last)
            });
            let plans = admit(&planned, &new, 0, |_| true);
            prop_assert_eq!(plans.is_some(), can_be);
            if let Some(plans) = plans {
                let jobs = planned.into_iter().map(|(job, _)| job).chain([new]);
                planned = jobs.zip(plans).collect();
            }
        }
    }

    /// Whoever was admitted begins in time, wherever others come and end early, and no GPU is promised more than once.
    #[test]
    fn who_is_admitted_is_in_time_whoever_comes_later(
        asked in prop::collection::vec((0u64..15, any::<bool>(), (1u16..13, 1u64..40, 0u64..80), 1u64..100), 1..24),
        running in prop::collection::vec((0u16..10, prop::option::of(1u64..60)), 1..4),
    ) {
        let mut world = World::of(&running);
        for (pause, has_deadline, asked, earlier) in asked {
            world.pass(pause)?;
            world.comes(has_deadline, asked, earlier)?;
        }
        world.pass(2000)?;
        prop_assert!(world.planned.is_empty(), "all that were admitted have begun");
    }
}

/// Who has a plan asks for his room as often as this, and plans are so much longer than what they are for.
const ASKS_EVERY: u64 = 3;
const SLACK: u64 = 4;

/// One that was admitted.
#[derive(Clone, Debug)]
struct Admitted {
    demand: Demand,
    length: u64,
    runs: u64,
    begins_by: u64,
    /// When it came.
    came: u64,
    plan: Plan,
}

/// A host on which some run, some have plans, and others come.
struct World {
    now: u64,
    gpus: usize,
    /// What is had: on which GPU, how much, until when it was told to run, and when it ends.
    running: Vec<(Taken, Option<u64>, Option<u64>)>,
    planned: Vec<Admitted>,
}

impl World {
    fn of(running: &[(u16, Option<u64>)]) -> Self {
        let having = |(gpu, (tenths, ends)): (usize, &(u16, Option<u64>))| {
            (Taken { indices: vec![gpu], demand: share(tenths * 100) }, *ends, *ends)
        };
        let all = running.iter().enumerate().filter(|(_, (tenths, _))| *tenths > 0).map(having).collect();
        Self { now: 0, gpus: running.len(), running: all, planned: Vec::new() }
    }

    fn frames(&self) -> Arc<[Frame]> {
        let told = self.running.iter().filter_map(|(_, told, _)| *told).filter(|told| *told > self.now);
        let moments: BTreeSet<u64> = told.chain([self.now]).collect();
        let frame = |from_ns: u64| {
            let mut gpus: Vec<GpuCapacity> = (0..self.gpus).map(|number| gpu(number, 0)).collect();
            let there = self.running.iter().filter(|(_, told, _)| told.is_none_or(|told| told > from_ns));
            there.for_each(|(taken, _, _)| taken.enter(&mut gpus));
            Frame { from_ns, gpus }
        };
        moments.into_iter().map(frame).collect()
    }

    fn jobs(&self) -> Vec<(Job, Plan)> {
        let frames = self.frames();
        let of = |its: &Admitted| (job(&frames, its.demand, its.length + SLACK, its.begins_by), its.plan.clone());
        self.planned.iter().map(of).collect()
    }

    /// Whether somebody who has that until then leaves all those their room.
    fn is_left(&self, jobs: &[(Job, Plan)], more: &Taken, until: Option<u64>) -> bool {
        (0..jobs.len()).all(|this| {
            let others = jobs.iter().enumerate().filter(|(it, _)| *it != this);
            let others: Vec<&Plan> = others.map(|(_, (_, plan))| plan).collect();
            jobs[this].1.is_left_by(&jobs[this].0, &others, more, (self.now, until))
        })
    }

    /// One comes: with a deadline it is admitted or not, without one it begins if it leaves everybody his plan.
    fn comes(&mut self, has_deadline: bool, (tenths, length, slack): Asked, earlier: u64) -> Result<(), TestCaseError> {
        let demand = if tenths > 10 { whole(1) } else { share(tenths * 100) };
        let (frames, jobs, runs) = (self.frames(), self.jobs(), length.min(earlier));
        if has_deadline {
            let begins_by = self.now + slack;
            let new = job(&frames, demand, length + SLACK, begins_by);
            let Some(plans) = admit(&jobs, &new, self.now, |_| true) else { return Ok(()) };
            let plan = plans.last().unwrap().clone();
            self.planned.iter_mut().zip(plans).for_each(|(its, plan)| its.plan = plan);
            self.planned.push(Admitted { demand, length, runs, begins_by, came: self.now, plan });
            return Ok(());
        }
        // Every third has no end.
        let told = (!slack.is_multiple_of(3)).then_some(self.now + length);
        let Ok(placed) = place(&frames[0].gpus, &demand) else { return Ok(()) };
        let more = Taken { indices: placed.indices, demand };
        if self.is_left(&jobs, &more, told) {
            self.running.push((more, told, told.map(|_| self.now + runs)));
        }
        Ok(())
    }

    /// One that has a plan asks: it begins where it was planned, if it may, or has its plan looked at.
    fn asks(&mut self, this: usize) -> Result<bool, TestCaseError> {
        let (its, mut jobs) = (self.planned[this].clone(), self.jobs());
        prop_assert!(self.now <= its.begins_by + ASKS_EVERY, "it could not begin in time, by {}", its.begins_by);
        let (mut own, _) = jobs.remove(this);
        own.begins_by_ns = its.begins_by + ASKS_EVERY;
        let gpus = &own.frames[0].gpus;
        let is_free = its.plan.fits_in(gpus, &own);
        if is_free && self.is_left(&jobs, &its.plan.taken, Some(self.now + its.length)) {
            let ends = (Some(self.now + its.length), Some(self.now + its.runs));
            self.running.push((its.plan.taken, ends.0, ends.1));
            return Ok(true);
        }
        let theirs: Vec<&Plan> = jobs.iter().map(|(_, plan)| plan).collect();
        let is_good = its.plan.begins_ns + SLACK >= self.now && its.plan.holds(&own, &theirs, self.now);
        prop_assert!(is_good, "a plan for {} holds no more at {}", its.plan.begins_ns, self.now);
        Ok(false)
    }

    /// Time goes on, and each asks now and then.
    fn pass(&mut self, time: u64) -> Result<(), TestCaseError> {
        let until = self.now + time;
        for at in self.now..until {
            self.now = at;
            self.running.retain(|(_, _, ends)| ends.is_none_or(|ends| ends > at));
            let mut this = 0;
            while this < self.planned.len() {
                let is_its_turn = (at - self.planned[this].came).is_multiple_of(ASKS_EVERY);
                match is_its_turn && self.asks(this)? {
                    true => drop(self.planned.remove(this)),
                    false => this += 1,
                }
            }
            for number in 0..self.gpus {
                let on = self.running.iter().filter(|(taken, _, _)| taken.indices == [number]);
                let sum: u32 = on.clone().map(|(taken, _, _)| u32::from(taken.demand.guaranteed_permille())).sum();
                let whole = on.clone().filter(|(taken, _, _)| taken.demand.usage == Use::Whole).count();
                prop_assert!(sum <= 1000 && (whole == 0 || on.count() == 1), "GPU {number} at {at}: {sum}");
            }
        }
        self.now = until;
        Ok(())
    }
}
