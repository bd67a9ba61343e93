//! Who is next of those who wait for room on the GPUs, and what is kept for whom meanwhile.
//!
//! Few say how long their containers will run, so no plan of ends that are to come is the rule, as batch systems make one. A set of
//! GPUs is kept for the first one in the queue that does not fit: nobody behind it takes of these what it needs. It begins when the
//! leases that were on them have made room, at the latest; all other room goes to those behind it at once. Where ends are known,
//! what is kept is lent until it is wanted ([`crate::backfill`]).

use crate::admission::{Demand, GpuCapacity, MemoryDemand, Part, Use, WHOLE_PERMILLE};
use crate::slice::Priority;
use std::collections::BTreeMap;

/// What decides about the place of one that waits. It stays as it was when it came.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Claim {
    /// Before whom it is served.
    pub priority: Priority,
    /// Whether it waits for its turn, as all do but those for whom there is an emergency.
    pub is_ordinary: bool,
    /// In which round of all owners of that priority it is served.
    pub round: u64,
    /// Since when it waits, in nanoseconds of any one clock.
    pub since_ns: u64,
}

/// The order of the queue, as indices into `claims`: higher priorities first, among equals round by round, in a round as they
/// came.
#[must_use]
pub fn order(claims: &[Claim]) -> Vec<usize> {
    let mut all: Vec<usize> = (0..claims.len()).collect();
    all.sort_by_key(|index| claims[*index]);
    all
}

/// The rounds in which owners of what waits, teams or users, take turns: one of each in a round, however many an owner has.
/// They are the start tags of start-time fair queueing (Goyal, Vin and Cheng 1996) with equal weights and lengths.
#[derive(Clone, Debug, Default)]
pub struct Rounds(BTreeMap<(Priority, String), u64>);

impl Rounds {
    /// The round of one that comes now, behind those in `waiting`: the one that is being served, or the one after its owner's
    /// last.
    pub fn join(&mut self, waiting: &[Claim], priority: Priority, owner: &str) -> u64 {
        let now = waiting.iter().filter(|claim| claim.priority == priority).map(|claim| claim.round).min();
        // What owners had in earlier rounds puts them behind nobody; with nobody waiting it begins anew.
        self.0.retain(|(its, _), last| *its != priority || now.is_some_and(|now| *last >= now));
        let now = now.unwrap_or(0);
        let round = self.0.get(&(priority, owner.to_owned())).map_or(now, |last| last.saturating_add(1).max(now));
        self.note(priority, owner, round);
        round
    }

    /// One of this owner that was in `round` has left with nothing; `others` are the rounds of those that it still has waiting.
    /// What it did not get puts it behind nobody.
    pub fn give_back(&mut self, priority: Priority, owner: &str, round: u64, others: impl Iterator<Item = u64>) {
        let key = (priority, owner.to_owned());
        if self.0.get(&key) != Some(&round) {
            return;
        }
        match others.max().max(round.checked_sub(1)) {
            Some(before) => drop(self.0.insert(key, before)),
            None => drop(self.0.remove(&key)),
        }
    }

    /// One of this owner waits in this round.
    pub fn note(&mut self, priority: Priority, owner: &str, round: u64) {
        let last = self.0.entry((priority, owner.to_owned())).or_insert(round);
        *last = (*last).max(round);
    }
}

/// Room on some GPUs that somebody who waits is about to have, or that is kept for him.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Taken {
    /// Indices of the GPUs.
    pub indices: Vec<usize>,
    /// What he asks of each.
    pub demand: Demand,
}

impl Taken {
    /// What it is of a GPU.
    #[must_use]
    pub fn part_of(&self, gpu: &GpuCapacity) -> Part {
        Part { permille: self.demand.guaranteed_permille(), bytes: capped_bytes(&self.demand, gpu) }
    }

