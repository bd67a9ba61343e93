//! Plans for those who say by when they have to be through, and for how long they run: each has room kept for it from a moment on, on
//! some GPUs, or is told at once that there is none in time.
//!
//! A request is admitted if it can be put beside what was planned already, or if all of them together can be planned anew, earliest
//! deadline first (Liu and Layland 1973; of jobs that each take all of one GPU and may begin at once that order meets all deadlines if
//! any does: Jackson 1955). What runs without an end never gives room. So who was admitted stays so, whoever comes later, as long as
//! those who run keep to their ends and GPUs stay in use. Of several GPUs or of parts of them it is a heuristic: it may refuse what a
//! better packing would have held.

use crate::admission::{Demand, GpuCapacity, Users, place};
use crate::queue::Taken;
use std::collections::BTreeSet;
use std::sync::Arc;

/// The GPUs as they will be from a moment on, until that of the next one: without those who have ended by then.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Frame {
    /// From when on, in nanoseconds of any one clock.
    pub from_ns: u64,
    /// What is taken of each of them, plans aside.
    pub gpus: Vec<GpuCapacity>,
}

/// One that is to be through by some moment.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Job {
    /// What it asks for.
    pub demand: Demand,
    /// The GPUs that will do, as indices.
    pub among: Vec<usize>,
    /// The GPUs as it may have them, in ascending order of moments, all of it from the first one's on.
    pub frames: Arc<[Frame]>,
    /// For how long it has its GPUs, with what it takes until they are free afterwards, in nanoseconds.
    pub length_ns: u64,
    /// When it has to begin at the latest.
    pub begins_by_ns: u64,
}

/// When and where one of them begins.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Plan {
    /// From when on it has room.
    pub begins_ns: u64,
    /// Until when.
    pub ends_ns: u64,
    /// On which GPUs, and how much of each.
    pub taken: Taken,
}

impl Plan {
    fn is_at(&self, at_ns: u64) -> bool {
        (self.begins_ns..self.ends_ns).contains(&at_ns)
    }

    /// Whether somebody who has `more` until `until_ns`, for good if that is none, leaves it its room from `now_ns` on. `others` are the
    /// plans beside it. Who is not what takes it from it is in its way at no time.
    #[must_use]
    pub fn is_left_by(
        &self,
        job: &Job,
        others: &[&Plan],
        more: &Taken,
        (now_ns, until_ns): (u64, Option<u64>),
    ) -> bool {
        if !self.taken.indices.iter().any(|gpu| more.indices.contains(gpu)) {
            return true;
        }
        let span = (self.begins_ns.max(now_ns), until_ns.map_or(self.ends_ns, |until_ns| until_ns.min(self.ends_ns)));
        let Some(mut gpus) = job.frames.first().map(|frame| frame.gpus.clone()) else { return true };
        moments(&job.frames, others, span).into_iter().all(|at_ns| {
            load(&mut gpus, &job.frames, others, at_ns);
            if !self.fits_in(&gpus, job) {
                return true;
            }
            more.enter(&mut gpus);
            self.fits_in(&gpus, job)
        })
    }

    /// Whether it still has its room beside the `others`, from `now_ns` on.
    #[must_use]
    pub fn holds(&self, job: &Job, others: &[&Plan], now_ns: u64) -> bool {
        let states = states(&job.frames, others);
        let is_all_there = self.taken.indices.len() == job.demand.gpus.max(1);
        let Some(mut gpus) = job.frames.first().map(|frame| frame.gpus.clone()) else { return false };
        through(&mut gpus, &states, (self.begins_ns.max(now_ns), self.ends_ns));
        is_all_there && self.taken.indices.iter().all(|gpu| job.among.contains(gpu)) && self.fits_in(&gpus, job)
    }

    /// Whether its GPUs, as they are without it, have room for it.
    #[must_use]
    pub fn fits_in(&self, gpus: &[GpuCapacity], job: &Job) -> bool {
        let one = Demand { gpus: 1, ..job.demand };
        let its = |gpu: &usize| gpus.get(*gpu).is_some_and(|gpu| place(std::slice::from_ref(gpu), &one).is_ok());
        self.taken.indices.iter().all(its)
    }
}