    /// Counts it as if it were leased.
    pub fn enter(&self, gpus: &mut [GpuCapacity]) {
        for index in &self.indices {
            let Some(gpu) = gpus.get_mut(*index) else { continue };
            let permille = self.demand.guaranteed_permille();
            gpu.fraction_leased_permille = gpu.fraction_leased_permille.saturating_add(permille);
            gpu.memory_leased_bytes = gpu.memory_leased_bytes.saturating_add(capped_bytes(&self.demand, gpu));
            match self.demand.usage {
                Use::Sliced => gpu.users.sliced += 1,
                Use::Whole => gpu.users.whole += 1,
                Use::TimeSliced => gpu.users.time_sliced += 1,
                // Whose server it will be under is not known here: it is nobody's whom another one could join.
                Use::Mps => {
                    gpu.users.mps += 1;
                    gpu.users.mps_of_others += 1;
                }
            }
        }
    }
}

/// Memory that it is promised: all of a whole GPU, in time slices what it asks for.
pub(crate) fn capped_bytes(demand: &Demand, gpu: &GpuCapacity) -> u64 {
    match (demand.usage, demand.memory) {
        (Use::Whole, _) => gpu.memory_total_bytes,
        (Use::TimeSliced, MemoryDemand::Absent) => 0,
        (Use::Sliced | Use::Mps | Use::TimeSliced, _) => demand.memory_bytes(gpu.memory_total_bytes),
    }
}

/// How one that waits stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Prospect {
    /// It fits now.
    Fits,
    /// It does not fit, and something is kept for it.
    Keeps,
    /// It does not fit, and nothing is kept for it.
    Waits,
}

/// Has `look` say how each of those in `waiting` stands beside those before it, the first of the queue first. Its last argument is
/// whether something may be kept for this one: for the first alone that does not fit.
pub fn look_in_order<W>(waiting: impl IntoIterator<Item = W>, mut look: impl FnMut(W, bool) -> Prospect) {
    let mut may_keep = true;
    for one in waiting {
        may_keep &= look(one, may_keep) != Prospect::Keeps;
    }
}

/// The GPUs of `among` that are to be kept for `demand`: those on which it lacks least. None if there are not enough that
/// could ever hold it.
#[must_use]
pub fn kept_for(gpus: &[GpuCapacity], among: &[usize], demand: &Demand) -> Option<Vec<usize>> {
    let could_hold = |index: &&usize| {
        let gpu = &gpus[**index];
        capped_bytes(demand, gpu) <= gpu.memory_total_bytes
    };
    let mut could: Vec<usize> = among.iter().filter(could_hold).copied().collect();
    let wanted = demand.gpus.max(1);
    if could.len() < wanted {
        return None;
    }
    could.sort_by_key(|index| (lack(&gpus[*index], demand), gpus[*index].key.clone()));
    could.truncate(wanted);
    could.sort_unstable();
    Some(could)
}