/// The earliest plan for one beside the `others`, from `now_ns` on, that also goes with whatever else `may` say. None if it would begin
/// too late.
#[must_use]
pub fn earliest(job: &Job, others: &[&Plan], now_ns: u64, may: impl Fn(&Plan) -> bool) -> Option<Plan> {
    let states = states(&job.frames, others);
    let changes = states.iter().map(|(at_ns, _)| *at_ns).chain([now_ns]);
    let starts: BTreeSet<u64> = changes.filter(|at_ns| (now_ns..=job.begins_by_ns).contains(at_ns)).collect();
    let mut gpus = job.frames.first()?.gpus.clone();
    starts.into_iter().find_map(|begins_ns| {
        let ends_ns = begins_ns.saturating_add(job.length_ns);
        through(&mut gpus, &states, (begins_ns, ends_ns));
        let among: Vec<GpuCapacity> = job.among.iter().filter_map(|gpu| gpus.get(*gpu).cloned()).collect();
        let placed = place(&among, &job.demand).ok()?;
        let indices = placed.indices.into_iter().map(|place| job.among[place]).collect();
        Some(Plan { begins_ns, ends_ns, taken: Taken { indices, demand: job.demand } }).filter(&may)
    })
}

/// Plans for those that were `planned`, in their order, and for a new one, which is the last: theirs as they are if it fits beside them,
/// else all of them anew. They also have to go with whatever else `may` says. None if that does not go either.
#[must_use]
pub fn admit(planned: &[(Job, Plan)], new: &Job, now_ns: u64, may: impl Fn(&[Plan]) -> bool) -> Option<Vec<Plan>> {
    let old: Vec<&Plan> = planned.iter().map(|(_, plan)| plan).collect();
    let with = |plan: &Plan| -> Vec<Plan> { old.iter().copied().chain([plan]).cloned().collect() };
    if let Some(plan) = earliest(new, &old, now_ns, |plan| may(&with(plan))) {
        return Some(with(&plan));
    }
    let jobs: Vec<&Job> = planned.iter().map(|(job, _)| job).chain([new]).collect();
    all(&jobs, now_ns).filter(|plans| may(plans))
}

/// Plans for all of them anew, in their order: by deadlines, or by when they have to begin.
fn all(jobs: &[&Job], now_ns: u64) -> Option<Vec<Plan>> {
    let deadline = |job: &Job| job.begins_by_ns.saturating_add(job.length_ns);
    let begins_by = |job: &Job| job.begins_by_ns;
    in_order_of(jobs, deadline, now_ns).or_else(|| in_order_of(jobs, begins_by, now_ns))
}

fn in_order_of(jobs: &[&Job], key: impl Fn(&Job) -> u64, now_ns: u64) -> Option<Vec<Plan>> {
    let mut order: Vec<usize> = (0..jobs.len()).collect();
    order.sort_by_key(|place| key(jobs[*place]));
    let mut plans: Vec<Option<Plan>> = vec![None; jobs.len()];
    for place in order {
        let others: Vec<&Plan> = plans.iter().flatten().collect();
        plans[place] = Some(earliest(jobs[place], &others, now_ns, |_| true)?);
    }
    plans.into_iter().collect()
}

/// The moments in a span at which something changes to the worse, and its first one.
fn moments(frames: &[Frame], plans: &[&Plan], (from_ns, until_ns): (u64, u64)) -> BTreeSet<u64> {
    let changes = frames.iter().map(|frame| frame.from_ns).chain(plans.iter().map(|plan| plan.begins_ns));
    changes.chain([from_ns]).filter(|at_ns| (from_ns..until_ns).contains(at_ns)).collect()
}

/// What is taken of one GPU: what differs from one moment to another.
#[derive(Clone, Copy, Debug)]
struct Load {
    memory_foreign_bytes: u64,
    fraction_leased_permille: u16,
    memory_leased_bytes: u64,
    users: Users,
}

impl Load {
    fn of(gpu: &GpuCapacity) -> Self {
        Self {
            memory_foreign_bytes: gpu.memory_foreign_bytes,
            fraction_leased_permille: gpu.fraction_leased_permille,
            memory_leased_bytes: gpu.memory_leased_bytes,
            users: gpu.users,
        }
    }

    fn put_on(self, gpu: &mut GpuCapacity) {
        gpu.memory_foreign_bytes = self.memory_foreign_bytes;
        gpu.fraction_leased_permille = self.fraction_leased_permille;
        gpu.memory_leased_bytes = self.memory_leased_bytes;
        gpu.users = self.users;
    }

    /// Of each what is more.
    fn worse(self, other: Self) -> Self {
        let (a, b) = (self.users, other.users);
        Self {
            memory_foreign_bytes: self.memory_foreign_bytes.max(other.memory_foreign_bytes),
            fraction_leased_permille: self.fraction_leased_permille.max(other.fraction_leased_permille),
            memory_leased_bytes: self.memory_leased_bytes.max(other.memory_leased_bytes),
            users: Users {
                sliced: a.sliced.max(b.sliced),
                whole: a.whole.max(b.whole),
                time_sliced: a.time_sliced.max(b.time_sliced),
                mps: a.mps.max(b.mps),
                mps_of_others: a.mps_of_others.max(b.mps_of_others),
                mps_faulted: a.mps_faulted.max(b.mps_faulted),
                mps_full: a.mps_full.max(b.mps_full),
                mps_set: a.mps_set.or(b.mps_set),
                outside: a.outside.max(b.outside),
            },
        }
    }
}

/// Puts on the GPUs what is on them at a moment, with those plans that have begun and not ended. Before the first frame it is as in that.
fn load(gpus: &mut [GpuCapacity], frames: &[Frame], plans: &[&Plan], at_ns: u64) {
    let frame = frames.iter().rev().find(|frame| frame.from_ns <= at_ns).or(frames.first());
    for (gpu, then) in gpus.iter_mut().zip(frame.into_iter().flat_map(|frame| &frame.gpus)) {
        Load::of(then).put_on(gpu);
    }
    plans.iter().filter(|plan| plan.is_at(at_ns)).for_each(|plan| plan.taken.enter(gpus));
}

/// What is on the GPUs from each moment on at which anything changes, in order.
fn states(frames: &[Frame], plans: &[&Plan]) -> Vec<(u64, Vec<Load>)> {
    let Some(mut gpus) = frames.first().map(|frame| frame.gpus.clone()) else { return Vec::new() };
    let of_plans = plans.iter().flat_map(|plan| [plan.begins_ns, plan.ends_ns]);
    let changes: BTreeSet<u64> = frames.iter().map(|frame| frame.from_ns).chain(of_plans).collect();
    let at = |at_ns| {
        load(&mut gpus, frames, plans, at_ns);
        (at_ns, gpus.iter().map(Load::of).collect())
    };
    changes.into_iter().map(at).collect()
}

/// Puts on each GPU what is taken of it at the worst moment of a span.
fn through(gpus: &mut [GpuCapacity], states: &[(u64, Vec<Load>)], (from_ns, until_ns): (u64, u64)) {
    let first = states.partition_point(|(at_ns, _)| *at_ns <= from_ns).saturating_sub(1);
    let in_span = states[first..].iter().take_while(|(at_ns, _)| *at_ns < until_ns);
    let loads = in_span.chain(&states[first..=first]).map(|(_, loads)| loads.clone());
    let worst = loads.reduce(|worst, then| worst.into_iter().zip(then).map(|(one, other)| one.worse(other)).collect());
    for (gpu, load) in gpus.iter_mut().zip(worst.into_iter().flatten()) {
        load.put_on(gpu);
    }
}

#[cfg(test)]
mod tests;