/// How far a GPU is from holding `demand`: how many are on it that cannot be beside it, then what is missing of share or
/// memory, in thousandths of the GPU's.
pub(crate) fn lack(gpu: &GpuCapacity, demand: &Demand) -> (u32, u64) {
    let missing_permille =
        demand.guaranteed_permille().saturating_sub(WHOLE_PERMILLE.saturating_sub(gpu.fraction_leased_permille));
    let missing_bytes = capped_bytes(demand, gpu).saturating_sub(gpu.memory_free_bytes());
    let of_memory = (u128::from(missing_bytes) * 1000).div_ceil(u128::from(gpu.memory_total_bytes.max(1)));
    let missing = u64::from(missing_permille).max(u64::try_from(of_memory).unwrap_or(u64::MAX));
    (gpu.users.number_in_the_way_of(demand.usage), missing)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::admission::{Site, Users};

    const GIB: u64 = 1 << 30;

    fn gpu(key: &str, share: u16, memory_gib: u64) -> GpuCapacity {
        GpuCapacity {
            key: key.to_owned(),
            memory_total_bytes: 24 * GIB,
            memory_foreign_bytes: 0,
            fraction_leased_permille: share,
            memory_leased_bytes: memory_gib * GIB,
            users: Users { sliced: u32::from(share > 0), ..Users::default() },
            site: Site::default(),
        }
    }

    fn demand(fraction_permille: u16, gib: u64) -> Demand {
        Demand {
            fraction_permille,
            memory: MemoryDemand::Bytes(gib * GIB),
            priority: Priority::Guaranteed,
            gpus: 1,
            usage: Use::Sliced,
        }
    }

    /// What waits, by owner and number.
    #[derive(Default)]
    struct Line {
        rounds: Rounds,
        waiting: Vec<(Claim, &'static str)>,
        came: u64,
    }

    impl Line {
        fn joins(&mut self, priority: Priority, names: &[&'static str]) {
            for name in names {
                let claims: Vec<Claim> = self.waiting.iter().map(|(claim, _)| *claim).collect();
                let round = self.rounds.join(&claims, priority, &name[..1]);
                self.came += 1;
                let claim = Claim { priority, is_ordinary: true, round, since_ns: self.came };
                self.waiting.push((claim, *name));
            }
        }

        fn in_order(&self) -> Vec<&'static str> {
            let claims: Vec<Claim> = self.waiting.iter().map(|(claim, _)| *claim).collect();
            order(&claims).into_iter().map(|index| self.waiting[index].1).collect()
        }

        fn leaves(&mut self, name: &str) {
            self.waiting.retain(|(_, its)| *its != name);
        }
    }

    #[test]
    fn owners_take_turns_and_higher_priorities_go_first() {
        let mut line = Line::default();
        line.joins(Priority::Burst, &["a9"]);
        line.joins(Priority::Guaranteed, &["a1", "a2", "a3", "b1", "b2", "c1"]);
        assert_eq!(line.in_order(), ["a1", "b1", "c1", "a2", "b2", "a3", "a9"]);
        // Who was served in a round is in the next one when he comes again.
        line.leaves("c1");
        line.joins(Priority::Guaranteed, &["c2", "d1"]);
        assert_eq!(line.in_order(), ["a1", "b1", "d1", "a2", "b2", "c2", "a3", "a9"]);
        ["a1", "b1", "d1"].iter().for_each(|name| line.leaves(name));
        line.joins(Priority::Guaranteed, &["e1", "d2"]);
        assert_eq!(line.in_order(), ["a2", "b2", "c2", "e1", "d2", "a3", "a9"]);
    }

    #[test]
    fn in_an_emergency_one_is_the_first_of_its_priority() {
        let mut line = Line::default();
        line.joins(Priority::Guaranteed, &["a1", "a2", "b1"]);
        line.joins(Priority::Burst, &["c1", "c2"]);
        let is_urgent = |name: &str| matches!(name, "a2" | "c2");
        line.waiting.iter_mut().for_each(|(claim, name)| claim.is_ordinary = !is_urgent(name));
        assert_eq!(line.in_order(), ["a2", "a1", "b1", "c2", "c1"]);
    }

    #[test]
    fn who_leaves_with_nothing_is_behind_nobody_for_it() {
        let mut line = Line::default();
        line.joins(Priority::Guaranteed, &["b1", "b2", "b3", "a1"]);
        for _ in 0..5 {
            line.leaves("a1");
            line.rounds.give_back(Priority::Guaranteed, "a", 0, std::iter::empty());
            line.joins(Priority::Guaranteed, &["a1"]);
        }
        assert_eq!(line.in_order(), ["b1", "a1", "b2", "b3"]);
        // One that still has others waiting is behind those.
        line.leaves("b3");
        line.rounds.give_back(Priority::Guaranteed, "b", 2, [0, 1].into_iter());
        line.joins(Priority::Guaranteed, &["b4"]);
        assert_eq!(line.in_order(), ["b1", "a1", "b2", "b4"]);
    }

    #[test]
    fn in_time_slices_that_memory_is_taken_which_is_asked_for() {
        let asked = |memory| Demand { usage: Use::TimeSliced, memory, ..demand(0, 0) };
        let mut gpus = [gpu("a", 0, 0)];
        assert_eq!(capped_bytes(&asked(MemoryDemand::Absent), &gpus[0]), 0);
        Taken { indices: vec![0], demand: asked(MemoryDemand::Permille(250)) }.enter(&mut gpus);
        assert_eq!((gpus[0].memory_leased_bytes, gpus[0].users.time_sliced), (6 * GIB, 1));
    }

    #[test]
    fn with_nobody_waiting_rounds_begin_anew_and_owners_are_forgotten() {
        let mut line = Line::default();
        line.joins(Priority::Guaranteed, &["a1", "a2", "b1"]);
        ["a1", "a2", "b1"].iter().for_each(|name| line.leaves(name));
        line.joins(Priority::Guaranteed, &["a3"]);
        assert_eq!((line.waiting[0].0.round, line.rounds.0.len()), (0, 1));
        // What an earlier life of the supervisor has written down counts as well.
        let mut rounds = Rounds::default();
        rounds.note(Priority::Guaranteed, "a", 4);
        let waits = Claim { priority: Priority::Guaranteed, is_ordinary: true, round: 4, since_ns: 1 };
        assert_eq!(
            (rounds.join(&[waits], Priority::Guaranteed, "a"), rounds.join(&[waits], Priority::Guaranteed, "b")),
            (5, 4)
        );
    }

    #[test]
    fn the_gpu_that_lacks_least_is_kept() {
        let gpus = [gpu("a", 700, 4), gpu("b", 600, 4), gpu("c", 300, 20), gpu("d", 0, 0)];
        assert_eq!(kept_for(&gpus[..3], &[0, 1, 2], &demand(500, 4)), Some(vec![2]), "a memory of nothing missing");
        assert_eq!(kept_for(&gpus[..3], &[0, 1, 2], &demand(500, 12)), Some(vec![1]), "a tenth, not a third");
        assert_eq!(kept_for(&gpus[..3], &[0, 1, 2], &Demand { gpus: 2, ..demand(500, 4) }), Some(vec![1, 2]));
        assert_eq!(kept_for(&gpus, &[0, 1], &Demand { usage: Use::Whole, ..demand(1000, 0) }), Some(vec![1]));
        assert_eq!(kept_for(&gpus, &[0, 1], &Demand { gpus: 3, ..demand(500, 4) }), None);
        assert_eq!(kept_for(&gpus, &[0, 1], &demand(500, 25)), None, "no GPU is so large");
    }

    #[test]
    fn what_is_kept_is_missing_for_those_behind_and_nothing_else() {
        let mut gpus = [gpu("a", 700, 4)];
        Taken { indices: vec![0], demand: demand(500, 8) }.enter(&mut gpus);
        assert_eq!((gpus[0].share_free_permille(), gpus[0].memory_free_bytes()), (0, 12 * GIB));
        let whole = Demand { usage: Use::Whole, ..demand(1000, 0) };
        let mut gpus = [gpu("a", 0, 0)];
        Taken { indices: vec![0], demand: whole }.enter(&mut gpus);
        assert!(gpus[0].users.in_the_way_of(Use::Sliced).is_some());
        assert_eq!(gpus[0].memory_free_bytes(), 0);
    }

    #[test]
    fn something_is_kept_for_the_first_that_does_not_fit_and_no_other() {
        let mut asked = Vec::new();
        look_in_order([0usize, 1, 2, 3], |one, may_keep| {
            asked.push((one, may_keep));
            match one {
                0 | 3 => Prospect::Fits,
                _ if may_keep => Prospect::Keeps,
                _ => Prospect::Waits,
            }
        });
        assert_eq!(asked, [(0, true), (1, true), (2, false), (3, false)]);
    }
}
